"""One run of a scheduled job, as its function sees it."""

from collections.abc import Awaitable
from datetime import datetime, tzinfo
from typing import Any, overload

from pgleaderlock.engine.term import Term
from pgleaderlock.postgres._fence import AsyncConnection, Connection, FenceWords, run_fence

__all__ = ["Tick"]

_DONE_IN = FenceWords(
    "done_in()",
    "tick.done_sql()",
    "tick ledger",
    "{lock} is no longer claimed by this run, or was not yet when this transaction began",
)


class Tick:
    """The argument of a scheduled function: its slot, and whether it may go on."""

    def __init__(
        self,
        term: Term,
        *,
        job: str,
        slot: datetime,
        zone: tzinfo,
        token: int,
        attempt: int,
        late_s: float,
        done_sql: str,
    ) -> None:
        self.term = term
        """The term that this runs in."""
        self.job = job
        """The name of the job."""
        self.slot = slot
        """For which time this runs, in UTC. With ``job`` it names the slot: a key for what must happen once."""
        self.scheduled_at: datetime = slot.astimezone(zone)
        """The same time in the time zone of the schedule."""
        self.token = token
        """The fencing token of the term."""
        self.attempt = attempt
        """1, or more if earlier runs for this slot were killed half-way."""
        self.late_s = late_s
        """How long after its time, by the database's clock, this was claimed."""
        self._done_sql = done_sql
        self._unsent_marks = 0

    @property
    def is_ending(self) -> bool:
        """Whether to stop now, as :attr:`Term.is_ending`."""
        return self.term.is_ending

    @property
    def time_left_s(self) -> float:
        """For how many seconds no other can lead, without a renewal."""
        return self.term.time_left_s

    def check(self) -> None:
        """Raise :class:`LeadershipLost` if the term is ending. Call it before each action that must happen once."""
        self.term.check()

    def wait(self, timeout_s: float | None = None) -> bool:
        """In a thread: sleep until the term is ending. Return False when the time was up before."""
        return self.term.wait(timeout_s)

    async def wait_until_ending(self) -> None:
        """In a coroutine: wait until the term is ending."""
        await self.term.wait_until_ending()

    @overload
    def done_in(self, connection: AsyncConnection[Any]) -> Awaitable[None]: ...
    @overload
    def done_in(self, connection: Connection[Any]) -> None: ...
    def done_in(self, connection: object) -> Awaitable[None] | None:
        """Mark the slot as done in your own transaction: the mark and what it did are committed together, or neither.

        Inside a transaction on the database of the lock; psycopg's async connections (awaited) and its blocking ones:

            async with connection.transaction():
                await connection.execute("INSERT INTO invoices ...")
                await tick.done_in(connection)

        Raises :class:`LeadershipLost` if this run does not have the slot any more; the transaction is then aborted.
        Let it end the whole transaction. A successor that reads this slot waits for the transaction; the server ends it
        when it is idle for longer than the lease.
        """
        answer = run_fence(connection, self._done_sql, f"slot {self.slot:%FT%TZ} of job {self.job!r}", _DONE_IN)
        if answer is None:
            return None
        self._unsent_marks += 1
        return self._mark_to_be_awaited(answer)

    async def _mark_to_be_awaited(self, answer: Awaitable[None]) -> None:
        self._unsent_marks -= 1
        await answer

    @property
    def has_unsent_mark(self) -> bool:
        """Whether :meth:`done_in` was called and its answer never awaited: then the effect has no mark."""
        return self._unsent_marks > 0

    def done_sql(self) -> str:
        """Return :meth:`done_in` as one SQL statement without parameters, for other drivers. SQLSTATE ``PGL01``."""
        return self._done_sql

    def __repr__(self) -> str:
        return f"<Tick {self.job!r} {self.slot.isoformat()} attempt={self.attempt} token={self.token}>"
