"""``once()``: one of the processes that ask for a slot runs it, and none of them has to be the leader.

A slot is claimed before it is run, in the ledger of scheduled jobs, on a session of its own that stays open while it
runs. When that session ends before the run is recorded as ended, the run was cut off.

Not promised, because it is impossible: that a run which was cut off has had no effect, or all of it.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pgleaderlock._base.checks import check_int
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock._logging import NDLogger, get_logger
from pgleaderlock.engine.functions import to_the_end
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.postgres._connector import ConnectFn, Connector
from pgleaderlock.postgres._dsn import default_application_name
from pgleaderlock.postgres._durability import FLUSHED
from pgleaderlock.postgres._pooler import refuse_pooler
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.postgres.session import FetchAll
from pgleaderlock.retry import ExponentialBackoff, RetryCycle
from pgleaderlock.work.schedule._connection import LedgerConnection
from pgleaderlock.work.schedule._once_sql import mark_of, once_statements
from pgleaderlock.work.schedule.policy import IfKilled, JobPolicy

__all__ = ["Once", "OnceOptions", "SlotClaim"]

SlotOf = Callable[[datetime], datetime]
"""Computes the slot from the database's time."""

_LONGEST_NAME = 200
_LONGEST_DETAIL = 500
_ADMIT_S = 5.0
_RECORD_S = 20.0  # how long to try to record how a run ended, on a new connection if need be
_PAUSES = ExponentialBackoff(base_s=0.2, max_s=2.0)


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """Whether this process runs a slot, and if not, which process did or does. True if it is this one."""

    is_mine: bool = field(kw_only=True)
    job: str
    slot: datetime
    """In UTC. With ``job`` it names the slot: a key for what must happen once."""
    state: str
    """``running``, ``done``, ``failed`` (its block raised an error) or ``killed`` (it was cut off half-way)."""
    holder: str
    """The process that claimed the slot: the ``application_name`` of its session, with host and process id."""
    attempt: int
    """1, or more if earlier runs of this slot were cut off and repeated."""
    claimed_at: datetime
    ended_at: datetime | None = None
    detail: str | None = None
    """The error of a run that failed."""

    def __bool__(self) -> bool:
        return self.is_mine


@dataclass(frozen=True, slots=True)
class OnceOptions:
    """What becomes of a slot whose run was cut off, and how long the ledger remembers slots."""

    if_killed: IfKilled = "leave"
    max_attempts: int = 5
    keep_days: int = 30

    def __post_init__(self) -> None:
        JobPolicy(self.if_killed, max_attempts=self.max_attempts, keep_days=self.keep_days)  # which checks them


class _OnceConnection(LedgerConnection):
    """The session of one claim, which stays open for as long as the run takes."""

    allow_pooler = False

    async def _admit(self, connection: Connection) -> None:
        """Refuse a session that a pooler shares: its end would not show that the run was cut off."""
        if not connection.is_own:
            what = f"once() ({self.where})"
            await refuse_pooler(connection, self._connector.open, what, allow=self.allow_pooler, bound_s=_ADMIT_S)

    LIMITS = f"""
SELECT {FLUSHED}, set_config('lock_timeout', '8s', false), set_config('statement_timeout', '9s', false),
       set_config('idle_in_transaction_session_timeout', '5s', false), set_config('idle_session_timeout', '0', false),
       set_config('TimeZone', 'UTC', false), set_config('default_transaction_isolation', 'read committed', false)
"""


