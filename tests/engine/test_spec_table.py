"""Section 3.3 of the specification, one test per row, observed from outside on a LeaderLock.

The rows that PostgreSQL plays a part in are tested again on a real server in test_postgres.py. Here the connection is
a double, as ``connect_fn`` allows, and time is virtual.
"""

import asyncio

import pytest

from pgleaderlock import FixedInterval, LeaderLock, LockState, RetryContext
from tests.support.doubles import HANG, DoubleConnection, make_lock, until, until_state

pytestmark = pytest.mark.virtual_time

TRY = ("SELECT pg_try_advisory_lock(%s, %s)", (1234, 5678))
PING = ("SELECT 1",)
UNLOCK = ("SELECT pg_advisory_unlock(%s, %s)", (1234, 5678))

YES, NO = (True,), (False,)
BROKEN = OSError("connection closed")


async def test_stopped_start_follower_opens_a_connection_and_attempts_at_once():
    connection = DoubleConnection()
    lock, heard = make_lock(connection)
    assert lock.state is LockState.STOPPED
    await lock.start()
    assert lock.state is LockState.FOLLOWER
    await lock.wait_for_leadership()
    assert connection.statements == [TRY]
    assert asyncio.get_running_loop().time() == 0.0
    await lock.shutdown()


async def test_follower_acquire_attempt_acquiring_executes_the_try():
    connection = DoubleConnection(HANG)
    lock, heard = make_lock(connection)
    await lock.start()
    await until_state(lock, LockState.ACQUIRING)
    assert connection.statements == [TRY]
    await lock.shutdown()


async def test_follower_stop_requested_stopped_closes_and_emits_on_stopped():
    connection = DoubleConnection(NO)
    lock, heard = make_lock(connection)
    await lock.start()
    await asyncio.sleep(1)
    assert lock.state is LockState.FOLLOWER
    await lock.shutdown()
    assert heard.path[-2:] == [LockState.FOLLOWER, LockState.STOPPED]
    assert connection.closed_times == 1
    assert heard.words == ["on_acquire_failed", "on_stopped"]


async def test_acquiring_acquire_succeeded_leader_emits_on_acquired_resets_the_retry_state_and_begins_the_health_loop():
    asked: list[RetryContext] = []

    class Noting:
        def next_delay_s(self, ctx: RetryContext) -> float:
            asked.append(ctx)
            return 2.0

    connection = DoubleConnection(NO, NO, YES, YES, BROKEN, NO, YES)
    lock, heard = make_lock(connection, retry_strategy=Noting(), health_interval_s=5.0)
    async with lock:
        await lock.wait_for_leadership()
        assert heard.words[-1] == "on_acquired"
        await until(lambda: "on_lost" in heard.words)
        await lock.wait_for_leadership()
    assert connection.statements == [TRY, TRY, TRY, PING, PING, TRY, TRY, UNLOCK]
    assert [ctx.attempt for ctx in asked] == [1, 2, 1]


async def test_acquiring_acquire_failed_follower_emits_on_acquire_failed_and_sleeps_before_the_next_attempt():
    connection = DoubleConnection(NO, NO, YES)
    lock, heard = make_lock(connection, retry_strategy=FixedInterval(7.0))
    async with lock:
        await lock.wait_for_leadership()
        assert asyncio.get_running_loop().time() == 14.0
    assert heard.words[:3] == ["on_acquire_failed", "on_acquire_failed", "on_acquired"]
    assert connection.statements[:3] == [TRY] * 3


async def test_acquiring_db_error_follower_emits_on_lost_and_on_error_closes_and_reconnects():
    first, second = DoubleConnection(BROKEN), DoubleConnection()
    lock, heard = make_lock(first, second)
    async with lock:
        await lock.wait_for_leadership()
    assert heard.words[:3] == ["on_lost", "on_error", "on_acquired"]
    assert first.closed_times == 1
    assert second.statements[0] == TRY


