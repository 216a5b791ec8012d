"""``leading()``: a block of the caller's own code that runs as the leader.

The block runs in the task, or in the blocking API in the thread, that entered it. For the engine it is a leader task
like any other: a :class:`~pgleaderlock.engine._leader_task.LeaderTask` that stands for the block begins when the block
may, is cancelled when the term ends, passes that on to the block, and is over when the block is. So the lock is kept
until the block has ended, for as long as leadership is valid, and a block that runs longer is an overrun.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

from pgleaderlock._base.checks import check_seconds
from pgleaderlock.engine._leader_task import LeaderTask, RunMark, TaskRun, WorkPolicy
from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.engine.term import Term, loss_of
from pgleaderlock.errors import LeadershipLost, LockError

__all__ = ["Leading", "LeadingBlock", "Participation"]

_DECLARED_S = 1.0  # within which the engine declares a loss that the session shows already
_EXIT_TIMEOUT_S = 10.0  # for a block that ends in an exception, as for `async with lock`


@dataclass(frozen=True, slots=True)
class Participation:
    """How a block takes part in its election."""

    start: Callable[[], Awaitable[None]]
    until_stopped: Callable[[], Awaitable[Exception | None]]
    """Returns when the election has stopped, with the error for which it did."""
    release: Callable[[float | None], Awaitable[None]]
    """Gives leadership up at the end of the block."""
    term: Callable[[], object]
    """Returns what stands for the present term; another object after its end, but not after a recovery."""
    is_ours: bool
    """Whether the block starts the election: then it ends it too, also when it was never entered."""


class LeadingBlock:
    """One block, from the wait for leadership to its release. Make it and call it on the election's event loop."""

    def __init__(
        self, leader_tasks: LeaderTasks, participation: Participation, cancel: Callable[[], object] | None = None
    ) -> None:
        self._leader_tasks = leader_tasks
        self._participation = participation
        self._cancel = cancel
        """Cancels the block; None where the block is in a thread, which cannot be cancelled."""
        self._task = LeaderTask(self._stand_for_block, WorkPolicy(), leader_tasks.host, "leading()")
        self._offer: TaskRun | None = None
        """The run that waits for the block to begin; None while there is none."""
        self._offered = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entered: TaskRun | None = None
        """The run in which the block was entered."""
        self._entered_in: object = None
        """What stood for that term."""
        self.was_cancelled = False

    @property
    def is_over(self) -> bool:
        """Whether the block has ended, or was never entered and no longer waits."""
        return self._over.done()

    async def enter(self, timeout_s: float | None) -> TaskRun:
        """Wait for leadership. Nothing is awaited between the check that this process leads and the return."""
        self._leader_tasks.enroll(self._task, removable=True)
        try:
            await self._participation.start()
            self.entered = await self._wait(timeout_s)
            self._entered_in = self._participation.term()
        except BaseException:
            await self.leave(_EXIT_TIMEOUT_S)
            raise
        return self.entered

    async def _wait(self, timeout_s: float | None) -> TaskRun:
        loop = asyncio.get_running_loop()
        wakes_at = None if timeout_s is None else loop.time() + timeout_s
        stopped = asyncio.ensure_future(self._participation.until_stopped())
        try:
            while True:
                offered = asyncio.ensure_future(self._offered.wait())
                left_s = None if wakes_at is None else max(0.0, wakes_at - loop.time())
                try:
                    await asyncio.wait({offered, stopped}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    offered.cancel()
                # The term may have ended since the offer was made: then the next one is waited for.
                if self._offer is not None and not self._offer.term.is_ending:
                    return self._offer
                self._offered.clear()
                if stopped.done():
                    raise self._stopped(stopped.result())
                if left_s == 0:
                    raise TimeoutError(f"this process did not lead {self._described} within {timeout_s:g} s")
        finally:
            stopped.cancel()

    def _stopped(self, error: Exception | None) -> LockError:
        why = "" if error is None else f": {error}"
        refusal = LockError(f"the election for {self._described} stopped before this process led{why}")
        refusal.__cause__ = error
        return refusal

    @property
    def _described(self) -> str:
        return self._leader_tasks.host.described

    async def _stand_for_block(self, run: TaskRun) -> None:
        """As the leader task: offer the term to the block, and run for as long as the block does."""
        self._offer = run
        self._offered.set()
        try:
            await run.wait_for(self._over)
        except asyncio.CancelledError:
            self._offer = None
            if self.entered is not None and not self.is_over:
                if self._cancel is not None:
                    self.was_cancelled = True
                    self._cancel()
                await asyncio.wait({self._over})
            raise

    @property
    def is_lost(self) -> bool:
        """Whether leadership did not last until now, or the block was cancelled. From any thread."""
        return self.was_cancelled or (self.entered is not None and self.entered.term.is_over)

    def make_loss(self) -> LeadershipLost:
        """Return the error that says so. To be called after :meth:`leave`, when the engine has declared the loss."""
        assert self.entered is not None  # noqa: S101 - only a block that was entered can be lost
        return loss_of(self.entered.term)

    async def leave(self, timeout_s: float | None) -> None:
        """End the leader task that stands for the block, then release leadership.

        The leadership of an election that was running is not released for a block that was never entered, nor is a
        later term than that of the block.
        """
        is_lost = self.is_lost
        self._over.set_result(None)
        try:
            if is_lost and self.entered is not None:
                # The block may have seen the end of the session before the engine has: the cause is not known yet.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.entered.term.wait_until_ending(), _DECLARED_S)
        finally:  # also when the caller is cancelled: this process would lead on, and no code would run
            self._leader_tasks.remove(self._task)
            if self._releases:
                await self._participation.release(timeout_s)

    @property
    def _releases(self) -> bool:
        if self._participation.is_ours:
            return True
        return self.entered is not None and self._participation.term() is self._entered_in


class Leading:
    """``async with lock.leading() as term``. Can be entered again after it was left."""

    def __init__(self, new_block: Callable[[Callable[[], object]], LeadingBlock], timeout_s: float | None) -> None:
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, zero_ok=True)
        self._new_block = new_block
        self._timeout_s = timeout_s
        self._block: LeadingBlock
        self._caller: asyncio.Task[object]
        self._cancelling = 0
        self._pid = 0
        self._mark: RunMark

    async def __aenter__(self) -> Term:
        """Wait for leadership; TimeoutError if it does not come in time, LockError if the election stops."""
        caller = asyncio.current_task()
        assert caller is not None  # noqa: S101 - a coroutine that awaits futures of asyncio runs in a task
        block = self._new_block(caller.cancel)
        self._block, self._caller, self._cancelling, self._pid = block, caller, caller.cancelling(), os.getpid()
        run = await block.enter(self._timeout_s)
        self._mark = run.mark_as_inside()
        return run.term

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Release leadership. Raise LeadershipLost if it ended before the block, unless the block raised an error."""
        is_loss = self._is_loss(exc)
        with contextlib.suppress(ValueError):  # left in another context than it was entered in, as some fixtures do
            self._mark.reset()
        if self._pid == os.getpid():  # a forked child has neither our lock nor our sockets, and releases nothing
            await self._block.leave(None if exc_type is None else _EXIT_TIMEOUT_S)
        if is_loss:
            raise self._block.make_loss()

    def _is_loss(self, exc: BaseException | None) -> bool:
        """Take our cancellation back, and return whether the loss is how the block ended.

        As asyncio.timeout() does it: if the task was cancelled from outside as well, its CancelledError goes on.
        """
        is_lost = self._block.is_lost
        is_ours_alone = self._block.was_cancelled and self._caller.uncancel() <= self._cancelling
        if exc is None:
            return is_lost
        return is_ours_alone and isinstance(exc, asyncio.CancelledError)
