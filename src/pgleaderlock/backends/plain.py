"""A session advisory lock and nothing more, for connections that are not psycopg's.

The contract is exact: three statements are ever sent, ``pg_try_advisory_lock``, ``SELECT 1`` and
``pg_advisory_unlock``, the first and the last with the keys as parameters, and the answer is
``await (await connection.execute(...)).fetchone()``.

Nothing enforces a lease here, so a grant's trust has no end (``trusted_until`` is infinite): a leader that falls
silent keeps the lock until its connection ends.
"""

from collections.abc import Awaitable, Mapping
from typing import Any

from pgleaderlock.backends import _pg_activity, _pg_standby
from pgleaderlock.backends._connector import Connector
from pgleaderlock.backends._driver import call_driver, close_connection
from pgleaderlock.backends.base import Backend
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant, Holder

__all__ = ["PlainLockBackend"]


class PlainLockBackend(Backend):
    """One advisory lock, asked for and held on one dedicated session."""

    def __init__(self, key: LockKey, connector: Connector) -> None:
        self._key = key
        self._connector = connector
        self._connection: Any = None
        self._broken = False

    def adopt(self, connection: Any) -> None:
        """Use this connection, which is open already."""
        self._connection = connection

    @property
    def labels(self) -> Mapping[str, object]:
        """As every PostgreSQL lock is labelled."""
        return self._key.labels

    async def open(self) -> None:
        """Connect, unless connected. A connection that failed is closed only now.

        Closing it where it failed would free the lock while the engine still believes in it.
        """
        if self._broken:
            await self.close()
        if self._connection is None:
            self._connection = await self._connector.connect()

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
                f"PostgreSQL answered that lock {self._key.described} was not held by this session "
                f"({self._connector.where}): something else released it, or a connection pooler gave us another "
                "session. The session is closed."
            )

    async def contenders(self) -> list[_pg_activity.Contender]:
        """Return who holds the lock and who waits for it, as pg_locks and pg_stat_activity show it."""
        answer: list[_pg_activity.Contender] = await self._run(_pg_activity.contenders(self._connection, self._key))
        return answer

    async def standby_problem(self) -> str:
        """Return what an absent synchronous standby does to this election, and what to do; nothing if it does none."""
        return str(await self._run(_pg_standby.standby_problem(self._connection, self._key)))

    async def holder(self) -> Holder | None:
        """Ask the server, on the session that is open."""
        return next((contender.holder for contender in await self.contenders() if contender.granted), None)

    async def close(self) -> None:
        """End the session, and with it whatever it holds."""
        connection, self._connection, self._broken = self._connection, None, False
        if connection is not None:
            await close_connection(connection)

    async def _ask_about_lock(self, function: str) -> bool:
        marks = ", ".join(["%s"] * len(self._key.numbers))
        row = await self._execute(f"SELECT {function}({marks})", self._key.numbers)
        if row is None:
            raise ConnectionError(
                f"{function} returned no row for lock {self._key.described} ({self._connector.where})"
            )
        return bool(row[0])

    async def _execute(self, statement: str, parameters: tuple[int, ...] | None = None) -> Any:
        if self._connection is None or self._broken:
            raise ConnectionError(f"no connection is open for lock {self._key.described} ({self._connector.where})")
        return await self._run(_fetch_one(self._connection, statement, parameters))

    async def _run(self, call: Awaitable[Any]) -> Any:
        """Await the driver. Whatever goes wrong, the session is not to be used again."""
        try:
            return await call_driver(self._connection, call)
        except Exception as error:
            self._broken = True
            raise self._connector.explain("the connection failed", error) from error


async def _fetch_one(connection: Any, statement: str, parameters: tuple[int, ...] | None) -> Any:
    arguments = (statement,) if parameters is None else (statement, parameters)
    return await (await connection.execute(*arguments)).fetchone()
