"""Blocking work in a thread, for coroutines that may be cancelled meanwhile.

A thread cannot be stopped, and a file server that does not answer may keep it for hours. So work that is not wanted any
more is told so, and what it brings about after that is undone by its thread. Whoever is cancelled waits for that as
long as one step takes on a healthy disk, and not longer. The threads are daemons: none of them keeps a process from
ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from pgleaderlock import _threads

__all__ = ["Threads", "Undoable", "run"]

T = TypeVar("T")

_NAME = "pgleaderlock-nfs"


class Threads:
    """Where work is done that may block: threads of this process. A simulation, which has none, has another."""

    def begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Begin some work whose end somebody on the running event loop waits for."""
        return _threads.begin(work, _NAME, is_short=True)

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work whose end nobody waits for. Needs no event loop."""
        _threads.start(work, _NAME, is_short=True)


_THREADS = Threads()


async def run(work: Callable[[], T], threads: Threads = _THREADS) -> T:
    """Wait for work in a thread. When we are cancelled, it goes on."""
    answer = threads.begin(work)
    return await answer


class Undoable:
    """Work that is undone when whoever wanted it has left."""

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
        self._at_end = at_end  # once, when no thread is at it any more
        self._undone_within_s = undone_within_s
        self._threads = threads
        self._guard = threading.Lock()
        self._is_done = False
        self._has_failed = False
        self._tell: Callable[[], object] = lambda: None

    async def run(self) -> bool:
        """Wait for the work. When we are cancelled, so is the work; if it is too late for that, it is undone."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._tell = lambda: loop.call_soon_threadsafe(ended.set)
        try:
            result = await run(self._do, self._threads)
        except asyncio.CancelledError:
            self._cancel()
            if self._undone_within_s > 0:  # a second cancellation leaves at once: the thread goes on in any case
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._undone_within_s)
            raise
        except GeneratorExit:  # the loop was closed under our feet, and cannot be waited on
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
        if was_done:  # and nobody was there to take what it brought
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
            self._tell()
