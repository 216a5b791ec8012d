"""What tests of registry share with others."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import psycopg
import pytest

from pgleaderlock import ConnectionError, FixedInterval, LeaderLock, LockKey
from pgleaderlock.ops.registry import Registry
from pgleaderlock.ops.registry.reading import RegistryReader, open_reader
from tests.conftest import Postgres
from tests.support.lease import LEASE_S

_numbers = itertools.count(1)

BEAT_S = 0.2


@pytest.fixture
def schema(postgres: Postgres):
    """A schema for one test alone."""
    name = f"registry_{os.getpid()}_{next(_numbers)}"
    yield name
    drop(postgres.dsn, name)


def drop(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


class Node:
    """One candidate with its registry."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        key: LockKey,
        name: str,
        *,
        lease_s: float = LEASE_S,
        retry_s: float = 0.2,
        **settings: Any,
    ) -> None:
        self.registry = Registry(dsn, node=name, schema=schema, heartbeat_s=BEAT_S, about={"zone": "eu-1"}, **settings)
        self.lock = LeaderLock(
            dsn, key=key, lease_s=lease_s, health_interval_s=0.3, retry_strategy=FixedInterval(retry_s), settle_s=0
        )
        self.registry.attach(self.lock, role="scheduler")

    async def __aenter__(self) -> Self:
        await self.registry.start()
        await self.lock.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lock.shutdown()
        await self.registry.close()


async def eventually(condition: Callable[[], Awaitable[object]]) -> Any:
    """Ask again and again until the answer is true, and return it."""
    async with asyncio.timeout(20):
        while not (answer := await condition()):  # noqa: ASYNC110 - of a database
            await asyncio.sleep(0.02)
        return answer


@contextlib.asynccontextmanager
async def reading(dsn: str, schema: str) -> AsyncIterator[RegistryReader]:
    """The registry, as soon as a node has made it."""

    async def is_there() -> bool:
        with contextlib.suppress(ConnectionError):
            async with open_reader(dsn, schema):
                return True
        return False

    await eventually(is_there)
    async with open_reader(dsn, schema) as reader:
        yield reader


async def leader_of(reader: RegistryReader) -> Any:
    return next((each.leader for each in await reader.status() if each.leader), None)
