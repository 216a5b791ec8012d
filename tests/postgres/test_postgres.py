"""The lock on a real PostgreSQL."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgleaderlock import (
    ConnectionError,
    EventKind,
    FixedInterval,
    LeaderLock,
    LockError,
    LockKey,
    LockState,
    RetryContext,
)
from pgleaderlock.postgres.backend import Connector, Lease, make_backend
from pgleaderlock.postgres.plain import PlainLockBackend
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import DoubleConnection, Witness, connect_to, until, until_state
from tests.support.postgres import QUICK, holders, make, terminate_holder, until_holders
from tests.support.processes import candidate


async def until_waiting(dsn: str, key: LockKey) -> None:
    query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s"
    deadline = time.monotonic() + 10
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as observer:
        while not await (await observer.execute(query, key.numbers)).fetchone():
            assert time.monotonic() < deadline


# --- One leader -----------------------------------------------------------------------------------------------------


async def test_of_two_locks_exactly_one_leads(postgres: Postgres, key: LockKey):
    first, _ = make(postgres.dsn, key)
    second, heard = make(postgres.dsn, key)
    async with first:
        assert await first.wait_for_leadership(10)
        async with second:
            await until(lambda: "on_acquire_failed" in heard.words)
            assert (first.is_leader, second.is_leader) == (True, False)
            assert len(await holders(postgres.dsn, key)) == 1


async def test_ten_candidates_lead_one_after_another_and_never_together(postgres: Postgres, key: LockKey):
    terms: list[LeaderLock] = []

    async def take_part() -> None:
        lock, _ = make(postgres.dsn, key)
        async with lock:
            assert await lock.wait_for_leadership(30)
            assert len(await holders(postgres.dsn, key)) == 1
            terms.append(lock)

    await asyncio.gather(*(take_part() for _ in range(10)))
    assert len(terms) == 10


async def test_different_keys_and_key_spaces_do_not_meet(postgres: Postgres, key: LockKey):
    number = key.numbers[1]
    keys = [key, LockKey.pair(0, number), LockKey.bigint(number), LockKey.named(f"test/{key.numbers[0]}/{number}")]
    locks = [make(postgres.dsn, each)[0] for each in keys]
    for lock in locks:
        await lock.start()
    assert all([await lock.wait_for_leadership(10) for lock in locks])
    await asyncio.gather(*(lock.shutdown() for lock in locks))


async def test_the_edges_of_the_key_ranges_work(postgres: Postgres):
    for key in (
        LockKey.pair(-(2**31), 2**31 - 1),
        LockKey.pair(0, 0),
        LockKey.bigint(-(2**63)),
        LockKey.bigint(2**63 - 1),
    ):
        lock, _ = make(postgres.dsn, key)
        async with lock:
            assert await lock.wait_for_leadership(10)


async def test_a_role_name_and_the_key_that_it_hashes_to_are_one_lock(postgres: Postgres, key: LockKey):
    role = f"test/{key}"
    named = LeaderLock(postgres.dsn, role=role, retry_strategy=QUICK, settle_s=0)
    numbered, heard = make(postgres.dsn, LockKey.bigint(*LockKey.named(role).numbers))
    async with named:
        await named.wait_for_leadership(10)
        async with numbered:
            await until(lambda: "on_acquire_failed" in heard.words)


# --- Hand-over ------------------------------------------------------------------------------------------------------


async def test_step_down_hands_over_and_shutdown_hands_back(postgres: Postgres, key: LockKey):
    first, first_heard = make(postgres.dsn, key, retry_strategy=FixedInterval(0.3))
    second, _ = make(postgres.dsn, key)
    await first.start()
    assert await first.wait_for_leadership(10)
    await second.start()
    await first.step_down()
    assert await second.wait_for_leadership(10)
    assert not first.is_leader
    await second.shutdown()
    assert await first.wait_for_leadership(10)
    await first.shutdown()
    assert first_heard.words.count("on_released") == 2
    assert await holders(postgres.dsn, key) == []


async def test_a_stopped_lock_leaves_no_session_behind(postgres: Postgres, key: LockKey):
    name = f"pgll-test-{key.numbers[0]}-{key.numbers[1]}"
    lock, _ = make(f"{postgres.dsn}{'&' if '?' in postgres.dsn else '?'}application_name={name}", key)
    async with lock:
        await lock.wait_for_leadership(10)
        assert await sessions_named(postgres.dsn, name) == 2  # the lock's and the witness's
    deadline = time.monotonic() + 10
    while await sessions_named(postgres.dsn, name):
        assert time.monotonic() < deadline


async def sessions_named(dsn: str, name: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        row = await (
            await connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (name,))
        ).fetchone()
    assert row is not None
    return int(row[0])


# --- Failures -------------------------------------------------------------------------------------------------------


def test_killing_the_leader_process_moves_leadership(postgres: Postgres, key: LockKey):
    with candidate(postgres.dsn, key) as first:
        first.wait_for("acquired")
        with candidate(postgres.dsn, key) as second:
            second.wait_for("refused")
            first.signal(signal.SIGKILL)
            second.wait_for("acquired")
            second.say()
            second.wait_for("stopped")


async def test_a_terminated_session_is_a_loss_and_the_lock_is_won_again(postgres: Postgres, key: LockKey):
    lock, heard = make(postgres.dsn, key, health_interval_s=0.1)
    async with lock:
        await lock.wait_for_leadership(10)
        await terminate_holder(postgres.dsn, key)
        await until(lambda: heard.words.count("on_acquired") == 2)
    told = [word for word in heard.words if word != "on_acquire_failed"]  # while the server ends the former session
    assert told == ["on_acquired", "on_lost", "on_error", "on_acquired", "on_released", "on_stopped"]
    assert isinstance(heard.errors[0], ConnectionError)
    assert str(key) in str(heard.errors[0])
    assert isinstance(heard.errors[0].__cause__, psycopg.OperationalError)


async def test_a_terminated_session_without_auto_reacquire_is_the_end(postgres: Postgres, key: LockKey):
    lock, heard = make(postgres.dsn, key, health_interval_s=0.1, auto_reacquire=False)
    await lock.start()
    await lock.wait_for_leadership(10)
    await terminate_holder(postgres.dsn, key)
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_stopped"]


async def test_flap_damping_recovers_silently(postgres: Postgres, key: LockKey):
    lock, heard = make(postgres.dsn, key, health_interval_s=0.1, reconnect_grace_s=30)
    async with lock:
        await lock.wait_for_leadership(10)
        await terminate_holder(postgres.dsn, key)
        await until(lambda: "recovered" in heard.words)
        assert lock.is_leader
        assert len(await holders(postgres.dsn, key)) == 1
    assert heard.words == ["on_acquired", "on_error", "recovered", "on_released", "on_stopped"]


async def test_flap_damping_ends_at_once_when_another_took_the_lock(postgres: Postgres, key: LockKey):
    lock, heard = make(postgres.dsn, key, health_interval_s=0.5, reconnect_grace_s=30)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as rival, lock:
        await lock.wait_for_leadership(10)
        waiting = asyncio.create_task(rival.execute("SELECT pg_advisory_lock(%s, %s)", key.numbers))
        await until_waiting(postgres.dsn, key)
        await terminate_holder(postgres.dsn, key)
        await waiting
        await until(lambda: "on_lost" in heard.words, timeout_s=10)
        assert not lock.is_leader
    assert heard.causes(EventKind.LOST) == ["held_by_another"]


async def test_a_server_restart_is_survived(own_server: Server, key: LockKey):
    lock, heard = make(own_server.dsn, key, health_interval_s=0.1)
    async with lock:
        await lock.wait_for_leadership(10)
        await asyncio.to_thread(own_server.restart)
        await until(lambda: heard.words.count("on_acquired") == 2, timeout_s=30)
        assert lock.is_leader


async def test_a_server_that_stays_away_ends_the_grace_period(own_server: Server, key: LockKey):
    lock, heard = make(own_server.tcp_dsn, key, health_interval_s=0.1, reconnect_grace_s=0.5)
    async with lock:
        await lock.wait_for_leadership(10)
        await asyncio.to_thread(own_server.stop)
        await until(lambda: "on_lost" in heard.words, timeout_s=30)
        assert heard.causes(EventKind.LOST) == ["grace_expired"]
        await asyncio.to_thread(own_server.start)
        await until(lambda: lock.is_leader, timeout_s=30)


async def test_retries_run_out_against_a_held_lock(postgres: Postgres, key: LockKey):
    class Thrice:
        def next_delay_s(self, ctx: RetryContext) -> float | None:
            return 0.01 if ctx.attempt < 3 else None

    holder, _ = make(postgres.dsn, key)
    lock, heard = make(postgres.dsn, key, retry_strategy=Thrice())
    async with holder:
        await holder.wait_for_leadership(10)
        await lock.start()
        await until_state(lock, LockState.STOPPED)
        await lock.shutdown()
    assert heard.words.count("on_acquire_failed") == 3
    assert [type(error) for error in heard.errors] == [LockError]


async def test_a_lock_released_behind_our_back_makes_the_release_fail_loudly(postgres: Postgres, key: LockKey):
    connections: list[psycopg.AsyncConnection] = []

    async def connect() -> psycopg.AsyncConnection:
        connections.append(await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True))
        return connections[-1]

    lock = LeaderLock("unused", key=key, connect_fn=connect, retry_strategy=QUICK, settle_s=0)
    heard = Witness(lock)
    await lock.start()
    await lock.wait_for_leadership(10)
    await connections[0].execute("SELECT pg_advisory_unlock_all()")
    await lock.step_down()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert type(heard.errors[0]) is LockError
    assert connections[0].closed


# --- connect_fn with a real connection ------------------------------------------------------------------------------


async def test_a_connection_of_the_callers_is_made_autocommit(postgres: Postgres, key: LockKey):
    connections: list[psycopg.AsyncConnection] = []

    async def connect() -> psycopg.AsyncConnection:
        connections.append(await psycopg.AsyncConnection.connect(postgres.dsn))
        return connections[-1]

    lock = LeaderLock("unused", key=key, connect_fn=connect, retry_strategy=QUICK, settle_s=0)
    async with lock:
        assert await lock.wait_for_leadership(10)
        assert connections[0].autocommit
        assert connections[0].info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert connections[0].closed


async def test_a_connection_with_a_row_factory_of_its_own_works(postgres: Postgres, key: LockKey):
    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True, row_factory=dict_row)

    lock = LeaderLock("unused", key=key, connect_fn=connect, retry_strategy=QUICK, settle_s=0)
    async with lock:
        assert await lock.wait_for_leadership(10)


async def test_a_connection_inside_a_transaction_is_refused_and_closed(postgres: Postgres, key: LockKey):
    connections: list[psycopg.AsyncConnection] = []

    async def connect() -> psycopg.AsyncConnection:
        connections.append(await psycopg.AsyncConnection.connect(postgres.dsn))
        await connections[-1].execute("SELECT 1")
        return connections[-1]

    lock = LeaderLock("unused", key=key, connect_fn=connect, retry_strategy=QUICK, settle_s=0)
    heard = Witness(lock)
    async with lock:
        await until(lambda: bool(heard.errors))
    assert "autocommit" in str(heard.errors[0])
    assert all(connection.closed for connection in connections)


# --- Calls that hang ------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_on_a_server_that_does_not_answer_ends_at_once(own_server: Server, key: LockKey):
    """The server's side of the session is frozen, and so is the process that could accept a cancel request for it."""
    backend = PlainLockBackend(key, Connector(key, dsn=own_server.tcp_dsn, connect_fn=None))
    await backend.open()
    connection = backend._connection
    frozen = (connection.info.backend_pid, own_server.pid or 0)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        call = asyncio.create_task(backend.try_acquire())
        await until(lambda: connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)
        began = time.monotonic()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert time.monotonic() - began < 2  # psycopg on its own takes ten seconds
        assert connection.closed
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    await backend.close()


