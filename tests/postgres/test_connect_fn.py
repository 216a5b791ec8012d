"""What ``connect_fn`` may return, and exactly what is asked of it."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import psycopg
import pytest

from pgleaderlock import ConnectionError, FixedInterval, LeaderLock, LockState
from tests.support.doubles import HANG, DoubleConnection, make_lock, until, until_state

pytestmark = pytest.mark.virtual_time


async def test_a_plain_mock_is_enough():
    connection = AsyncMock()
    connection.execute.return_value.fetchone.return_value = (True,)
    factory = AsyncMock(return_value=connection)
    lock = LeaderLock("unused", 1, 2, connect_fn=factory, health_interval_s=1)
    async with lock:
        await lock.wait_for_leadership()
        await asyncio.sleep(1.5)
    assert [call.args for call in connection.execute.await_args_list] == [
        ("SELECT pg_try_advisory_lock(%s, %s)", (1, 2)),
        ("SELECT 1",),
        ("SELECT pg_advisory_unlock(%s, %s)", (1, 2)),
    ]
    assert factory.await_count == 1
    assert connection.close.await_count == 1


async def test_a_mock_that_pretends_to_be_psycopgs_is_treated_as_the_double_that_it_is():
    connection = AsyncMock(spec=psycopg.AsyncConnection)
    connection.execute.return_value.fetchone = AsyncMock(return_value=(True,))
    lock = LeaderLock("unused", 1, 2, connect_fn=AsyncMock(return_value=connection))
    async with lock:
        assert await lock.wait_for_leadership()
    connection.set_autocommit.assert_not_called()
    assert connection.close.await_count == 1


async def test_a_factory_and_a_close_that_are_not_async_work_too():
    connection = DoubleConnection()
    connection.close = MagicMock()  # type: ignore[method-assign]
    lock = LeaderLock("unused", 1, 2, connect_fn=lambda: connection)  # type: ignore[arg-type,return-value]
    async with lock:
        assert await lock.wait_for_leadership()
    connection.close.assert_called_once_with()


async def test_a_bigint_key_is_passed_as_one_parameter():
    from pgleaderlock import LockKey

    connection = DoubleConnection()
    lock = LeaderLock("unused", key=LockKey.bigint(7), connect_fn=AsyncMock(return_value=connection))
    async with lock:
        await lock.wait_for_leadership()
    assert connection.statements == [
        ("SELECT pg_try_advisory_lock(%s)", (7,)),
        ("SELECT pg_advisory_unlock(%s)", (7,)),
    ]


async def test_a_factory_that_returns_none_is_reported_as_such_and_tried_again():
    lock, heard = make_lock(None, DoubleConnection())
    async with lock:
        assert await lock.wait_for_leadership()
    assert isinstance(heard.errors[0], ConnectionError)
    assert "connect_fn returned None" in str(heard.errors[0])


async def test_a_factory_that_raises_is_tried_again():
    lock, heard = make_lock(OSError("refused"), DoubleConnection())
    async with lock:
        assert await lock.wait_for_leadership()
    assert isinstance(heard.errors[0], ConnectionError)
    assert isinstance(heard.errors[0].__cause__, OSError)


async def test_a_connection_that_arrives_after_the_stop_is_closed():
    late = DoubleConnection()
    arrive = asyncio.Event()

    async def stubborn_factory() -> DoubleConnection:
        while not arrive.is_set():
            try:
                await arrive.wait()
            except asyncio.CancelledError:
                continue
        return late

    lock = LeaderLock("unused", 1, 2, connect_fn=stubborn_factory)
    await lock.start()
    await asyncio.sleep(1)
    await lock.shutdown()
    assert lock.state is LockState.STOPPED
    arrive.set()
    await until(lambda: late.closed_times == 1, timeout_s=1)


async def test_a_close_that_hangs_or_raises_does_not_keep_the_election_from_stopping():
    for close in (AsyncMock(side_effect=OSError), MagicMock(side_effect=OSError), _hang):
        connection = DoubleConnection()
        connection.close = close  # type: ignore[method-assign]
        lock, heard = make_lock(connection)
        async with lock:
            await lock.wait_for_leadership()
        assert lock.state is LockState.STOPPED


async def test_a_query_that_hangs_is_left_behind_when_the_election_stops():
    connection = DoubleConnection(HANG)
    lock, _ = make_lock(connection)
    await lock.start()
    await until_state(lock, LockState.ACQUIRING)
    await lock.shutdown()
    assert connection.closed_times == 1


async def test_a_failed_connection_is_not_used_again():
    first, second = DoubleConnection((True,), OSError("gone")), DoubleConnection()
    lock, _ = make_lock(first, second, retry_strategy=FixedInterval(1))
    async with lock:
        await asyncio.sleep(5.5)
        assert lock.is_leader
    assert len(first.statements) == 2


async def _hang() -> None:
    await asyncio.get_running_loop().create_future()


async def test_failed_health_check_leaves_the_session_open_until_the_loss_was_reported():
    """Closed any earlier, it would free the lock while we still say that we lead."""
    connection = DoubleConnection((True,), OSError("a statement failed, the session lives"))
    lock, _ = make_lock(connection)
    seen: list[tuple[int, bool]] = []
    lock.on_lost(lambda: seen.append((connection.closed_times, lock.is_leader)))
    async with lock:
        await until(lambda: bool(seen))
        await until(lambda: connection.closed_times == 1)
    assert seen == [(0, False)]


async def test_a_slow_close_is_not_cancelled_with_the_election():
    connection = DoubleConnection()
    finished = []

    async def slow_close() -> None:
        await asyncio.sleep(0.5)
        finished.append(True)

    connection.close = slow_close  # type: ignore[method-assign]
    lock, _ = make_lock(connection)
    await lock.start()
    await lock.wait_for_leadership()
    stopping = asyncio.create_task(lock.shutdown())
    await until(lambda: lock.state is LockState.STOPPED)
    for task in asyncio.all_tasks():
        if task.get_name() == "pgleaderlock lifecycle":
            task.cancel()
    await stopping
    await asyncio.sleep(1)
    assert finished == [True]
