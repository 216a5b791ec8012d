"""Every kind of session that uses our tables, for tests of what it finds there. Each raises what its session raises."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import psycopg

from pgleaderlock import Election, FixedInterval, LockKey, Tick, open_backend
from pgleaderlock.ops.registry import Registry
from pgleaderlock.ops.registry.reading import open_reader
from pgleaderlock.work.schedule.reading import open_ledger
from tests.support.doubles import Witness, until
from tests.support.lease import LEASE_S, make_leased

_numbers = itertools.count(1)

User = Callable[[str, str | None], Awaitable[None]]


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def make_dsn(dsn: str, user: str) -> str:
    return dsn.replace("postgresql://postgres@", f"postgresql://{user}@")


async def by_term_table(dsn: str, schema_owner: str | None) -> None:
    lock, heard = make_leased(dsn, LockKey.bigint(next(_numbers)), term_table=True, schema_owner=schema_owner)
    async with lock:
        await until(lambda: bool(heard.errors) or lock.is_leader)
    raise_first(heard)


async def by_scheduled_work(dsn: str, schema_owner: str | None) -> None:
    lock, heard = make_leased(dsn, LockKey.bigint(next(_numbers)), term_table=True, schema_owner=schema_owner)
    done = asyncio.Event()

    @lock.every("50ms", name="job")
    async def job(_: Tick) -> None:
        done.set()

    async with lock:
        await until(lambda: bool(heard.errors) or done.is_set())
    raise_first(heard)
    async with open_ledger(dsn, schema_owner=schema_owner) as ledger:
        await ledger.ticks()


async def by_lease_rows(dsn: str, schema_owner: str | None) -> None:
    url = dsn.replace("postgresql://", "postgresql+lease://")
    backend = open_backend(url, role="r", lease_s=LEASE_S, schema_owner=schema_owner)
    election = Election(backend, health_interval_s=LEASE_S / 3, retry_strategy=FixedInterval(5.0))
    heard = Witness(election)
    async with election:
        await until(lambda: bool(heard.errors) or election.is_leader)
    raise_first(heard)


async def by_registry(dsn: str, schema_owner: str | None) -> None:
    database = Registry(dsn, node="n", schema_owner=schema_owner)._database
    try:
        await database.open()
        await database.run_all([("DELETE FROM pgleaderlock.leaders", {})])
    finally:
        await database.close()


async def by_reading(dsn: str, schema_owner: str | None) -> None:
    async with open_reader(dsn, schema_owner=schema_owner) as reader:
        await reader.status()


def raise_first(heard: Witness) -> None:
    if heard.errors:
        raise heard.errors[0]


async def by_ledger(dsn: str, schema_owner: str | None) -> None:
    async with open_ledger(dsn, schema_owner=schema_owner) as ledger:
        await ledger.ticks()
