"""``while_leader`` and ``run_while_leader``: functions that run in each term, and only there.

The functions are registered here and run by the :class:`~pgleaderlock.engine.leader_tasks.LeaderTasks`, which the
engine drives.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from pgleaderlock.engine._leader_task import AfterWork, WorkPolicy
from pgleaderlock.engine.callbacks import Callbacks
from pgleaderlock.engine.functions import Work
from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.engine.leading import Leading, LeadingBlock, Participation
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import LockError

__all__ = ["WhileLeader", "leader_tasks_of"]

W = TypeVar("W", bound=Work)


class WhileLeader(Callbacks):
    """Registration of work that runs only while leading."""

    _leader_tasks: LeaderTasks
    _block: LeadingBlock | None = None
    """The newest block of :meth:`leading`."""

    @property
    def term(self) -> Term | None:
        """The term that this process leads in, as leader tasks see it. None when not leading."""
        self._is_used = True
        return self._leader_tasks.term

    @property
    def is_in_leader_task(self) -> bool:
        """Whether the caller runs inside a leader task of this election, in its asyncio task or its thread."""
        return self._leader_tasks.is_here

    @overload
    def while_leader(self, fn: W) -> W: ...
    @overload
    def while_leader(
        self,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> Callable[[W], W]: ...
    def while_leader(
        self,
        fn: W | None = None,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> W | Callable[[W], W]:
        """Run ``fn(term)``, or ``fn()``, in each term, and never twice at once in this process.

        A coroutine function is cancelled when leadership ends, and awaited. A plain function runs in a thread and has
        to check: ``while not term.wait(5): ...``. The lock is kept until it has stopped, for as long as leadership is
        valid; a task that runs longer is an overrun (:meth:`on_overrun`).

            @lock.while_leader
            async def work(term: Term) -> None:
                while True:
                    await do_one_thing(fence=term.token)

        When it returns or raises before the term ends: ``restart`` it after a growing pause, ``step_down``, or ``stop``
        the election. With ``drains`` a coroutine function is not cancelled at once when leadership is handed over on
        request: ``term.is_ending`` turns True, and it has up to ``drain_s`` to finish.
        """
        policy = WorkPolicy(on_return, on_failure, drains)

        def register(work: W) -> W:
            self._leader_tasks.add(work, policy, name)
            return work

        return register if fn is None else register(fn)

    async def run_while_leader(
        self,
        fn: Work,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> object:
        """Take part, run ``fn`` in each term as :meth:`while_leader` does, and return when the election has stopped.

        Starts the election unless it runs; an election that it started it also shuts down when the caller is cancelled.
        Returns what the work returned, and raises what it raised if the election stopped for that (``stop``).
        """
        policy = WorkPolicy(on_return, on_failure, drains)
        return await self._run_work(fn, policy, name, is_ours=not self._is_running())

    async def _run_work(self, fn: Work, policy: WorkPolicy, name: str | None, *, is_ours: bool) -> object:
        """Run the work; shut the election down afterwards if ``is_ours``."""
        task = self._leader_tasks.add(fn, policy, name, removable=True)
        try:
            await self.start()
            await self._until_stopped()
        finally:
            try:
                if is_ours:
                    await self.shutdown()
            finally:  # also when the caller is cancelled again: else it would run in the next term
                stopping = self._leader_tasks.remove(task)
            if stopping is not None and not is_ours:  # a shutdown has already waited for it
                await asyncio.wait({stopping})
        if task.error is not None:
            raise task.error
        return task.result

    def leading(self, timeout_s: float | None = None) -> Leading:
        """Wait for leadership, run the block as the leader, and release leadership when it ends.

            async with lock.leading() as term:
                await do_everything(fence=term.token)

        The block is entered only while this process leads; a leadership that is lost before that is waited for again.
        When leadership is lost in the block, or is to be handed over on request, the block is cancelled, and
        :class:`LeadershipLost` is raised out of the ``async with``, with the cause as ``__cause__``. Also when the
        block ends without an error, but later than its leadership did. An error that the block raises, and a
        cancellation from outside, are raised as they are. The lock is kept until the block has ended, for as long as
        leadership is valid; a block that runs longer is an overrun (:meth:`on_overrun`).

        Starts the election unless it runs, and shuts down at the end what it started. An election that was running goes
        on: at the end of the block it steps down, and takes part again one retry delay later (1 s by default), so that
        the others go first. One block of a lock at a time; it may be entered again. TimeoutError after ``timeout_s``
        without leadership; LockError if the election stops meanwhile. Inside the block ``shutdown()`` and
        ``step_down()`` only request it and return.
        """
        return Leading(self._new_block, timeout_s)

    def _new_block(
        self, cancel: Callable[[], object] | None, start: Callable[[], Awaitable[None]] | None = None
    ) -> LeadingBlock:
        """Return a block. It shuts the election down at its end if it is not running now."""
        if self._is_here():
            raise LockError("leading() in a callback, a leader task or another leading() block would wait for itself")
        if self._block is not None and not self._block.is_over:
            raise LockError(
                f"another leading() block of {self._leader_tasks.host.described} runs or waits: one at a time, or make "
                "a lock for each"
            )
        is_ours = not self._is_running()
        release = self.shutdown if is_ours else self.step_down
        participation = Participation(start or self.start, self._until_stopped, release, self._term_mark, is_ours)
        self._block = LeadingBlock(self._leader_tasks, participation, cancel)
        return self._block

    @abstractmethod
    def _is_here(self) -> bool:
        """Whether the caller is a callback or a leader task of this election."""
        raise NotImplementedError

    @abstractmethod
    def _is_running(self) -> bool:
        raise NotImplementedError

    @abstractmethod
    def _term_mark(self) -> object:
        """Return what stands for the present term, also while a recovery is tried."""
        raise NotImplementedError

    @abstractmethod
    async def _until_stopped(self) -> Exception | None:
        """Wait until the election has stopped; return the error that stopped it."""
        raise NotImplementedError

    @abstractmethod
    async def step_down(self, timeout_s: float | None = None, *, to: str | None = None) -> None:
        """Give up leadership without stopping."""
        raise NotImplementedError

    @abstractmethod
    async def start(self) -> None:
        """Take part in the election."""
        raise NotImplementedError

    @abstractmethod
    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop."""
        raise NotImplementedError


def leader_tasks_of(election: WhileLeader) -> LeaderTasks:
    """Return the leader tasks of an election, for parts of this library that add more than one function."""
    return election._leader_tasks  # noqa: SLF001 - of its own class
