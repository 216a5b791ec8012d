"""A session advisory lock and nothing more, for connections that are not psycopg's.

The contract is exact: three statements are ever sent, ``pg_try_advisory_lock``, ``SELECT 1`` and
``pg_advisory_unlock``, the first and the last with the keys as parameters, and the answer is
``await (await connection.execute(...)).fetchone()``.

Nothing enforces a lease here, so a grant is valid without a limit (``trusted_until`` is infinite): a leader that falls
silent keeps the lock until its connection ends.
"""

from collections.abc import Mapping
from typing import Any

from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.postgres._activity import holder_of, holder_query
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._driver import call_driver, close_connection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores.base import Backend

__all__ = ["PlainLockBackend"]


class PlainLockBackend(Backend):
    """One advisory lock, acquired and held on one dedicated session."""

    def __init__(self, key: LockKey, connector: Connector, connection: Any = None) -> None:
        self._key = key
        self._connector = connector
        self._connection = connection
        self._broken = False

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of every PostgreSQL lock."""
        return self._key.labels

    async def open(self) -> None:
        """Connect, unless connected. A connection that failed is closed only now.

        Closing it where it failed would free the lock while the engine still acts as leader.
        """
        if self._broken:
            await self.close()
        if self._connection is None:
            self._connection = await self._connector.connect()

    async def try_acquire(self) -> Grant | None:
        """Try for the lock once."""
        return Grant() if await self._ask_about_lock("pg_try_advisory_lock") else None

    async def renew(self, grant: Grant) -> Grant:
        """Send a heartbeat; while the session lives, it holds the lock."""
        await self._execute("SELECT 1")
        return grant

    async def release(self, grant: Grant) -> None:  # noqa: ARG002 - the session is the grant
        """Unlock."""
        if not await self._ask_about_lock("pg_advisory_unlock"):
            raise LockError(
                f"PostgreSQL answered that lock {self._key.described} was not held by this session "
                f"({self._connector.where}): other code released it, or a connection pooler gave us another "
                "session. The session is closed."
            )

    async def holder(self) -> Holder | None:
        """Return the holder of the lock, asked on the open session."""
        statement, parameters = holder_query(self._key)
        row = await self._execute(statement, parameters)
        return None if row is None else holder_of(row)

    async def close(self) -> None:
        """End the session, which frees its locks."""
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
        """Return the first row of the answer. After any error the session is not used again."""
        if self._connection is None or self._broken:
            raise ConnectionError(f"no connection is open for lock {self._key.described} ({self._connector.where})")
        try:
            return await call_driver(self._connection, _fetch_one(self._connection, statement, parameters))
        except Exception as error:
            self._broken = True
            raise self._connector.explain("the connection failed", error) from error


async def _fetch_one(connection: Any, statement: str, parameters: tuple[int, ...] | None) -> Any:
    arguments = (statement,) if parameters is None else (statement, parameters)
    return await (await connection.execute(*arguments)).fetchone()
