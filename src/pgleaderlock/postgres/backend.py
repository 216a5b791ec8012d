"""PostgreSQL: choose the protocol of a lock by the type of the connection.

A real psycopg connection gets the whole protocol (:mod:`.advisory`): a lease that the server enforces, the queue, a
witness lock. Anything else that ``connect_fn`` returns gets the three statements of the specification (:mod:`.plain`).
With a connection string the choice is known at once; with a factory its first connection shows it.
"""

from collections.abc import Mapping
from typing import Any

from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError, LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.postgres._connector import ConnectFn, Connector
from pgleaderlock.postgres._driver import close_connection, is_psycopg
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.plain import PlainLockBackend
from pgleaderlock.postgres.session import Session
from pgleaderlock.postgres.terms import Terms
from pgleaderlock.stores.base import Backend

__all__ = ["ConnectFn", "Lease", "PostgresBackend"]


class PostgresBackend(Backend):
    """One lock on PostgreSQL, on connections of any kind."""

    def __init__(
        self, key: LockKey, lease: Lease, clock: Clock, *, dsn: str | None = None, connect_fn: ConnectFn | None = None
    ) -> None:
        self._key = key
        self._connector = Connector(key, dsn=dsn, connect_fn=connect_fn, lease=lease)
        self._lease = lease
        self._clock = clock
        self._was_warned = False
        self._first: Any = None  # the connection that decided the protocol, until it is used
        self._chosen: Backend | None = self._leased() if connect_fn is None else None

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of the key, and the database: the same key in another database is another lock."""
        database = self._connector.database
        return self._key.labels if database is None else {**self._key.labels, "db": database}

    async def open(self) -> None:
        """Connect, unless connected. The first connection decides the protocol."""
        self._warn_of_default_database()
        if self._chosen is None:
            connection = await self._connector.connect()
            if is_psycopg(connection):
                self._first, self._chosen = connection, self._leased()
            else:
                plain = PlainLockBackend(self._key, self._connector)
                plain.adopt(connection)
                self._chosen = plain
        await self._chosen.open()

    async def try_acquire(self) -> Grant | None:
        """Try for the lock once."""
        return await self._backend().try_acquire()

    async def renew(self, grant: Grant) -> Grant:
        """Renew the grant."""
        return await self._backend().renew(grant)

    def look(self, grant: Grant) -> Grant:
        """Return the present state of the grant, as the chosen protocol sees it."""
        return grant if self._chosen is None else self._chosen.look(grant)

    async def release(self, grant: Grant) -> None:
        """Release the lock."""
        await self._backend().release(grant)

    async def holder(self) -> Holder | None:
        """Return the holder of the lock."""
        return await self._backend().holder()

    @property
    def lease_s(self) -> float | None:
        """The lease of the session; None on a connection without a lease."""
        return None if isinstance(self._chosen, PlainLockBackend) else self._lease.lease_s

    async def wait(self, timeout_s: float) -> None:
        """Wait as the chosen protocol does; before one is chosen, sleep."""
        if self._chosen is None:
            await super().wait(timeout_s)
        else:
            await self._chosen.wait(timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Wait for a loss, as the chosen protocol does."""
        return await self._backend().lost()

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held, by a leader or by a candidate that may not lead yet."""
        return isinstance(self._chosen, LeasedLockBackend) and self._chosen.holds_lock

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptors that keep the lock, as the chosen protocol has them."""
        return () if self._chosen is None else self._chosen.lifeline()

    def fence_sql(self, token: int | None) -> str:
        """Return the fence of this term. Raise LockError when there is no term table to compare with."""
        if not self._lease.term_table:
            raise LockError(
                f"fence() compares with the term table, which lock {self._key.described} does not write: pass "
                "term_table=True, to all candidates"
            )
        if isinstance(self._chosen, PlainLockBackend):
            raise LockError(
                f"fence() needs a psycopg connection from connect_fn: lock {self._key.described} has no token without"
            )
        return Terms(self._key, self._lease, self._connector.where).fence_sql(token or 0)

    async def close(self) -> None:
        """Close all sessions."""
        first, self._first = self._first, None
        if first is not None:
            await close_connection(first)
        if self._chosen is not None:
            await self._chosen.close()

    def _warn_of_default_database(self) -> None:
        if self._connector.names_database or self._was_warned:
            return
        self._was_warned = True
        get_logger().bind(**self.labels).warning(
            "database_not_named",
            advice="the connection string names no database, so it is the user's own: advisory locks are per "
            "database, and candidates with another one would not meet this one",
        )

    def _backend(self) -> Backend:
        if self._chosen is None:
            raise ConnectionError(f"no connection is open for lock {self._key.described} ({self._connector.where})")
        return self._chosen

    def _leased(self) -> LeasedLockBackend:
        return LeasedLockBackend(
            self._key,
            self._open_session,
            self._lease,
            self._clock,
            self._connector.where,
            labels=self.labels,
            connect_s=self._connector.connect_s,
        )

    async def _open_session(self) -> Session:
        connection, self._first = self._first, None
        return await self._connector.open_session(connection)
