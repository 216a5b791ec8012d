"""From a connection string or a caller's factory to a connection, and from a driver's error to a readable one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._advice import advice_for, has_answered, sqlstate_of
from pgleaderlock.postgres._driver import (
    close_connection,
    close_on_cancel,
    forget_connection,
    is_psycopg,
    open_connection,
)
from pgleaderlock.postgres._password import find_source
from pgleaderlock.postgres.connection import Connection, Explain, connect
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn

ConnectFn = Callable[[], Awaitable[Any]]
"""A caller's factory of connections."""

_LIMIT_WORDS = ("too many clients", "too many connections", "remaining connection slots", "connection limit")
_LIMIT_HINT = (
    "A leader and its heir need two connections each, other followers one: raise max_connections or the CONNECTION "
    "LIMIT of the role or database, or pass witness=False to use one connection each."
)
_STANDBY_WORDS = ("server is in hot standby mode", "session is read-only")
_STANDBY_HINT = "A standby would grant the lock beside the primary: connect to the primary, or name all hosts."
_HINTS = ((_LIMIT_WORDS, _LIMIT_HINT), (_STANDBY_WORDS, _STANDBY_HINT))


class ForeignConnection(ConnectionError):  # noqa: N818 - named after what there is
    """The first connection of ``connect_fn`` is not psycopg's. It is open: the code that catches this uses it."""

    def __init__(self, message: str, connection: Any) -> None:
        super().__init__(message)
        self.connection = connection


