"""One job, in all its terms: waits for its slots, claims them, runs one after the other, and records how each ended.

The database's clock decides which slots have come. This process's clock only says how long to sleep before the next
query: from its reading at the last answer, and the database's time in that answer.

A run whose leadership ends is cancelled, or finds its tick ending if it is a thread, and nothing is recorded about it:
how far it came is not known. The successor finds it running in an older term, and records it as killed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from pgleaderlock.engine._leader_task import Host, TaskRun
from pgleaderlock.engine.functions import takes_argument
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError
from pgleaderlock.retry import ExponentialBackoff, RetryCycle
from pgleaderlock.work.schedule._ledger import Ledger, Run
from pgleaderlock.work.schedule.policy import JobPolicy, make_plan
from pgleaderlock.work.schedule.tick import Tick
from pgleaderlock.work.schedule.timetable import Schedule

T = TypeVar("T")
_PAUSES = ExponentialBackoff(base_s=0.2, max_s=5.0)
_LONGEST_SLEEP_S = 60.0  # clocks drift, and the database's may be stepped: so ask for its time again
_PRUNE_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """A function, its schedule and its policy."""

    name: str
    schedule: Schedule
    fn: Callable[..., Any]
    policy: JobPolicy


class JobRunner:
    """Runs one job while this process leads."""

    def __init__(self, job: Job, ledger: Ledger, host: Host) -> None:
        self._job = job
        self._ledger = ledger
        self._host = host
        self._logger = host.logger.bind(job=job.name)
        self._takes_tick = takes_argument(job.fn, job.name, "a tick")
        self._begun: Run | None = None
        self._known_now: tuple[datetime, float] | None = None
        self._prune_at = 0.0

    async def live(self, task_run: TaskRun) -> None:
        """Run as the leader task of one term."""
        async with self._ledger.in_use():
            while not task_run.term.is_ending:
                try:
                    await self._keep_to_schedule(task_run)
                except LeadershipLost as error:
                    await self._note_refusal(task_run, error)

    async def _note_refusal(self, task_run: TaskRun, error: LeadershipLost) -> None:
        """Log that the ledger has a newer term than ours, or has lost the row of ours; then pause."""
        if not task_run.term.is_ending:
            self._logger.warning("ticks_refused", error=error)
            await task_run.pause(_PAUSES.max_s)

    async def _keep_to_schedule(self, task_run: TaskRun) -> None:
        job, token = self._job, _token_of(task_run.term)
        place = await self._insist(
            task_run, lambda: self._ledger.take_over(job.name, job.schedule.written, token, job.policy)
        )
        self._note_now(place.now)
        for run, is_repeated in place.killed:
            self._logger.warning(
                "tick_killed", slot=run.slot.isoformat(), attempt=run.attempt, token=run.token, repeated=is_repeated
            )
        for run in place.runs:
            if run != self._begun:
                await self._run(task_run, run)
        through = place.through
        while not task_run.term.is_ending:
            through = await self._take_next(task_run, token, through)

    async def _take_next(self, task_run: TaskRun, token: int, through: datetime) -> datetime:
        """Wait for a slot, or claim one and run it; return the time up to which all slots are run or recorded."""
        job = self._job
        plan = make_plan(job.schedule, job.policy, through, self._now())
        if plan is None:
            await self._prune_sometimes(task_run, token)
            await self._sleep(task_run, job.schedule.after(through))
            return through
        answer = await self._insist(task_run, lambda: self._ledger.record(job.name, token, plan))
        self._note_now(answer.now)
        if not answer.is_recorded:
            return through
        if plan.skipped:
            self._logger.warning("ticks_skipped", slots=len(plan.skipped), through=plan.skipped[-1].isoformat())
        if answer.is_ours and plan.run is not None:
            await self._run(task_run, Run(plan.run, 1, token))
        return plan.through

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _run(self, task_run: TaskRun, run: Run) -> None:
        """Run one slot, and record how that ended."""
        term = task_run.term
        if term.time_left_s <= 0:
            return  # this process stood still since it claimed the slot, which a successor may have claimed by now
        self._begun = run
        error = await self._call(task_run, run)
        if isinstance(error, LeadershipLost) and term.is_ending:
            return  # it stopped because its term ended, perhaps half-way: the successor records it as killed
        state, detail = ("done", None) if error is None else ("failed", _as_text(error))
        recorded, now = await self._insist(None, lambda: self._ledger.finish(self._job.name, run, state, detail))
        self._note_now(now)
        if recorded not in {state, "done"}:
            self._logger.warning("tick_superseded", slot=run.slot.isoformat(), attempt=run.attempt, recorded=recorded)

    async def _call(self, task_run: TaskRun, run: Run) -> Exception | None:
        tick = self._tick(task_run.term, run)
        fn = partial(self._job.fn, tick) if self._takes_tick else self._job.fn
        fields = {"job": self._job.name, "slot": run.slot.isoformat()}
        error = await task_run.attempt(task_run.call(fn, f"job {self._job.name}"), **fields)
        if error is None and tick.has_unsent_mark:
            error = LockError("tick.done_in() was called and not awaited: what it was to mark is not marked")
            task_run.report(error, **fields)
        return error

    def _tick(self, term: Term, run: Run) -> Tick:
        return Tick(
            term,
            job=self._job.name,
            slot=run.slot,
            zone=self._job.schedule.zone,
            token=run.token,
            attempt=run.attempt,
            late_s=max(0.0, (self._now() - run.slot).total_seconds()),
            done_sql=self._ledger.done_sql(self._job.name, run),
        )

    # --- Time ------------------------------------------------------------------------------------------------------

    def _note_now(self, now: datetime) -> None:
        self._known_now = now, self._host.clock()

    def _now(self) -> datetime:
        """Estimate the database's time. An error only costs a query too many, or a late start."""
        assert self._known_now is not None  # noqa: S101 - set when the job was taken over
        now, at = self._known_now
        return now + timedelta(seconds=self._host.clock() - at)

    async def _sleep(self, task_run: TaskRun, slot: datetime) -> None:
        left_s = (slot - self._now()).total_seconds()
        if left_s > 0:
            await task_run.pause(min(left_s, _LONGEST_SLEEP_S))
        if left_s > _LONGEST_SLEEP_S and not task_run.term.is_ending:
            self._note_now(await self._insist(task_run, self._ledger.now))

    async def _prune_sometimes(self, task_run: TaskRun, token: int) -> None:
        if self._host.clock() < self._prune_at:
            return
        keep_days = self._job.policy.keep_days
        has_more = await self._insist(task_run, lambda: self._ledger.prune(self._job.name, token, keep_days))
        self._prune_at = 0.0 if has_more else self._host.clock() + _PRUNE_EVERY_S

    async def _insist(self, task_run: TaskRun | None, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call until the database answers or the term ends. Without a run, until cancelled."""
        pauses = RetryCycle(_PAUSES, self._host.clock)
        while True:
            pauses.begin_attempt()
            try:
                return await call()
            except ConnectionError as error:
                pauses.fail_attempt(error)
            delay_s = pauses.next_delay_s() or 0.0
            if task_run is None:
                await asyncio.sleep(delay_s)
            else:
                await task_run.pause(delay_s)
                task_run.term.check()


def _token_of(term: Term) -> int:
    if term.token is None:
        raise LockError("scheduled work needs terms with a token: a psycopg connection, and term_table=True")
    return term.token


def _as_text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's exception may not be printable
        return type(error).__name__
