"""Leader tasks: the functions of one election that run only while it leads.

The engine starts and ends them in the very step in which leadership begins or ends, before any callback is notified: a
callback can neither delay the start of a leader task nor keep it from being stopped. In the same step the engine asks
here whether all of them have ended, and keeps the lock until they have, for as long as the grant is valid.

A leader task that has not stopped when validity ends is an overrun: another candidate may lead from then on. It is
reported, once, with its name.

Not promised: that a leader task stops. A coroutine that swallows its cancellation, and a thread that never checks its
term, run on; only the hard fence ends those.
"""

import asyncio
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from pgleaderlock._base.clock import Clock
from pgleaderlock.engine._leader_task import Host, LeaderTask, TaskRun, WorkPolicy, call_in_each_term
from pgleaderlock.engine.functions import Work
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import WorkOverrun
from pgleaderlock.models import EventKind, Grant

__all__ = ["LeaderTasks"]


class _HeldTerm(Term):
    """A term as :class:`LeaderTasks` holds it, which alone may ask it to end and close it."""

    def __init__(self, grant: Grant, grant_now: Callable[[], Grant | None], clock: Clock, described: str) -> None:
        super().__init__(grant, grant_now, clock, described)
        self._shares: weakref.WeakSet[_HeldTerm] | tuple[()] = ()  # a WeakSet is costly, and most terms need none

    def share(self) -> "_HeldTerm":
        """Return the same term for one leader task that may have to stop before the others do."""
        shared = _HeldTerm(self._grant, self._grant_now, self._clock, self._described)
        self._shares = self._shares or weakref.WeakSet()  # weak: many removable tasks may come and go in one term
        self._shares.add(shared)
        return shared

    def ask(self, hand_over_at: float | None = None) -> None:
        """Ask the leader tasks of this term to stop: ``term.is_ending`` is True from now on."""
        if hand_over_at is not None:
            self._hand_over_at = hand_over_at
        self._asked.set()
        self._asked_here.set()
        for shared in self._shares:
            shared.ask(hand_over_at)

    def close(self, grant: Grant, ended_by: Exception | None) -> None:
        """End the term. Its last grant, which shows how long tasks have to stop, is set before they are asked."""
        self._grant, self._ended_by = grant, ended_by
        for shared in self._shares:
            shared.close(grant, ended_by)
        self.ask()


