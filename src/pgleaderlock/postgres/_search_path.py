"""The ``search_path`` of our own sessions: nothing but PostgreSQL's own catalogue, from the first statement on.

Another role may have functions and operators in a schema of the ``search_path``: in ``public`` up to PostgreSQL 14 and
after upgrades from there. One of them that matches a call better than the built-in one is called instead, with our
rights. So a session of ours is pinned before anything else is asked of it. This is the only place where connections
are opened, apart from the factory in :mod:`._connector`, and both pin.

A session for locks is pinned by the first message on it (:class:`~._psycopg_session.PsycopgSession`): the statement
:data:`PIN`, for that transaction, and in the same message the set-up, which pins for good (:data:`PINNED`) unless it
refuses the session. Everything else asks once more (:func:`pin`).

Behind a pooler the session belongs to other clients too, whose own names must still be found afterwards. There every
statement brings its own pin, for its own transaction (:class:`PinnedCursor`), and nothing is left behind.
"""

from typing import Any, Self

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor, sql
from psycopg.rows import tuple_row

from pgleaderlock.postgres._driver import close_connection, close_on_cancel, open_connection

__all__ = ["PIN", "PINNED", "PinnedCursor", "open_pinned", "pin"]

_SET = "pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', {is_local})"
PIN = f"SELECT {_SET.format(is_local='true')}; "
"""Before a statement, in the same message: for its transaction only."""
PINNED = _SET.format(is_local="false")
"""An expression that pins the session for good."""

# The pid that the connection received at its start is the server's own, unless there is a pooler between.
_PIN_OWN = PIN + f"SELECT CASE WHEN pg_backend_pid() = {{pid}} THEN {PINNED} END IS NOT NULL"


class PinnedCursor(AsyncClientCursor[Any]):
    """Pins for the transaction of each statement. Bound by the client: only then two statements are one message."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Execute it after the pin, and move on to its result."""
        if isinstance(query, sql.Composable):
            query = sql.SQL(PIN) + query
        else:
            query = PIN.encode() + query if isinstance(query, bytes) else PIN + query
        await super().execute(query, params, **options)
        self.nextset()
        return self


async def pin(connection: AsyncConnection[Any]) -> None:
    """Pin a connection that was just opened; one round trip. A failure is psycopg's, and closes it."""
    try:
        cursor = AsyncCursor(connection, row_factory=tuple_row)  # a caller's own may make anything of a row
        await cursor.execute(_PIN_OWN.format(pid=int(connection.info.backend_pid)))
        cursor.nextset()
        if await cursor.fetchone() != (True,):
            connection.cursor_factory = PinnedCursor
    except BaseException:
        await close_connection(connection)
        raise


async def open_pinned(conninfo: str, **options: Any) -> AsyncConnection[Any]:
    """Return a new connection that is ours, autocommit and pinned; psycopg.Error when there is none."""
    connection: AsyncConnection[Any] = await open_connection(
        lambda: psycopg.AsyncConnection.connect(conninfo, autocommit=True, **options)
    )
    close_on_cancel(connection)
    await pin(connection)
    return connection