async def test_shutdown_does_not_wait_for_a_server_that_does_not_answer(own_server: Server, key: LockKey):
    """The postmaster is frozen: the kernel accepts the connection for it, and no answer ever comes."""
    pid = own_server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        lock, heard = make(own_server.tcp_dsn, key)
        await lock.start()
        await asyncio.sleep(0.1)
        assert lock.state is LockState.FOLLOWER
        await asyncio.wait_for(lock.shutdown(), 5)
        assert heard.words == ["on_stopped"]
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_cancelled_program_leaves_no_lock_behind(postgres: Postgres, key: LockKey):
    lock, _ = make(postgres.dsn, key)
    await lock.start()
    await lock.wait_for_leadership(10)
    for task in asyncio.all_tasks():
        if task.get_name() == "pgleaderlock lifecycle":
            task.cancel()
    await until_state(lock, LockState.STOPPED)
    await until_holders(postgres.dsn, key, 0)


async def test_a_shutdown_in_the_middle_of_a_health_check_is_as_clean_as_any(postgres: Postgres, key: LockKey):
    for _ in range(30):
        lock, heard = make(postgres.dsn, key, health_interval_s=0.0005)
        async with lock:
            await lock.wait_for_leadership(10)
            await asyncio.sleep(0.003)
        assert heard.words == ["on_acquired", "on_released", "on_stopped"]


