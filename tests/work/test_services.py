"""Named services: started in order, stopped in reverse, each harmed by itself alone."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pgleaderlock import (
    ConnectionError,
    Election,
    EventKind,
    FixedInterval,
    LeaderLock,
    LeaderServices,
    LockError,
    LockKey,
    LockState,
)
from pgleaderlock.errors import ServiceFailed
from pgleaderlock.models import Grant
from tests.conftest import Postgres
from tests.support.doubles import ScriptedBackend, Witness, make_election, until, until_state

STARTING = "Acquired leadership, starting schedulers"
SKIPPING = "Not leader, skipping scheduler startup"
STOPPING = "No longer leader, stopping schedulers"
LEAVING = "Shutting down, stopping schedulers"


class Diary:
    """What services did, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def service(
        self,
        name: str,
        *,
        start_s: float = 0.0,
        stop_s: float = 0.0,
        start_error: Exception | None = None,
        stop_error: Exception | None = None,
    ) -> dict[str, Any]:
        async def start() -> None:
            self.words.append(f"{name}?")
            await asyncio.sleep(start_s)
            if start_error is not None:
                raise start_error
            self.words.append(f"+{name}")

        async def stop() -> None:
            await asyncio.sleep(stop_s)
            if stop_error is not None:
                raise stop_error
            self.words.append(f"-{name}")

        return {"start": start, "stop": stop}

    @property
    def done(self) -> list[str]:
        return [word for word in self.words if not word.endswith("?")]


