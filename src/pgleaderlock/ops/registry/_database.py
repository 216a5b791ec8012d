"""The registry's own connection: opened when it is needed, bounded in every call, given up at the first error.

It is never the connection of a lock. Whatever happens to it happens to nobody's leadership.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pgleaderlock._base.clock import Clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import check_owner, check_schema
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._advice import has_answered
from pgleaderlock.postgres._driver import close_connection
from pgleaderlock.postgres._ownership import refusal, tables_sql
from pgleaderlock.postgres._search_path import open_pinned
from pgleaderlock.postgres.terms import create_sql

__all__ = ["TABLES", "Database", "Notification", "Row"]

Row = tuple[Any, ...]
TABLES = ("nodes", "candidates", "leaders", "history")
_LATER_TABLES = ("asks",)  # which a schema of an earlier version has not
_CALL_S = 10.0
_MOST_SENDERS = 1000
# A server does not notice that we hang up while it waits for a lock: without these, sessions would pile up there.
_LIMITS = "SELECT set_config('lock_timeout', '5s', false), set_config('statement_timeout', '8s', false)"
_MORE_ROOM = "SELECT set_config('statement_timeout', %(limit)s, true), set_config('work_mem', '64MB', true)"

_TIME = "SELECT extract(epoch FROM clock_timestamp())::float"


@dataclass(frozen=True, slots=True)
class Notification:
    """What one session sent last."""

    pid: int
    """Of the session that sent it: the server's word."""
    payload: str
    at: float
    """When it was read, on our own clock."""


class Database:
    """One connection to the database of the registry, or none."""

    def __init__(self, dsn: str, schema: str, clock: Clock, *, owner: str | None = None) -> None:
        self._parts = _dsn.check_dsn(dsn)
        self._schema = check_schema(schema)
        self._owner = check_owner(owner)
        self._clock = clock
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._heard: dict[int, Notification] = {}
        self.heard_count = 0
        """How many notifications came, ever."""
        self._takes_part = True
        self.has_tables = False
        """Whether there was a registry when the connection was opened."""

    @property
    def where(self) -> str:
        """Which database, without secrets."""
        return _dsn.describe(self._parts)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that nobody has given up."""
        return self._connection is not None and not self._connection.closed

    async def open(self, *, listen_to: str | None = None, makes_tables: bool = True) -> None:
        """Connect, make the tables unless they are there, and listen. Without ``makes_tables``: to look, and to ask."""
        self._takes_part = makes_tables  # which says what to advise where a right is missing
        await self.close()
        async with self._bounded("cannot connect"):
            self._connection = connection = await open_pinned(_dsn.with_defaults(self._parts))
            await connection.execute(_LIMITS)
            connection.add_notify_handler(lambda each: self._hear(each.pid, each.payload))
            self.has_tables = await self._look_for_tables()
            if makes_tables and not self.has_tables:
                await connection.execute(create_sql(self._schema, self._owner).encode())
                self.has_tables = await self._look_for_tables()
            if listen_to is not None:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(listen_to)))

    async def _look_for_tables(self) -> bool:
        """Whether all are there; ConnectionError if they are a stranger's, before anything of theirs can run."""
        statement = tables_sql(self._schema, TABLES, self._owner, optional=_LATER_TABLES)
        ((are_there, problems, user),) = await self._fetch(statement)
        if problems:
            raise refusal(self._schema, problems, user, self.where)
        return bool(are_there)

    async def stop_listening(self) -> None:
        """Have no notifications sent here any more."""
        await self.fetch("UNLISTEN *")

    async def listen(self, channel: str) -> None:
        """Have the notifications of this channel sent here."""
        await self.fetch(f'LISTEN "{channel}"')

    async def close(self) -> None:
        """Give the connection up. Does not raise, does not hang."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    async def fetch(self, statement: str, parameters: Mapping[str, Any] | Row = ()) -> list[Row]:
        """Run one statement and return its rows; ConnectionError says what the database objected to."""
        async with self._bounded("it did not answer"):
            return await self._fetch(statement, parameters)

    async def fetch_patiently(self, statement: str, parameters: Mapping[str, Any], limit_s: float) -> list[Row]:
        """Run one statement that has much to read: it may take longer than others, and more memory."""
        async with self._bounded("it did not answer", limit_s), self._open_connection().transaction():
            await self._fetch(_MORE_ROOM, {"limit": f"{limit_s * 900:.0f}ms"})
            return await self._fetch(statement, parameters)

    async def run_all(self, work: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Run all of them, or none."""
        async with self._bounded("it could not be written to"), self._open_connection().transaction():
            for statement, parameters in work:
                await self._fetch(statement, parameters)

    async def time(self) -> tuple[float, float, float]:
        """Ask for the server's time of day; return it with when we asked and when the answer came, on our clock."""
        sent = self._clock()
        rows = await self.fetch(_TIME)
        return sent, self._clock(), float(rows[0][0])

    async def _fetch(self, statement: str, parameters: Mapping[str, Any] | Row = ()) -> list[Row]:
        cursor = self._open_connection().cursor(row_factory=tuple_row)
        await cursor.execute(statement.encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []

    def _open_connection(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise ConnectionError(f"the registry has no connection ({self.where})")
        return self._connection

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str, limit_s: float = _CALL_S) -> AsyncIterator[None]:
        """Whatever goes wrong, the connection is given up, and the error has no secret in it."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            await self.close()
            raise ConnectionError(f"registry: {what} within {limit_s:g} s ({self.where})") from None
        except psycopg.Error as error:
            await self.close()
            raise ConnectionError(self._explained(error), answered=has_answered(error)) from None
        except BaseException:
            await self.close()
            raise

    def _explained(self, error: psycopg.Error) -> str:
        reason = _dsn.one_line(str(error), self._parts)
        hint = ""
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            user = self._parts.get("user", "USER")
            grant = "--grant-to" if self._takes_part else "--grant-asks-to"
            hint = f". As its owner: pgleaderlock schema apply --schema {self._schema} {grant} {user}"
        elif isinstance(error, psycopg.errors.QueryCanceled):
            hint = ". The server is busy, or the history is long: try again, or ask for a shorter time"
        return f"the registry's database refused ({self.where}): {reason}{hint}"

    # --- Notifications -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(self, readable: Callable[[], None]) -> Iterator[None]:
        """While nothing is asked of it, call this when something comes."""
        if self._connection is None or self._connection.closed:
            yield
            return
        loop, descriptor = asyncio.get_running_loop(), self._connection.pgconn.socket
        loop.add_reader(descriptor, readable)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def notifications(self) -> list[Notification]:
        """Return what came, also during a call. If what came was the end of the connection, give it up."""
        if self._connection is not None and not self._connection.closed:
            self._consume(self._connection.pgconn)
        heard, self._heard = self._heard, {}
        return list(heard.values())

    def _hear(self, pid: int, payload: str) -> None:
        """Keep the newest of each session, so that one that sends a million neither fills memory nor hides another."""
        self.heard_count += 1
        if pid in self._heard or len(self._heard) < _MOST_SENDERS:
            self._heard[pid] = Notification(pid, payload, self._clock())

    def _consume(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        try:
            pgconn.consume_input()
        except psycopg.Error:
            pgconn.finish()
            return
        while (notification := pgconn.notifies()) is not None:
            self._hear(notification.be_pid, notification.extra.decode(errors="replace"))
