"""The thread on which one election's callbacks run, one after another.

Not the event loop's thread, where a callback that blocks would delay renewals of every election. It is started with a
run that has callbacks, and not when the first is due: that may be at exit, when Python 3.12 starts no thread any more.
It stays until the run is over, so that what users keep per thread, such as a database connection, is kept.

A thread cannot be cancelled. A callback for which the engine no longer waits goes on, and later ones wait for it; one
whose turn has not come by then is not called.
"""

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable

from pgleaderlock.errors import LockError


class _Job:
    """One call, and the future for its end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[None] = self._loop.create_future()

    def run(self) -> None:
        if self.answer.cancelled():
            return
        error = _attempt(self._call)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class CallbackThread:
    """The queue of callbacks of one election, and the thread that works it off."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._has_callbacks = False
        self._is_wanted = False

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of these callbacks, where waiting for the election would be waiting for itself."""
        return threading.current_thread() is self._thread

    def expect_callbacks(self) -> None:
        """Note that a callback was registered, before a run or during it."""
        with self._changed:
            self._has_callbacks = True
            self._start_early()

    def begin_run(self) -> None:
        """Start the thread for this run, if there is a callback."""
        with self._changed:
            self._is_wanted = True
            self._start_early()

    def _start_early(self) -> None:
        if self._has_callbacks and self._is_wanted:
            with contextlib.suppress(RuntimeError):  # the first callback tries again, and its failure is reported
                self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="pgleaderlock callbacks", daemon=True)
            thread.start()
            self._thread = thread

    async def run(self, call: Callable[[], object]) -> None:
        """Queue a call from the event loop, and wait until it has returned. Raises what it raised."""
        job = _Job(call)
        with self._changed:
            self._jobs.append(job)
            self._is_wanted = True
            self._ensure_thread()
            self._changed.notify()
        await job.answer

    def rest(self) -> None:
        """End the thread once it has nothing left to do."""
        with self._changed:
            self._is_wanted = False
            self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # or it, and what it refers to, would live until the next one comes

    def _next(self) -> _Job | None:
        with self._changed:
            while not self._jobs and self._is_wanted:
                self._changed.wait()
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None


def _attempt(call: Callable[[], object]) -> Exception | None:
    """Make the call. Return what it raised, as an error that does not end the event loop; None if it returned."""
    try:
        result = call()
        if inspect.iscoroutine(result):
            result.close()
            return TypeError("callbacks of pgleaderlock.sync are plain functions: this one returned a coroutine")
    except StopIteration as error:  # which no future can carry
        return _wrapped(error)
    except Exception as error:  # noqa: BLE001 - the engine reports it
        return error
    except BaseException as error:  # noqa: BLE001 - sys.exit() in a thread ends no program, and must not end the loop
        return _wrapped(error)
    return None


def _wrapped(error: BaseException) -> LockError:
    wrapped = LockError(
        f"the callback raised {type(error).__name__}: {error}. It runs in a thread of its own, where that ends nothing"
    )
    wrapped.__cause__ = error
    return wrapped