def leased(lease_s: float = 10.0, **scripts: list[Any]) -> ScriptedBackend:
    """A store whose word is good for nine tenths of a lease."""
    backend = ScriptedBackend(**scripts)

    async def grant() -> Grant:
        now = asyncio.get_running_loop().time()
        return Grant(token=1, trusted_until=now + 0.9 * lease_s, lost_at=now + 2 / 3 * lease_s)

    backend.defaults |= {"try_acquire": grant, "renew": grant}
    return backend


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that people grep for, exactly as logged."""
    caplog.set_level(logging.INFO, "pgleaderlock")
    return lambda: [record.getMessage() for record in caplog.records if "scheduler" in record.getMessage()]


def made(backend: ScriptedBackend | None = None, **settings: Any) -> tuple[LeaderServices, Diary, Election, Witness]:
    names = ("noun", "first_try_s", "start_s", "stop_s")
    ours = {name: settings.pop(name) for name in names if name in settings}
    settings.setdefault("health_interval_s", 1.0)
    election, _, heard = make_election(backend or leased(), **settings)
    return LeaderServices(election, **ours), Diary(), election, heard


# --- Order ------------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_leader_services_start_first_and_in_order_then_those_of_every_node_and_all_stop_in_reverse(lines):
    services, diary, election, heard = made()
    services.add("web", **diary.service("web"), leader_only=False)
    services.add("refresh", **diary.service("refresh", start_s=2))
    services.add("retention", **diary.service("retention"))
    services.add("heartbeat", **diary.service("heartbeat"), leader_only=False)
    async with services:
        assert diary.done == ["+refresh", "+retention", "+web", "+heartbeat"]
        assert services.running == services.names == ("web", "refresh", "retention", "heartbeat")
        assert lines() == [STARTING]
    assert diary.done[4:] == ["-retention", "-refresh", "-heartbeat", "-web"]
    assert services.running == ()
    assert lines() == [STARTING, LEAVING]
    assert election.state is LockState.STOPPED
    assert heard.errors == []


@pytest.mark.virtual_time
async def test_a_follower_skips_the_leader_services_at_once_and_starts_them_when_it_wins(lines):
    services, diary, _, _ = made(leased(try_acquire=[None, None, None]))
    services.add("refresh", **diary.service("refresh"))
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        assert asyncio.get_running_loop().time() < 0.1
        assert lines() == [SKIPPING]
        assert diary.done == ["+web"]
        await until(lambda: diary.done == ["+web", "+refresh"])
        assert lines() == [SKIPPING, STARTING]


@pytest.mark.virtual_time
async def test_a_database_that_does_not_answer_delays_the_node_no_longer_than_allowed(lines):
    async def never() -> Grant:
        await asyncio.sleep(1000)
        return Grant()

    services, diary, _, _ = made(leased(try_acquire=[never]), first_try_s=3.0)
    services.add("refresh", **diary.service("refresh"))
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.1)
        assert lines() == [SKIPPING]
        assert diary.done == ["+web"]


@pytest.mark.virtual_time
async def test_a_database_that_is_not_there_is_an_answer_too(lines):
    services, diary, _, _ = made(leased(open=[ConnectionError("no database")]))
    services.add("refresh", **diary.service("refresh"))
    async with services:
        assert asyncio.get_running_loop().time() < 0.1
        assert lines() == [SKIPPING]


@pytest.mark.virtual_time
async def test_a_loss_stops_them_and_the_next_term_starts_them_again(lines):
    services, diary, _, heard = made(leased(renew=[ConnectionError("gone")]))
    services.add("refresh", **diary.service("refresh"))
    services.add("retention", **diary.service("retention"))
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        await until(lambda: heard.words.count("on_acquired") == 2)
        await asyncio.sleep(0.1)
        assert diary.done == [
            "+refresh", "+retention", "+web", "-retention", "-refresh", "+refresh", "+retention",
        ]  # fmt: skip
        assert lines() == [STARTING, STOPPING, STARTING]


@pytest.mark.virtual_time
async def test_a_step_down_stops_them_before_the_lock_is_released(lines):
    backend = leased()
    services, diary, election, _ = made(backend)
    services.add("refresh", **diary.service("refresh", stop_s=2))
    async with services:
        await election.step_down()
        assert diary.done == ["+refresh", "-refresh"]
        assert backend.times("release") == pytest.approx([2.0], abs=0.1)
        assert lines() == [STARTING, STOPPING]


@pytest.mark.virtual_time
@pytest.mark.parametrize("ask", ["shutdown", "event", "callback", "work"])
async def test_however_the_election_is_asked_to_end_that_is_no_loss(lines, ask: str):
    stop = asyncio.Event()
    services, diary, election, heard = made(leased(), shutdown_event=stop)
    services.add("refresh", **diary.service("refresh"))
    async with services:
        if ask == "shutdown":
            await election.shutdown()
        elif ask == "event":
            stop.set()
        elif ask == "work":
            election.while_leader(on_return="stop")(lambda: None)
        else:
            election.on_overrun(lambda _: election.shutdown())
            election._report(EventKind.OVERRUN, LockError("a pretext"))
        await until_state(election, LockState.STOPPED)
    assert lines() == [STARTING, LEAVING]
    assert diary.done == ["+refresh", "-refresh"]


@pytest.mark.virtual_time
async def test_lock_that_was_started_outside_the_services_goes_on_when_the_services_stop(lines):
    services, diary, election, _ = made()
    services.add("refresh", **diary.service("refresh"))
    services.add("retention", **diary.service("retention"))
    async with election:
        await election.wait_for_leadership()
        async with services:
            assert diary.done == ["+refresh", "+retention"]
        assert diary.done[2:] == ["-retention", "-refresh"]
        assert election.is_leader
        assert lines() == [STARTING, LEAVING]
        await services.start()  # and once more
        await services.start()
        assert diary.done[4:] == ["+refresh", "+retention"]
        await services.stop()
        await services.stop()


@pytest.mark.virtual_time
async def test_the_lines_can_speak_of_something_else(caplog):
    caplog.set_level(logging.INFO, "pgleaderlock")
    services, diary, _, _ = made(noun="consumer")
    services.add("refresh", **diary.service("refresh"))
    async with services:
        assert "Acquired leadership, starting consumers" in caplog.messages


@pytest.mark.virtual_time
async def test_without_leader_services_no_message_mentions_them(lines):
    services, diary, election, _ = made()
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        await election.wait_for_leadership()
        assert diary.done == ["+web"]
    assert lines() == []


# --- A start that raises ----------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_start_that_raises_is_reported_and_does_not_affect_other_services(caplog):
    services, diary, election, heard = made()
    services.add("first", **diary.service("first"))
    services.add("broken", **diary.service("broken", start_error=ZeroDivisionError("of the start")))
    services.add("last", **diary.service("last"))
    services.add("sick", **diary.service("sick", start_error=ZeroDivisionError("of the node")), leader_only=False)
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        assert diary.done == ["+first", "+last", "+web"]
        assert election.is_leader
        await asyncio.sleep(0.1)
        assert [type(error) for error in heard.errors] == [ServiceFailed] * 2
        assert [error.name for error in heard.errors if isinstance(error, ServiceFailed)] == ["broken", "sick"]
        assert "of the start" in str(heard.errors[0])
        assert "work_failed work=broken" in caplog.text
        assert "work_failed work=sick" in caplog.text
    assert diary.done[3:] == ["-last", "-first", "-web"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("leader_only", [True, False])
async def test_a_start_that_raised_is_tried_again_and_then_stopped_in_its_place(*, leader_only: bool):
    services, diary, _, _ = made()
    sound = diary.service("shaky")
    tries: list[float] = []

    async def start() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise ZeroDivisionError
        await sound["start"]()

    services.add("shaky", start=start, stop=sound["stop"], leader_only=leader_only)
    services.add("last", **diary.service("last"), leader_only=leader_only)
    async with services:
        await until(lambda: len(tries) == 3)
        assert tries == pytest.approx([0.0, 1.0, 3.0], abs=0.1)
        await asyncio.sleep(0.1)
    assert diary.done == ["+last", "+shaky", "-last", "-shaky"]


@pytest.mark.virtual_time
async def test_node_releases_leadership_when_a_required_service_cannot_start(lines):
    backend = leased()
    services, diary, election, heard = made(backend)
    services.add("first", **diary.service("first"))
    services.add("broken", **diary.service("broken", start_error=ZeroDivisionError()), required=True)
    async with services:
        await until(lambda: bool(backend.times("release")))
        assert diary.done == ["+first", "-first"]
        await until(lambda: "on_released" in heard.words)
        assert lines() == [STARTING, STOPPING]


@pytest.mark.virtual_time
async def test_a_required_service_of_every_node_that_cannot_start_ends_the_start_of_the_node():
    services, diary, election, _ = made()
    services.add("refresh", **diary.service("refresh"))
    services.add("web", **diary.service("web"), leader_only=False)
    error = ZeroDivisionError("of the pool")
    services.add("pool", **diary.service("pool", start_error=error), leader_only=False, required=True)
    with pytest.raises(ServiceFailed, match="pool could not be started") as raised:
        await services.start()
    assert raised.value.__cause__ is error
    assert diary.done == ["+refresh", "+web", "-refresh", "-web"]
    assert election.state is LockState.STOPPED


@pytest.mark.virtual_time
async def test_a_start_that_does_not_return_keeps_the_others_waiting_only_for_so_long(caplog):
    services, diary, election, heard = made(start_s=4.0)
    services.add("slow", **diary.service("slow", start_s=30))
    services.add("refresh", **diary.service("refresh"))
    services.add("web", **diary.service("web"), leader_only=False)
    async with services:
        assert diary.done == ["+refresh", "+web"]
        assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)
        assert "service_start_slow service=slow" in caplog.text
        await until(lambda: "+slow" in diary.done)
        assert election.is_leader
    assert diary.done[3:] == ["-refresh", "-slow", "-web"]


# --- A stop that hangs ------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_stop_that_hangs_gets_its_share_of_the_lease_and_the_others_are_stopped(caplog):
    backend = leased(10.0, renew=[ConnectionError("gone")])
    services, diary, election, heard = made(backend, auto_reacquire=False)
    cleared_at: dict[str, float] = {}

    def noted(name: str) -> Callable[[], Any]:
        async def stop() -> None:
            cleared_at[name] = asyncio.get_running_loop().time()

        return stop

    services.add("first", start=diary.service("first")["start"], stop=noted("first"))
    services.add("second", start=diary.service("second")["start"], stop=noted("second"))
    services.add("hangs", **diary.service("hangs", stop_s=1000))
    await services.start()
    await until(lambda: len(cleared_at) == 2)
    # Lost after 1 s, trusted until 9 s: three share eight seconds.
    assert cleared_at == {"second": pytest.approx(1 + 8 / 3, abs=0.1), "first": pytest.approx(1 + 8 / 3, abs=0.1)}
    assert "service_stop_slow service=hangs" in caplog.text
    slow = next(error for error in heard.errors if isinstance(error, ServiceFailed))
    assert slow.name == "hangs"
    await until_state(election, LockState.STOPPED)
    await until(lambda: "work_overrun" in caplog.text)  # it runs on, and others may lead: that is an overrun, by name
    assert "hangs did not stop in time" in caplog.text
    assert asyncio.get_running_loop().time() == pytest.approx(9.0, abs=0.1)
    assert services.running == ("hangs",)
    await services.stop()


@pytest.mark.virtual_time
async def test_past_the_end_of_the_lease_everything_is_stopped_at_once():
    """The loop stood still: no time is left, and still every service is notified."""
    backend = leased(10.0, renew=[ConnectionError("gone")])
    services, diary, election, _ = made(backend, auto_reacquire=False)
    for name in ("first", "second", "third"):
        services.add(name, **diary.service(name, stop_s=50))
    await services.start()
    await until_state(election, LockState.STOPPED)
    began_at = asyncio.get_running_loop().time()
    await until(lambda: len(diary.done) == 6, 200)
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(50, abs=9)
    await services.stop()


@pytest.mark.virtual_time
async def test_a_hand_over_shares_the_time_that_it_waits():
    services, diary, election, heard = made(leased(100.0), drain_s=6.0)
    services.add("first", **diary.service("first"))
    services.add("hangs", **diary.service("hangs", stop_s=1000))
    async with services:
        await election.step_down()
        assert diary.done == ["+first", "+hangs", "-first"]
        assert [type(error) for error in heard.errors] == [ServiceFailed]
        assert "its share of 3.00 s" in str(heard.errors[0])


@pytest.mark.virtual_time
async def test_where_no_lease_bounds_it_the_setting_does():
    backend = ScriptedBackend(renew=[ConnectionError("gone")])
    services, diary, _, heard = made(backend, auto_reacquire=False, stop_s=4.0)
    services.add("first", **diary.service("first"))
    services.add("hangs", **diary.service("hangs", stop_s=1000))
    await services.start()
    await until(lambda: "-first" in diary.done)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.1)
    assert "share of 2.00 s" in str(next(error for error in heard.errors if isinstance(error, ServiceFailed)))
    await services.stop()


@pytest.mark.virtual_time
async def test_a_stop_that_raises_is_reported_and_the_others_are_stopped(caplog):
    services, diary, _, heard = made()
    services.add("first", **diary.service("first"))
    services.add("broken", **diary.service("broken", stop_error=ZeroDivisionError("of the stop")))
    services.add("web", **diary.service("web", stop_error=ZeroDivisionError()), leader_only=False)
    async with services:
        pass
    assert diary.done == ["+first", "+broken", "+web", "-first"]
    assert "service_stop_failed service=broken" in caplog.text
    assert "service_stop_failed service=web" in caplog.text
    assert [error.name for error in heard.errors if isinstance(error, ServiceFailed)] == ["broken"]


@pytest.mark.virtual_time
async def test_a_service_of_every_node_that_does_not_stop_is_waited_for_only_so_long():
    services, diary, _, _ = made(stop_s=4.0)
    services.add("web", **diary.service("web", stop_s=1000), leader_only=False)
    services.add("pool", **diary.service("pool"), leader_only=False)
    async with services:
        pass
    assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)
    assert diary.done == ["+web", "+pool", "-pool"]


# --- Slower than a term -----------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_start_that_is_under_way_at_the_loss_is_cut_short_and_what_there_is_of_it_is_stopped():
    services, diary, election, heard = made(leased(renew=[ConnectionError("gone")]), start_s=0.5)
    services.add("slow", **diary.service("slow", start_s=3))
    services.add("refresh", **diary.service("refresh"))
    async with services:
        await until(lambda: heard.words.count("on_acquired") == 2)
        assert diary.words[:5] == ["slow?", "refresh?", "+refresh", "-refresh", "-slow"]


async def test_a_thread_that_starts_for_longer_than_its_term_is_stopped_at_once_and_started_again_only_then():
    backend = leased(1.5, renew=[ConnectionError("gone")])
    services, diary, election, heard = made(
        backend, start_s=0.05, health_interval_s=0.2, retry_strategy=FixedInterval(0.05)
    )
    come_back = threading.Event()
    at_once: list[int] = []
    alive = 0

    def start() -> None:
        nonlocal alive
        alive += 1
        at_once.append(alive)
        diary.words.append("start")
        assert come_back.wait(20)
        diary.words.append("started")

    def stop() -> None:
        nonlocal alive
        alive -= 1
        diary.words.append("stop")

    services.add("slow", start=start, stop=stop)
    services.add("refresh", **diary.service("refresh"))
    async with services:
        await until(lambda: heard.words.count("on_acquired") == 2)
        await until(lambda: diary.done.count("+refresh") == 2)  # it is not harmed in the next term either
        assert diary.words.count("start") == 1
        come_back.set()
        await until(lambda: diary.words.count("started") == 2)
        assert [word for word in diary.words if "st" in word] == ["start", "started", "stop", "start", "started"]
    assert at_once == [1, 1]
    assert diary.words[-1] == "stop"


async def test_a_thread_that_fails_to_start_after_its_term_is_reported_and_not_stopped(caplog):
    backend = leased(1.5, renew=[ConnectionError("gone")])
    services, diary, election, _ = made(backend, start_s=0.05, health_interval_s=0.2, auto_reacquire=False)
    come_back = threading.Event()

    def start() -> None:
        assert come_back.wait(20)
        raise ZeroDivisionError("too late")

    services.add("slow", start=start, stop=lambda: diary.words.append("stop"))
    await services.start()
    await until_state(election, LockState.STOPPED)
    come_back.set()
    await until(lambda: "service_start_failed service=slow" in caplog.text)
    await services.stop()
    assert diary.words == []


@pytest.mark.virtual_time
async def test_a_hand_over_during_the_starts_begins_none_of_those_to_come():
    services, diary, election, _ = made()
    services.add("slow", **diary.service("slow", start_s=5))
    services.add("last", **diary.service("last"))
    starting = asyncio.create_task(services.start())
    await until(lambda: diary.words == ["slow?"])
    await election.step_down()
    assert diary.words == ["slow?", "-slow"]
    await starting
    await services.stop()


@pytest.mark.virtual_time
async def test_a_stop_that_is_under_way_when_the_hand_over_waits_no_longer_is_not_cut_short():
    backend = leased(100.0)
    services, diary, election, _ = made(backend, drain_s=2.0)
    services.add("slow", **diary.service("slow", stop_s=5))
    async with services:
        await election.step_down()
        assert diary.done == ["+slow", "-slow"]
        assert backend.times("release") == pytest.approx([5.0], abs=0.1)


@pytest.mark.virtual_time
async def test_services_that_are_started_anew_wait_for_what_still_stops():
    services, diary, election, _ = made(stop_s=4.0, start_s=1.0)
    services.add("slow", **diary.service("slow", stop_s=30))
    async with election:
        await election.wait_for_leadership()
        async with services:
            pass
        async with services:
            assert diary.done == ["+slow"]
            await until(lambda: len(diary.done) == 3)
            assert diary.done == ["+slow", "-slow", "+slow"]


# --- What is a service ------------------------------------------------------------------------------------------------


async def test_plain_functions_run_in_threads_of_their_own():
    services, _, _, _ = made()
    threads: list[str] = []

    class Scheduler:
        def start(self) -> None:
            threads.append(threading.current_thread().name)

        def stop(self) -> None:
            threads.append(threading.current_thread().name)

    services.add("refresh", Scheduler())
    async with services:
        pass
    assert threads == ["pgleaderlock start of refresh", "pgleaderlock stop of refresh"]


@pytest.mark.virtual_time
async def test_what_a_plain_function_returns_is_awaited_if_it_can_be():
    services, diary, _, _ = made()
    sound = diary.service("refresh")
    services.add("refresh", start=lambda: sound["start"](), stop=lambda: sound["stop"]())  # noqa: PLW0108
    async with services:
        assert diary.done == ["+refresh"]
    assert diary.done == ["+refresh", "-refresh"]


@pytest.mark.virtual_time
async def test_what_makes_no_sense_is_refused():
    services, diary, election, _ = made()
    good = diary.service("refresh")
    services.add("refresh", **good)
    for arguments, settings, error in [
        (("refresh",), good, ValueError),
        (("",), good, ValueError),
        (("x",), {"start": good["start"]}, TypeError),
        (("x", object()), {}, TypeError),
        (("x",), {"start": 1, "stop": 2}, TypeError),
        (("x",), {**good, "required": 1}, TypeError),
    ]:
        with pytest.raises(error):
            services.add(*arguments, **settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="LeaderLock"):
        LeaderServices("postgresql://")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stop_s"):
        LeaderServices(election, stop_s=0)
    async with services:
        with pytest.raises(LockError, match="too late"):
            services.add("late", **diary.service("late"))
    assert repr(services).startswith("<LeaderServices refresh of ")


@pytest.mark.parametrize("leader_only", [True, False])
def test_a_program_that_ends_does_not_wait_for_a_start_in_a_thread(*, leader_only: bool):
    go_on, has_started = threading.Event(), threading.Event()

    def start() -> None:
        go_on.wait(30)
        has_started.set()

    async def main() -> None:
        services, _, _, _ = made(leased(2.0), start_s=0.01)
        services.add("slow", start=start, stop=lambda: None, leader_only=leader_only)
        await services.start()

    asyncio.run(main())  # which cancels all tasks at its end
    assert not has_started.is_set()
    go_on.set()


@pytest.mark.virtual_time
async def test_start_that_is_cancelled_by_a_timeout_leaves_nothing_running():
    services, diary, election, _ = made()
    services.add("slow", **diary.service("slow", start_s=8))
    services.add("web", **diary.service("web"), leader_only=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(services.start(), 1)
    assert election.state is LockState.STOPPED
    assert diary.done == ["-slow"]
    assert services.running == ()


# --- On PostgreSQL ----------------------------------------------------------------------------------------------------


async def test_schedulers_run_on_one_of_two_nodes_and_move_when_it_leaves(postgres: Postgres, key: LockKey, lines):
    diary = Diary()
    nodes = []
    for name in ("a", "b"):
        lock = LeaderLock(postgres.dsn, key=key, lease_s=3.0, health_interval_s=1.0, settle_s=0)
        services = LeaderServices(lock)
        services.add("refresh", **diary.service(f"refresh on {name}"))
        services.add("web", **diary.service(f"web on {name}"), leader_only=False)
        nodes.append(services)
    async with nodes[1], nodes[0]:
        assert lines() == [STARTING, SKIPPING]
        assert diary.done == ["+refresh on b", "+web on b", "+web on a"]
        await nodes[1].stop()
        await until(lambda: "+refresh on a" in diary.done, 10)
        assert diary.done.index("-refresh on b") < diary.done.index("+refresh on a")
        assert lines() == [STARTING, SKIPPING, LEAVING, STARTING]
