"""Work is finished before leadership is given up on request: bounded, and renewed meanwhile."""

import asyncio

import pytest

from pgleaderlock import ConnectionError, LockState
from pgleaderlock.models import Grant
from tests.support.doubles import ScriptedBackend, Witness, make_election, until, until_state

pytestmark = pytest.mark.virtual_time


async def leading(**settings):
    election, backend, heard = make_election(health_interval_s=1.0, **settings)
    await election.start()
    await election.wait_for_leadership()
    return election, backend, heard


@pytest.mark.parametrize("ask", ["shutdown", "step_down"])
async def test_work_is_finished_while_leading_and_only_then_the_lock_is_released(ask: str):
    election, backend, _ = await leading()
    led: list[bool] = []

    @election.before_release
    async def finish() -> None:
        await asyncio.sleep(3.5)
        led.append(election.is_leader)

    await getattr(election, ask)()
    assert led == [True]
    (released_at,) = backend.times("release")
    assert released_at == pytest.approx(3.5)
    assert backend.times("renew")[:3] == pytest.approx([1.0, 2.0, 3.0])
    await election.shutdown()


@pytest.mark.parametrize("ask", ["shutdown", "step_down"])
async def test_before_release_is_called_after_on_acquired_has_returned(ask: str):
    """Or work would be finished that has not begun, and begin when the lock is free."""
    election, backend, _ = make_election(health_interval_s=1.0)
    told: list[str] = []

    @election.on_acquired
    async def begin() -> None:
        await asyncio.sleep(2.5)
        told.append("begun")

    election.before_release(lambda: told.append("finished"))
    await election.start()
    await until_state(election, LockState.LEADER)
    await getattr(election, ask)()
    assert told == ["begun", "finished"]
    assert backend.times("release") == pytest.approx([2.5])
    await election.shutdown()


async def test_plain_functions_are_called_too_and_all_of_them_at_once():
    election, backend, _ = await leading()
    told: list[str] = []
    election.before_release(lambda: told.append("plain"))

    @election.before_release
    async def slow() -> None:
        await asyncio.sleep(1)

    @election.before_release
    async def slow_too() -> None:
        await asyncio.sleep(1)

    await election.shutdown()
    assert told == ["plain"]
    assert backend.times("release") == pytest.approx([1.0])


@pytest.mark.parametrize(("settings", "timeout_s", "waits_s"), [({"drain_s": 2.0}, None, 2.0), ({}, 1.5, 1.5)])
async def test_it_is_not_waited_for_longer_than_allowed(settings, timeout_s, waits_s, caplog):
    election, backend, _ = await leading(**settings)
    cancelled: list[bool] = []

    @election.before_release
    async def never() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    await election.shutdown(timeout_s)
    assert cancelled == [True]
    assert "drain_unfinished" in caplog.text
    assert election.state is LockState.STOPPED
    assert backend.times("close")[-1] == pytest.approx(waits_s, abs=0.3)


async def test_work_that_fails_is_reported_and_the_lock_is_released_all_the_same():
    election, backend, heard = await leading()

    @election.before_release
    def fail() -> None:
        raise ZeroDivisionError("of the work")

    await election.shutdown()
    assert len(backend.times("release")) == 1
    assert [type(error) for error in heard.errors] == [ZeroDivisionError]


async def test_a_loss_meanwhile_ends_the_waiting():
    backend = ScriptedBackend(renew=[Grant(), ConnectionError("gone")])
    election, _, heard = make_election(backend, health_interval_s=1.0, auto_reacquire=False)
    await election.start()
    await election.wait_for_leadership()

    @election.before_release
    async def slow() -> None:
        await asyncio.sleep(1000)

    await election.shutdown()
    assert "on_lost" in heard.words
    assert asyncio.get_running_loop().time() < 3


async def test_before_release_is_not_called_when_no_lock_is_held():
    backend = ScriptedBackend(try_acquire=[None] * 100)
    election, _, _ = make_election(backend)
    told: list[str] = []
    election.before_release(lambda: told.append("told"))
    await election.start()
    await until_state(election, LockState.FOLLOWER)
    await election.step_down()
    await election.shutdown()
    assert told == []


@pytest.mark.parametrize("ask", ["shutdown", "step_down"])
async def test_a_callback_that_asks_for_the_release_does_not_wait_but_the_work_is_finished(ask: str):
    election, backend, _ = make_election(health_interval_s=1.0)

    @election.on_acquired
    async def leave() -> None:
        await getattr(election, ask)()

    @election.before_release
    async def finish() -> None:
        await asyncio.sleep(2)

    await election.start()
    await until(lambda: bool(backend.times("release")))
    assert backend.times("release")[0] == pytest.approx(2.0, abs=0.2)
    await election.shutdown()


async def test_the_event_that_shuts_down_lets_work_finish_too():
    stop = asyncio.Event()
    election, backend, _ = await leading(shutdown_event=stop)

    @election.before_release
    async def finish() -> None:
        await asyncio.sleep(2)

    stop.set()
    await until_state(election, LockState.STOPPED)
    assert backend.times("release") == pytest.approx([2.0], abs=0.2)


async def test_shutdown_goes_on_after_its_caller_stopped_waiting():
    election, backend, _ = await leading(drain_s=1000)

    ended: list[bool] = []

    @election.before_release
    async def slow() -> None:
        try:
            await asyncio.sleep(500)
        finally:
            ended.append(asyncio.get_running_loop().time() < 100)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(election.shutdown(), 1)
    await until_state(election, LockState.STOPPED)
    assert backend.times("release")[0] == pytest.approx(1.0, abs=0.3)
    await until(lambda: ended == [True])


async def test_two_who_ask_wait_for_the_same_work():
    election, _, heard = await leading()
    runs: list[int] = []

    @election.before_release
    async def finish() -> None:
        runs.append(1)
        await asyncio.sleep(2)

    await asyncio.gather(election.shutdown(), election.shutdown())
    assert runs == [1]
    assert isinstance(heard, Witness)


async def test_work_that_refuses_to_end_does_not_prevent_the_release():
    election, _, _ = await leading()
    ended = asyncio.Event()

    @election.before_release
    async def refuse() -> None:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    await election.shutdown(1.0)
    assert election.state is LockState.STOPPED
    ended.set()
    await asyncio.sleep(0)


async def test_a_step_down_that_a_callback_asked_for_ends_no_later_term():
    """Leadership is lost while work is finished, and won again: the ask was about the term before."""
    backend = ScriptedBackend(renew=[Grant(), ConnectionError("gone")])
    election, _, heard = make_election(backend, health_interval_s=1.0)
    asked: list[bool] = []

    @election.on_acquired
    async def leave_once() -> None:
        if not asked:
            asked.append(True)
            await election.step_down()

    @election.before_release
    async def finish() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.2)

    await election.start()
    await until(lambda: heard.words.count("on_acquired") == 2)
    await asyncio.sleep(5)
    assert election.is_leader
    assert backend.times("release") == []
    await election.shutdown(1.0)
