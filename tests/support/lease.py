"""What tests of lease share with others."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from pgleaderlock import FixedInterval, LeaderLock, LockKey
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


async def until_in_line(dsn: str, key: LockKey, number: int = 1) -> None:
    statement = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s"
    deadline = time.monotonic() + 20
    while len(await query(dsn, statement, *key.numbers)) < number:
        assert time.monotonic() < deadline, "nobody stands in line"


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
