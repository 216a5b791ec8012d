"""The place that the doctor examines: a connection like an election's, and the questions that all checks put to it.

Like an election's, or the findings would be about another connection; but a server that libpq turns down for its role
is looked at nevertheless, because its role is then what there is to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._advice import identifier, sqlstate_of
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.connection import Connection, Explain, message_of
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import Parameters, Row

_CONNECT_BOUND_S = 20.0  # more than the time-out of one host, so that a second one is tried
_ANSWER_BOUND_S = 60.0  # more than that of a check, which bounds all of its questions
_READ_ONLY_WORDS = ("session is read-only", "hot standby mode")  # libpq's own, with target_session_attrs


def told(error: Exception, parts: Mapping[str, str]) -> str:
    """Return an error in one line and without secrets. Of a statement's only the message: the rest quotes it."""
    return _dsn.one_line(message_of(error), parts) or type(error).__name__


def _explain_by(parts: Mapping[str, str]) -> Explain:
    """Return what makes errors of a connection readable: of a statement's, only what the server said."""

    def explain(what: str, error: Exception, cause: LossCause) -> ConnectionError:
        reason, sqlstate = told(error, parts), sqlstate_of(error)
        return ConnectionError(reason if sqlstate else f"{what}: {reason}", cause=cause, sqlstate=sqlstate)

    return explain


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

    connection: Connection
    connector: Connector
    parts: Mapping[str, str]
    lease: Lease
    key: LockKey | None
    refusal: str | None = None
    """Why libpq would not have this server for an election, though it lets us look at it."""

    @property
    def version(self) -> int:
        """The server's, as it says itself: 140005 is 14.5."""
        return self.connection.facts.version

    @property
    def told_pid(self) -> int:
        """The process id that the connection received at its start."""
        return self.connection.facts.session_pid

    @property
    def user(self) -> str:
        """As it is written in SQL."""
        return identifier(self.connection.user)

    @property
    def descriptor(self) -> int:
        """The socket of the connection, to be copied; ConnectionError when it is closed."""
        if self.connection.descriptor is None:
            raise ConnectionError("the session was closed")
        return self.connection.descriptor

    async def open_session(self) -> Connection:
        """Open a session like one for locks."""
        return Connection(await self.connector.connect(), _explain_by(self.parts))

    async def ask(self, statement: str, parameters: Sequence[Any] = ()) -> Row:
        """Return the only row of the answer."""
        row = await self.connection.fetch(statement, parameters, bound_s=_ANSWER_BOUND_S)
        if row is None:
            raise ConnectionError("the server gave no answer to a question that has one")
        return row

    async def fetch_all(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows of the answer."""
        return await self.connection.fetch_all(statement, parameters, bound_s=_ANSWER_BOUND_S)

    async def settings(self, *names: str) -> dict[str, Setting]:
        """Return these settings, but for those that this server does not have."""
        return {row[0]: _setting(*row) for row in await self.fetch_all(_SETTINGS, (list(names),))}


async def open_site(dsn: str, lease: Lease, key: LockKey | None) -> Site:
    """Connect as an election would. A server that libpq turns down for its role is looked at nevertheless."""
    try:
        return await _open(dsn, lease, key)
    except ConnectionError as error:
        if not any(words in str(error) for words in _READ_ONLY_WORDS):
            raise
        refusal = str(error)
    any_server = _dsn.join({**_dsn.check_dsn(dsn), "target_session_attrs": "any"})
    return await _open(any_server, lease, key, refusal)


async def _open(dsn: str, lease: Lease, key: LockKey | None, refusal: str | None = None) -> Site:
    parts = _dsn.check_dsn(dsn)
    connector = Connector("an election", dsn=dsn, lease_s=lease.lease_s)
    connection = await connector.open(bound_s=_CONNECT_BOUND_S, survives_errors=True, explain=_explain_by(parts))
    return Site(connection, connector, parts, lease, key, refusal)


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
