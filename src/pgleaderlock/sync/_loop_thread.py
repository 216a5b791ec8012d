"""The background thread: one event loop for all blocking elections of a process.

It exists while it has users: elections that run and calls that wait. They are counted; the last to leave ends it, and
the next starts another. It is a daemon thread, so that it does not keep a program alive. At exit, elections that still
run are shut down first, while threads still work.

In a process that gevent has patched, the thread is a greenlet, and its loop waits by gevent's ``select``: a greenlet
that does not let others run delays renewals, until leadership ends by the clock. All greenlets are one thread to
asyncio, which runs one event loop in it: the next user waits until the last loop has ended.

A forked child has this module's memory, but not the thread. It forgets the thread, and keeps its parent's loop alive
for ever: closing that would take the parent's sockets out of the epoll instance that both share.
"""

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent import futures
from typing import Any, Generic, TypeVar

from pgleaderlock._base import portable
from pgleaderlock._base.portable import at_fork
from pgleaderlock._base.threads import has_main_thread_ended
from pgleaderlock.errors import LockError

T = TypeVar("T")
Shutdown = Callable[[float], Awaitable[object]]
"""``fn(timeout_s)``, a coroutine function."""

_EXIT_S = 5.0  # for a graceful release when the interpreter ends
_FORCED_S = 2.0  # for what is left then
_ENDED = (
    "the background thread of pgleaderlock.sync has ended with the interpreter: no election can be started any more"
)

_guard = threading.RLock()  # a signal's handler may call shutdown() while its thread is just in here
_current: "LoopThread | None" = None
_ending: "LoopThread | None" = None
"""The greenlet that was asked to end last; None where threads are threads."""
_is_exiting = False
_is_registered = False
_parents: "list[LoopThread | None]" = []


class LoopEnded(LockError):  # noqa: N818 - reads as the fact that it is
    """There is no background thread any more, and therefore no election that runs."""


class Attempt(Generic[T]):
    """A call that its caller can cancel at any time: Ctrl-C may come before the caller has the future."""

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self._call = call
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        """Make the call, on the loop."""
        if self._is_cancelled:
            self._call.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._call

    def cancel(self) -> None:
        """Cancel it, on the loop. Does nothing when it has ended."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class LoopThread:
    """An event loop in a thread of its own. Made by :func:`enlist` only."""

    def __init__(self) -> None:
        self._users = 0
        self._shutdowns: dict[object, Shutdown] = {}
        # Made here and not in the thread, so that the first caller does not have to wait until the thread runs.
        self._loop = portable.new_event_loop()
        self._stop = asyncio.Event()
        self.is_ending = False
        self._thread = threading.Thread(target=self._run, name="pgleaderlock loop", daemon=True)

    def start(self) -> None:
        """Start the thread. LockError if the system has no more threads."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise LockError(f"the background thread of pgleaderlock.sync cannot be started: {error}") from error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                try:
                    runner.run(self._serve())
                finally:
                    _forget(self)  # before its tasks are cancelled: later callers get another thread
        except (KeyboardInterrupt, SystemExit):  # raised by a retry strategy, say: it ends no program from this thread
            pass
        except RuntimeError:  # of the loop's executor, which Python 3.12 cannot end at exit: that takes a thread
            if not has_main_thread_ended():
                raise

    async def _serve(self) -> None:
        await self._stop.wait()

    @property
    def is_here(self) -> bool:
        """Whether the caller is this thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def ask(self, call: Coroutine[Any, Any, T]) -> "futures.Future[T]":
        """Begin a call there. The caller must be enlisted until it is over."""
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as error:  # the loop was closed concurrently
            call.close()
            raise LoopEnded(_ENDED) from error

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call there and wait for its outcome. An exception that interrupts us, as Ctrl-C does, cancels it."""
        if self.is_here:
            call.close()
            raise LockError(
                "a blocking call of pgleaderlock.sync was made on its own event loop's thread, by a connect_fn or a "
                "retry strategy perhaps: it would wait for itself. Only is_leader and the like may be asked there"
            )
        attempt = Attempt(call)
        try:
            return self.ask(attempt.run()).result()
        except futures.CancelledError as error:
            raise LoopEnded(_ENDED) from error
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
                self._loop.call_soon_threadsafe(attempt.cancel)
            raise

    def keep(self, owner: object, shutdown: Shutdown) -> None:
        """Count this election as a user, and shut it down when the interpreter ends."""
        with _guard:
            self._users += 1
            self._shutdowns[owner] = shutdown

    def let_go(self, owner: object) -> None:
        """Count this election no more: it has ended."""
        with _guard:
            del self._shutdowns[owner]
        self.leave()

    def join(self) -> None:
        """Count one more user. The caller holds the guard."""
        self._users += 1

    def leave(self) -> None:
        """Count one user less; the last one ends the thread."""
        global _current, _ending  # noqa: PLW0603
        with _guard:
            self._users -= 1
            if self._users:
                return
            if _current is self:
                _current = None
            if portable.has_greenlets_for_threads():
                _ending = self
        self._ask_to_end()

    def wait_until_ended(self) -> None:
        """Wait for the end of the thread, unless the caller is this thread. Holding the guard would keep it alive."""
        if not self.is_here:
            self._thread.join()

    def _ask_to_end(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._stop.set)

    def end(self) -> None:
        """At exit: shut down all elections, then end the thread, in bounded time."""
        self.is_ending = True
        with contextlib.suppress(LoopEnded, futures.TimeoutError):
            self.ask(self._shut_all_down()).result(_EXIT_S + _FORCED_S)
        self._ask_to_end()
        self._thread.join(_FORCED_S)

    async def _shut_all_down(self) -> None:
        with _guard:
            shutdowns = list(self._shutdowns.values())
        await asyncio.gather(*(shutdown(_EXIT_S) for shutdown in shutdowns), return_exceptions=True)


