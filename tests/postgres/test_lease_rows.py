"""Lease rows on a real PostgreSQL: what a row adds to the contract of all stores (tests/stores/test_contract.py)."""

import asyncio
import contextlib
import socket
import statistics
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgleaderlock import ConnectionError, Election, FixedInterval, open_backend
from pgleaderlock.postgres.lease_table import LeaseRowStore
from pgleaderlock.stores.record import Claim
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import Witness, until
from tests.support.lease import query
from tests.support.pooler import pgbouncer

LEASE_S = 1.5


def elect(dsn: str, role: str, **options) -> tuple[Election, Witness]:
    url = dsn.replace("postgresql://", "postgresql+lease://")
    backend = open_backend(url, role=role, lease_s=LEASE_S, **options)
    election = Election(backend, health_interval_s=LEASE_S / 3, retry_strategy=FixedInterval(30.0))
    return election, Witness(election)


@pytest.fixture
def role(request: pytest.FixtureRequest) -> str:
    return f"rows/{hash(request.node.nodeid) & 0xFFFFFFFF}"


async def test_a_hand_over_is_notified_where_the_connection_is_direct(postgres: Postgres, role: str):
    first, _ = elect(postgres.tcp_dsn, role)
    second, heard = elect(postgres.tcp_dsn, role, poll_s=600.0)
    async with first:
        await first.wait_for_leadership(10)
        async with second:
            await until(lambda: "on_acquire_failed" in heard.words)
            await asyncio.sleep(0.2)
            await first.shutdown()
            assert await second.wait_for_leadership(0.5)  # neither a poll nor the end of the lease can be so early


async def test_behind_a_pooler_the_listener_can_have_a_connection_of_its_own(own_server: Server, role: str):
    with pgbouncer(own_server, "transaction") as dsn:
        first, _ = elect(dsn, role)
        second, heard = elect(dsn, role, poll_s=600.0, listen_dsn=own_server.tcp_dsn)
        async with first:
            await first.wait_for_leadership(10)
            async with second:
                await until(lambda: "on_acquire_failed" in heard.words)
                await asyncio.sleep(0.2)
                await first.shutdown()
                assert await second.wait_for_leadership(0.5)


async def test_behind_a_pooler_a_follower_polls_and_says_so_once(
    own_server: Server, role: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="pgleaderlock")
    with pgbouncer(own_server, "transaction") as dsn:
        first, _ = elect(dsn, role)
        second, _ = elect(dsn, role, poll_s=0.1)
        async with first:
            await first.wait_for_leadership(10)
            async with second:
                await asyncio.sleep(0.5)
                await first.shutdown()
                assert await second.wait_for_leadership(5)
    assert sum("not_notified" in record.getMessage() for record in caplog.records) == 1


async def test_a_listener_whose_connection_ends_listens_again(postgres: Postgres, role: str):
    first, _ = elect(postgres.tcp_dsn, role)
    second, heard = elect(postgres.tcp_dsn, role, poll_s=600.0)
    async with first:
        await first.wait_for_leadership(10)
        async with second:
            await until(lambda: "on_acquire_failed" in heard.words)
            await asyncio.sleep(0.2)
            listener = second._backend._store._listener  # type: ignore[attr-defined]
            await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", listener._connection.facts.session_pid)
            await asyncio.sleep(0.3)
            await first.shutdown()
            assert await second.wait_for_leadership(0.5)


async def test_every_write_is_flushed_whatever_the_user_s_default(postgres: Postgres, role: str):
    """One that a crash forgot would free a lease whose holder is still valid."""
    dsn = psycopg.conninfo.make_conninfo(postgres.tcp_dsn, options="-c synchronous_commit=off")
    store = LeaseRowStore(dsn, role)
    record = await store.write(Claim("me", 0, 15.0, is_new_term=True), None)
    assert record is not None
    assert store._rows._connection is not None
    lsn, behind = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()", []
    for _ in range(20):
        record = await store.write(Claim("me", 0, 15.0, is_new_term=False), record)
        row = await store._rows._connection.fetch(lsn, bound_s=10)
        assert row is not None
        behind.append(row[0])
    await store.close()
    # Mostly nothing, or what others wrote since, such as autovacuum; a commit of ours is more than that.
    assert statistics.median(behind) < 200


async def test_a_stricter_default_isolation_is_a_lost_race_and_not_an_error(postgres: Postgres, role: str):
    dsn = f"{postgres.tcp_dsn}?options=-c%20default_transaction_isolation%3Dserializable"
    elections = [elect(dsn, role, poll_s=0.05) for _ in range(4)]
    for election, _ in elections:
        await election.start()
    await asyncio.gather(*(_lead_once(election) for election, _ in elections))
    assert [heard.errors for _, heard in elections] == [[]] * 4