# --- Who holds it ---------------------------------------------------------------------------------------------------


async def test_the_backend_names_the_holder_in_both_key_spaces(postgres: Postgres, key: LockKey):
    for each in (key, LockKey.bigint(-key.numbers[0] * 2**32 + 5), LockKey.pair(-key.numbers[0], -5)):
        asking = PlainLockBackend(each, Connector(each, dsn=postgres.dsn, connect_fn=None))
        await asking.open()
        assert await asking.holder() is None
        holding = PlainLockBackend(each, Connector(each, dsn=postgres.dsn, connect_fn=None))
        await holding.open()
        grant = await holding.try_acquire()
        assert grant is not None
        assert await asking.try_acquire() is None
        holder = await asking.holder()
        assert holder is not None
        assert holder.pid is not None
        assert holder.name.startswith("pgleaderlock ")
        await holding.release(grant)
        assert await asking.holder() is None
        await asyncio.gather(asking.close(), holding.close())


# --- Errors that a person must understand ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dbname": "nowhere"}, ["nowhere", "does not exist"]),
        ({"user": "nobody_here"}, ["nobody_here"]),
        ({"port": "1", "host": "127.0.0.1"}, ["127.0.0.1", "port=1"]),
        ({"host": "no-such-host.invalid"}, ["no-such-host.invalid"]),
    ],
    ids=["missing database", "missing user", "nobody listens", "unknown host"],
)
async def test_a_connection_that_fails_says_to_whom_where_and_why(postgres: Postgres, key: LockKey, change, words):
    dsn = psycopg.conninfo.make_conninfo(postgres.tcp_dsn, password="s3cret-passw0rd", **change)
    lock, heard = make(dsn, key)
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=30)
    message = str(heard.errors[0])
    assert isinstance(heard.errors[0], ConnectionError)
    assert str(key) in message
    assert all(word in message for word in words), message
    assert "s3cret" not in message
    assert "s3cret" not in everything_shown(heard.errors[0])


