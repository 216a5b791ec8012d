"""The ledger: which slot was claimed in which term, and how it ended, as a leader writes it.

All jobs of a lock share one connection, opened for the first that needs it and closed after the last. Errors of its
database are logged once, when they begin and when they are over, and do not affect the election.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError, LeadershipLost
from pgleaderlock.postgres._dsn import default_application_name
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.work.schedule._connection import LedgerConnection, Row
from pgleaderlock.work.schedule._sql import NOW, PRUNED_AT_ONCE, done_sql, statements
from pgleaderlock.work.schedule.policy import JobPolicy, Plan

T = TypeVar("T")
_LONGEST_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at one slot, claimed by this process."""

    slot: datetime
    attempt: int
    token: int


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The state of a job when a term takes it over."""

    through: datetime
    now: datetime
    runs: tuple[Run, ...]
    """Claimed in this term already: killed runs that are repeated."""
    killed: tuple[tuple[Run, bool], ...]
    """Runs of older terms that were found running, and whether each is repeated."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a plan was recorded."""

    is_recorded: bool
    """False when it is too early by the database's clock."""
    is_ours: bool
    """Whether this process has claimed the slot of the plan."""
    now: datetime


class Ledger:
    """The ledger of all jobs of one lock."""

    now_sql = NOW
    """The database's clock, for tests to set."""

    def __init__(self, connection: LedgerConnection, key: LockKey, lease: Lease, logger: NDLogger) -> None:
        self._connection = connection
        self._key = key
        self._lease = lease
        self._logger = logger
        self._sql = statements(lease.schema, self.now_sql)
        self._users = 0
        self._turn = asyncio.Lock()
        self.is_down = False

    @contextlib.asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Keep the connection open while at least one job uses it."""
        if self._users == 0:
            self._turn = asyncio.Lock()  # perhaps on another event loop than the last time
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                await self._connection.close()

    async def take_over(self, job: str, schedule: str, token: int, policy: JobPolicy) -> JobStanding:
        """Make this term the only one that may claim, and record the runs that older terms left running."""
        parameters = {
            **self._of_job(job, token),
            "role": self._key.name,
            "schedule": schedule,
            "repeats": policy.if_killed == "repeat",
            "max_attempts": policy.max_attempts,
        }
        both = self._sql["take_over"], self._sql["take_runs"]
        rows, found = await self._ask(lambda: self._connection.fetch_both(*both, parameters))
        if not rows:
            raise self._refused(job, token)
        runs = [(Run(_utc(slot), attempt, of), state) for slot, attempt, state, of in found]
        return JobStanding(
            _utc(rows[0][0]),
            _utc(rows[0][1]),
            tuple(run for run, state in runs if state == "running"),
            tuple((run, state == "repeated") for run, state in runs if state != "running"),
        )

    async def record(self, job: str, token: int, plan: Plan) -> Answer:
        """Record a plan, whole or not at all; LeadershipLost if a newer term has the job."""
        parameters = {
            **self._of_job(job, token),
            "through": plan.through,
            "run": plan.run,
            "skipped": list(plan.skipped),
            "skipped_from": plan.skipped_from,
        }
        rows = await self._fetch("record", parameters)
        if not rows:
            raise self._refused(job, token)
        is_recorded, is_claimed, now, is_newest, through, was_ours = rows[0]
        # It may have been recorded before, and the answer was lost.
        was_recorded = was_ours or (plan.run is None and _utc(through) >= plan.through)
        is_early = is_newest and plan.through > _utc(now)
        if not (is_recorded or was_recorded or is_early):
            raise self._refused(job, token)
        return Answer(is_recorded or was_recorded, is_claimed or was_ours, _utc(now))

    async def finish(self, job: str, run: Run, state: str, detail: str | None = None) -> tuple[str | None, datetime]:
        """Record how a run ended, unless that is recorded; return the state in the ledger, and the database's time."""
        text = None if detail is None else detail.replace("\0", "")[:_LONGEST_DETAIL]
        parameters = {
            **self._of_job(job, run.token),
            "slot": run.slot,
            "attempt": run.attempt,
            "state": state,
            "detail": text,
        }
        (row,) = await self._fetch("finish", parameters)
        return row[0], _utc(row[1])

    async def now(self) -> datetime:
        """Return the database's time."""
        return _utc((await self._fetch("time", {}))[0][0])

    async def prune(self, job: str, token: int, keep_days: int) -> bool:
        """Delete records that are older; return True if there may be more of them."""
        parameters = {**self._of_job(job, token), "keep_days": keep_days, "at_once": PRUNED_AT_ONCE}
        return int((await self._fetch("prune", parameters))[0][0]) >= PRUNED_AT_ONCE // 2  # some rows are kept

    def done_sql(self, job: str, run: Run) -> str:
        """Return the statement that marks this run as done in a user's transaction."""
        return done_sql(
            self._lease.schema,
            lock=str(self._key),
            job=job,
            slot=run.slot.isoformat(),
            attempt=run.attempt,
            token=run.token,
            lease_ms=self._lease.lease_ms,
        )

    def _of_job(self, job: str, token: int) -> dict[str, Any]:
        return {"lock": str(self._key), "job": job, "token": token, "holder": default_application_name()}

    def _refused(self, job: str, token: int) -> LeadershipLost:
        return LeadershipLost(
            f"the ledger lets term {token} of {self._key.described} claim nothing of job {job!r}: a newer term has it, "
            "or this one is over"
        )

    async def _fetch(self, name: str, parameters: dict[str, Any]) -> list[Row]:
        return await self._ask(lambda: self._connection.fetch(self._sql[name], parameters))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make one call at a time, and log when the database stops or resumes answering."""
        async with self._turn:
            try:
                await self._connection.open()
                answer = await call()
            except ConnectionError as error:
                if not self.is_down:
                    self._logger.warning("ticks_down", error=error, advice="elections go on; this is tried again")
                self.is_down = True
                raise
        if self.is_down:
            self._logger.info("ticks_up")
        self.is_down = False
        return answer


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)