async def test_acquiring_db_error_without_auto_reacquire_stopped():
    lock, heard = make_lock(DoubleConnection(BROKEN), auto_reacquire=False)
    await lock.start()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_lost", "on_error", "on_stopped"]


async def test_acquiring_stop_requested_stopped_closes_and_emits_on_stopped():
    connection = DoubleConnection(HANG)
    lock, heard = make_lock(connection)
    await lock.start()
    await until_state(lock, LockState.ACQUIRING)
    await lock.shutdown()
    assert heard.path[-2:] == [LockState.ACQUIRING, LockState.STOPPED]
    assert connection.closed_times == 1
    assert heard.words == ["on_stopped"]


async def test_leader_health_ok_leader_is_no_transition():
    connection = DoubleConnection()
    lock, heard = make_lock(connection, health_interval_s=1.0)
    async with lock:
        await lock.wait_for_leadership()
        before = len(heard.events)
        await asyncio.sleep(3.5)
        assert lock.state is LockState.LEADER
        assert len(heard.events) == before
    assert connection.statements == [TRY, PING, PING, PING, UNLOCK]


async def test_leader_health_failed_reconnecting_closes_and_starts_the_grace_timer():
    first = DoubleConnection(YES, BROKEN)
    lock, heard = make_lock(first, DoubleConnection(HANG), reconnect_grace_s=4.0)
    async with lock:
        await until_state(lock, LockState.RECONNECTING)
        assert first.closed_times == 1
        assert not lock.is_leader
        assert heard.words == ["on_acquired", "on_error"]
        began = asyncio.get_running_loop().time()
        await until(lambda: lock.state is not LockState.RECONNECTING)
        assert asyncio.get_running_loop().time() - began == pytest.approx(4.0, abs=0.1)


async def test_leader_health_failed_without_grace_follower_emits_on_lost():
    first, second = DoubleConnection(YES, BROKEN), DoubleConnection(NO)
    lock, heard = make_lock(first, second)
    async with lock:
        await until(lambda: "on_lost" in heard.words)
        assert LockState.RECONNECTING not in heard.path
        assert not lock.is_leader
    assert heard.words[:3] == ["on_acquired", "on_lost", "on_error"]
    assert first.closed_times == 1


async def test_leader_health_failed_without_grace_and_without_auto_reacquire_stopped():
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), auto_reacquire=False)
    await lock.start()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_stopped"]


async def test_leader_stop_requested_releasing_executes_the_unlock():
    connection = DoubleConnection(YES, HANG)
    lock, heard = make_lock(connection)
    await lock.start()
    await lock.wait_for_leadership()
    stopping = asyncio.create_task(lock.shutdown(timeout_s=5))
    await until_state(lock, LockState.RELEASING)
    assert connection.statements == [TRY, UNLOCK]
    await stopping


async def test_leader_release_requested_releasing_executes_the_unlock():
    connection = DoubleConnection(YES, HANG)
    lock, heard = make_lock(connection)
    await lock.start()
    await lock.wait_for_leadership()
    stepping = asyncio.create_task(lock.step_down(timeout_s=5))
    await until_state(lock, LockState.RELEASING)
    assert connection.statements == [TRY, UNLOCK]
    await stepping
    await lock.shutdown()


async def test_reconnecting_reacquire_succeeded_leader_logs_a_notice_and_emits_nothing(caplog):
    caplog.set_level("INFO", logger="pgleaderlock")
    second = DoubleConnection()
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), second, reconnect_grace_s=30.0)
    calls: list[str] = []
    for name in ("on_acquired", "on_lost", "on_released", "on_acquire_failed"):
        getattr(lock, name)(lambda name=name: calls.append(name))
    async with lock:
        await until(lambda: "recovered" in heard.words)
        assert heard.path[-2:] == [LockState.RECONNECTING, LockState.LEADER]
        assert lock.is_leader
        assert calls == ["on_acquired"]
    assert second.statements == [TRY, UNLOCK]
    assert "leadership_recovered" in caplog.text