class Once:
    """``async with lock.once(name, slot) as mine``. Use it for one block."""

    def __init__(
        self,
        key: LockKey,
        lease: Lease,
        name: str,
        slot: datetime | SlotOf,
        options: OnceOptions,
        *,
        dsn: Dsn | None = None,
        connect_fn: ConnectFn | None = None,
        schedule: str = "once",
    ) -> None:
        self._name = _check_name(name)
        self._slot_of = slot if callable(slot) else None
        self._slot = None if callable(slot) else _check_slot(slot)
        self._key, self._options, self._schedule = key, options, schedule
        connector = Connector(f"the tick ledger of {key.described}", dsn=dsn, connect_fn=connect_fn)
        self._connection = _OnceConnection(connector, lease.schema, owner=lease.schema_owner)
        self._connection.allow_pooler = lease.allow_pooler
        self._sql = once_statements(lease.schema)
        self._logger: NDLogger = get_logger().bind(**key.labels)
        self._claim: SlotClaim | None = None
        self._pid = 0

    async def open(self) -> None:
        """Connect, and make the tables if they are missing. Nothing is claimed by that; it may be repeated."""
        await self._connection.open()

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptor of the session: while a copy of it is open, the slot counts as running."""
        descriptor = self._connection.descriptor
        return () if descriptor is None else (descriptor,)

    async def __aenter__(self) -> SlotClaim:
        """Claim the slot, or find out which process has it. ConnectionError if the database does not say."""
        self._pid = os.getpid()
        try:
            await self._connection.open()
            if self._slot_of is not None:
                self._slot = _check_slot(self._slot_of((await self._fetch("time"))[0][0]))
            self._claim = await self._claim_or_look()
            if not self._claim:
                await self._connection.close()
        except BaseException:
            await self._connection.close()
            raise
        return self._claim

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Record how the block ended. What it raised goes on."""
        if not self._claim or self._pid != os.getpid():  # of a fork, the parent has the session, and records
            return
        state = "done" if exc is None else "failed" if isinstance(exc, Exception) else "killed"
        await to_the_end(self._finish(state, None if exc is None else _as_text(exc)))

    # --- Claiming --------------------------------------------------------------------------------------------------

    async def _claim_or_look(self) -> SlotClaim:
        await self._fetch("register", role=self._key.role, schedule=self._schedule)
        if rows := await self._fetch("claim", holder=default_application_name()):
            (claimed_at, has_mark) = rows[0]
            if not has_mark:  # the rows of this slot were deleted by hand while its run goes on
                await self._fetch("finish", attempt=1, state="failed", detail="another session has this slot")
                raise LockError(f"{self._described} is run by a session that the ledger does not know any more")
            return self._made(claimed_at, attempt=1)
        async with self._connection.transaction() as fetch_all:
            claim = await self._look(fetch_all)
        return claim if claim is not None else await self._refuse()

    async def _look(self, fetch_all: FetchAll) -> SlotClaim | None:
        """Return the newest run of the slot, or repeat one that was cut off; None if there is no row."""
        if not await fetch_all(self._sql["lock_slot"], self._parameters()):
            return None
        attempt, state, holder, claimed_at, ended_at, detail = (
            await fetch_all(self._sql["newest"], self._parameters())
        )[0]
        found = SlotClaim(self._name, self._at, state, holder, attempt, claimed_at, ended_at, detail, is_mine=False)
        if state == "running":
            if not (await fetch_all(self._sql["take_mark"], self._parameters()))[0][0]:
                return found
            cut_off_at = (await fetch_all(self._sql["cut_off"], self._parameters(attempt=attempt)))[0][0]
            self._logger.warning("tick_killed", job=self._name, slot=self._at.isoformat(), holder=holder)
            found = replace(found, state="killed", ended_at=cut_off_at)
        options = self._options
        if found.state != "killed" or options.if_killed == "leave" or attempt >= options.max_attempts:
            return found
        if state != "running" and not (await fetch_all(self._sql["take_mark"], self._parameters()))[0][0]:
            return found  # that process is about to end: it has recorded that it was cut off, and not yet closed
        parameters = self._parameters(attempt=attempt, holder=default_application_name())
        return self._made((await fetch_all(self._sql["repeat"], parameters))[0][0], attempt=attempt + 1)

    def _made(self, claimed_at: datetime, attempt: int) -> SlotClaim:
        holder = default_application_name()
        return SlotClaim(self._name, self._at, "running", holder, attempt, claimed_at, is_mine=True)

    async def _refuse(self) -> SlotClaim:
        rows = await self._fetch("job")
        if rows and rows[0][0] != 0:
            raise LockError(
                f"{self._described} cannot be claimed: {self._name!r} is the name of a job that the leader runs, with "
                "every() or cron(). Choose another name"
            )
        raise LockError(
            f"{self._described} cannot be claimed: the ledger does not remember any more whether it was run. It keeps "
            "slots for keep_days"
        )

    # --- Recording -------------------------------------------------------------------------------------------------

    async def _finish(self, state: str, detail: str | None) -> None:
        assert self._claim is not None  # noqa: S101 - the caller looked
        pauses, give_up_at = RetryCycle(_PAUSES, suspend_aware_clock), suspend_aware_clock() + _RECORD_S
        try:
            while True:
                pauses.begin_attempt()
                try:
                    await self._connection.open()
                    rows = await self._fetch("finish", attempt=self._claim.attempt, state=state, detail=detail)
                    self._note_recorded(state, rows[0][0])
                    await self._fetch("prune", keep_days=self._options.keep_days)
                except ConnectionError as error:
                    pauses.fail_attempt(error)
                    if suspend_aware_clock() >= give_up_at:
                        slot = self._at.isoformat()
                        self._logger.warning("tick_unrecorded", job=self._name, slot=slot, state=state, error=error)
                        return
                else:
                    return
                await asyncio.sleep(pauses.next_delay_s() or 0.0)
        finally:
            await self._connection.close()

    def _note_recorded(self, state: str, recorded: str | None) -> None:
        if recorded != state:
            slot = self._at.isoformat()
            self._logger.warning("tick_superseded", job=self._name, slot=slot, state=state, recorded=recorded)

    # --- Statements ------------------------------------------------------------------------------------------------

    @property
    def _at(self) -> datetime:
        assert self._slot is not None  # noqa: S101 - set before anything is claimed
        return self._slot

    @property
    def _described(self) -> str:
        return f"slot {self._at:%FT%TZ} of {self._name!r} of lock {self._key.described}"

    def _parameters(self, **more: Any) -> dict[str, Any]:
        slot = self._slot
        mark = None if slot is None else mark_of(str(self._key), self._name, slot)
        return {"lock": str(self._key), "job": self._name, "slot": slot, "mark": mark, **more}

    async def _fetch(self, name: str, **more: Any) -> list[Any]:
        return await self._connection.fetch(self._sql[name], self._parameters(**more))


def _check_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"name must be 1 to {_LONGEST_NAME} printable characters")
    return name


def _check_slot(slot: datetime) -> datetime:
    if not isinstance(slot, datetime):
        raise TypeError(f"slot must be a datetime, not {type(slot).__name__}")
    if slot.tzinfo is None:
        raise ValueError(f"slot {slot} has no time zone: processes in other zones would name another slot by it")
    check_int("the year of slot", slot.year, 1971, 9998)
    return slot.astimezone(UTC)


def _as_text(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's exception may not be printable
        text = type(error).__name__
    return text.replace("\0", "")[:_LONGEST_DETAIL]