async def _lead_once(election: Election) -> None:
    assert await election.wait_for_leadership(20)
    await election.shutdown()


async def test_user_who_may_not_create_the_table_gets_an_error_that_names_who_must(own_server: Server, role: str):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    backend = open_backend(f"postgresql+lease://app@127.0.0.1:{own_server._port}/postgres", role=role)
    with pytest.raises(ConnectionError, match="schema apply --schema pgleaderlock --grant-to app"):
        await backend.try_acquire()
    await backend.close()


# --- Clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["+3600", "-3600"])
@pytest.mark.slow
async def test_database_clock_that_steps_by_an_hour_elects_no_second_leader(
    server_with_a_clock: tuple[Server, Path], role: str, step: str
):
    server, offset = server_with_a_clock
    leader, heard = elect(server.tcp_dsn, role)
    follower, _ = elect(server.tcp_dsn, role, poll_s=0.05)
    async with leader, follower:
        await until(lambda: leader.is_leader or follower.is_leader)
        first, second = (leader, follower) if leader.is_leader else (follower, leader)
        ((before,),) = await query(server.dsn, "SELECT extract(epoch FROM clock_timestamp())")
        offset.write_text(step)
        while True:  # until the file was read anew
            ((after,),) = await query(server.dsn, "SELECT extract(epoch FROM clock_timestamp())")
            if abs(float(after - before) - int(step)) < 60:
                break
        for _ in range(100):  # for two leases: it goes on renewing, and the other goes on waiting
            await asyncio.sleep(0.03)
            assert first.is_leader
            assert not second.is_leader
        assert "on_lost" not in heard.words


async def test_a_row_that_was_deleted_and_made_anew_is_not_taken_for_the_one_that_was_known(
    postgres: Postgres, role: str
):
    leader, usurper = (LeaseRowStore(postgres.tcp_dsn, role) for _ in range(2))
    known = await leader.write(Claim("a", 0, 15.0, is_new_term=True), None)
    assert known is not None
    await query(postgres.dsn, "DELETE FROM pgleaderlock.leases WHERE role = %s", role)
    assert await usurper.write(Claim("c", 0, 15.0, is_new_term=True), None) is not None
    assert await leader.write(Claim("a", 0, 15.0, is_new_term=False), known) is None
    for store in (leader, usurper):
        await store.close()


@pytest.mark.parametrize("verb", ["read", "write"])
async def test_only_a_write_can_lose_a_race(postgres: Postgres, role: str, verb: str, monkeypatch: pytest.MonkeyPatch):
    """Of a read it would mean that there is no row, and so an end of leadership that never was."""
    store = LeaseRowStore(postgres.tcp_dsn, role)

    async def collide(*_: object) -> None:
        raise ConnectionError("could not serialize access", sqlstate="40001")

    monkeypatch.setattr(store, "_run", collide)
    if verb == "write":
        assert await store.write(Claim("me", 0, 15.0, is_new_term=True), None) is None
    else:
        with pytest.raises(ConnectionError, match="could not serialize"):
            await store.read()
    await store.close()


async def test_a_follower_that_is_notified_looks_now_and_then_all_the_same(postgres: Postgres, role: str):
    """Renewals are not told: one that is seen only when it is over would count for a lease from there."""
    leader, follower = (
        open_backend(postgres.tcp_dsn.replace("postgresql://", "postgresql+lease://"), role=role, lease_s=1.0)
        for _ in range(2)
    )
    grant = await leader.try_acquire()
    assert grant is not None
    assert await follower.try_acquire() is None
    waiting = asyncio.create_task(follower.wait(60))
    await asyncio.sleep(0.8)
    last = asyncio.get_running_loop().time()
    await leader.renew(grant)
    await waiting
    assert asyncio.get_running_loop().time() - last < 1.6  # nearly two leases, if it had slept
    for backend in (leader, follower):
        await backend.close()


async def test_a_second_host_is_reached_although_the_first_is_silent(own_server: Server, role: str):
    with silent_listener() as port:
        url = f"postgresql+lease://postgres@127.0.0.1:{port},127.0.0.1:{own_server._port}/postgres?connect_timeout=2"
        election = Election(open_backend(url, role=role, lease_s=1.5), health_interval_s=0.5)
        async with election:
            assert await election.wait_for_leadership(20)


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    """Something that accepts connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
