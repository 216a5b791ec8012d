"""Who leads a lock of PostgreSQL sessions, seen by a process that takes no part.

One connection of its own, which holds no lock and writes nothing. It reads ``pg_locks`` every second, and at once when
a registry, or a candidate in the succession, sends a notification. Leaders send none for watchers: it would be on the
way from their grant to their leadership. Behind a pooler it only reads.

**Where the answer comes from.** The holder of the lock is in ``pg_locks``, its name is the ``application_name`` of its
lock session, and its address is in that of its witness session (:func:`~.lease.advertising_name`), which every user may
see; that name shows too that the holder may not lead yet, because it waits for the end of earlier terms. Token and
beginning of the term are in the term row or in the registry, where there are such tables that this user
may read and that belong to a trusted role (:mod:`._ownership`); both are compared with the pid of the holder.
"""

import asyncio
import contextlib
import math

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock._base.server_settings import CHANGE_CHANNEL
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LeaderSeen
from pgleaderlock.options import DEFAULT_SCHEMA, check_owner, check_schema
from pgleaderlock.postgres._activity import holder_of, holder_query
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._ownership import problems_sql, refusal
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import advertised_address, is_led, place_channel, witness_key
from pgleaderlock.postgres.login import Dsn, Password, log_in
from pgleaderlock.postgres.session import Row
from pgleaderlock.stores.observer import ANSWER_S, Observer

__all__ = ["SessionObserver"]

_CONNECT_S = 10.0
_TABLES_AGAIN_S = 10.0

_LOOK_FOR_TABLES = """
SELECT coalesce(array_agg(c.relname::text), '{{}}'), {problems}, current_user::text
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = '{schema}' AND c.relname IN ('terms', 'leaders')
   AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
"""

_LOOK = """
SELECT h.*, w.application_name, {token}, to_char({since} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
  FROM (SELECT * FROM ({holder}) AS holders LIMIT 1) AS h
  LEFT JOIN (SELECT * FROM ({witness}) AS witnesses LIMIT 1) AS w ON true{tables}
"""
_JOIN = {
    "terms": "\"{schema}\".terms AS t ON t.lock = '{lock}' AND t.backend_pid = h.pid AND t.released_at IS NULL",
    "leaders": "\"{schema}\".leaders AS r ON r.lock = '{lock}' AND r.backend_pid = h.pid",
}
_ALIAS = {"terms": "t", "leaders": "r"}


class SessionObserver(Observer):
    """Looks at one advisory lock."""

    def __init__(
        self,
        dsn: Dsn,
        key: LockKey,
        *,
        password: Password | None = None,
        schema: str = DEFAULT_SCHEMA,
        schema_owner: str | None = None,
    ) -> None:
        self._key = key
        self._schema = check_schema(schema)
        self._owner = check_owner(schema_owner)
        self._connector = Connector(key, dsn=log_in(dsn, password))
        self._connection: Connection | None = None
        self._statement = ""
        self._clock = suspend_aware_clock
        self._tables_again_at = -math.inf
        self._news = asyncio.Event()
        self._was_warned = False

    async def look(self) -> LeaderSeen | None:
        """Return the holder of the lock, with what its sessions and tables show."""
        if self._connection is None or self._connection.closed:
            await self.close()
            await self._open()
        elif self._clock() >= self._tables_again_at:
            await self._look_for_tables()
        self._news.clear()
        parameters = (*holder_query(self._key)[1], *holder_query(witness_key(self._key))[1])
        rows = await self._fetch(self._statement, parameters)
        if not rows:
            return None
        *columns, witness_name, token, since = rows[0]
        holder = holder_of(tuple(columns))
        if not is_led(witness_name, holder.pid):  # it waits until the last leader has stopped, or for a quiet period
            return None
        return LeaderSeen(holder.name, advertised_address(witness_name, holder.pid), token, since)

    async def wait(self, poll_s: float) -> None:
        """Wait for a notification, or the end of the connection; at the latest until the next poll."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(poll_s):
                await self._news.wait()

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _open(self) -> None:
        self._news = asyncio.Event()  # of this event loop
        self._connection = connection = await self._connector.open(bound_s=max(_CONNECT_S, self._connector.connect_s))
        await self._look_for_tables()
        if connection.is_own:
            for channel in (place_channel(self._key), CHANGE_CHANNEL):
                await connection.listen(channel, self._hear)
            connection.watch(lambda _: self._news.set())

    async def _look_for_tables(self) -> None:
        """Find the tables; where there are none, candidates may make them later."""
        tables = await self._tables()
        self._tables_again_at = math.inf if tables else self._clock() + _TABLES_AGAIN_S
        self._statement = _look_sql(self._key, self._schema, tables)

    def _hear(self, _pid: int, _payload: str) -> None:
        self._news.set()

    async def _tables(self) -> list[str]:
        """Return which tables can be read. Code of a stranger's table would run with our rights: it is not read."""
        problems = problems_sql(self._schema, ["terms", "leaders"], self._owner)
        statement = _LOOK_FOR_TABLES.format(schema=self._schema, problems=problems)
        ((names, found, user),) = await self._fetch(statement, ())
        if not found:
            return list(names)
        if not self._was_warned:
            self._was_warned = True
            get_logger().warning("tables_not_read", error=refusal(self._schema, found, user, self._connector.where))
        return []

    async def _fetch(self, statement: str, parameters: tuple[object, ...]) -> list[Row]:
        if self._connection is None:
            raise ConnectionError(f"no connection is open for lock {self._key.described} ({self._connector.where})")
        return await self._connection.fetch_all(statement, parameters, bound_s=ANSWER_S)


def _look_sql(key: LockKey, schema: str, tables: list[str]) -> str:
    known = [name for name in _JOIN if name in tables]
    columns = {
        field: f"coalesce({', '.join(f'{_ALIAS[name]}.{column}' for name in known)}, NULL)" if known else "NULL"
        for field, column in (("token", "token"), ("since", "acquired_at"))
    }
    columns["since"] += "::timestamptz"
    joins = "".join(" LEFT JOIN " + _JOIN[name].format(schema=schema, lock=key) for name in known)
    holder, witness = holder_query(key)[0], holder_query(witness_key(key))[0]
    return _LOOK.format(holder=holder, witness=witness, tables=joins, **columns)
