"""One job, in all its terms: waits for its slots, claims them, runs one after the other, and notes how each ended.

Which slots have come is the database's word. Our own clock says only how long to sleep until it is worth asking: its
reading at the last answer, and the database's time in that answer.

A run whose leadership ends is cancelled, or told by its tick if it is a thread, and nothing is written about it: what
it got done nobody knows for certain. Its successor finds it running in an older term, and that is what is recorded.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pgleaderlock._base import threads
from pgleaderlock.engine._leader_task import Host, is_async, takes_argument
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError
from pgleaderlock.models import EventKind
from pgleaderlock.retry import ExponentialBackoff, RetryCycle
from pgleaderlock.work.schedule._ledger import Ledger, Run
from pgleaderlock.work.schedule.policy import JobPolicy, make_plan
from pgleaderlock.work.schedule.tick import Tick
from pgleaderlock.work.schedule.timetable import Schedule

__all__ = ["Job", "JobRunner"]

T = TypeVar("T")
_PAUSES = ExponentialBackoff(base_s=0.2, max_s=5.0)
_LONGEST_SLEEP_S = 60.0  # two clocks drift, and the database's may be set: then ask what time it is
_LOOK_AGAIN_S = 0.05  # for a thread of an earlier term, which may have been begun by another event loop
_PRUNE_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run, and when."""

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
        self._is_async = is_async(job.fn)
        self._takes_tick = takes_argument(job.fn, job.name, "a tick")
        self._begun: Run | None = None
        self._known_now: tuple[datetime, float] | None = None
        self._prune_at = 0.0
        self._thread_rests = threading.Event()
        self._thread_rests.set()

    async def live(self, term: Term) -> None:
        """Run as the leader task of one term."""
        await self._wait_for_earlier_thread()
        async with self._ledger.in_use():
            while not term.is_ending:
                try:
                    await self._keep_to_schedule(term)
                except LeadershipLost as error:
                    await self._note_refusal(term, error)

    async def _note_refusal(self, term: Term, error: LeadershipLost) -> None:
        """Of a ledger that knows of a newer term than we do, or has lost the row of ours."""
        if not term.is_ending:
            self._logger.warning("ticks_refused", error=error)
            await self._pause(term, _PAUSES.max_s)

    async def _keep_to_schedule(self, term: Term) -> None:
        job, token = self._job, _token_of(term)
        place = await self._insist(
            term, lambda: self._ledger.take_over(job.name, job.schedule.written, token, job.policy)
        )
        self._note_now(place.now)
        for run, is_repeated in place.killed:
            self._logger.warning(
                "tick_killed", slot=run.slot.isoformat(), attempt=run.attempt, token=run.token, repeated=is_repeated
            )
        for run in place.runs:
            if run != self._begun:
                await self._run(term, run)
        through = place.through
        while not term.is_ending:
            through = await self._take_next(term, token, through)

    async def _take_next(self, term: Term, token: int, through: datetime) -> datetime:
        """Wait for a slot, or claim one and run it; return up to where all are accounted for."""
        job = self._job
        plan = make_plan(job.schedule, job.policy, through, self._now())
        if plan is None:
            await self._prune_sometimes(term, token)
            await self._sleep(term, job.schedule.after(through))
            return through
        answer = await self._insist(term, lambda: self._ledger.record(job.name, token, plan))
        self._note_now(answer.now)
        if not answer.is_recorded:
            return through
        if plan.skipped:
            self._logger.warning("ticks_skipped", slots=len(plan.skipped), through=plan.skipped[-1].isoformat())
        if answer.is_ours and plan.run is not None:
            await self._run(term, Run(plan.run, 1, token))
        return plan.through

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _run(self, term: Term, run: Run) -> None:
        """Run one slot, and write down how that ended."""
        if term.time_left_s <= 0:
            return  # this process stood still since it asked for the slot: by now it may be a successor's
        self._begun = run
        error = await self._call(term, run)
        if isinstance(error, LeadershipLost) and term.is_ending:
            return  # it stopped because it must: half-way, for all we know
        state, detail = ("done", None) if error is None else ("failed", _told(error))
        recorded, now = await self._insist(None, lambda: self._ledger.finish(self._job.name, run, state, detail))
        self._note_now(now)
        if recorded not in {state, "done"}:
            self._logger.warning("tick_superseded", slot=run.slot.isoformat(), attempt=run.attempt, recorded=recorded)

    async def _call(self, term: Term, run: Run) -> Exception | None:
        tick = self._tick(term, run)
        arguments = (tick,) if self._takes_tick else ()
        try:
            await (self._call_async(arguments) if self._is_async else self._call_in_a_thread(arguments))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error: Exception = LockError("the run was cancelled, and not by its election")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # of a coroutine, and the event loop ends, or has. What a thread raised comes as an error
        except BaseException as raised:  # noqa: BLE001 - it is a user's
            error = threads.failure(raised)
        else:
            if not tick.has_unsent_mark:
                return None
            error = LockError("tick.done_in() was called and not awaited: what it was to mark is not marked")
        if not (isinstance(error, LeadershipLost) and term.is_ending):
            self._logger.error(
                "work_failed", work=self._job.name, slot=run.slot.isoformat(), error=error, exc_info=error
            )
            self._host.report(EventKind.WORK_FAILED, error)
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

    async def _call_async(self, arguments: tuple[Tick, ...]) -> None:
        answer = self._job.fn(*arguments)
        if inspect.isawaitable(answer):
            await answer

    async def _call_in_a_thread(self, arguments: tuple[Tick, ...]) -> None:
        """See a thread to its end, also when cancelled: the lock is kept for it. Who cancels twice does not wait."""

        def work() -> None:
            try:
                self._job.fn(*arguments)
            finally:
                self._thread_rests.set()

        self._thread_rests.clear()
        try:
            thread = threads.begin(work, f"pgleaderlock job {self._job.name}")
        except BaseException:  # this system cannot have one more
            self._thread_rests.set()
            raise
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError:
            await asyncio.wait({thread})
            thread.exception()  # nobody is told: leadership was lost, and with it what this was for
            raise
        thread.result()

    async def _wait_for_earlier_thread(self) -> None:
        """One run at a time, also where a thread did not end with its term."""
        if not self._thread_rests.is_set():
            self._logger.warning("work_still_running", work=self._job.name)
        while not self._thread_rests.is_set():  # noqa: ASYNC110 - it may belong to another event loop
            await asyncio.sleep(_LOOK_AGAIN_S)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _note_now(self, now: datetime) -> None:
        self._known_now = now, self._host.clock()

    def _now(self) -> datetime:
        """Reckon the database's time. An error of this only costs a question, or a moment."""
        assert self._known_now is not None  # noqa: S101 - taking over has brought it
        now, at = self._known_now
        return now + timedelta(seconds=self._host.clock() - at)

    async def _sleep(self, term: Term, slot: datetime) -> None:
        left_s = (slot - self._now()).total_seconds()
        if left_s > 0:
            await self._pause(term, min(left_s, _LONGEST_SLEEP_S))
        if left_s > _LONGEST_SLEEP_S and not term.is_ending:
            self._note_now(await self._insist(term, self._ledger.now))

    async def _prune_sometimes(self, term: Term, token: int) -> None:
        if self._host.clock() < self._prune_at:
            return
        keep_days = self._job.policy.keep_days
        has_more = await self._insist(term, lambda: self._ledger.prune(self._job.name, token, keep_days))
        self._prune_at = 0.0 if has_more else self._host.clock() + _PRUNE_EVERY_S

    async def _pause(self, term: Term, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(term.wait_until_ending(), delay_s)

    async def _insist(self, term: Term | None, call: Callable[[], Awaitable[T]]) -> T:
        """Ask until the database answers, or the term is over. Without a term, until we are cancelled."""
        pauses = RetryCycle(_PAUSES, self._host.clock)
        while True:
            pauses.begin_attempt()
            try:
                return await call()
            except ConnectionError as error:
                pauses.fail_attempt(error)
            delay_s = pauses.next_delay_s() or 0.0
            if term is None:
                await asyncio.sleep(delay_s)
            else:
                await self._pause(term, delay_s)
                term.check()


def _token_of(term: Term) -> int:
    if term.token is None:
        raise LockError("scheduled work needs terms with a token: a psycopg connection, and term_table=True")
    return term.token


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's exception may not even be printable
        return type(error).__name__