def enlist() -> LoopThread:
    """Return the thread, which stays until :meth:`LoopThread.leave` is called as often as this."""
    global _is_registered  # noqa: PLW0603
    with _guard_after_last_loop():
        thread = _current or _start()
        if not _is_registered:  # late, so that what was registered before, such as logging's end, comes after us
            atexit.register(_at_exit)
            _is_registered = True
        thread.join()
        return thread


@contextlib.contextmanager
def _guard_after_last_loop() -> Iterator[None]:
    """Hold the guard, at a moment at which no loop is about to end that would keep the next one from running."""
    global _ending  # noqa: PLW0603
    while True:
        with _guard:
            last = _ending
            if _current is not None or last is None:
                yield
                return
        last.wait_until_ended()
        with _guard:
            if _ending is last:
                _ending = None


def _start() -> LoopThread:
    global _current  # noqa: PLW0603
    if _is_exiting:
        raise LoopEnded(_ENDED)
    _check_gevent()
    thread = LoopThread()
    thread.start()
    _current = thread
    return thread


def _check_gevent() -> None:
    """Raise LockError where gevent has replaced only one of threads and select: the loop would stand still, or all."""
    if portable.has_greenlets_for_threads() != portable.has_cooperative_select():
        raise LockError(
            "gevent has replaced one of threads and select, and not the other: the event loop of pgleaderlock.sync "
            "could not run beside other greenlets. Call gevent.monkey.patch_all(), or let it replace neither"
        )


def _forget(thread: LoopThread) -> None:
    global _current  # noqa: PLW0603
    with _guard:
        if _current is thread:
            _current = None


def _at_exit() -> None:
    global _is_exiting  # noqa: PLW0603
    with _guard:
        _is_exiting = True
        thread = _current
    if thread is not None:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the server frees the lock
            thread.end()


def _forget_in_child() -> None:
    global _current, _ending, _guard  # noqa: PLW0603
    _guard = threading.RLock()  # another thread may have held the old one, and there are no other threads any more
    _parents.append(_current)
    _current = _ending = None


at_fork(after_in_child=_forget_in_child)
