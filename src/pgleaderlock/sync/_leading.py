"""``with lock.leading()``: a block in the caller's thread that runs as the leader."""

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.engine._leader_task import RunMark, TaskRun
from pgleaderlock.engine.leading import LeadingBlock
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import LockError
from pgleaderlock.sync._loop_thread import LoopEnded, LoopThread

T = TypeVar("T")
_EXIT_TIMEOUT_S = 10.0  # for a block that ends in an exception


class Call(Protocol):
    """Makes a call on the event loop's thread, and returns its result."""

    def __call__(self, make: Callable[[LoopThread], Coroutine[Any, Any, T]], /) -> T:
        """Make it."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """How a block in a thread reaches its election on the event loop."""

    call: Call
    """Refuses a caller that would wait for itself."""
    call_anywhere: Call
    ask: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    """Makes a call there, without waiting for it."""
    is_forked: Callable[[], bool]
    """Whether this is a forked child, which has not that thread."""


class BlockingLeading:
    """One block at a time. Can be entered again after it was left."""

    def __init__(
        self,
        caller: Caller,
        new_block: Callable[[LoopThread], Coroutine[Any, Any, LeadingBlock]],
        timeout_s: float | None,
    ) -> None:
        self._caller = caller
        self._new_block = new_block
        self._timeout_s = timeout_s
        self._block: LeadingBlock | None = None
        self._mark: RunMark

    def __enter__(self) -> Term:
        """Wait for leadership; TimeoutError if it does not come in time, LockError if the election stops."""
        if self._block is not None:
            raise LockError("this leading() block was entered already: call lock.leading() for each")
        gives_up_at = None if self._timeout_s is None else suspend_aware_clock() + self._timeout_s
        try:
            run = self._caller.call(partial(self._enter, timeout_s=self._timeout_s))
            while run.term.is_ending:  # since the event loop's thread has checked it: this thread may have waited
                self._caller.call(lambda _: self._abandon())
                left_s = None if gives_up_at is None else max(0.0, gives_up_at - suspend_aware_clock())
                run = self._caller.call(partial(self._enter, timeout_s=left_s))
        except BaseException:  # Ctrl-C may come when the block was entered and this thread does not know it yet
            self._caller.ask(self._abandon)
            raise
        self._mark = run.mark_as_inside()
        return run.term

    async def _enter(self, home: LoopThread, timeout_s: float | None) -> TaskRun:
        block = await self._new_block(home)
        self._block = block
        return await block.enter(timeout_s)

    async def _abandon(self) -> None:
        block, self._block = self._block, None
        if block is not None and block.entered is not None and not block.is_over:
            await block.leave(_EXIT_TIMEOUT_S)

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Release leadership. Raise LeadershipLost if it ended before the block, unless the block raised an error."""
        block = self._block
        assert block is not None  # noqa: S101 - it was entered
        is_lost = block.is_lost
        with contextlib.suppress(ValueError):  # left in another context than it was entered in: the mark stays there
            self._mark.reset()
        if not self._caller.is_forked():  # a forked child has neither the lock nor the thread, and releases nothing
            self._leave(block, None if exc_type is None else _EXIT_TIMEOUT_S)
        self._block = None
        if is_lost and exc_type is None:
            raise block.make_loss()

    def _leave(self, block: LeadingBlock, timeout_s: float | None) -> None:
        try:
            self._caller.call_anywhere(lambda _: block.leave(timeout_s))
        except LoopEnded:  # the election has ended with it
            pass
        except BaseException:  # Ctrl-C may come before the event loop's thread has begun
            self._caller.ask(self._abandon)
            raise
