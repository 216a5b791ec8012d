"""What tests of lease share with others."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from pgleaderlock import FixedInterval, LeaderLock, LockKey
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.lease import heir_key
from tests.support.doubles import Witness
from tests.support.postgres import make

LEASE_S = 1.5


def make_leased(dsn: str, key: LockKey, **settings) -> tuple[LeaderLock, Witness]:
    settings.setdefault("lease_s", LEASE_S)
    settings.setdefault("health_interval_s", LEASE_S / 3)
    settings.setdefault("retry_strategy", FixedInterval(5.0))  # what is quick here is not quick by polling
    return make(dsn, key, **settings)


async def query(dsn: str, statement: str, *parameters) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement, parameters or None)
        return await cursor.fetchall() if cursor.description else []


QUEUED = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND (classid, objid) IN ((%s, %s), (%s, %s))"
)
"""The sessions that wait for one of two locks, whose numbers as pg_locks shows them are the parameters."""


def succession_columns(key: LockKey) -> tuple[int, ...]:
    """The parameters of :data:`QUEUED` for the heir, which waits for the lock, and the next heir, for the place."""
    return (*lock_columns(key)[:2], *lock_columns(heir_key(key))[:2])


async def until_queued(dsn: str, key: LockKey, followers: int = 1) -> None:
    """Wait until so many followers have their places: the heir, the next heir, and the others are quiet."""
    ours = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pgleaderlock %%' AND query ~ 'advisory_lock'"
    deadline = time.monotonic() + 20
    while (
        len(await query(dsn, QUEUED, *succession_columns(key))) < min(followers, 2)
        or len(await query(dsn, ours)) < followers
    ):
        assert time.monotonic() < deadline, "the followers have no place in the succession"


async def until_answering(dsn: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            await query(dsn, "SELECT 1")
        except psycopg.OperationalError:
            await asyncio.sleep(0.05)
        else:
            return


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd").iterdir()))
