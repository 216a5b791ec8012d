"""Blocking work in a thread, for coroutines that may be cancelled meanwhile.

A thread cannot be stopped, and a file server that does not answer may keep it for hours. Whoever waits for it leaves at
once when cancelled, and what the thread brings about after that is undone by the thread itself. The threads are
daemons: none of them keeps a process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["GLANCE_S", "Undoable", "run"]

T = TypeVar("T")

GLANCE_S = 0.1
"""How often work looks whether it was cancelled."""


async def run(work: Callable[[], T]) -> T:
    """Wait for work in a thread. When we are cancelled, it goes on."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type] # then there is one
        else:
            answer.set_exception(error)

    def do() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=do, name="pgleaderlock-nfs", daemon=True).start()
    return await answer


class Undoable:
    """Work that is undone when whoever wanted it has left."""

    def __init__(self, work: Callable[[], bool], undo: Callable[[], object], is_cancelled: threading.Event) -> None:
        self._work = work
        self._undo = undo
        self._is_cancelled = is_cancelled
        self._guard = threading.Lock()
        self._is_done = False

    async def run(self) -> bool:
        """Wait for the work. When we are cancelled, so is the work; if it is too late for that, it is undone."""
        try:
            return await run(self._do)
        except asyncio.CancelledError:
            with self._guard:
                self._is_cancelled.set()
                was_done = self._is_done
            if was_done:
                threading.Thread(target=self._undo, name="pgleaderlock-nfs", daemon=True).start()
            raise

    def _do(self) -> bool:
        result = self._work()
        with self._guard:
            self._is_done = not self._is_cancelled.is_set()
            is_wanted = self._is_done
        if not is_wanted:
            self._undo()
        return result