async def test_reconnecting_reacquire_failed_follower_emits_on_lost():
    second = DoubleConnection(NO)
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), second, reconnect_grace_s=30.0)
    async with lock:
        await until(lambda: "on_lost" in heard.words, timeout_s=6)
    assert heard.path[4:6] == [LockState.RECONNECTING, LockState.FOLLOWER]
    assert second.statements[0] == TRY


async def test_reconnecting_reacquire_failed_without_auto_reacquire_stopped():
    lock, heard = make_lock(
        DoubleConnection(YES, BROKEN), DoubleConnection(NO), reconnect_grace_s=30.0, auto_reacquire=False
    )
    await lock.start()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_lost", "on_stopped"]


async def test_reconnecting_grace_expired_follower_emits_on_lost():
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), BROKEN, reconnect_grace_s=3.0)
    async with lock:
        await until(lambda: "on_lost" in heard.words)
        assert asyncio.get_running_loop().time() == pytest.approx(8.0, abs=0.1)
    assert heard.path[4:6] == [LockState.RECONNECTING, LockState.FOLLOWER]


async def test_reconnecting_grace_expired_without_auto_reacquire_stopped():
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), BROKEN, reconnect_grace_s=3.0, auto_reacquire=False)
    await lock.start()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_lost", "on_stopped"]


async def test_reconnecting_stop_requested_stopped_closes_and_emits_on_stopped():
    second = DoubleConnection(HANG)
    lock, heard = make_lock(DoubleConnection(YES, BROKEN), second, reconnect_grace_s=30.0)
    await lock.start()
    await until_state(lock, LockState.RECONNECTING)
    await until(lambda: bool(second.statements))
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]
    assert second.closed_times == 1


async def test_releasing_release_succeeded_stopped_emits_on_released_and_closes():
    connection = DoubleConnection()
    lock, heard = make_lock(connection)
    async with lock:
        await lock.wait_for_leadership()
    assert lock.state is LockState.STOPPED
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]
    assert connection.statements == [TRY, UNLOCK]
    assert connection.closed_times == 1


async def test_releasing_release_succeeded_follower_after_step_down_with_auto_reacquire():
    connection = DoubleConnection()
    lock, heard = make_lock(connection)
    async with lock:
        await lock.wait_for_leadership()
        await lock.step_down()
        assert lock.state is LockState.FOLLOWER
        assert connection.closed_times == 0


async def test_releasing_release_succeeded_stopped_after_step_down_without_auto_reacquire():
    lock, heard = make_lock(DoubleConnection(), auto_reacquire=False)
    await lock.start()
    await lock.wait_for_leadership()
    await lock.step_down()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


@pytest.mark.parametrize("answer", [NO, BROKEN, None], ids=["answered false", "DbError", "no row"])
async def test_releasing_release_failed_stopped_emits_on_error_and_closes(answer):
    connection = DoubleConnection(YES, answer)
    lock, heard = make_lock(connection)
    await lock.start()
    await lock.wait_for_leadership()
    await lock.step_down()
    await until_state(lock, LockState.STOPPED)
    await lock.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]
    assert connection.closed_times == 1


async def test_section_12_a_step_down_that_times_out_cycles_the_connection():
    first, second = DoubleConnection(YES, HANG), DoubleConnection()
    lock, heard = make_lock(first, second)
    async with lock:
        await lock.wait_for_leadership()
        await lock.step_down(timeout_s=1.0)
        assert first.closed_times == 1
        assert await lock.wait_for_leadership()
        assert second.statements == [TRY]


async def test_section_4_usage_example_works_as_written():
    lock = LeaderLock(dsn="postgresql://...", key1=1, key2=100, connect_fn=_connected)
    said = []

    @lock.on_acquired
    def handle_acquired():
        said.append("acquired")

    @lock.on_lost
    def handle_lost():
        said.append("lost")

    async with lock:
        await lock.wait_for_leadership()
    assert said == ["acquired"]


async def _connected() -> DoubleConnection:
    return DoubleConnection()
