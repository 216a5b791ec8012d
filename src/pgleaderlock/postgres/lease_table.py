"""A lease in a row of a PostgreSQL table: for candidates that have no session of their own.

Behind PgBouncer in transaction mode, RDS Proxy or a serverless pooler, a session lock belongs to another client as soon
as it is granted. A row does not: every step here is one statement in one transaction of its own, on any session that
the pooler lends, and nothing is set, locked or prepared that would have to outlast the transaction.

The price is time. A leader that dies is replaced after its lease, as with every lease store; a hand-over is noticed at
once where the server can notify us, which needs a direct connection: the one in use, if it is direct, or
``listen_dsn``. Elsewhere followers read the row again every 1.25 s (``poll_s``).

Times in the row are for display only; :mod:`.record` judges expiry on the observer's own clock. A step of the
database's clock, even by an hour, causes no election.

Each write is flushed (``synchronous_commit`` at least ``local``): a write that is lost in a crash would free a lease
that is still valid. Not promised: safety when a standby is promoted without the last writes of its primary.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from pgleaderlock._base.checks import check_seconds
from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._durability import FLUSHED_IN_TRANSACTION
from pgleaderlock.postgres._listener import Listener
from pgleaderlock.postgres._tables import TableConnection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.login import Dsn, Password, log_in
from pgleaderlock.postgres.session import Row
from pgleaderlock.stores.lease_observation import address_in, address_text
from pgleaderlock.stores.record import Claim, Record, RecordStore
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, USUAL_LEASE_S

__all__ = ["LeaseRowStore"]

_POLL_S = 1.25  # each poll wakes a follower up twice: for the timer and for the answer
_LOOKS_PER_LEASE = 5

_NEEDS_ADDRESS = 4  # the lowest version of the schema that has its column
# to_jsonb, because tables of earlier versions have no such column, and the same statements must work there.
_COLUMNS = "holder, token, lease_s, version, acquired_at::text, to_jsonb(l) ->> 'address'"

# A version is never used again, also not for a row that was deleted and created again: an old version never matches.
_READ = "SELECT {columns} FROM {table} AS l WHERE role = %(role)s"

# Notifies followers of a new term and of a release, not of a renewal. Flushes even if the user's default is not to.
_WRITTEN = f"""
RETURNING {{columns}},
          {FLUSHED_IN_TRANSACTION},
          CASE WHEN %(is_news)s THEN pg_notify('pgleaderlock', %(role)s) END
"""

_FIRST = """
INSERT INTO {table} AS l (role, holder, token, lease_s, version, acquired_at, renewed_at{address})
VALUES (%(role)s, %(holder)s, %(token)s, %(lease_s)s, gen_random_uuid(), clock_timestamp(), clock_timestamp(){value})
ON CONFLICT (role) DO NOTHING
"""

_REPLACE = """
UPDATE {table} AS l
   SET holder = %(holder)s, token = %(token)s, lease_s = %(lease_s)s, version = gen_random_uuid(),
       acquired_at = CASE WHEN %(is_new_term)s THEN clock_timestamp() ELSE acquired_at END,
       renewed_at = clock_timestamp(){change}
 WHERE role = %(role)s AND version = %(version)s AND token = %(old_token)s
