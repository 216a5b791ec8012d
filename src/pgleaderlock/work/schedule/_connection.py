"""The ledger's own connection: opened when it is needed, bounded in every call, closed at the first error.

It is never a session of a lock: its errors do not end a leadership.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._driver import close_connection, is_psycopg
from pgleaderlock.postgres._ownership import check_owner, refusal, tables_sql
from pgleaderlock.postgres.lease import check_schema
from pgleaderlock.postgres.terms import create_sql

__all__ = ["LedgerConnection", "Row"]

Row = tuple[Any, ...]
_TABLES = ("tick_jobs", "ticks", "terms")  # a claim reads the term row too
_CALL_S = 10.0
# Waits for a lock must be short, because all jobs share the connection; and if this process is frozen between two
# statements, a successor must not wait for it for long.
_LIMITS = """
SELECT set_config('lock_timeout', '500ms', false), set_config('statement_timeout', '8s', false),
       set_config('idle_in_transaction_session_timeout', '1s', false), set_config('TimeZone', 'UTC', false),
       set_config('default_transaction_isolation', 'read committed', false)
"""


class LedgerConnection:
    """One connection to the database of the ledger, or none. One statement at a time."""

    def __init__(self, connector: Connector, schema: str, *, owner: str | None = None) -> None:
        self._connector = connector
        self._schema = check_schema(schema)
        self._owner = check_owner(owner)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self.has_tables = False
        """Whether the ledger existed when the connection was opened."""

    @property
    def where(self) -> str:
        """The server and database, without secrets."""
        return self._connector.where

    async def open(self, *, makes_tables: bool = True) -> None:
        """Connect, unless connected, and create the tables unless they exist."""
        if self._connection is not None and not self._connection.closed:
            return
        async with self._bounded("cannot be opened"):
            connection = await self._connector.connect()
            if not is_psycopg(connection):
                await close_connection(connection)
                raise ConnectionError(
                    f"scheduled work needs a psycopg connection from connect_fn, not a {type(connection).__name__}"
                )
            self._connection = connection
            await self._fetch(_LIMITS, {})
            self.has_tables = await self._look_for_tables()
            if makes_tables and not self.has_tables:
                await self._make_tables(connection)
                self.has_tables = await self._look_for_tables()

    async def close(self) -> None:
        """Close the connection. Does not raise, does not hang."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    async def fetch(self, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement and return its rows; ConnectionError has the database's error."""
        async with self._bounded("did not answer"):
            return await self._fetch(statement, parameters)

    async def fetch_both(self, first: str, second: str, parameters: Mapping[str, Any]) -> tuple[list[Row], list[Row]]:
        """Run two statements in one transaction; the second only if the first returns rows."""
        async with self._bounded("did not answer"), self._open_connection().transaction():
            rows = await self._fetch(first, parameters)
            return rows, await self._fetch(second, parameters) if rows else []

    async def _look_for_tables(self) -> bool:
        """Return whether all tables exist. ConnectionError if a stranger owns one, before its triggers can run."""
        ((are_there, problems, user),) = await self._fetch(tables_sql(self._schema, _TABLES, self._owner), {})
        if problems:
            raise refusal(self._schema, problems, user, self.where)
        return bool(are_there)

    async def _make_tables(self, connection: psycopg.AsyncConnection[Any]) -> None:
        try:
            await connection.execute(create_sql(self._schema, self._owner).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            explained = self._connector.explain("cannot make its tables", error)
            raise ConnectionError(
                f"{explained}. As their owner: pgleaderlock schema apply --schema {self._schema} --grant-to "
                f"{connection.info.user}",
                answered=True,
            ) from None

    async def _fetch(self, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
        cursor = self._open_connection().cursor(row_factory=tuple_row)
        await cursor.execute(statement.encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []

    def _open_connection(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise ConnectionError(f"the tick ledger has no connection ({self.where})")
        return self._connection

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        """Bound a call. After any error the connection is closed; the error contains no secret."""
        try:
            async with asyncio.timeout(_CALL_S):
                yield
        except TimeoutError:
            await self.close()
            raise ConnectionError(f"the tick ledger {what} within {_CALL_S:g} s ({self.where})") from None
        except psycopg.Error as error:
            await self.close()
            raise self._connector.explain(what, error) from None
        except BaseException:
            await self.close()
            raise
