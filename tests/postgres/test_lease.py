"""The lease, the line and the witness on a real PostgreSQL: each promise as a test that fails without its mechanism."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from typing import Any

import psycopg
import pytest

from pgleaderlock import Event, EventKind, FixedInterval, LeaderLock, LockKey, LockState
from pgleaderlock.models import LossCause
from pgleaderlock.postgres._sql import LockStatements
from pgleaderlock.postgres.lease import Lease, quiet_period_log_level, witness_key
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import LEASE_S, make_leased, open_descriptors, query, until_answering, until_queued
from tests.support.postgres import holders, look_at_lock, terminate_holder, until_holders
from tests.support.processes import Process, candidate

# --- What is exposed ------------------------------------------------------------------------------------------------


async def test_a_leader_knows_its_token_and_how_long_it_may_be_sure(postgres: Postgres, key: LockKey):
    lock, _ = make_leased(postgres.dsn, key)
    assert (lock.token, lock.trusted_until, lock.time_left_s) == (None, None, 0.0)
    async with lock:
        await lock.wait_for_leadership(10)
        assert isinstance(lock.token, int)
        assert 0 < lock.time_left_s <= 0.9 * LEASE_S
        first = lock.trusted_until
        assert first is not None
        await until(lambda: (lock.trusted_until or 0) > first)
    assert lock.token is None


async def test_tokens_grow_from_term_to_term_and_with_a_recovery(postgres: Postgres, key: LockKey):
    tokens: list[int] = []
    lock, heard = make_leased(postgres.dsn, key, reconnect_grace_s=10, retry_strategy=FixedInterval(0.05))
    async with lock:
        for _ in range(3):
            await lock.wait_for_leadership(10)
            tokens.append(lock.token or 0)
            await lock.step_down()
        await lock.wait_for_leadership(10)
        tokens.append(lock.token or 0)
        await terminate_holder(postgres.dsn, key)
        await until(lambda: "recovered" in heard.words)
        tokens.append(lock.token or 0)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("health_s", "lease_s"), [(5.0, 7.0), (10, 15), (1, 1.5)])
def test_a_lease_in_which_no_renewal_fits_is_refused_and_both_values_are_named(health_s, lease_s):
    with pytest.raises(ValueError, match=f"health_interval_s={health_s:g}.*lease_s={lease_s:g}"):
        LeaderLock("postgresql://", 1, 2, health_interval_s=health_s, lease_s=lease_s)


@pytest.mark.parametrize(
    "settings",
    [{"lease_s": 0}, {"lease_s": 1, "wake": "bell"}, {"lease_s": 1, "slice_s": -1}, {"lease_s": 1, "settle_s": -1}],
)
def test_a_lease_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"lease_s|wake|slice_s|settle_s"):
        Lease(**settings)


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (LockKey.pair(1, 100), -4440648687378320226),
        (LockKey.bigint(7), 4408376113991774305),
        (LockKey.named("billing/scheduler"), -6941611983335081464),
    ],
    ids=str,
)
def test_the_witness_of_a_key_never_changes(key, number):
    assert witness_key(key) == LockKey.bigint(number)


# --- Queueing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadlock_s", "lease_s", "slice_s"),
    [
        (1.0, 15.0, 0.9),
        (10.0, 15.0, 5.0),
        (0.11, 15.0, 0.099),
        (0.06, 15.0, 0.054),
        (0.05, 15.0, 5.0),  # slices below it would be a load of their own: then few slices, each of them logged
        (0.001, 15.0, 5.0),
        (1.0, 0.2, 0.1),
    ],
)
def test_a_wait_slice_ends_before_the_server_logs_it_or_there_are_few(deadlock_s, lease_s, slice_s):
    assert Lease(lease_s).slice_for(deadlock_s) == pytest.approx(slice_s)


async def test_a_short_deadlock_timeout_does_not_fill_the_log_of_the_server(own_server: Server, key: LockKey):
    """With log_lock_waits the server logs a wait that outlasts deadlock_timeout, with the whole statement each time."""
    slices, deadlock_s = 10, 0.08
    statement = LockStatements(key, Lease(LEASE_S), is_enforced=True).slice(Lease(LEASE_S).slice_for(deadlock_s))
    async with (
        await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as leader,
        await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as follower,
    ):
        await leader.execute("SELECT pg_advisory_lock(%s, %s)", key.numbers)
        await follower.execute(f"SET deadlock_timeout = {round(deadlock_s * 1000)}; SET log_lock_waits = on")
        for _ in range(slices):
            await follower.execute(statement)
    # A busy machine may be late for a few of them, but not for each.
    assert own_server.log_path.read_text().count("still waiting for") < slices


async def test_queued_follower_leads_as_soon_as_the_leader_hands_over(postgres: Postgres, key: LockKey):
    first, _ = make_leased(postgres.dsn, key)
    second, _ = make_leased(postgres.dsn, key, retry_strategy=FixedInterval(600))
    async with first:
        await first.wait_for_leadership(10)
        async with second:
            await until_queued(postgres.dsn, key)
            began = time.monotonic()
            await first.shutdown()
            assert await second.wait_for_leadership(10)
            assert time.monotonic() - began < 2  # the next poll would be in ten minutes


async def test_polling_can_be_chosen(postgres: Postgres, key: LockKey):
    first, _ = make_leased(postgres.dsn, key)
    second, heard = make_leased(postgres.dsn, key, wake="poll", retry_strategy=FixedInterval(0.05))
    async with first:
        await first.wait_for_leadership(10)
        async with second:
            await until(lambda: heard.words.count("on_acquire_failed") >= 2)
            await first.shutdown()
            assert await second.wait_for_leadership(10)


async def test_a_stop_does_not_wait_for_the_end_of_a_slice(postgres: Postgres, key: LockKey):
    first, _ = make_leased(postgres.dsn, key)
    second, _ = make_leased(postgres.dsn, key, lease_s=60, slice_s=20)
    async with first:
        await first.wait_for_leadership(10)
        await second.start()
        await until_queued(postgres.dsn, key)
        began = time.monotonic()
        await second.shutdown()
        assert time.monotonic() - began < 2


# --- A loss is noticed ----------------------------------------------------------------------------------------------


async def test_a_terminated_session_is_noticed_without_a_health_check(postgres: Postgres, key: LockKey):
    lock, heard = make_leased(postgres.dsn, key, lease_s=3600, health_interval_s=1000)
    async with lock:
        await lock.wait_for_leadership(10)
        await terminate_holder(postgres.dsn, key)
        await until(lambda: "on_lost" in heard.words, timeout_s=2)
    (lost,) = [event for event in heard.events if event.kind is EventKind.LOST]
    assert lost.cause is LossCause.SESSION_TERMINATED


async def test_terminated_witness_session_is_replaced_and_no_callback_is_notified(postgres: Postgres, key: LockKey):
    lock, heard = make_leased(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        backend: Any = lock._backend
        pid = backend._pair._witness.session.facts.session_pid
        await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", pid)
        await until(
            lambda: backend._pair._witness is not None and backend._pair._witness.session.facts.session_pid != pid
        )
        assert lock.is_leader
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_a_successor_waits_for_the_witness(postgres: Postgres, key: LockKey):
    """The lock is free, and yet no candidate may lead: the holder of the witness lock may still be valid."""
    lock, _ = make_leased(postgres.dsn, key, lease_s=30, health_interval_s=5)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as predecessor:
        await predecessor.execute("SELECT pg_advisory_lock(%s::bigint)", witness_key(key).numbers)
        async with lock:
            assert not await lock.wait_for_leadership(1.0)
            assert lock.state is LockState.ACQUIRING
            assert len(await holders(postgres.dsn, key)) == 1
            await predecessor.execute("SELECT pg_advisory_unlock(%s::bigint)", witness_key(key).numbers)
            assert await lock.wait_for_leadership(10)


@pytest.mark.slow
async def test_candidate_releases_the_lock_when_the_witness_lock_never_comes_free(postgres: Postgres, key: LockKey):
    lock, heard = make_leased(postgres.dsn, key, retry_strategy=FixedInterval(1.0))
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as squatter:
        await squatter.execute("SELECT pg_advisory_lock(%s::bigint)", witness_key(key).numbers)
        async with lock:
            await until(lambda: bool(heard.errors), timeout_s=10)
            assert "witness" in str(heard.errors[0])
            await until_holders(postgres.dsn, key, 0)
            await squatter.close()
            assert await lock.wait_for_leadership(10)


async def test_one_connection_is_enough_without_a_witness(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
    dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="narrow")
    lock, heard = make_leased(dsn, key, witness=False)
    async with lock:
        assert await lock.wait_for_leadership(10)
    assert heard.errors == []


async def test_while_reconnecting_our_own_former_session_is_not_another(postgres: Postgres, key: LockKey):
    """Our side of the connection is gone, the server's is not: it still holds the lock, and must not end the grace."""
    lock, heard = make_leased(postgres.tcp_dsn, key, reconnect_grace_s=20, retry_strategy=FixedInterval(0.1))
    async with lock:
        await lock.wait_for_leadership(10)
        backend: Any = lock._backend
        pid = backend._pair.lock_session.facts.session_pid
        os.kill(pid, signal.SIGSTOP)  # it does not notice that its client is gone
        try:
            backend._pair.lock_session._connection.pgconn.finish()
            await until(lambda: lock.state is LockState.RECONNECTING, timeout_s=5)
            await asyncio.sleep(0.7)  # long enough to have found the lock held
            assert lock.state is LockState.RECONNECTING
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: "recovered" in heard.words, timeout_s=10)
    assert "on_lost" not in heard.words