class LeaderTasks:
    """All leader tasks of one election."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks: list[LeaderTask] = []
        self._term: _HeldTerm | None = None
        self._runs: list[TaskRun] = []
        """The runs that may not be over yet, of this term and of earlier ones."""
        self._removable: dict[LeaderTask, _HeldTerm | None] = {}
        """Leader tasks that may be removed, each with a share of the term while there is one."""
        self.was_used = False
        """Whether there ever was a leader task."""

    @property
    def host(self) -> Host:
        """The election to which these leader tasks belong."""
        return self._host

    @property
    def term(self) -> Term | None:
        """The present term; None when not leading."""
        return self._term

    @property
    def is_idle(self) -> bool:
        """Whether no leader task runs."""
        return all(task_run.is_over for task_run in self._runs)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs inside one of these leader tasks."""
        return any(task_run.is_here and not task_run.is_over for task_run in self._runs)

    def follow(self, grant: Grant | None, *, leads: bool, error: Exception | None = None) -> None:
        """Begin or end the leader tasks with the leadership. To be called in the step that changed the state.

        ``error`` is what ended the leadership, if an error did.
        """
        if leads and self._term is None and grant is not None:
            self._open(grant)
        elif not leads and self._term is not None and grant is not None:
            self._close(replace(grant, trusted_until=grant.successor_from, kept_until=None), error)

    def add(self, fn: Work, policy: WorkPolicy, name: str | None = None, *, removable: bool = False) -> LeaderTask:
        """Run this function in every term from now on, including the present one."""
        task = call_in_each_term(fn, policy, self._host, name)
        if removable:
            task.task_run = self._left_of(fn)
        self.enroll(task, removable=removable)
        return task

    def enroll(self, task: LeaderTask, *, removable: bool = False) -> None:
        """Run this task in every term from now on, including the present one. It may be one that was removed."""
        self.was_used = True
        self._tasks.append(task)
        if removable:
            self._removable[task] = None
        if self._term is not None and not self._term.is_ending:
            self._begin(task, self._term)

    def remove(self, task: LeaderTask) -> asyncio.Future[None] | None:
        """Remove a leader task and stop it. Return a future that is done when it has stopped; None if it has."""
        self._tasks.remove(task)
        term = self._removable.pop(task, None)
        if task.task_run is None or task.task_run.is_over:
            return None
        if term is not None:
            term.ask()  # a thread cannot be cancelled: it stops only because its term is ending
        task.task_run.end()
        return task.task_run.over

    def _left_of(self, fn: Work) -> TaskRun | None:
        """Return the unfinished run of a function that was removed and is added again: only one may run at a time."""
        left = [task_run for task_run in self._runs if task_run.fn == fn and not task_run.is_over]
        return left[-1] if left and all(task.fn != fn for task in self._tasks) else None

    async def drain(self, bound_s: float) -> None:
        """Ask all leader tasks to stop before a hand-over, and wait for that. The caller enforces ``bound_s``."""
        if self._term is None:
            return
        self._term.ask(self._host.clock() + bound_s)
        for task_run in self._runs:
            task_run.ask()
        await self.stopped()

    async def stopped(self, *, or_until: asyncio.Future[None] | None = None, timeout_s: float | None = None) -> None:
        """Wait until all leader tasks have ended, or ``or_until`` is done, or the time is up."""
        ends_at = math.inf if timeout_s is None else self._host.clock() + timeout_s
        while running := [task_run.over for task_run in self._runs if not task_run.is_over]:
            left_s = None if timeout_s is None else ends_at - self._host.clock()
            if (left_s is not None and left_s <= 0) or (or_until is not None and or_until.done()):
                return
            either = {running[0], *([] if or_until is None else [or_until])}
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def report_overruns(self) -> None:
        """Report the leader tasks that still run although leadership is no longer valid."""
        self._report([task_run for task_run in self._runs if not task_run.is_over])

    def _open(self, grant: Grant) -> None:
        host = self._host
        held = _HeldTerm(grant, lambda: host.grant_now() if self._term is held else None, host.clock, host.described)
        self._term = held
        for task in self._tasks:
            self._begin(task, held)

    def _begin(self, task: LeaderTask, term: _HeldTerm) -> None:
        if task in self._removable:
            term = self._removable[task] = term.share()
        task.begin(term)
        assert task.task_run is not None  # noqa: S101 - which the line before has made
        self._runs = [*(task_run for task_run in self._runs if not task_run.is_over), task.task_run]
        task.task_run.over.add_done_callback(lambda _: self._note_end())

    def _note_end(self) -> None:
        if self.is_idle:
            self._host.note_idle()

    def _close(self, grant: Grant, error: Exception | None) -> None:
        """End all runs, and report later those that have not ended in time.

        The term is closed before the runs are cancelled: a coroutine that catches its cancellation finds the term over.
        """
        term, self._term = self._term, None
        assert term is not None  # noqa: S101 - its caller looked
        term.close(grant, error)
        running = [task_run for task_run in self._runs if not task_run.is_over]
        for task_run in running:
            task_run.end()
        self._report_overruns_later(running, grant)

    def _report_overruns_later(self, running: Sequence[TaskRun], grant: Grant) -> None:
        if not running:
            return
        left_s = grant.trusted_until - self._host.clock()
        patience_s = self._host.patience_s if math.isinf(left_s) else max(0.0, left_s)
        asyncio.get_running_loop().call_later(patience_s, self._report, running)

    def _report(self, runs: Sequence[TaskRun]) -> None:
        late = [task_run for task_run in runs if not task_run.is_over and not task_run.is_reported]
        if not late or self._term is not None:  # we lead again, so no other candidate does
            return
        for task_run in late:
            task_run.is_reported = True
        names = tuple(task_run.name for task_run in late)
        error = WorkOverrun(
            f"{', '.join(names)} did not stop in time: another candidate may lead {self._host.described} while it runs "
            "on. Let it check term.is_ending, let it be cancelled, or set hard_fence=True",
            names=names,
        )
        self._host.report(EventKind.OVERRUN, error)
