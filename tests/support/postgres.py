"""What tests of postgres share with others."""

import time
from typing import Any

import psycopg

from pgleaderlock import (
    FixedInterval,
    LeaderLock,
    LockKey,
)
from pgleaderlock.options import SETTINGS, LockOptions
from pgleaderlock.postgres._status import Candidate, inspect_lock
from tests.support.doubles import Witness

QUICK = FixedInterval(0.05)


def with_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a LeaderLock, with the rare settings among them where it takes those."""
    rare = {each.name for each in SETTINGS if each.is_rare} & set(settings)
    common = {name: value for name, value in settings.items() if name not in rare}
    return {**common, "options": LockOptions(**{name: settings[name] for name in rare})}


def make(dsn: str, key: LockKey, **settings) -> tuple[LeaderLock, Witness]:
    settings.setdefault("retry_strategy", QUICK)
    settings.setdefault("settle_s", 0)  # the servers of these tests have no past
    lock = LeaderLock(dsn, key=key, **with_options(settings))
    return lock, Witness(lock)


async def holders(dsn: str, key: LockKey) -> list[int]:
    """Ask the server itself, in words that are not the library's."""
    where = "classid = %s AND objid = %s AND objsubid = 2"
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        rows = await (
            await connection.execute(
                f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND {where}",
                key.numbers,
            )
        ).fetchall()
    return [row[0] for row in rows]


async def until_holders(dsn: str, key: LockKey, number: int) -> None:
    deadline = time.monotonic() + 10
    while len(await holders(dsn, key)) != number:
        assert time.monotonic() < deadline


async def terminate_holder(dsn: str, key: LockKey) -> None:
    (pid,) = await holders(dsn, key)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


async def look_at_lock(dsn: str, key: LockKey) -> list[Candidate]:
    """Return the holder of the lock, then the followers; ConnectionError if the database does not answer."""
    return (await inspect_lock(dsn, key))[0]