# --- Frozen, cut off, silent ----------------------------------------------------------------------------------------


def test_a_frozen_leader_is_replaced_within_its_lease(postgres: Postgres, key: LockKey):
    with candidate(postgres.dsn, key, lease_s=LEASE_S) as first:
        first.wait_for("acquired")
        with candidate(postgres.dsn, key, retry_interval_s=5, lease_s=LEASE_S) as second:
            second.wait_for("refused")
            first.signal(signal.SIGSTOP)
            began = time.monotonic()
            second.wait_for("acquired")
            assert time.monotonic() - began < LEASE_S + 1.0
            first.signal(signal.SIGCONT)
            first.wait_for("lost")


async def test_a_server_that_falls_silent_is_a_loss_by_two_thirds_of_the_lease(own_server: Server, key: LockKey):
    lock, heard = make_leased(own_server.tcp_dsn, key)
    await lock.start()
    await lock.wait_for_leadership(10)
    frozen = [
        pid for (pid,) in await query(own_server.dsn, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    ]
    frozen.append(own_server.pid)
    trusted_until = lock.trusted_until or 0.0
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: "on_lost" in heard.words, timeout_s=5)
        (lost,) = [event for event in heard.events if event.kind is EventKind.LOST]
        assert lost.at < trusted_until + LEASE_S / 3
        assert lost.cause is LossCause.RENEW_TIMEOUT
        await asyncio.wait_for(lock.shutdown(), 5)
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_an_event_loop_that_stood_still_is_no_leader_before_it_runs_again(postgres: Postgres, key: LockKey):
    lock, heard = make_leased(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        time.sleep(LEASE_S)  # noqa: ASYNC251 - the point of the test
        assert not lock.is_leader
        assert lock.state is LockState.LEADER
        await until(lambda: "on_lost" in heard.words, timeout_s=5)


# --- After a restart ------------------------------------------------------------------------------------------------


async def test_a_server_without_former_leaders_is_led_on_at_once(own_server: Server, key: LockKey):
    lock, _ = make_leased(own_server.dsn, key, settle_s=None, lease_s=600.0, health_interval_s=5.0)
    async with lock:
        assert await lock.wait_for_leadership(30)  # and not in ten minutes


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.slow
async def test_after_a_restart_no_candidate_leads_before_the_quiet_period_is_over(
    own_server: Server, key: LockKey, how: str
):
    # A server that recovers from a crash ends the first sessions: candidates that connect then try again soon.
    retry = FixedInterval(0.2)
    lock, _ = make_leased(own_server.dsn, key, settle_s=None, lease_s=3.0, health_interval_s=1.0, retry_strategy=retry)
    if how == "restart":
        await asyncio.to_thread(own_server.restart)
    else:
        ((pid,),) = await query(own_server.dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        os.kill(pid, signal.SIGKILL)
        await until_answering(own_server.dsn)
    began = time.monotonic()
    async with lock:
        assert await lock.wait_for_leadership(20)
        assert 1.5 < time.monotonic() - began < 5


# --- Refusals -------------------------------------------------------------------------------------------------------


async def test_an_ordinary_role_may_lead(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    lock, heard = make_leased(psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app"), key, lease_s=15.0)
    async with lock:
        assert await lock.wait_for_leadership(60)
    assert heard.errors == []


# --- Candidates that cannot meet, or do not agree ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "difference", [{"lease_s": 3.0}, {"witness": False}, {"takeover": "strict", "term_table": True}]
)
async def test_a_candidate_with_other_rules_than_the_leader_s_is_warned_about(
    postgres: Postgres, key: LockKey, difference: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    leader, _ = make_leased(postgres.dsn, key)
    other, heard = make_leased(postgres.dsn, key, **difference)
    async with leader:
        await leader.wait_for_leadership(10)
        async with other:
            await until(lambda: "on_acquire_failed" in heard.words)
    (warning,) = [record.getMessage() for record in caplog.records if "candidates_disagree" in record.getMessage()]
    assert 'theirs="1.5s wf"' in warning
    assert f'holder="pgleaderlock {socket.gethostname()}:{os.getpid()} 1.5s wf"' in warning


async def test_candidates_that_agree_are_not_warned_about(
    postgres: Postgres, key: LockKey, caplog: pytest.LogCaptureFixture
):
    leader, _ = make_leased(postgres.dsn, key)
    other, heard = make_leased(postgres.dsn, key, wake="poll", retry_strategy=FixedInterval(0.1))
    async with leader:
        await leader.wait_for_leadership(10)
        async with other:
            await until(lambda: heard.words.count("on_acquire_failed") > 1)
    assert "candidates_disagree" not in caplog.text


async def test_a_connection_string_that_names_no_database_is_warned_about_once(
    own_server: Server, key: LockKey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    dsn = own_server.tcp_dsn.removesuffix("/postgres")  # the database of the same name as the user
    lock, _ = make_leased(dsn, key)
    for _ in range(2):
        async with lock:
            await lock.wait_for_leadership(10)
    warnings = [record.getMessage() for record in caplog.records if "database_not_named" in record.getMessage()]
    assert len(warnings) == 1
    assert "db=postgres" in warnings[0]


@pytest.mark.parametrize("setting", ["idle_session_timeout=200", "transaction_timeout=200", "lock_timeout=50"])
@pytest.mark.slow
async def test_a_limit_that_the_user_has_by_default_does_not_end_a_follower(
    own_server: Server, key: LockKey, setting: str
):
    ((version,),) = await query(own_server.dsn, "SELECT current_setting('server_version_num')::int")
    if setting.startswith("transaction") and version < 170000:
        return  # there is no such limit
    dsn = psycopg.conninfo.make_conninfo(own_server.dsn, options=f"-c {setting}")
    leader, _ = make_leased(own_server.dsn, key)
    followers = [make_leased(dsn, key, wake=wake, retry_strategy=FixedInterval(0.7)) for wake in ("line", "poll")]
    async with leader:
        await leader.wait_for_leadership(10)
        for follower, heard in followers:
            async with follower:
                await until(lambda heard=heard: heard.words.count("on_acquire_failed") > 2)  # type: ignore[misc]
            assert heard.errors == []


@pytest.mark.parametrize("way", ["dsn", "environment", "connect_fn"])
async def test_a_client_encoding_of_which_psycopg_makes_bytes_is_no_obstacle(
    postgres: Postgres, key: LockKey, way: str, monkeypatch: pytest.MonkeyPatch
):
    """The follower reads who holds the lock, and compares names; so does ``status``."""
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, client_encoding="SQL_ASCII")
    settings: dict[str, Any] = {"retry_strategy": FixedInterval(0.05)}
    if way == "connect_fn":
        settings["connect_fn"] = lambda: psycopg.AsyncConnection.connect(dsn, autocommit=True)
    leader, _ = make_leased(postgres.dsn, key)
    async with leader:
        await leader.wait_for_leadership(10)
        if way == "environment":
            monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
        follower, heard = make_leased(dsn if way == "dsn" else postgres.dsn, key, **settings)
        async with follower:
            await until(lambda: heard.words.count("on_acquire_failed") >= 2 or bool(heard.errors), 20)
        assert heard.errors == []
        holder, *_ = await look_at_lock(dsn, key)
        assert f":{os.getpid()} {LEASE_S:g}s wf" in holder.holder.name


async def test_a_database_without_an_encoding_is_no_obstacle_to_a_recovery(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    dsn = psycopg.conninfo.make_conninfo(own_server.dsn, dbname="ascii")
    lock, heard = make_leased(dsn, key, reconnect_grace_s=20, retry_strategy=FixedInterval(0.1))
    async with lock:
        await lock.wait_for_leadership(10)
        backend: Any = lock._backend
        pid = backend._pair.lock_session.facts.session_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            backend._pair.lock_session._connection.pgconn.finish()
            await until(lambda: lock.state is LockState.RECONNECTING, timeout_s=5)
            await asyncio.sleep(0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: "recovered" in heard.words, timeout_s=10)


async def test_attempts_to_connect_that_are_given_up_leave_no_socket_open(key: LockKey):
    """However long the errors are kept: during a long outage they would use up the descriptors."""

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    dsn = f"postgresql://nobody@127.0.0.1:{port}/none?sslmode=disable&gssencmode=disable"
    lock, heard = make_leased(dsn, key, lease_s=0.2, health_interval_s=0.1, retry_strategy=FixedInterval(0.01))
    async with server, lock:
        await until(lambda: len(heard.errors) >= 2)
        before = open_descriptors()
        await until(lambda: len(heard.errors) >= 8)
        assert open_descriptors() <= before + 2


async def test_on_lost_that_requests_a_stop_ends_before_a_successor_leads(postgres: Postgres, key: LockKey):
    first, _ = make_leased(postgres.dsn, key)
    second, heard = make_leased(postgres.dsn, key)
    times: dict[str, float] = {}

    @first.on_lost
    async def stop_at_once() -> None:
        await first.shutdown()
        await asyncio.sleep(0.4)
        times["lost"] = first._clock()

    second.on_acquired(lambda: times.setdefault("acquired", second._clock()))
    await first.start()
    await first.wait_for_leadership(10)
    async with second:
        await until_queued(postgres.dsn, key)
        await terminate_holder(postgres.dsn, key)
        assert await second.wait_for_leadership(10)
    assert times["lost"] < times["acquired"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
async def test_a_forked_child_does_not_lead_and_does_not_keep_its_parent_s_lock(postgres: Postgres, key: LockKey):
    """A child has our memory and our sockets, and would keep both alive after our death."""
    program = """
import asyncio, os, sys, time
from pgleaderlock import LeaderLock, LockKey

async def main(dsn, key):
    lock = LeaderLock(dsn, key=LockKey.parse(key), lease_s=30, health_interval_s=5, settle_s=0)
    async with lock:
        await lock.wait_for_leadership()
        child = os.fork()
        if child == 0:
            os.write(1, f"child leads {lock.is_leader}\\n".encode())
            time.sleep(15)
            os._exit(0)
        os.write(1, f"leads {lock.is_leader} {child}\\n".encode())
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
    successor, _ = make_leased(postgres.dsn, key, lease_s=30, health_interval_s=5)
    with Process(sys.executable, "-W", "ignore", "-c", program, postgres.tcp_dsn, str(key)) as leader:
        lines = {leader.wait_for("leads"), leader.wait_for("leads")}
        assert "child leads False" in lines
        (told,) = lines - {"child leads False"}
        _, leads, child = told.split()
        assert leads == "True"
        try:
            async with successor:
                await until_queued(postgres.dsn, key)
                leader.signal(signal.SIGKILL)
                assert await successor.wait_for_leadership(5)  # and not after a lease
        finally:
            os.kill(int(child), signal.SIGKILL)


async def test_of_several_hosts_the_silent_ones_do_not_keep_a_lock_from_the_one_that_answers(
    postgres: Postgres, key: LockKey
):
    parts = psycopg.conninfo.conninfo_to_dict(postgres.tcp_dsn)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        port = silent.getsockname()[1]
        hosts = f"127.0.0.1:{port},{parts['host']}:{parts['port']}"
        lock, _ = make_leased(f"postgresql://{parts['user']}@{hosts}/{parts['dbname']}?gssencmode=disable", key)
        async with lock:
            assert await lock.wait_for_leadership(20)  # its lease is shorter than one host's silence


@pytest.mark.parametrize(("left_s", "level"), [(2.9, logging.INFO), (3.0, logging.WARNING)])
def test_a_long_quiet_period_is_logged_as_a_warning(left_s: float, level: int):
    assert quiet_period_log_level(left_s) == level


def test_a_stopped_lock_that_starts_on_another_event_loop_renews_as_often_as_on_the_first(
    postgres: Postgres, key: LockKey
):
    lock, _ = make_leased(postgres.dsn, key, lease_s=30.0, health_interval_s=5.0)
    renewals: list[Event] = []
    lock.subscribe(lambda event: renewals.append(event) if event.kind is EventKind.RENEWED else None)

    async def lead() -> None:
        async with lock:
            assert await lock.wait_for_leadership(30)
            await asyncio.sleep(0.3)

    asyncio.run(lead())
    asyncio.run(lead())
    assert len(renewals) < 10