"""

_ADDRESS = {"address": ", address", "value": ", %(address)s", "change": ", address = %(address)s"}
_NO_ADDRESS = dict.fromkeys(_ADDRESS, "")

_NO_TABLE = ("42P01", "3F000")  # undefined_table, invalid_schema_name
_LOST_RACES = ("40001", "40P01", "23505")  # where the user's default isolation is stricter than ours


class _LeaseRows(TableConnection):
    """The connection to the table of leases. A race that is lost leaves it open."""

    TABLES = ("leases",)
    SURVIVES_ERRORS = True


class _LeaseRowsWithAddress(_LeaseRows):
    """The same for a candidate that writes its address."""

    NEEDS = _NEEDS_ADDRESS


class LeaseRowStore(RecordStore):
    """The row of one role."""

    carries_address = True

    def __init__(
        self,
        dsn: Dsn,
        role: str,
        *,
        lease_s: float = USUAL_LEASE_S,
        schema: str = DEFAULT_SCHEMA,
        schema_owner: str | None = None,
        listen_dsn: Dsn | None = None,
        password: Password | None = None,
        poll_s: float = _POLL_S,
        has_address: bool = False,
    ) -> None:
        self._key = LockKey.named(role)
        self._role = role
        dsn = log_in(dsn, password)
        self._connector = Connector(self._key, dsn=dsn, lease_s=lease_s)
        rows = _LeaseRowsWithAddress if has_address else _LeaseRows
        self._rows = rows(self._connector, schema, owner=schema_owner)
        self._reads_only = False
        self._names = {"table": f'"{schema}".leases', "columns": _COLUMNS, **(_ADDRESS if has_address else _NO_ADDRESS)}
        self._listener = Listener(Connector(self._key, dsn=listen_dsn or dsn, lease_s=lease_s), "pgleaderlock", role)
        self._poll_s = check_seconds("poll_s", poll_s)
        lease_s = check_seconds("lease_s", lease_s)
        self._look_every_s = max(lease_s / _LOOKS_PER_LEASE, min(_POLL_S, lease_s / RENEWALS_PER_LEASE))

    @property
    def labels(self) -> Mapping[str, object]:
        """The role, and the database of its row."""
        return {"role": self._role, "db": self._connector.database}

    @property
    def open_s(self) -> float:
        """How long connecting may take: silent ones of several hosts may be tried first."""
        return self._connector.connect_s

    def only_read(self) -> None:
        """Make no table."""
        self._reads_only = True

    async def open(self) -> None:
        """Connect, and make the table unless it is there."""
        await self._rows.open(makes_tables=not self._reads_only)

    async def read(self) -> Record | None:
        """Read the row."""
        return _record(await self._execute(_READ, {"role": self._role}))

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Replace the row if its version is the one that was read."""
        parameters = {
            "role": self._role,
            "holder": claim.holder,
            "token": claim.token,
            "lease_s": claim.lease_s,
            "is_new_term": claim.is_new_term,
            "is_news": claim.is_new_term or not claim.holder,
            "address": address_text(claim.token, claim.address),
        }
        if replacing is None:
            return _record(await self._execute(_FIRST + _WRITTEN, parameters, can_lose=True))
        parameters |= {"version": replacing.version, "old_token": replacing.token}
        return _record(await self._execute(_REPLACE + _WRITTEN, parameters, can_lose=True))

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Wait for a notification where that is possible, else for one poll interval."""
        was_listening = self._listener.is_listening
        if await self._listener.listen():
            if not was_listening:  # what changed before that was not notified
                now = await self.read()
                if (now.version if now else None) != (seen.version if seen else None):
                    return now
            # Renewals send no notification, so the row is also read now and then: a follower that had read an old
            # renewal late would otherwise wait for a whole lease from that time.
            await self._listener.wait(min(timeout_s, self._look_every_s))
        else:
            pause_s = self._poll_s * random.uniform(0.75, 1.25)  # noqa: S311 - spreads the load
            await asyncio.sleep(min(timeout_s, pause_s))
        return None

    async def close(self) -> None:
        """Close both connections."""
        await self._rows.close()
        await self._listener.close()

    async def _execute(self, statement: str, parameters: Mapping[str, Any], *, can_lose: bool = False) -> Row | None:
        """Run one statement in a transaction of its own; where the table is missing, make it first.

        Only a write can lose a race. A read that fails with the same SQLSTATE does not mean that there is no row.
        """
        try:
            return await self._run(statement, parameters)
        except ConnectionError as error:
            if can_lose and error.sqlstate in _LOST_RACES:
                return None
            await self._rows.close()
            if error.sqlstate not in _NO_TABLE:
                raise
            if self._reads_only:
                return None
        return await self._run(statement, parameters)

    async def _run(self, statement: str, parameters: Mapping[str, Any]) -> Row | None:
        await self.open()
        rows = await self._rows.fetch(statement.format(**self._names), parameters)
        return rows[0] if rows else None


def _record(row: Row | None) -> Record | None:
    if row is None:
        return None
    holder, token, lease_s, version, since, address = row[:6]
    return Record(holder, token, lease_s, version, since, address_in(address, token))
