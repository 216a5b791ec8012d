"""``LeaderLock``: an election on a PostgreSQL advisory lock, with the constructor of the specification."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Literal, overload

from pgleaderlock.engine.election import Election
from pgleaderlock.errors import LeadershipLost, LockError
from pgleaderlock.options import DEFAULT_SCHEMA, LockOptions, LockSettings, check_options
from pgleaderlock.postgres._connector import ConnectFn, Connector, ForeignConnection
from pgleaderlock.postgres._driver import close_connection
from pgleaderlock.postgres._fence import AsyncConnection, Connection, run_fence
from pgleaderlock.postgres.backend import make_backend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn, Password, log_in
from pgleaderlock.postgres.plain import PlainLockBackend
from pgleaderlock.postgres.terms import Terms
from pgleaderlock.retry import RetryStrategy
from pgleaderlock.stores.times import USUAL_INTERVAL_S
from pgleaderlock.work.scheduled import Scheduled

__all__ = ["LeaderLock"]


class LeaderLock(Scheduled, Election):
    """Makes exactly one of N processes the leader, on the PostgreSQL that they share.

    ``async with lock`` takes part in the election; it does not wait until this process leads, as other locks do.
    ``async with lock.leading()`` waits, and cancels its block when leadership is lost (:meth:`leading`).

    The lock is named by ``key1`` and ``key2``, by ``role="billing/scheduler"``, or by a :class:`LockKey`: exactly one
    of the three. Advisory locks are per database: candidates must connect to the same one.

        lock = LeaderLock("postgresql://app@db/app", role="billing/scheduler")

        @lock.on_lost
        def stop() -> None: ...

        async with lock:
            await lock.wait_for_leadership()
            while lock.is_leader:
                ...

    ``dsn`` is a connection string or a DATABASE_URL, a SQLAlchemy engine, or an entry of Django's DATABASES. A function
    as the ``password`` is called for each new session (:class:`~pgleaderlock.postgres.login.Login`).

    ``connect_fn`` overrides ``dsn``. A real ``psycopg.AsyncConnection`` from it is made autocommit; anything else needs
    ``execute`` and ``close`` and is sent three statements only. ``options`` are settings that few locks need.
    """

    def __init__(
        self,
        dsn: Dsn,
        key1: int | None = None,
        key2: int | None = None,
        *,
        retry_strategy: RetryStrategy | None = None,
        health_interval_s: float = USUAL_INTERVAL_S,
        reconnect_grace_s: float | None = None,
        auto_reacquire: bool = True,
        shutdown_event: asyncio.Event | None = None,
        connect_fn: ConnectFn | None = None,
        password: Password | None = None,
        role: str | None = None,
        key: LockKey | None = None,
        lease_s: float | None = None,
        settle_s: float | None = None,
        witness: bool = True,
        address: str | None = None,
        allow_pooler: bool = False,
        takeover: Literal["fast", "strict"] = "fast",
        term_table: bool = False,
        schema: str = DEFAULT_SCHEMA,
        options: LockOptions | None = None,
    ) -> None:
        self._key = _choose_key(key1, key2, role, key)
        settings = LockSettings(
            retry_strategy=retry_strategy,
            health_interval_s=health_interval_s,
            reconnect_grace_s=reconnect_grace_s,
            auto_reacquire=auto_reacquire,
            lease_s=lease_s,
            settle_s=settle_s,
            witness=witness,
            address=address,
            allow_pooler=allow_pooler,
            takeover=takeover,
            term_table=term_table,
            schema=schema,
            **check_options(options).values(),
        )
        self._lease = lease = Lease.choose(settings)
        if connect_fn is not None and password is not None:
            raise ValueError("password has no effect beside connect_fn, which opens the connections: pass it to that")
        dsn = log_in(dsn, password)
        self._connector = Connector(self._key, dsn=dsn, connect_fn=connect_fn, lease=lease)
        backend = make_backend(self._key, lease, lease.clock, self._connector)
        super().__init__(backend, shutdown_event=shutdown_event, **lease.of_election())
        self._dsn, self._connect_fn = dsn, connect_fn

    async def _open_backend(self) -> None:
        """Connect. The first connection of ``connect_fn`` decides the protocol: only psycopg's can have a lease."""
        try:
            await super()._open_backend()
        except ForeignConnection as first:
            if self._lease.address is not None:
                await close_connection(first.connection)
                raise LockError(
                    f"address needs a psycopg connection from connect_fn: lock {self._key.described} has no second "
                    "session that could show it"
                ) from None
            self._backend = PlainLockBackend(self._key, self._connector, first.connection)

    @overload
    def fence(self, connection: AsyncConnection[Any]) -> Awaitable[None]: ...
    @overload
    def fence(self, connection: Connection[Any]) -> None: ...
    def fence(self, connection: object) -> Awaitable[None] | None:
        """Make the transaction of this connection fail unless we are still the newest leader.

        Inside your own transaction, on the database of the lock; psycopg's async connections (awaited) and its
        blocking ones (from any thread):

            async with connection.transaction():
                await lock.fence(connection)
                await connection.execute("INSERT INTO invoices ...")

        Raises :class:`LeadershipLost` when a newer leader exists or we do not lead; the transaction is then aborted.
        Let it end the whole transaction: caught around a savepoint, the rest could still be committed.
        Once it returns, a successor's term does not begin before this transaction ends. Left idle for longer than the
        lease, the transaction is ended by the server. Needs ``term_table=True``.
        """
        return run_fence(connection, self.fence_sql(), self._key.described)

    def fence_sql(self) -> str:
        """Return :meth:`fence` as one SQL statement without parameters, for other drivers.

        It fails with SQLSTATE ``PGL01``. Valid for the current term only: ask for it in each transaction.
        """
        if not self._lease.term_table:
            raise LockError(
                f"fence() compares with the term table, which lock {self._key.described} does not write: pass "
                "term_table=True, to all candidates"
            )
        if isinstance(self._backend, PlainLockBackend):
            raise LockError(
                f"fence() needs a psycopg connection from connect_fn: lock {self._key.described} has no token without"
            )
        if (token := self.token) is None:
            raise LeadershipLost(f"this process does not lead {self._key.described}: its transactions cannot be fenced")
        return Terms(self._key, self._lease, self._connector.where).fence_sql(token)

    @property
    def key(self) -> LockKey:
        """The key of this lock."""
        return self._key

    def __repr__(self) -> str:
        return f"<LeaderLock {self._key!r} {self.state.value}>"


def _choose_key(key1: int | None, key2: int | None, role: str | None, key: LockKey | None) -> LockKey:
    ways = [key1 is not None or key2 is not None, role is not None, key is not None]
    if sum(ways) != 1:
        raise ValueError("name the lock in exactly one way: key1 and key2, or role=, or key=")
    if role is not None:
        return LockKey.named(role)
    if key is not None:
        if not isinstance(key, LockKey):
            raise TypeError(f"key must be a LockKey, not {type(key).__name__}")
        return key
    if key1 is None or key2 is None:
        raise ValueError("key1 and key2 go together: both are needed")
    return LockKey.pair(key1, key2)
