"""A synchronous standby that is not there: commits wait for it, and a dead candidate's lock waits in its backend.

The simulation could not see this before: its modelled commits were always answered.
"""

import asyncio

import psycopg
import pytest

from pgleaderlock import FixedInterval, LeaderLock, LockKey
from pgleaderlock.postgres._sql import numbers
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.testing.embedded import Server
from tests.support.doubles import until
from tests.support.lease import query

LEASE_S = 1.2
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def set_standbys(dsn: str, names: str) -> None:
    await query(dsn, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await query(dsn, "SELECT pg_reload_conf()")
    async with asyncio.timeout(20):
        while await query(dsn, "SHOW synchronous_standby_names") != [(names,)]:  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)


@pytest.fixture
async def dsn(own_server: Server) -> str:
    """A server on which every commit that writes something waits."""
    await set_standbys(own_server.dsn, "absent")
    return own_server.dsn


def candidate(dsn: str, key: LockKey) -> LeaderLock:
    return LeaderLock(
        dsn,
        key=key,
        lease_s=LEASE_S,
        health_interval_s=LEASE_S / 3,
        settle_s=0,
        retry_strategy=FixedInterval(0.1),
    )


async def leave_stuck(dsn: str, key: LockKey) -> int:
    """Take the lock as a candidate does, die while the commit waits, and return the pid of the backend."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    pid = connection.info.backend_pid
    grant = f"SELECT pg_try_advisory_lock({numbers(key)}), pg_logical_emit_message(true, 'pgleaderlock', '')"
    call = asyncio.create_task(connection.execute(grant))
    async with asyncio.timeout(20):
        while (pid,) not in await query(dsn, WAITING):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
    connection.pgconn.finish()
    call.cancel()
    await asyncio.wait({call})
    return pid


@pytest.mark.parametrize("of", ["the lock", "the witness lock"])
@pytest.mark.slow
async def test_a_dead_candidate_s_backend_that_waits_for_a_standby_is_ended_and_the_setting_is_named(
    dsn: str, key: LockKey, caplog: pytest.LogCaptureFixture, of: str
):
    pid = await leave_stuck(dsn, key if of == "the lock" else witness_key(key))
    lock = candidate(dsn, key)
    async with lock:
        async with asyncio.timeout(40):
            while await query(dsn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid):
                assert not lock.is_leader
                await asyncio.sleep(0.05)
        await until(lambda: "synchronous_standby_missing" in caplog.text)
        assert "synchronous_standby_names" in caplog.text
        assert not lock.is_leader  # its own grant waits too
        await set_standbys(dsn, "")
        assert await lock.wait_for_leadership(30)


async def test_every_candidate_says_once_what_it_waits_for_and_one_leads_when_the_standby_is_no_longer_waited_for(
    dsn: str, key: LockKey, caplog: pytest.LogCaptureFixture
):
    locks = [candidate(dsn, key) for _ in range(3)]
    for lock in locks:
        await lock.start()
    try:
        await until(lambda: caplog.text.count("synchronous_standby_missing") >= 3, timeout_s=40)
        assert not any(lock.is_leader for lock in locks)
        await set_standbys(dsn, "")
        await until(lambda: sum(lock.is_leader for lock in locks) == 1, timeout_s=30)
        assert caplog.text.count("synchronous_standby_missing") <= 6
    finally:
        for lock in locks:
            await lock.shutdown(5)
    assert await query(dsn, WAITING) == []


@pytest.mark.slow
async def test_a_leader_goes_on_leading_while_the_standby_is_away(own_server: Server, key: LockKey):
    lock = candidate(own_server.dsn, key)
    async with lock:
        assert await lock.wait_for_leadership(20)
        token = lock.token
        await set_standbys(own_server.dsn, "absent")
        await asyncio.sleep(2 * LEASE_S)
        assert lock.token == token
        await set_standbys(own_server.dsn, "")
