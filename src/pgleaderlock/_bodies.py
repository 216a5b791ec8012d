"""One piece of gated work: a function that runs while leading, and never twice at once in this process.

A :class:`Body` lives as long as its election. Each term gives it a :class:`Stint`, which waits for the one before to be
really over (a thread cannot be stopped, a coroutine may take its time), calls the function, and sees to what follows
when it returns or raises by itself. A stint that comes too late for its term calls nothing.

A stint is over when nothing of it runs any more: its task, its thread, and the stint before it.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pgleaderlock import _threads
from pgleaderlock._checks import check_callable, check_flag
from pgleaderlock._logging import NDLogger
from pgleaderlock.clock import Clock
from pgleaderlock.errors import LeadershipLost, LockError
from pgleaderlock.models import EventKind, Grant
from pgleaderlock.retry import ExponentialBackoff, RetryCycle
from pgleaderlock.stream import WORK_FAILED
from pgleaderlock.term import Term

__all__ = ["AfterWork", "Body", "Host", "Stint", "Work", "WorkPolicy", "is_async", "is_on_a_loop", "takes_argument"]

Work = Callable[..., Any]
"""``fn(term)`` or ``fn()``; ``async``, or plain and then run in a thread."""
AfterWork = Literal["restart", "step_down", "stop"]
"""What follows when work ends although its term does not."""

_STEADY_S = 60.0  # work that ran for so long begins anew without the pauses of its earlier failures
_PAUSES = ExponentialBackoff(base_s=1.0, max_s=30.0)
_whose: ContextVar["Stint | None"] = ContextVar("pgleaderlock_stint", default=None)  # its threads and tasks inherit it


@dataclass(frozen=True, slots=True)
class Host:
    """What gated work knows of the election that it belongs to, and may ask of it."""

    clock: Clock
    logger: NDLogger
    """Carries the election's labels."""
    described: str
    """Which lock this is about, for people."""
    patience_s: float
    """After how long work overruns where a grant never ends by itself."""
    grant_now: Callable[[], Grant | None]
    """The grant while leading; None in another process, another state, or when the loop is closed."""
    report: Callable[[EventKind, str, Exception], None]
    """Tell everybody: what kind of event, its cause, and the error."""
    leave: Callable[[AfterWork], None]
    """Give up leadership, or the whole election, because the work is done or cannot be done here."""
    note_rest: Callable[[], None]
    """Hear that no gated work runs any more."""


@dataclass(frozen=True, slots=True)
class WorkPolicy:
    """What follows when work ends by itself, and whether it may finish what it is at before a hand-over."""

    on_return: AfterWork = "restart"
    on_failure: AfterWork = "restart"
    drains: bool = False

    def __post_init__(self) -> None:
        for name in ("on_return", "on_failure"):
            if (value := getattr(self, name)) not in get_args(AfterWork):
                raise ValueError(f"{name} must be one of {', '.join(get_args(AfterWork))}, not {value!r}")
        check_flag("drains", self.drains)


class Body:
    """One registered function."""

    def __init__(self, fn: Work, policy: WorkPolicy, host: Host, name: str | None = None) -> None:
        check_callable("the work", fn)
        self.name = name or getattr(fn, "__qualname__", None) or type(fn).__name__
        self._takes_term = takes_argument(fn, self.name, "a term")
        self.fn = fn
        self.policy = policy
        self.host = host
        self.is_async = is_async(fn)
        self.stint: Stint | None = None
        self.result: object = None
        self.error: Exception | None = None
        """How it ended for good, where its policy is to stop."""

    def begin(self, term: Term) -> None:
        """Run in this term, as soon as nothing of an earlier one runs any more."""
        self.stint = Stint(self, term, self.stint)

    def call(self, term: Term) -> object:
        """Call the function as it was written."""
        return self.fn(term) if self._takes_term else self.fn()


