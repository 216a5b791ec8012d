"""Who leads, for a process that takes no part: the same answers from every store, and the limits of each."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from pgleaderlock import (
    Election,
    FixedInterval,
    LeaderGroup,
    LeaderLock,
    LockError,
    LockKey,
    open_backend,
    sync,
)
from pgleaderlock.models import Holder
from pgleaderlock.ops.registry import Registry
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.lease import LONGEST_ADDRESS, advertised_address, advertising_name, is_led, waiting_name
from pgleaderlock.stores.kubernetes.lease import ADDRESS_ANNOTATION
from pgleaderlock.stores.memory import MemoryStore
from pgleaderlock.stores.observer import ANSWER_S, RecordObserver, observer_of
from pgleaderlock.stores.record import Claim, Record, RecordBackend
from pgleaderlock.stores.watching import LeaderSeen, LeaderUnknown, _follow, find_leader, watch_leader
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.conftest import Postgres
from tests.support.doubles import HANG, DoubleConnection, ScriptedBackend, connect_to
from tests.support.lease import query
from tests.support.registry import eventually, schema

__all__ = ["schema"]  # a fixture

Seen = LeaderSeen | LeaderUnknown | None
ADDRESS, OTHER_ADDRESS = "http://10.0.0.7:8080", "http://[fd00::8]:8080/api"
LEASE_S = 6.0
WAIT_S = 30.0  # for what takes milliseconds on an idle machine
_numbers = count(1)


@dataclass(frozen=True)
class Site:
    """One lock in one store."""

    url: str
    role: str | None = None
    candidate: dict[str, Any] | None = None
    """Options of candidates only."""
    shows_token: bool = True

    def election(self, address: str | None = ADDRESS, **more: Any) -> Election:
        options = {**(self.candidate or {}), **more}
        backend = open_backend(self.url, role=self.role, lease_s=LEASE_S, address=address, **options)
        return Election(backend, retry_strategy=FixedInterval(0.05), health_interval_s=LEASE_S / 3)

    def watch(self, **options: Any) -> AsyncGenerator[Seen, None]:
        return watch_leader(self.url, self.role, **options)


@pytest.fixture
async def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server


@pytest.fixture
def sessions(postgres: Postgres) -> Site:
    role = f"watched/{os.getpid()}/{next(_numbers)}"
    return Site(postgres.dsn, role, {"settle_s": 0}, shows_token=False)


@pytest.fixture
def rows(postgres: Postgres) -> Site:
    url = postgres.dsn.replace("postgresql://", "postgresql+lease://")
    return Site(url, f"watched/{os.getpid()}/{next(_numbers)}")


@pytest.fixture(params=["memory", "file", "nfs", "rows", "sessions", "kubernetes"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param in ("rows", "sessions"):
        return cast("Site", request.getfixturevalue(request.param))
    if request.param == "kubernetes":
        request.getfixturevalue("kubernetes")
        return Site("k8s://default/watched")
    paths = {"memory": f"memory://watched-{next(_numbers)}", "file": f"file://{tmp_path}/lock"}
    return Site(paths.get(request.param, f"nfs://{tmp_path}/folder"))


async def following(leaders: AsyncGenerator[Seen, None], wanted: Callable[[Seen], bool]) -> Seen:
    """Return the next answer that is wanted."""
    async with asyncio.timeout(WAIT_S):
        async for leader in leaders:
            if wanted(leader):
                return leader
    raise AssertionError("the watch ended")


def is_at(address: str | None) -> Callable[[Seen], bool]:
    return lambda leader: isinstance(leader, LeaderSeen) and leader.address == address


async def lead(election: Election) -> None:
    assert await election.wait_for_leadership(WAIT_S)


# --- Every store -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_watcher_sees_each_leader_with_its_address_and_the_time_without_one(site: Site):
    async with contextlib.aclosing(site.watch()) as leaders:
        assert await following(leaders, lambda _: True) is None
        async with site.election() as first:
            await lead(first)
            seen = await following(leaders, bool)
            assert isinstance(seen, LeaderSeen)
            assert seen.address == ADDRESS
            assert (seen.token == first.token) if site.shows_token else (seen.token is None)
            assert await find_leader(site.url, site.role) == seen
        assert await following(leaders, lambda leader: not leader) is None
        async with site.election(OTHER_ADDRESS) as second:
            await lead(second)
            after = await following(leaders, bool)
    assert isinstance(after, LeaderSeen)
    assert after.address == OTHER_ADDRESS
    assert after.token is None or after.token > (seen.token or 0) or not site.shows_token


async def test_while_there_is_no_leader_a_watcher_waits_and_does_not_look_again_and_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    looks: list[float] = []
    look = RecordObserver.look

    async def counted(observer: RecordObserver) -> LeaderSeen | None:
        looks.append(asyncio.get_running_loop().time())
        assert len(looks) < 100, "the store reports again what is known"
        return await look(observer)

    monkeypatch.setattr(RecordObserver, "look", counted)
    async with contextlib.aclosing(site.watch()) as leaders:
        async with site.election() as election:
            await lead(election)
            assert await following(leaders, bool)
        assert await following(leaders, lambda leader: not leader) is None
        looks.clear()
        with contextlib.suppress(TimeoutError):  # a busy machine looks less often
            async with asyncio.timeout(0.5):
                await anext(leaders)
    assert len(looks) < 4


@pytest.mark.virtual_time
async def test_a_store_that_reports_changes_that_are_none_does_not_occupy_the_event_loop():
    class Restless(MemoryStore):
        async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
            return seen

    store, reads = Restless(f"restless-{next(_numbers)}"), count(0)
    await store.write(Claim("web-1", 1, 20.0, is_new_term=True), None)
    observer = RecordObserver(RecordBackend(store), clock=asyncio.get_running_loop().time)
    await observer.look()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while next(reads) < 1000:
                await observer.wait(1.0)
                await observer.look()
    assert next(reads) < 50


async def test_a_leader_without_an_address_is_shown_without_one_also_after_one_with_an_address(site: Site):
    async with site.election() as first:
        await lead(first)
    async with site.election(None) as second, contextlib.aclosing(site.watch()) as leaders:
        await lead(second)
        seen = await following(leaders, bool)
    assert isinstance(seen, LeaderSeen)
    assert seen.address is None


@pytest.mark.slow
async def test_a_watcher_is_no_candidate_and_keeps_no_candidate_out(site: Site):
    async with contextlib.aclosing(site.watch()) as leaders:
        for _ in range(3):
            async with site.election() as election:
                await lead(election)
                await following(leaders, bool)
            await following(leaders, lambda leader: not leader)


# --- Which arguments are refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", "http://a b", "http://a'b", "http://ä", "x" * 201, "http://a\n", "a%b", 7])
def test_what_cannot_be_an_address_is_refused_everywhere(wrong: Any):
    for make in (
        lambda: open_backend("memory://refused", address=wrong),
        lambda: LeaderLock("postgresql://db/app", role="a", address=wrong),
        lambda: RecordBackend(MemoryStore("refused"), address=wrong),
    ):
        with pytest.raises(ValueError, match="address must"):
            make()


def test_on_sessions_an_address_must_fit_into_their_name_and_needs_the_witness_session():
    fits = "h" * LONGEST_ADDRESS
    LeaderLock("postgresql://db/app", role="a", address=fits)
    assert len(advertising_name(fits, 4_194_304)) == 63
    for make in (LeaderLock, LeaderGroup):
        arguments = {"role": "a"} if make is LeaderLock else {"roles": ["a"]}
        with pytest.raises(ValueError, match=f"at most {LONGEST_ADDRESS} characters on PostgreSQL sessions"):
            make("postgresql://db/app", address=fits + "h", **arguments)
        with pytest.raises(ValueError, match="it needs witness=True"):
            make("postgresql://db/app", address="h", witness=False, **arguments)


def test_a_store_without_a_place_for_an_address_refuses_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MemoryStore, "carries_address", False)
    with pytest.raises(ValueError, match="memory:// has no place for the address of its leader"):
        open_backend("memory://refused", address="h")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"url": "postgresql://db/app"}, "exactly one way"),
        ({"url": "postgresql://db/app", "role": "a", "key": LockKey.pair(1, 2)}, "exactly one way"),
        ({"url": "memory://a", "key": LockKey.pair(1, 2)}, "key is only for sessions"),
        ({"url": "memory://a", "poll_s": 0}, "poll_s"),
        ({"url": "gopher://a"}, "no backend for gopher"),
    ],
)
def test_a_wrong_argument_of_a_watcher_is_refused_before_it_runs(arguments: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text):
        watch_leader(**arguments)


async def test_a_connection_that_is_not_psycopgs_cannot_show_an_address(key: LockKey):
    connection = DoubleConnection()
    lock = LeaderLock("postgresql://db/app", key=key, address="h", connect_fn=connect_to(connection))
    with pytest.raises(LockError, match="address needs a psycopg connection"):
        await lock._open_backend()


# --- PostgreSQL sessions ---------------------------------------------------------------------------------------------


async def test_the_term_row_shows_token_and_beginning(sessions: Site):
    site = replace(sessions, candidate={"settle_s": 0, "term_table": True})
    async with site.election() as election:
        await lead(election)
        seen = await find_leader(site.url, site.role)
        assert seen is not None
        assert seen.token == election.token
        assert seen.since is not None
        assert seen.since.endswith("Z")


@contextlib.asynccontextmanager
async def registered(dsn: str, schema: str, key: LockKey, address: str) -> AsyncIterator[LeaderLock]:
    registry, lock = Registry(dsn, schema=schema), LeaderLock(dsn, key=key, settle_s=0, address=address)
    registry.attach(lock, role="watched")
    async with registry, lock:
        yield lock


async def test_with_a_registry_a_hand_over_is_seen_with_its_token_and_without_a_poll(
    postgres: Postgres, schema: str, key: LockKey
):
    async with registered(postgres.dsn, schema, key, ADDRESS) as first:
        await lead(first)

        async def is_registered() -> object:
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                return await query(postgres.dsn, f'SELECT 1 FROM "{schema}".leaders')
            return False

        await eventually(is_registered)
        leaders = watch_leader(postgres.dsn, key=key, schema=schema, poll_s=600.0)
        async with contextlib.aclosing(leaders), registered(postgres.dsn, schema, key, OTHER_ADDRESS) as second:
            before = await following(leaders, is_at(ADDRESS))
            assert isinstance(before, LeaderSeen)
            assert before.token == first.token
            await first.shutdown()
            await lead(second)
            token = second.token
            seen = await following(leaders, lambda leader: isinstance(leader, LeaderSeen) and leader.token == token)
            assert is_at(OTHER_ADDRESS)(seen)


_WITNESS_NAMES = """
SELECT DISTINCT a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE 'pgl:%'
"""


async def names_of_waiting(dsn: str) -> list[str]:
    return [name for (name,) in await query(dsn, _WITNESS_NAMES) if "waits" in name]


async def test_a_candidate_that_waits_for_the_end_of_a_quiet_period_is_not_shown_as_the_leader(
    own_server: Server, key: LockKey
):
    await asyncio.to_thread(own_server.restart)
    async with LeaderLock(own_server.dsn, key=key, lease_s=600, address=ADDRESS):
        await eventually(lambda: names_of_waiting(own_server.dsn))
        assert await find_leader(own_server.dsn, key=key) is None


@pytest.mark.slow
@pytest.mark.parametrize("address", [None, ADDRESS])
async def test_after_the_quiet_period_the_leader_is_shown(own_server: Server, key: LockKey, address: str | None):
    await asyncio.to_thread(own_server.restart)
    async with LeaderLock(own_server.dsn, key=key, lease_s=2, health_interval_s=0.5, address=address) as lock:
        await eventually(lambda: names_of_waiting(own_server.dsn))
        await lead(lock)
        seen = await find_leader(own_server.dsn, key=key)
        assert seen is not None
        assert seen.address == address
        assert await names_of_waiting(own_server.dsn) == []


def test_the_name_of_a_witness_session_shows_that_its_candidate_may_not_lead_yet():
    assert is_led(None, 4711)
    assert is_led("pgleaderlock host-1:17 15s wf", 4711)
    assert is_led(advertising_name(ADDRESS, 4711), 4711)
    assert not is_led(advertising_name(ADDRESS, 4712), 4711)  # the lock's holder waits for the witness lock
    assert not is_led(waiting_name(4711), 4711)
    assert advertised_address(waiting_name(4711), 4711) is None


async def test_the_roles_of_a_group_have_the_address_of_their_node(postgres: Postgres, key: LockKey):
    async with LeaderGroup(postgres.dsn, {"a": key}, settle_s=0, address=ADDRESS) as group:
        await lead(group["a"])
        seen = await find_leader(postgres.dsn, key=key)
    assert seen is not None
    assert seen.address == ADDRESS


def test_the_address_of_a_witness_session_counts_for_its_own_lock_session_only():
    name = advertising_name(ADDRESS, 4711)
    assert advertised_address(name, 4711) == ADDRESS
    assert advertised_address(name, 4712) is None  # a successor that still waits for the witness lock
    for foreign in (None, "", "pgl:", "pgl:4711", "pgl:4711 ", "pgl:4711 a b", "psql", "4711 http://a"):
        assert advertised_address(foreign, 4711) is None


async def test_an_address_costs_no_statement_between_grant_and_leadership(
    sessions: Site, monkeypatch: pytest.MonkeyPatch
):
    """It goes with the statement that takes the witness lock."""
    fetch, statements = Connection.fetch, list[str]()

    async def recorded(self: Connection, statement: str, *args: Any, **kwargs: Any) -> Any:
        statements.append(statement)
        return await fetch(self, statement, *args, **kwargs)

    monkeypatch.setattr(Connection, "fetch", recorded)
    counts = []
    for address in (None, ADDRESS):
        statements.clear()
        backend = sessions.election(address)._backend
        await backend.open()
        assert await backend.try_acquire() is not None
        counts.append(len(statements))
        await backend.close()
    assert any(ADDRESS in statement for statement in statements)
    assert counts[0] == counts[1]


async def test_an_address_is_shown_again_after_a_recovery_on_a_new_lock_session(sessions: Site):
    lock = LeaderLock(
        sessions.url,
        role=sessions.role,
        settle_s=0,
        address=ADDRESS,
        reconnect_grace_s=20.0,
        retry_strategy=FixedInterval(0.05),
    )
    columns = "SELECT l.pid FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
    key = lock.key.numbers[0] & (2**64 - 1)
    where = f"{columns} AND l.classid::text::bigint = {key >> 32} AND l.objid::text::bigint = {key & (2**32 - 1)}"
    async with lock, contextlib.aclosing(sessions.watch(poll_s=0.05)) as leaders:
        await lead(lock)
        await following(leaders, is_at(ADDRESS))
        ((pid,),) = await query(sessions.url, where)
        await query(sessions.url, "SELECT pg_terminate_backend(%s)", pid)

        async def is_shown_of_another_session() -> bool:
            seen = await find_leader(sessions.url, sessions.role)
            return await query(sessions.url, where) not in ([], [(pid,)]) and is_at(ADDRESS)(seen)

        assert await eventually(is_shown_of_another_session)


async def test_a_server_that_stops_makes_the_leader_unknown_and_its_return_known_again(own_server: Server):
    site = Site(own_server.dsn, "watched/outage", {"settle_s": 0})
    async with contextlib.aclosing(site.watch(poll_s=0.1)) as leaders, site.election() as election:
        await lead(election)
        assert await following(leaders, is_at(ADDRESS))
        own_server.stop("immediate")
        unknown = await following(leaders, lambda leader: isinstance(leader, LeaderUnknown))
        assert isinstance(unknown, LeaderUnknown)
        assert "watched/outage" in unknown.error
        own_server.start()
        assert await following(leaders, is_at(ADDRESS))


async def test_a_stranger_s_table_is_not_read(own_server: Server, caplog: pytest.LogCaptureFixture):
    await query(own_server.dsn, "CREATE ROLE owner_of_view LOGIN")
    columns = "'' AS lock, pgleaderlock.spy() AS token, 1 AS backend_pid, now() AS acquired_at, now() AS released_at"
    statements = (
        "CREATE SCHEMA pgleaderlock AUTHORIZATION owner_of_view",
        "CREATE FUNCTION pgleaderlock.spy() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'ran'; END $$",
        f"CREATE VIEW pgleaderlock.terms AS SELECT {columns}",
        "ALTER VIEW pgleaderlock.terms OWNER TO owner_of_view",
    )
    for statement in statements:
        await query(own_server.dsn, statement)
    site = Site(own_server.dsn, "watched/stranger", {"settle_s": 0})
    async with site.election() as election:
        await lead(election)
        seen = await find_leader(site.url, site.role)
    assert seen is not None
    assert (seen.address, seen.token) == (ADDRESS, None)
    assert "tables_not_read" in caplog.text


# --- Lease stores ----------------------------------------------------------------------------------------------------


async def test_watching_a_database_without_our_tables_makes_none(own_server: Server):
    url = own_server.dsn.replace("postgresql://", "postgresql+lease://")
    async with contextlib.aclosing(watch_leader(url, "a", poll_s=0.05)) as leaders:
        assert await anext(leaders) is None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(leaders)
    assert await query(own_server.dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'pgleaderlock'") == []


async def test_a_row_that_a_program_without_addresses_took_over_shows_none(rows: Site, postgres: Postgres):
    async with rows.election() as election:
        await lead(election)
    taken = (
        "UPDATE pgleaderlock.leases SET holder = 'old', token = token + 1, version = gen_random_uuid() WHERE role = %s"
    )
    left = f"UPDATE pgleaderlock.leases SET address = (token - 1)::text || ' {ADDRESS}' WHERE role = %s"
    for statement in (taken, left):
        await query(postgres.dsn, statement, rows.role)
    seen = await find_leader(rows.url, rows.role)
    assert seen is not None
    assert (seen.name, seen.address) == ("old", None)


async def test_rows_of_an_earlier_schema_are_read_and_upgraded_only_for_an_address(own_server: Server):
    url, role = own_server.dsn.replace("postgresql://", "postgresql+lease://"), "a"
    has_column = "SELECT 1 FROM pg_attribute WHERE attrelid = 'pgleaderlock.leases'::regclass AND attname = 'address'"
    async with Site(url, role).election(None) as election:
        await lead(election)
        await query(own_server.dsn, "ALTER TABLE pgleaderlock.leases DROP COLUMN address")
        older = "pgleaderlock: schema version 3, for programs that know version 1 or later"
        await query(own_server.dsn, f"COMMENT ON TABLE pgleaderlock.schema_version IS '{older}'")
        assert (await find_leader(url, role) or LeaderSeen("")).address is None
    async with Site(url, role).election(None) as election:
        await lead(election)
    assert await query(own_server.dsn, has_column) == []
    async with Site(url, role).election() as election:
        await lead(election)
        assert await query(own_server.dsn, has_column) == [(1,)]
        assert (await find_leader(url, role) or LeaderSeen("")).address == ADDRESS


async def test_a_lease_that_another_client_took_over_does_not_show_the_address_of_its_predecessor(
    kubernetes: FakeKubernetes,
):
    site = Site("k8s://default/watched")
    async with site.election() as election:
        await lead(election)
        lease = kubernetes.api.get("default", "watched")
        assert lease["metadata"]["annotations"] == {ADDRESS_ANNOTATION: f"{election.token} {ADDRESS}"}
        store = cast("RecordBackend", election._backend).store
        record = await store.read()
        assert record is not None
        go_client = Claim("go-controller", record.token + 1, 15.0, is_new_term=True)  # which keeps annotations
        assert await store.write(go_client, record)
        seen = await find_leader(site.url)
    assert seen is not None
    assert (seen.name, seen.address) == ("go-controller", None)


async def test_an_api_server_that_does_not_answer_makes_the_leader_unknown(kubernetes: FakeKubernetes):
    site = Site("k8s://default/watched")
    async with site.election() as election, contextlib.aclosing(site.watch(request_timeout_s=0.5)) as leaders:
        await lead(election)
        await following(leaders, is_at(ADDRESS))
        kubernetes.freeze()
        try:
            assert isinstance(await following(leaders, lambda leader: not leader), LeaderUnknown)
        finally:
            kubernetes.thaw()
        await following(leaders, lambda leader: not isinstance(leader, LeaderUnknown))


@pytest.mark.virtual_time
async def test_a_leader_that_renews_no_more_is_no_leader_after_its_lease():
    loop, store = asyncio.get_running_loop(), MemoryStore(f"silent-{next(_numbers)}")
    await store.write(Claim("silent", 1, 20.0, is_new_term=True, address=ADDRESS), None)
    began = loop.time()
    observer = RecordObserver(RecordBackend(store), clock=loop.time)
    async with contextlib.aclosing(_follow(observer, 1.0)) as leaders:
        assert await anext(leaders) == LeaderSeen("silent", ADDRESS, 1)
        assert await anext(leaders) is None
    assert loop.time() - began == pytest.approx(20.0, abs=0.1)


@pytest.mark.virtual_time
async def test_a_store_that_only_names_its_holder_is_polled_and_its_silence_is_unknown():
    now, backend = asyncio.get_running_loop().time, ScriptedBackend()
    holders = [Holder("web-1"), HANG, None]

    async def next_holder() -> Holder | None:
        holder = holders.pop(0)
        return await asyncio.get_running_loop().create_future() if holder is HANG else cast("Holder | None", holder)

    backend.holder = next_holder  # type: ignore[method-assign]
    began = now()
    async with contextlib.aclosing(_follow(observer_of(backend), 1.0)) as leaders:
        assert await anext(leaders) == LeaderSeen("web-1")
        assert isinstance(await anext(leaders), LeaderUnknown)
        assert now() - began == pytest.approx(1.0 + ANSWER_S)
        assert await anext(leaders) is None
    assert not backend.is_open


@pytest.mark.virtual_time
async def test_what_another_program_wrote_as_an_address_is_not_passed_on():
    store = MemoryStore(f"hostile-{next(_numbers)}")
    store._place.record = Record("x", 1, 20.0, 1, address="http://a\x1b[2J")
    seen = await RecordObserver(RecordBackend(store)).look()
    assert seen == LeaderSeen("x", None, 1)


async def test_on_one_host_the_death_of_a_leader_in_a_file_is_seen_at_once(tmp_path: Path):
    site = Site(f"file://{tmp_path}/lock")
    program = (
        "import asyncio, sys; from pgleaderlock import Election, open_backend\n"
        "async def main():\n"
        f"    async with Election(open_backend({site.url!r}, lease_s=600, address={ADDRESS!r})) as election:\n"
        "        await election.wait_for_leadership(); print('leads', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen(  # noqa: ASYNC220 - it does not wait
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "leads\n"
            async with contextlib.aclosing(site.watch()) as leaders:
                assert await following(leaders, is_at(ADDRESS))
                process.kill()
                assert await following(leaders, lambda leader: not leader) is None  # long before the lease is over
        finally:
            process.kill()


def test_unknown_is_false_and_equal_whatever_the_error_was():
    assert not LeaderUnknown("a")
    assert LeaderUnknown("a") == LeaderUnknown("b")
    assert bool(LeaderSeen("a")) is True


# --- The blocking API ------------------------------------------------------------------------------------------------


def test_threads_watch_a_leader_too(postgres: Postgres, key: LockKey):
    leaders = sync.watch_leader(postgres.dsn, key=key)
    assert next(leaders) is None
    with sync.LeaderLock(postgres.dsn, key=key, settle_s=0, address=ADDRESS) as lock:
        assert lock.wait_for_leadership(WAIT_S)
        seen = next(leaders)
        assert isinstance(seen, LeaderSeen)
        assert seen.address == ADDRESS
        assert sync.find_leader(postgres.dsn, key=key) == seen
    leaders.close()
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
