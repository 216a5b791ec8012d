"""The place that the doctor examines: a connection like an election's, and the questions that all checks put to it.

Like an election's, or the findings would be about another connection; but a server that libpq turns down for its role
is looked at nevertheless, because its role is then what there is to say.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._search_path import open_pinned
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease

__all__ = ["Setting", "Site", "connect", "open_site", "shown_s", "told"]

_CONNECT_BOUND_S = 20.0  # more than the time-out of one host, so that a second one is tried
_READ_ONLY_WORDS = ("session is read-only", "hot standby mode")  # libpq's own, with target_session_attrs


async def connect(parts: Mapping[str, str], lease: Lease) -> psycopg.AsyncConnection[Any]:
    """Open a connection in bounded time; ConnectionError, without secrets, when there is none."""
    conninfo = _dsn.with_defaults(parts, lease_s=lease.lease_s)
    what = f"cannot connect ({_dsn.describe(parts)})"
    try:
        async with asyncio.timeout(_CONNECT_BOUND_S):
            # Nothing is prepared, because a pooler may not know where it was.
            return await open_pinned(conninfo, prepare_threshold=None, row_factory=tuple_row)
    except TimeoutError:
        error = ConnectionError(f"{what}: no answer within {_CONNECT_BOUND_S:g} s")
    except psycopg.Error as refused:
        error = ConnectionError(f"{what}: {told(refused, parts)}")
    raise error  # here, where the driver's exception is not being handled: its frames know the password


def told(error: Exception, parts: Mapping[str, str]) -> str:
    """Return a driver's error in one line and without secrets."""
    # Of a statement's error only the message: the rest quotes our own statement.
    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return _dsn.one_line(message or str(error), parts) or type(error).__name__


def shown_s(seconds: float) -> str:
    """Return a duration as people read it."""
    return f"{seconds * 1000:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the server's settings, as it is for this user."""

    name: str
    number: float
    """In seconds where it is a time; a switch is 0 or 1."""
    shown: str
    source: str

    def __str__(self) -> str:
        return f"{self.name} = {self.shown} ({self.source})"


@dataclass(frozen=True, slots=True)
class Site:
    """What is examined, and the ways to ask it something."""

    connection: psycopg.AsyncConnection[Any]
    parts: Mapping[str, str]
    lease: Lease
    key: LockKey | None
    refusal: str | None = None
    """Why libpq would not have this server for an election, though it lets us look at it."""

    @property
    def version(self) -> int:
        """The server's, as it says itself: 140005 is 14.5."""
        return self.connection.info.server_version

    @property
    def told_pid(self) -> int:
        """The process id that the connection received at its start."""
        return self.connection.info.backend_pid

    @property
    def user(self) -> str:
        """As it is written in SQL."""
        return sql.Identifier(self.connection.info.user).as_string()

    def explain(self, what: str, error: Exception, cause: LossCause) -> ConnectionError:
        """As a session wants it said; without secrets."""
        return ConnectionError(f"{what}: {told(error, self.parts)}", cause=cause)

    async def ask(self, statement: str, parameters: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Return the only row of the answer."""
        cursor = await self.connection.execute(statement, parameters)
        row: tuple[Any, ...] | None = await cursor.fetchone()
        if row is None:
            raise psycopg.DataError("the server gave no answer to a question that has one")
        return row

    async def settings(self, *names: str) -> dict[str, Setting]:
        """Return these settings, but for those that this server does not have."""
        cursor = await self.connection.execute(_SETTINGS, (list(names),))
        return {row[0]: _setting(*row) async for row in cursor}


async def open_site(parts: Mapping[str, str], lease: Lease, key: LockKey | None) -> Site:
    """Connect as an election would. A server that libpq turns down for its role is looked at nevertheless."""
    try:
        return Site(await connect(parts, lease), parts, lease, key)
    except ConnectionError as error:
        if not any(words in str(error) for words in _READ_ONLY_WORDS):
            raise
        refusal = str(error)
    parts = {**parts, "target_session_attrs": "any"}
    return Site(await connect(parts, lease), parts, lease, key, refusal)


_SETTINGS = "SELECT name, setting, unit, current_setting(name), source FROM pg_settings WHERE name = ANY(%s)"
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}


def _setting(name: str, value: str, unit: str | None, shown: str, source: str) -> Setting:
    """Read a row of pg_settings."""
    try:
        number = float(value)
    except ValueError:
        number = float(value == "on")
    # A negative one switches something off, whatever its unit.
    return Setting(name, number if number < 0 else number * _UNITS_S.get(unit or "", 1.0), shown, source)
