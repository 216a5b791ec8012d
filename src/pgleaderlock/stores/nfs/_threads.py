"""Blocking work in a thread, for coroutines that may be cancelled meanwhile.

A thread cannot be stopped, and a file server that does not answer may block it for hours. So the work gets an event
that is set when it is cancelled, and its thread undoes what the work achieves after that. The cancelled coroutine waits
for the undoing as long as one step takes on a healthy disk, and not longer. The threads are daemons: none of them keeps
a process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from pgleaderlock._base import threads

T = TypeVar("T")

_NAME = "pgleaderlock-nfs"


class Threads:
    """Runs work that may block in threads of this process. A simulation, which has no threads, replaces it."""

    def begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Start work in a thread, and return a future of the running event loop for its result."""
        return threads.begin(work, _NAME, is_short=True)

    def start(self, work: Callable[[], object]) -> None:
        """Start work in a thread without waiting for its end. Needs no event loop."""
        threads.start(work, _NAME, is_short=True)


_THREADS = Threads()


async def run(work: Callable[[], T], threads: Threads = _THREADS) -> T:
    """Run work in a thread and return its result. When this coroutine is cancelled, the work goes on."""
    return await threads.begin(work)


class Undoable:
    """Work in a thread that is undone when the coroutine that requested it is cancelled."""

    def __init__(
        self,
        work: Callable[[], bool],
        undo: Callable[[], object],
        is_cancelled: threading.Event,
        *,
        at_end: Callable[[], object] = lambda: None,
        undone_within_s: float = 0.0,
        threads: Threads = _THREADS,
    ) -> None:
        self._work = work
        self._undo = undo
        self._is_cancelled = is_cancelled
        self._at_end = at_end  # called once, when no thread works on it any more
        self._undone_within_s = undone_within_s
        self._threads = threads
        self._guard = threading.Lock()
        self._is_done = False
        self._has_failed = False
        self._notify_end: Callable[[], object] = lambda: None

    async def run(self) -> bool:
        """Return the result of the work. When cancelled, cancel the work; if it has ended already, undo it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._notify_end = lambda: loop.call_soon_threadsafe(ended.set)
        try:
            result = await run(self._do, self._threads)
        except asyncio.CancelledError:
            self._cancel()
            if self._undone_within_s > 0:  # a second cancellation leaves at once: the thread goes on in any case
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._undone_within_s)
            raise
        except GeneratorExit:  # the loop was closed during the wait, and cannot run another
            self._cancel()
            raise
        except BaseException:
            self._end()
            raise
        self._end()
        return result

    def _cancel(self) -> None:
        with self._guard:
            self._is_cancelled.set()
            was_done = self._is_done
        if was_done:  # its result was not used
            self._threads.start(self._undo_and_end)

    def _do(self) -> bool:
        self._has_failed = True
        try:
            result = self._work()
            self._has_failed = False
            return result
        finally:
            with self._guard:
                self._is_done = True
                is_wanted = not self._is_cancelled.is_set()
            if not is_wanted:
                self._undo_and_end()

    def _undo_and_end(self) -> None:
        try:
            if not self._has_failed:
                self._undo()
        finally:
            self._end()

    def _end(self) -> None:
        self._at_end()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._notify_end()