def everything_shown(error: BaseException | None) -> str:
    """Everything that an error tracker could show: the texts, and the variables of every frame of our own and below."""
    text = ""
    while error is not None:
        text += f"{error!r}"
        frame = error.__traceback__
        while frame is not None:
            text += repr(frame.tb_frame.f_locals)
            frame = frame.tb_next
        error = error.__cause__ or error.__context__
    return text


async def test_a_refused_password_is_reported_without_showing_it(own_server: Server, key: LockKey):
    async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as admin:
        await admin.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
        row = await (await admin.execute("SHOW hba_file")).fetchone()
        assert row is not None
    rules = "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    await asyncio.to_thread(Path(row[0]).write_text, rules)
    await asyncio.to_thread(own_server.restart)
    dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app", password="wrong-s3cret")
    lock, heard = make(dsn, key)
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=10)
    assert "password authentication failed" in str(heard.errors[0])
    assert "s3cret" not in str(heard.errors[0])


# --- Storms ---------------------------------------------------------------------------------------------------------


async def test_a_storm_of_start_stop_and_step_down_on_a_real_server_ends_with_nothing_held(
    postgres: Postgres, key: LockKey
):
    rng = random.Random(7)
    locks = [make(postgres.dsn, key, retry_strategy=FixedInterval(0.01))[0] for _ in range(3)]
    together: list[int] = []

    async def watch() -> None:
        while True:
            together.append(sum(lock.is_leader for lock in locks))
            await asyncio.sleep(0)

    async def caller(lock: LeaderLock) -> None:
        for _ in range(15):
            await rng.choice([lock.start, lock.shutdown, lock.step_down, lock.start])()
            await asyncio.sleep(rng.random() * 0.03)

    watching = asyncio.create_task(watch())
    while max(together, default=0) == 0:  # on a busy machine a storm may pass before any candidate was ready
        await asyncio.gather(*(caller(lock) for lock in locks for _ in range(3)))
    watching.cancel()
    await asyncio.gather(*(lock.shutdown() for lock in locks))
    assert max(together) == 1
    assert all(lock.state is LockState.STOPPED for lock in locks)
    await until_holders(postgres.dsn, key, 0)


# --- The choice of the protocol -------------------------------------------------------------------------------------


async def test_the_leader_s_own_backend_names_it_as_the_holder(postgres: Postgres, key: LockKey):
    lock, _ = make(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        holder = await lock._backend.holder()
    assert holder is not None
    assert holder.name.endswith(f":{os.getpid()} 15s wf")


async def test_before_the_first_connection_nothing_can_be_asked_but_everything_can_be_closed(key: LockKey):
    lease = Lease(1.5)
    backend = make_backend(key, lease, time.monotonic, Connector(key, dsn=None, connect_fn=connect_to(None)))
    with pytest.raises(ConnectionError, match="no session is open"):
        await backend.try_acquire()
    await backend.close()


async def test_factory_that_changes_the_kind_of_its_connections_is_an_error(postgres: Postgres, key: LockKey):
    real = await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True)
    double = DoubleConnection()
    lock = LeaderLock("", key=key, connect_fn=connect_to(real, double), settle_s=0, retry_strategy=FixedInterval(5))
    heard = Witness(lock)
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=10)
    assert "the same kind each time" in str(heard.errors[0])
    assert real.closed
    assert double.closed_times == 1
