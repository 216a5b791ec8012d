"""PostgreSQL: a session-level advisory lock on a connection of our own.

The lock belongs to the server-side session: it is ours exactly as long as that session lives, and the server frees it
when the session ends. So whenever anything about a session is in doubt, the session is closed: a closed session holds
nothing.

The connection comes from a connection string, or from the caller's ``connect_fn``. Whatever that returns, only three
statements are ever sent here: ``pg_try_advisory_lock``, ``SELECT 1`` and ``pg_advisory_unlock``. A connection that is
psycopg's is made autocommit first, because a session idle in a transaction holds back vacuum for as long as it leads.

Not promised yet: an end of the lock when the leader falls silent without its connection ending. A grant's trust has no
end here (``trusted_until`` is infinite); the server's TCP keepalives decide.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import psycopg

from pgleaderlock.backends import _dsn, _pg_activity
from pgleaderlock.backends._driver import call_driver, close_connection, is_psycopg, open_connection, take_over
from pgleaderlock.backends.base import Backend
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant, Holder

__all__ = ["AdvisoryLockBackend", "ConnectFn"]

ConnectFn = Callable[[], Awaitable[Any]]
"""A caller's factory of connections."""


class AdvisoryLockBackend(Backend):
    """One advisory lock, asked for and held on one dedicated session."""

    def __init__(self, key: LockKey, *, dsn: str | None = None, connect_fn: ConnectFn | None = None) -> None:
        self._key = key
        if connect_fn is not None:
            if not callable(connect_fn):
                raise TypeError(f"connect_fn must be callable, not {type(connect_fn).__name__}")
            self._parts: Mapping[str, str] = {}
            self._where = "the connection of connect_fn"
            self._connect: Callable[[], Any] = connect_fn
        else:
            self._parts = _dsn.check_dsn(dsn)
            self._where = _dsn.describe(self._parts)
            self._connect = self._connect_by_dsn
        self._connection: Any = None

    @property
    def labels(self) -> Mapping[str, object]:
        """The two keys of a pair; the key in its printed form otherwise, with the role's name if it has one."""
        if self._key.space == "pair":
            return {"key1": self._key.numbers[0], "key2": self._key.numbers[1]}
        return {"key": str(self._key)} if self._key.name is None else {"role": self._key.name, "key": str(self._key)}

    async def open(self) -> None:
        """Connect, unless connected."""
        if self._connection is not None:
            return
        try:
            connection = await open_connection(self._connect)
        except Exception as error:  # noqa: BLE001 - a caller's factory may raise anything
            raise self._unreachable("cannot connect", error) from self._cause(error)
        if connection is None:
            raise ConnectionError(
                f"connect_fn returned None for lock {self._key.described}: it must return an open connection with "
                "execute() and close()"
            )
        self._connection = connection
        if is_psycopg(connection):
            take_over(connection)
            await self._make_autocommit(connection)

    async def try_acquire(self) -> Grant | None:
        """Ask once."""
        return Grant() if await self._ask_about_lock("pg_try_advisory_lock") else None

    async def renew(self, grant: Grant) -> Grant:
        """Show that the session lives; as long as it does, the lock is ours."""
        await self._execute("SELECT 1")
        return grant

    async def release(self, grant: Grant) -> None:  # noqa: ARG002 - the session is the grant
        """Unlock."""
        if not await self._ask_about_lock("pg_advisory_unlock"):
            raise LockError(
                f"PostgreSQL answered that lock {self._key.described} was not held by this session ({self._where}): "
                "something else released it, or a connection pooler gave us another session. The session is closed."
            )

    async def holder(self) -> Holder | None:
        """Ask pg_locks and pg_stat_activity, on the session that is open."""
        contenders = await self._run(_pg_activity.contenders(self._connection, self._key))
        return next((contender.holder for contender in contenders if contender.granted), None)

    async def close(self) -> None:
        """End the session, and with it whatever it holds."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    # --- Below the verbs ---------------------------------------------------------------------------------------

    async def _connect_by_dsn(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(_dsn.with_defaults(self._parts), autocommit=True)

    async def _make_autocommit(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if connection.autocommit:
            return
        try:
            await connection.set_autocommit(True)
        except psycopg.Error as error:
            await self.close()
            raise ConnectionError(
                f"connect_fn returned a connection for lock {self._key.described} that is not autocommit and cannot be "
                f"made so: {error}. Return one that is not inside a transaction, best opened with autocommit=True."
            ) from error

    async def _ask_about_lock(self, function: str) -> bool:
        marks = ", ".join(["%s"] * len(self._key.numbers))
        row = await self._execute(f"SELECT {function}({marks})", self._key.numbers)
        if row is None:
            raise ConnectionError(f"{function} returned no row for lock {self._key.described} ({self._where})")
        return bool(row[0])

    async def _execute(self, statement: str, parameters: tuple[int, ...] | None = None) -> Any:
        if self._connection is None:
            raise ConnectionError(f"no connection is open for lock {self._key.described} ({self._where})")
        return await self._run(_fetch_one(self._connection, statement, parameters))

    async def _run(self, call: Awaitable[Any]) -> Any:
        """Await the driver. Whatever goes wrong, the session is not to be trusted and is closed."""
        try:
            return await call_driver(self._connection, call)
        except Exception as error:  # noqa: BLE001 - another driver may raise anything
            await self.close()
            raise self._unreachable("the connection failed", error) from self._cause(error)

    def _unreachable(self, what: str, error: Exception) -> ConnectionError:
        lines = _dsn.scrub(str(error), self._parts).splitlines()
        reason = "; ".join(filter(None, map(str.strip, lines))) or type(error).__name__
        return ConnectionError(f"{what} for lock {self._key.described} ({self._where}): {reason}")

    def _cause(self, error: Exception) -> Exception | None:
        """Keep the driver's exception as the cause, unless its text holds a secret."""
        return error if _dsn.scrub(str(error), self._parts) == str(error) else None


async def _fetch_one(connection: Any, statement: str, parameters: tuple[int, ...] | None) -> Any:
    arguments = (statement,) if parameters is None else (statement, parameters)
    return await (await connection.execute(*arguments)).fetchone()
