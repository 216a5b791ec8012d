"""Nothing of a stranger runs with our rights: every feature, as superuser, in a database full of planted code."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from pgleaderlock import Election, FixedInterval, LeaderLock, LeadershipLost, LockKey, Tick, open_backend
from pgleaderlock.cli.commands import cli
from pgleaderlock.ops.dashboard._sources import RegistrySource
from pgleaderlock.ops.registry.asking import Target
from pgleaderlock.ops.registry.reading import open_reader
from pgleaderlock.postgres.schema import schema_sql
from pgleaderlock.testing.torture import Ground
from tests.conftest import free_port
from tests.support.cli import CLI
from tests.support.doubles import Witness, until
from tests.support.group import make_group
from tests.support.lease import LEASE_S, make_leased
from tests.support.planted import SETTINGS, PlantedDatabase
from tests.support.processes import Process
from tests.support.registry import Node
from tests.support.servers import QuickServer
from tests.support.sweeps import sweep

pytestmark = pytest.mark.slow  # every feature there is, with every command in a process of its own

_numbers = itertools.count(1)
Feature = Callable[[str], Awaitable[None]]
FEATURES: dict[str, Feature] = {}


@pytest.fixture(scope="module")
def planted_anywhere(server_folder_root: Path) -> Iterator[PlantedDatabase]:
    server = QuickServer(server_folder_root / "planted", tcp_port=free_port(), settings=SETTINGS)
    server.start()
    try:
        database = PlantedDatabase(server)
        database.plant()
        yield database
    finally:
        server.stop("immediate")


@pytest.fixture(params=sweep(["public last", "public first"], "public first"))
def planted(planted_anywhere: PlantedDatabase, request: pytest.FixtureRequest) -> PlantedDatabase:
    planted_anywhere.put_public_first(first=request.param == "public first")
    planted_anywhere.forget()
    return planted_anywhere


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def a_key() -> LockKey:
    return LockKey.pair(os.getpid(), next(_numbers))


async def invoke(*words: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert result.exit_code == 0, result.output
    return result.output


def keys_of(key: LockKey) -> tuple[str, ...]:
    return "--key1", str(key.numbers[0]), "--key2", str(key.numbers[1])


async def ask(dsn: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, options="-c search_path=pg_catalog"
    ) as connection:
        cursor = await connection.execute(statement.encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []


async def end_holder(dsn: str, key: LockKey) -> None:
    where = "locktype = 'advisory' AND granted AND classid = %s AND objid = %s AND objsubid = 2"
    assert await ask(dsn, f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {where}", *key.numbers)


@contextlib.asynccontextmanager
async def leading(dsn: str, key: LockKey, **settings: object) -> AsyncIterator[tuple[LeaderLock, Witness]]:
    lock, heard = make_leased(dsn, key, **settings)
    async with lock:
        assert await lock.wait_for_leadership(20)
        yield lock, heard


# --- Every feature ----------------------------------------------------------------------------------------------------


@feature
async def a_lock_and_its_status(dsn: str) -> None:
    key = a_key()
    async with leading(dsn, key):
        follower, _ = make_leased(dsn, key)
        async with follower:
            assert "held by" in await invoke("status", "--dsn", dsn, *keys_of(key))
            assert "held by" in await invoke("doctor", "--dsn", dsn, *keys_of(key))


@feature
async def a_recovery_and_a_hand_over(dsn: str) -> None:
    key = a_key()
    settings = {"reconnect_grace_s": 10, "retry_strategy": FixedInterval(0.05)}
    async with leading(dsn, key, **settings) as (lock, heard):
        await end_holder(dsn, key)
        await until(lambda: "recovered" in heard.words)
        await lock.step_down()


@feature
async def acquire_with_a_term_table(dsn: str) -> None:
    options = ("--dsn", dsn, *keys_of(a_key()), "--term-table", "--takeover", "strict", "--settle", "0")
    with Process(*CLI, "acquire", *options) as process:
        assert process.wait() == 0


@feature
async def a_strict_take_over(dsn: str) -> None:
    key = a_key()
    strict = {"term_table": True, "takeover": "strict", "retry_strategy": FixedInterval(0.05)}
    async with leading(dsn, key, **strict):
        await end_holder(dsn, key)
    async with leading(dsn, key, **strict):
        pass


@feature
async def exec_and_run(dsn: str) -> None:
    options = ("--dsn", dsn, "--role", f"exec/{next(_numbers)}", "--term-table", "--settle", "0")
    with Process(*CLI, "exec", *options, "--", "echo", "it ran") as process:
        process.wait_for("it ran")
        assert process.wait() == 0
    with Process(*CLI, "run", *options) as process:
        process.wait_for("this process leads")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@feature
async def a_node_and_its_operators(dsn: str) -> None:
    key = a_key()
    async with Node(dsn, "pgleaderlock", key, "one") as one, Node(dsn, "pgleaderlock", key, "two") as two:
        heard = [Witness(each.lock) for each in (one, two)]
        await until(lambda: any(each.lock.is_leader for each in (one, two)))
        await until(lambda: any("on_acquire_failed" in each.words for each in heard))  # a follower, to hand over to
        await until(lambda: all(each.registry.is_up and not each.registry.waiting_events for each in (one, two)))
        assert "scheduler" in await invoke("status", "--dsn", dsn)
        lock = ("--dsn", dsn, "--lock", str(key))
        await invoke("history", *lock)
        await invoke("step-down", *lock)
        await invoke("audit", *lock)
        with Process(*CLI, "watch", "--dsn", dsn, "--json") as process:
            process.wait_for("scheduler")
            process.signal(signal.SIGINT)
            process.wait()
        source = RegistrySource(dsn, "pgleaderlock", where="", window_s=60.0)
        look = source.follow()
        assert (await anext(look))[0].roles
        await look.aclose()
        await until(lambda: one.lock.is_leader or two.lock.is_leader)
        leads = one if one.lock.is_leader else two
        await source.ask_to_step_down(str(key), Target(leads.registry.instance, leads.lock.token))


@feature
async def a_configured_node(dsn: str) -> None:
    roles = ",".join(f"node/{next(_numbers)}" for _ in range(9))
    sets = [f"cluster.leader_election.roles={roles}", "cluster.leader_election.settle=0s"]
    words = [word for each in sets for word in ("--set", each)]
    with Process(*CLI, "run", "--json", *words, env={"PG_DSN": dsn}) as process:
        process.wait_for('"event": "on_acquired"')
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@feature
async def a_group(dsn: str) -> None:
    names = [f"group/{next(_numbers)}" for _ in range(3)]
    keys: list[str | LockKey] = [*names, a_key()]
    async with make_group(dsn, keys) as group, make_group(dsn, keys) as other:
        await until(lambda: all(group[name].is_leader or other[name].is_leader for name in names))
        first = group if group[names[0]].is_leader else other
        await first[names[0]].step_down()


@feature
async def scheduled_work(dsn: str) -> None:
    done = asyncio.Event()
    lock, _ = make_leased(dsn, a_key(), term_table=True)

    @lock.every("50ms", name="invoices")
    async def invoices(tick: Tick) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
            await tick.done_in(connection)
        with psycopg.connect(dsn) as blocking, contextlib.suppress(LeadershipLost):  # it is marked already
            tick.done_in(blocking)
        done.set()

    async with lock:
        await asyncio.wait_for(done.wait(), 20)
    assert "invoices" in await invoke("ticks", "--dsn", dsn)


@feature
async def a_fence_in_a_session_of_the_user_s_own(dsn: str) -> None:
    async with leading(dsn, a_key(), term_table=True) as (lock, _):
        async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
            await lock.fence(connection)
        with psycopg.connect(dsn) as blocking, blocking.transaction():
            lock.fence(blocking)
        statement = lock.fence_sql()
    with psycopg.connect(dsn) as blocking, pytest.raises(psycopg.Error, match="not the newest"):
        blocking.execute(statement.encode())


@feature
async def lease_rows(dsn: str) -> None:
    role, url = f"rows/{next(_numbers)}", dsn.replace("postgresql://", "postgresql+lease://")

    def elect() -> Election:
        backend = open_backend(url, role=role, lease_s=LEASE_S)
        return Election(backend, health_interval_s=LEASE_S / 3, retry_strategy=FixedInterval(0.2))

    async with elect() as first:
        assert await first.wait_for_leadership(20)
        second = elect()
        heard = Witness(second)
        async with second:
            await until(lambda: "on_acquire_failed" in heard.words)
            assert "held by" in await invoke("status", "--url", url, "--role", role)
            await first.shutdown()
            assert await second.wait_for_leadership(20)


@feature
async def the_schema_made_and_printed(dsn: str) -> None:
    schema = f"made_{next(_numbers)}"
    await invoke("schema", "apply", "--dsn", dsn, "--schema", schema, "--grant-to", "postgres")
    by_hand = f"made_{next(_numbers)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(schema_sql(by_hand).encode())
        connection.execute(schema_sql(by_hand, from_version=1).encode())
    async with open_reader(dsn, by_hand) as reader:  # which refuses a default or a check that a stranger's code is in
        await reader.status()


@feature
async def connections_of_the_caller_s_own(dsn: str) -> None:
    async def connect() -> psycopg.AsyncConnection[tuple[object, ...]]:
        return await psycopg.AsyncConnection.connect(dsn, application_name="pgleaderlock of the caller")

    lock = LeaderLock("", connect_fn=connect, key=a_key(), settle_s=0, term_table=True)
    done = asyncio.Event()

    @lock.every("50ms", name="reports")
    async def reports(_: Tick) -> None:
        done.set()

    async with lock:
        await asyncio.wait_for(done.wait(), 20)


@feature
async def the_torture_s_own_questions(dsn: str) -> None:
    ground = Ground(dsn)
    await ground.survey(LEASE_S)
    async with leading(dsn, ground.key, term_table=True, schema=ground.schema) as (_, heard):
        assert await ground.end_session("both")
        await until(lambda: "on_lost" in heard.words)
    async with ground.tidied(has_schema=True):
        pass


@pytest.mark.parametrize("name", sorted(FEATURES))
async def test_no_planted_function_operator_view_or_type_is_called(planted: PlantedDatabase, name: str):
    trouble: Exception | None = None
    try:
        await FEATURES[name](planted.dsn)
    except Exception as error:  # what ran is the first thing to know
        trouble = error
    assert planted.caught() == []
    assert not planted.stranger_is_superuser()
    assert planted.unpinned() == []
    if trouble is not None:
        raise trouble


def test_the_traps_are_sharp(planted: PlantedDatabase):
    """What an unpinned session of a superuser does to itself: without this, the test above could not fail."""
    assert planted.planted > 20_000
    with psycopg.connect(planted.dsn, autocommit=True, application_name="pgleaderlock") as victim:
        victim.execute("SELECT to_jsonb(l) FROM pg_catalog.pg_locks AS l LIMIT 1")
    assert any("to_jsonb" in each for each in planted.caught())
    assert planted.stranger_is_superuser()
    assert planted.unpinned()