class Connector:
    """Opens connections for one lock, or for what ``subject`` names, and explains what goes wrong with them."""

    def __init__(
        self,
        subject: LockKey | str,
        *,
        dsn: Dsn | None,
        connect_fn: ConnectFn | None = None,
        lease: Lease | None = None,
        lease_s: float | None = None,
    ) -> None:
        self._has_had_psycopg = False
        self._secrets: Mapping[str, str] = {}  # the last password that a function returned
        self._named = subject if isinstance(subject, str) else f"lock {subject.described}"
        self._agreement = "" if lease is None else lease.agreement
        self._lease_s = lease_s if lease is None else lease.lease_s
        if connect_fn is not None:
            if not callable(connect_fn):
                raise TypeError(f"connect_fn must be callable, not {type(connect_fn).__name__}")
            self._parts: Mapping[str, str] = {}
            self._password = None
            self.database: str | None = None
            self._is_database_named = True  # up to the caller
            self.connect_s = 0.0
            self.session_name: str | None = None
            self.where = "the connection of connect_fn"
            self._connect: Callable[[], Any] = connect_fn
        else:
            self._parts = _dsn.check_dsn(dsn)
            self._password = find_source(dsn)
            self.where = _dsn.describe(self._parts)
            self.database = _dsn.database(self._parts)
            self._is_database_named = _dsn.names_database(self._parts)
            self.connect_s = _dsn.connect_s(self._parts, self._lease_s) if self._lease_s is not None else 0.0
            self.session_name = _dsn.own_session_name(self._parts, self._agreement)
            self._connect = self._connect_by_dsn

    async def connect(self) -> Any:
        """Return an open connection: psycopg's, made autocommit, or what else the caller's factory makes."""
        connection, error = await self._attempt()
        if error is not None:
            # Raised here, where the driver's exception is not being handled: it would come along as the context.
            raise self.explain("cannot connect", error) from self._shown_cause(error)
        if connection is None:
            raise ConnectionError(
                f"connect_fn returned None for {self._named}: it must return an open connection with "
                "execute() and close()"
            )
        if is_psycopg(connection):
            close_on_cancel(connection)
            await self._make_autocommit(connection)
        return connection

    async def open_session(self) -> Connection:
        """Return a new session for locks, whose first statement pins it; ForeignConnection if that is not possible."""
        self._warn_of_default_database()
        connection = await self.connect()
        if not (self._has_had_psycopg or is_psycopg(connection)):
            raise ForeignConnection(f"{self._named} has no psycopg connection from connect_fn", connection)
        return Connection(await self._check_psycopg(connection), self.explain)

    def _warn_of_default_database(self) -> None:
        if not self._is_database_named:
            self._is_database_named = True  # warned of once
            get_logger().warning(
                "database_not_named",
                subject=self._named,
                db=self.database,
                advice="the connection string names no database, so it is the user's own: advisory locks are per "
                "database, and candidates with another one would not meet this one",
            )

    async def open(
        self,
        *,
        bound_s: float | None = None,
        survives_errors: bool = False,
        failure: str = "the session failed",
        explain: Explain | None = None,
    ) -> Connection:
        """Return a new connection for anything else, pinned; ConnectionError if that takes longer than the bound."""
        try:
            async with asyncio.timeout(bound_s):
                raw = await self._check_psycopg(await self.connect())
                connection = Connection(raw, explain or self.explain, survives_errors=survives_errors, failure=failure)
                await connection.pin()
                return connection
        except TimeoutError:
            raise self.explain("cannot connect", TimeoutError(f"no answer within {bound_s:g} s")) from None

    async def _check_psycopg(self, connection: Any) -> Any:
        if is_psycopg(connection):
            self._has_had_psycopg = True
            return connection
        await close_connection(connection)
        raise ConnectionError(
            f"{self._named} needs a psycopg connection from connect_fn, not a {type(connection).__name__}: it must "
            "return the same kind each time"
        )

    async def _attempt(self) -> tuple[Any, Exception | None]:
        try:
            return await open_connection(self._connect), None
        except Exception as error:  # noqa: BLE001 - a caller's factory may raise anything
            return None, error

    async def _connect_by_dsn(self) -> Any:
        parts = {**self._parts, **await self._ask_password()}
        connection = await connect(_dsn.with_defaults(parts, agreement=self._agreement, lease_s=self._lease_s))
        # The next one, perhaps for the witness while the lock is held, begins with the host that answered.
        self._parts = _dsn.put_first(self._parts, connection.info.host, connection.info.port)
        return connection

    async def _ask_password(self) -> Mapping[str, str]:
        """Return the password of this one session, if a function has it."""
        if self._password is not None:
            password = await self._password.get(_dsn.password_s(self._parts, self._lease_s))
            self._secrets = {} if password is None else {"password": password}
        return self._secrets

    async def _make_autocommit(self, connection: Any) -> None:
        if connection.autocommit:
            return
        try:
            await connection.set_autocommit(True)
        except asyncio.CancelledError:
            await close_connection(connection)
            raise
        except Exception as error:
            await close_connection(connection)
            raise ConnectionError(
                f"connect_fn returned a connection for {self._named} that is not autocommit and cannot be "
                f"made so: {error}. Return one that is not inside a transaction, best opened with autocommit=True."
            ) from error

    def explain(self, what: str, error: Exception, cause: LossCause = LossCause.UNKNOWN) -> ConnectionError:
        """Return an error that says what happened, to which lock, where, and why, in one line and without secrets."""
        reason = _dsn.one_line(str(error), {**self._parts, **self._secrets}) or type(error).__name__
        advice = advice_for(error, self._parts.get("user"))
        hint = next((hint for words, hint in _HINTS if any(word in reason for word in words)), advice)
        text = f"{what} for {self._named} ({self.where}): {reason}"
        return ConnectionError(
            f"{text}. {hint}" if hint else text, cause=cause, answered=has_answered(error), sqlstate=sqlstate_of(error)
        )

    def _shown_cause(self, error: Exception) -> Exception | None:
        """Keep the driver's exception as the cause, unless its text or its arguments hold a secret.

        Without its traceback, whose frames have the connection string among their variables: error trackers show them.
        And without psycopg's record of the connection, which has the password in clear.
        """
        forget_connection(error)
        secrets = {**self._parts, **self._secrets}
        # A UnicodeError has the whole connection string among its arguments, escaped where it cannot be encoded.
        is_clean = not isinstance(error, UnicodeError) and _dsn.scrub(str(error), secrets) == str(error)
        return error.with_traceback(None) if is_clean else None