class Stint:
    """One body in one term."""

    def __init__(self, body: Body, term: Term, previous: "Stint | None") -> None:
        self._body = body
        self._term = term
        self._loop = asyncio.get_running_loop()
        self._thread_is_free = threading.Event()
        self._thread_is_free.set()
        self._pending: set[asyncio.Future[Any]] = set()
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing of this runs any more. Shared: not to be cancelled."""
        self.is_reported = False
        self._is_ended = False
        self._before = None if previous is None else previous.over_here()
        if self._before is not None:
            self._wait_for(self._before)
        self._task = self._loop.create_task(self._live(), name=f"pgleaderlock work {body.name}")
        self._wait_for(self._task)

    @property
    def name(self) -> str:
        """Whose it is."""
        return self._body.name

    @property
    def fn(self) -> Work:
        """What it calls."""
        return self._body.fn

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more. What ran on a closed loop does not, unless it is a thread."""
        return self.over.done() or (self._loop.is_closed() and self._thread_is_free.is_set())

    @property
    def is_here(self) -> bool:
        """Whether the caller is this very work, where waiting for its end would be waiting for itself."""
        return _whose.get() is self

    def over_here(self) -> asyncio.Future[Any] | None:
        """Return what is done when this is over, on the loop of the caller; None if it is."""
        if self.is_over:
            return None
        if self._loop is asyncio.get_running_loop():
            return self.over
        return _threads.begin(self._thread_is_free.wait, f"pgleaderlock waits for {self.name}")

    def ask(self) -> None:
        """Let it come to an end before a hand-over. Its term says so; what cannot finish anything is cancelled."""
        if self._body.is_async and not self._body.policy.drains:
            self.end()

    def end(self) -> None:
        """Cancel it, once: a second time would cut short what it does to stop. A thread is told by its term."""
        if not self._is_ended and not self._loop.is_closed():
            self._is_ended = True  # not what its task counts: work may have swallowed a cancellation that was not ours
            self._task.cancel()

    def _wait_for(self, future: asyncio.Future[Any]) -> None:
        self._pending.add(future)
        future.add_done_callback(self._note_end)

    def _note_end(self, future: asyncio.Future[Any]) -> None:
        self._pending.discard(future)
        if not future.cancelled():
            future.exception()  # reported where it was raised
        if not self._pending:
            self.over.set_result(None)

    async def _live(self) -> None:
        _whose.set(self)
        while True:
            try:
                return await self._serve()
            except asyncio.CancelledError:
                if not await self._was_astray():
                    raise

    async def _was_astray(self) -> bool:
        """Whether a cancellation was not the election's, nor the end of the whole program: work must not end by it."""
        task = asyncio.current_task()
        if self._is_ended or task is None:
            return False
        while task.cancelling():
            task.uncancel()
        await asyncio.sleep(0)  # when everything is cancelled, so is the election: it ends us in the same moment
        return True

    async def _serve(self) -> None:
        if self._before is not None:
            self._body.host.logger.warning("work_still_running", work=self.name)
            await asyncio.wait({self._before})
        pauses = self._new_pauses()
        while not self._is_ending():
            pauses.begin_attempt()
            began_at = self._body.host.clock()
            error = await self._run_once()
            if self._is_ending():
                return
            how = self._body.policy.on_return if error is None else self._body.policy.on_failure
            if how != "restart":
                self._body.error = error if how == "stop" else None
                self._body.host.leave(how)
                return
            if self._body.host.clock() - began_at >= _STEADY_S:
                pauses = self._new_pauses()
                pauses.begin_attempt()
            pauses.fail_attempt(error)
            await self._pause(pauses.next_delay_s() or 0.0)

    def _is_ending(self) -> bool:
        return self._term.is_ending

    def _new_pauses(self) -> RetryCycle:
        return RetryCycle(_PAUSES, self._body.host.clock)

    async def _pause(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._term.wait_until_ending(), delay_s)

    async def _run_once(self) -> Exception | None:
        """Call the function and see it to its end. What it raises, or that it ended, is for the policy."""
        try:
            self._body.result = await (self._call() if self._body.is_async else self._call_in_a_thread())
        except asyncio.CancelledError:
            if not await self._was_astray():
                raise
            error: Exception = LockError("the work was cancelled, and not by its election")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # of a coroutine, and the event loop ends, or has. What a thread raised comes as an error
        except BaseException as raised:  # noqa: BLE001 - it is a user's
            error = _threads.failure(raised)
        else:
            return None
        self._report(error)
        return error

    async def _call(self) -> object:
        answer = self._body.call(self._term)
        return await answer if inspect.isawaitable(answer) else answer

    async def _call_in_a_thread(self) -> object:
        name = f"pgleaderlock work {self.name}"
        self._thread_is_free.clear()
        try:
            thread = _threads.begin(self._call_here, name)
        except BaseException:  # this system cannot have one more
            self._thread_is_free.set()
            raise
        self._wait_for(thread)
        try:
            while not thread.done():
                await self._wait_undeterred(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(self._report_late_failure)
            raise
        return thread.result()

    async def _wait_undeterred(self, thread: asyncio.Future[object]) -> None:
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError:
            if not await self._was_astray():
                raise

    def _call_here(self) -> object:
        try:
            return self._body.call(self._term)
        finally:
            self._thread_is_free.set()

    def _report_late_failure(self, thread: asyncio.Future[object]) -> None:
        """Of a thread that failed when nobody waited for it any more."""
        error = thread.exception()
        if isinstance(error, Exception):
            self._report(error)

    def _report(self, error: Exception) -> None:
        if isinstance(error, LeadershipLost) and self._is_ending():
            return  # term.check(), by which work stops when it must
        self._body.host.logger.error(WORK_FAILED, work=self.name, error=error, exc_info=error)
        self._body.host.report(EventKind.ERROR, WORK_FAILED, error)


def is_async(fn: Work) -> bool:
    """Whether calling it makes a coroutine, also behind functools.partial or in an object's ``__call__``."""
    while hasattr(fn, "func"):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def is_on_a_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def takes_argument(fn: Work, name: str, what: str) -> bool:
    """Whether it wants what it could be given. Work that nobody could call is refused now, not at three at night."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return True
    for arguments in ((None,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise TypeError(f"{name}{signature} cannot be called with {what}, nor without: it must take one argument or none")
