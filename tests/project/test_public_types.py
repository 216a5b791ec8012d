"""What type checkers make of the public API. mypy reads this file (``make types``); the one test runs what can be run.

An ``assert_type`` that no longer holds is an error of mypy's, and so is an ``ignore`` that is no longer needed.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, assert_type

import psycopg

import pgleaderlock
from pgleaderlock import (
    Election,
    Event,
    EventKind,
    ExponentialBackoff,
    LeaderGroup,
    LeaderLock,
    LockKey,
    LockState,
    RetryContext,
    RetryStrategy,
    Term,
    Tick,
    open_backend,
    sync,
)
from pgleaderlock.options import LockOptions
from pgleaderlock.postgres.leader_group import GroupRole
from pgleaderlock.stores.base import Backend


def lock_as_it_is_typed(lock: LeaderLock, connection: psycopg.AsyncConnection[Any]) -> None:
    assert_type(lock.is_leader, bool)
    assert_type(lock.state, LockState)
    assert_type(lock.token, int | None)
    assert_type(lock.key, LockKey)
    assert_type(lock.fence(connection), Awaitable[None])
    assert_type(lock.fence_sql(), str)


async def waiting_as_it_is_typed(lock: LeaderLock) -> None:
    assert_type(await lock.wait_for_leadership(), bool)
    assert_type(await lock.shutdown(), None)
    async with lock as entered:
        assert_type(entered, LeaderLock)


def decorators_as_they_are_typed(lock: LeaderLock) -> None:
    @lock.on_acquired
    def begin() -> None: ...

    assert_type(begin, Callable[[], None])

    @lock.on_state_change
    def change(before: LockState, after: LockState) -> None: ...

    change(before=LockState.FOLLOWER, after=LockState.LEADER)  # a decorator returns the very function

    @lock.on_released
    async def note(event: Event) -> None: ...

    @lock.on_lost(attempts=False)
    def stop(event: Event) -> None: ...

    stop(event=Event(EventKind.LOST, LockState.LEADER, LockState.FOLLOWER, "silenced", 0.0))

    @lock.on_error
    def report(error: Exception, event: Event) -> None: ...

    @lock.on_state_change
    def follow(before: LockState, after: LockState, event: Event) -> None: ...

    lock.on_lost(lambda: None)
    lock.on_lost(lambda event: event.cause, attempts=False)

    @lock.while_leader
    async def work(term: Term) -> None: ...

    @lock.every("5m")
    async def job(tick: Tick) -> None: ...


def other_fronts_as_they_are_typed(blocking: sync.LeaderLock, group: LeaderGroup) -> None:
    assert_type(blocking.wait_for_leadership(), bool)

    @blocking.on_lost(attempts=False)
    def stop(event: Event) -> None: ...

    @group.on_lost(attempts=False)
    def stop_role(role: GroupRole) -> None: ...

    assert_type(group["billing"], GroupRole)
    assert_type(group.leading, list[GroupRole])
    assert_type(open_backend("memory://x"), Backend)
    assert_type(Election(open_backend("memory://x")).is_leader, bool)


def mistakes_that_are_seen(lock: LeaderLock) -> None:
    LeaderLock("postgresql://x/y", role=7)  # type: ignore[arg-type]
    LeaderLock("postgresql://x/y", role="x", takeover="slow")  # type: ignore[arg-type]
    LockOptions(wake="sometimes")  # type: ignore[arg-type]
    LockOptions(lease_s=3)  # type: ignore[call-arg]  # a keyword of LeaderLock
    sync.LeaderLock("postgresql://x/y", role="x", leese_s=3)  # type: ignore[call-arg]
    LeaderLock("postgresql://x/y", role="x", leese_s=3)  # type: ignore[call-arg]
    lock.every("5m", if_killed="retry")  # type: ignore[call-overload]
    lock.is_leader = True  # type: ignore[misc]
    lock.on_acquired(first_delay_s)  # type: ignore[type-var]
    lock.before_release(lambda event: None)  # type: ignore[type-var]


def first_delay_s(strategy: RetryStrategy) -> float | None:
    return strategy.next_delay_s(RetryContext(1, 0.0, None))


def test_a_strategy_is_typed_as_it_behaves() -> None:
    assert first_delay_s(ExponentialBackoff()) == 1.0
    assert Event.__module__ == "pgleaderlock.models"
    assert pgleaderlock.__file__ is not None
    assert (Path(pgleaderlock.__file__).parent / "py.typed").exists()
