"""The ledger for readers: opened, queried and closed. For display only; nothing decides by it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import DEFAULT_SCHEMA, check_schema
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.work.schedule._connection import LedgerConnection

__all__ = ["LedgerReader", "RecordedTick", "open_ledger"]

_TICKS = """
SELECT t.lock, j.role, t.job, j.schedule, extract(epoch FROM t.slot)::float, t.attempt, t.state, t.token, t.holder,
       extract(epoch FROM t.claimed_at)::float, extract(epoch FROM t.ended_at)::float,
       extract(epoch FROM t.skipped_from)::float, t.detail
  FROM (SELECT * FROM {schema}.ticks
         WHERE (%(job)s::text IS NULL OR job = %(job)s) AND (%(lock)s::text IS NULL OR lock = %(lock)s)
           AND slot >= to_timestamp(%(since)s)
         ORDER BY slot DESC, attempt DESC LIMIT %(limit)s) AS t
  LEFT JOIN {schema}.tick_jobs AS j USING (lock, job)
 ORDER BY t.slot, t.attempt, t.job
"""
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float"


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One attempt at one slot. Times are seconds of the epoch by the database's clock."""

    lock: str
    role: str | None
    job: str
    schedule: str | None
    slot: float
    attempt: int
    state: str
    token: int
    holder: str
    claimed_at: float
    ended_at: float | None
    skipped_from: float | None
    """Set on a skipped slot that stands for all before it, back to this time."""
    detail: str | None

    @property
    def late_s(self) -> float:
        """How long after its time it was claimed, or recorded as skipped."""
        return self.claimed_at - self.slot

    @property
    def took_s(self) -> float | None:
        """How long the run took; None for one that still runs, was killed or was skipped."""
        is_known = self.ended_at is not None and self.state in {"done", "failed"}
        return self.ended_at - self.claimed_at if is_known and self.ended_at is not None else None


class LedgerReader:
    """An open connection to a ledger."""

    def __init__(self, connection: LedgerConnection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def ticks(
        self, *, job: str | None = None, lock: str | None = None, since: float = 0.0, limit: int = 1000
    ) -> list[RecordedTick]:
        """Return the newest ``limit`` ticks, the oldest of them first."""
        statement = _TICKS.replace("{schema}", f'"{self._schema}"')
        parameters = {"job": job, "lock": lock, "since": since, "limit": limit}
        return [RecordedTick(*row) for row in await self._connection.fetch(statement, parameters)]

    async def now(self) -> float:
        """Return the database's time of day."""
        return float((await self._connection.fetch(_NOW, {}))[0][0])


@contextlib.asynccontextmanager
async def open_ledger(
    dsn: Dsn, schema: str = DEFAULT_SCHEMA, *, schema_owner: str | None = None
) -> AsyncIterator[LedgerReader]:
    """Yield a reader of the ledger; ConnectionError if the ledger does not exist."""
    connector = Connector("the tick ledger", dsn=dsn)
    connection = LedgerConnection(connector, check_schema(schema), owner=schema_owner)
    try:
        await connection.open(makes_tables=False)
        if not connection.has_tables:
            raise ConnectionError(
                f"there is no tick ledger in schema {schema} ({connection.where}). Is it in another database or schema "
                "(--dsn, --schema, --config)? If there is none yet: the first leader with scheduled work makes it, or "
                "pgleaderlock schema apply",
                answered=True,
            )
        yield LedgerReader(connection, schema)
    finally:
        await connection.close()
