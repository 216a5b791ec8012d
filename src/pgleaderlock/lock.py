"""``LeaderLock``: an election on a PostgreSQL advisory lock, with the constructor that the specification asks for."""

import asyncio
from typing import Literal

from pgleaderlock._checks import check_seconds
from pgleaderlock.backends.postgres import ConnectFn, Lease, PostgresBackend
from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.election import Election
from pgleaderlock.keys import LockKey
from pgleaderlock.retry import RetryStrategy

__all__ = ["LeaderLock"]


class LeaderLock(Election):
    """Makes exactly one of N processes the leader, on the PostgreSQL that they share.

    The lock is named by ``key1`` and ``key2``, by ``role="billing/scheduler"``, or by a :class:`LockKey`: exactly one
    of the three. Advisory locks are per database: contenders must connect to the same one.

        lock = LeaderLock("postgresql://app@db/app", role="billing/scheduler")

        @lock.on_lost
        def stop() -> None: ...

        async with lock:
            await lock.wait_for_leadership()
            while lock.is_leader:
                ...

    ``connect_fn`` overrides ``dsn``. A real ``psycopg.AsyncConnection`` from it is made autocommit; anything else needs
    ``execute`` and ``close`` and is sent three statements only.
    """

    def __init__(
        self,
        dsn: str,
        key1: int | None = None,
        key2: int | None = None,
        *,
        retry_strategy: RetryStrategy | None = None,
        health_interval_s: float = 5.0,
        reconnect_grace_s: float | None = None,
        auto_reacquire: bool = True,
        shutdown_event: asyncio.Event | None = None,
        connect_fn: ConnectFn | None = None,
        role: str | None = None,
        key: LockKey | None = None,
        lease_s: float | None = None,
        wake: Literal["line", "poll"] = "line",
        slice_s: float | None = None,
        settle_s: float | None = None,
        witness: bool = True,
        allow_pooler: bool = False,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        self._key = _choose_key(key1, key2, role, key)
        lease = Lease(_choose_lease_s(lease_s, health_interval_s), wake, slice_s, settle_s, witness, allow_pooler)
        super().__init__(
            PostgresBackend(self._key, lease, clock, dsn=dsn, connect_fn=connect_fn),
            retry_strategy=retry_strategy,
            health_interval_s=health_interval_s,
            reconnect_grace_s=reconnect_grace_s,
            auto_reacquire=auto_reacquire,
            shutdown_event=shutdown_event,
            clock=clock,
        )

    @property
    def key(self) -> LockKey:
        """Which lock this is about."""
        return self._key

    def __repr__(self) -> str:
        return f"<LeaderLock {self._key!r} {self.state.value}>"


def _choose_lease_s(lease_s: float | None, health_interval_s: float) -> float:
    """Return the lease, by default three health intervals; refuse one in which no renewal could succeed in time."""
    interval_s = check_seconds("health_interval_s", health_interval_s)
    if lease_s is None:
        return max(3 * interval_s, 1.5)
    check_seconds("lease_s", lease_s)
    if not interval_s < lease_s * 2 / 3:
        raise ValueError(
            f"health_interval_s={interval_s:g} must be less than two thirds of lease_s={lease_s:g}: leadership "
            "would be lost before the first renewal"
        )
    return lease_s


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
