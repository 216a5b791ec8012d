"""The engine on a double and on virtual time: every wait is a jump of the clock."""

import asyncio
import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import (
    ConnectionError,
    Election,
    EventKind,
    ExponentialBackoff,
    FixedInterval,
    LeaderGroup,
    LeaderLock,
    LeadershipLost,
    LockError,
    LockState,
    RetryContext,
    ShutdownError,
)
from pgleaderlock.models import Event, Grant, LossCause
from tests.support.doubles import HANG, ScriptedBackend, Witness, make_election, until, until_state

pytestmark = pytest.mark.virtual_time

DOWN = ConnectionError("the server is down")


class GiveUpAfter:
    """A strategy with a number of tries."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        return 1.0 if ctx.attempt < self._attempts else None


# --- Starting and leading -------------------------------------------------------------------------------------------


async def test_start_returns_in_follower_and_goes_on_to_lead():
    election, backend, heard = make_election()
    await election.start()
    assert election.state is LockState.FOLLOWER
    assert await election.wait_for_leadership()
    assert election.state is LockState.LEADER
    assert election.is_leader
    assert heard.words == ["on_acquired"]
    await election.shutdown()


async def test_starting_twice_is_starting_once():
    election, backend, _ = make_election()
    await election.start()
    await asyncio.gather(election.start(), election.start())
    await election.wait_for_leadership()
    assert backend.verbs == ["open", "try_acquire"]
    await election.shutdown()


async def test_the_first_attempt_does_not_wait():
    election, backend, _ = make_election(retry_strategy=FixedInterval(1000))
    async with election:
        await election.wait_for_leadership()
    assert backend.times("try_acquire") == [0.0]


async def test_a_leader_renews_once_per_health_interval():
    election, backend, _ = make_election(health_interval_s=3.0)
    async with election:
        await asyncio.sleep(10)
    assert backend.times("renew") == [3.0, 6.0, 9.0]


async def test_a_grant_that_ran_out_of_trust_is_not_leadership_whatever_the_state_says():
    election, _, _ = make_election(ScriptedBackend(try_acquire=[Grant(token=7, trusted_until=2.5)]))
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(2.49)
        assert election.is_leader
        await asyncio.sleep(0.02)
        assert election.state is LockState.LEADER
        assert not election.is_leader


async def test_a_renewal_extends_the_trust():
    election, _, _ = make_election(
        ScriptedBackend(try_acquire=[Grant(trusted_until=4.0)], renew=[Grant(trusted_until=8.0)]), health_interval_s=3.0
    )
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(5)
        assert election.is_leader


async def test_observer_is_notified_of_each_renewal_and_its_duration():
    async def slowly() -> Grant:
        await asyncio.sleep(0.25)
        return Grant(token=7)

    election, _, heard = make_election(
        ScriptedBackend(try_acquire=[Grant(token=7)], renew=[slowly, slowly]), health_interval_s=3.0
    )
    async with election:
        await asyncio.sleep(7)
    assert [(event.at, event.took_s, event.token) for event in heard.renewals] == [(3.25, 0.25, 7), (6.5, 0.25, 7)]


async def test_events_carry_the_token_the_attempt_and_the_time():
    election, _, heard = make_election(ScriptedBackend(try_acquire=[None, None, Grant(token=42)]))
    async with election:
        await election.wait_for_leadership()
    (acquired,) = [event for event in heard.events if event.kind is EventKind.ACQUIRED]
    assert (acquired.token, acquired.attempt, acquired.at) == (42, 3, 4.0)


# --- Retrying ---------------------------------------------------------------------------------------------------------


async def test_a_lock_held_by_another_is_asked_for_again_after_the_delay():
    election, backend, heard = make_election(
        ScriptedBackend(try_acquire=[None, None, None]), retry_strategy=ExponentialBackoff(base_s=1.0)
    )
    async with election:
        await election.wait_for_leadership()
    assert backend.times("try_acquire") == [0.0, 1.0, 3.0, 7.0]
    assert backend.times("open") == [0.0]
    assert heard.words[:4] == ["on_acquire_failed"] * 3 + ["on_acquired"]


async def test_strategy_receives_what_happened():
    asked: list[RetryContext] = []

    class Noting:
        def next_delay_s(self, ctx: RetryContext) -> float:
            asked.append(ctx)
            return 2.0

    election, _, _ = make_election(ScriptedBackend(open=[DOWN], try_acquire=[None]), retry_strategy=Noting())
    async with election:
        await election.wait_for_leadership()
    assert asked == [RetryContext(1, 0.0, DOWN, None), RetryContext(2, 2.0, None, 2.0)]


async def test_an_unreachable_store_is_tried_again_with_the_same_strategy():
    election, backend, heard = make_election(ScriptedBackend(open=[DOWN, DOWN]))
    async with election:
        await election.wait_for_leadership()
    assert backend.times("open") == [0.0, 2.0, 4.0]
    assert heard.errors == [DOWN, DOWN]
    assert heard.path[:3] == [LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING]


async def test_a_strategy_that_gives_up_stops_the_election_with_a_lock_error():
    backend = ScriptedBackend()
    backend.defaults["try_acquire"] = None
    election, _, heard = make_election(backend, retry_strategy=GiveUpAfter(3))
    await election.start()
    assert not await election.wait_for_leadership()
    await until_state(election, LockState.STOPPED)
    (error,) = heard.errors
    assert type(error) is LockError
    assert "key1=1 key2=2" in str(error)
    assert "3 attempts" in str(error)
    assert heard.words[-2:] == ["on_error", "on_stopped"]
    assert not backend.is_open


async def test_a_strategy_that_gives_up_on_a_dead_server_stops_with_a_connection_error():
    backend = ScriptedBackend()
    backend.defaults["open"] = DOWN
    election, _, heard = make_election(backend, retry_strategy=GiveUpAfter(2))
    await election.start()
    await until_state(election, LockState.STOPPED)
    assert type(heard.errors[-1]) is ConnectionError
    assert "the server is down" in str(heard.errors[-1])


@pytest.mark.parametrize("answer", [float("nan"), -1.0, float("inf"), "1", True, RuntimeError("broken")])
async def test_a_strategy_whose_answer_is_no_delay_stops_the_election_and_says_so(answer):
    class Broken:
        def next_delay_s(self, ctx: RetryContext) -> float | None:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    election, backend, heard = make_election(ScriptedBackend(try_acquire=[None]), retry_strategy=Broken())
    await election.start()
    await until_state(election, LockState.STOPPED)
    assert len(heard.errors) == 1
    assert answer is heard.errors[0] or "Broken" in str(heard.errors[0])
    assert not backend.is_open


async def test_what_a_backend_should_have_translated_counts_as_not_knowing():
    election, _, heard = make_election(ScriptedBackend(open=[OSError("no route")], try_acquire=[KeyError("x")]))
    async with election:
        await election.wait_for_leadership()
    assert [type(error) for error in heard.errors] == [ConnectionError, ConnectionError]
    assert isinstance(heard.errors[0].__cause__, OSError)
    assert "no route" in str(heard.errors[0])


# --- Losing ---------------------------------------------------------------------------------------------------------


async def test_an_attempt_that_fails_is_an_event_of_its_own_and_on_lost_by_specification():
    election, backend, heard = make_election(ScriptedBackend(try_acquire=[DOWN]))
    attempts: list[Event] = []
    losses: list[Event] = []
    election.on_lost(attempts.append)
    election.on_lost(losses.append, attempts=False)
    async with election:
        await election.wait_for_leadership()
        assert heard.kinds[2:5] == [EventKind.STATE_CHANGE, EventKind.ATTEMPT_FAILED, EventKind.ERROR]
        (attempt,) = attempts
        assert (attempt.kind, attempt.cause, attempt.error) == (EventKind.ATTEMPT_FAILED, "db_error", DOWN)
        assert losses == []
        assert backend.loss is not None
        backend.loss.set_result(LeadershipLost("session ended", cause=LossCause.SILENCED))
        await until(lambda: len(attempts) == 2)
    assert [(event.kind, event.cause) for event in losses] == [(EventKind.LOST, LossCause.SILENCED)]
    assert losses == attempts[1:]


async def test_the_session_of_an_attempt_that_failed_is_closed_before_a_slow_on_lost_has_returned():
    """It may hold the lock without knowing it, and no leader task has to stop first: others must not wait for it."""
    election, backend, _ = make_election(ScriptedBackend(try_acquire=[DOWN]))
    election.on_lost(lambda: asyncio.sleep(100))
    async with election:
        await until(lambda: "close" in backend.verbs, timeout_s=1)
        assert backend.times("close") == [0.0]


async def test_every_event_says_why_in_one_word():
    election, _, heard = make_election(ScriptedBackend(renew=[LeadershipLost("gone", cause=LossCause.SILENCED)]))
    async with election:
        await until(lambda: "on_lost" in heard.words)
    said = [(event.kind, event.cause) for event in heard.events]
    assert said[4:7] == [
        (EventKind.STATE_CHANGE, "health_failed"),
        (EventKind.LOST, "silenced"),
        (EventKind.ERROR, "health_failed"),
    ]
    assert said[-1] == (EventKind.STOPPED, "release_succeeded")


async def test_a_before_release_that_raises_is_a_callback_that_failed():
    election, _, heard = make_election()
    mine = ValueError("mine")

    @election.before_release
    def fail() -> None:
        raise mine

    async with election:
        await election.wait_for_leadership()
    failed = next(event for event in heard.events if event.error is mine)
    assert (failed.kind, failed.cause) == (EventKind.CALLBACK_FAILED, "callback_failed")
    assert heard.errors == [mine]


async def test_a_failed_renewal_without_grace_is_a_loss_at_once_and_the_lock_is_asked_for_anew():
    election, backend, heard = make_election(ScriptedBackend(renew=[DOWN]))
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(5.5)
        assert election.state is LockState.LEADER
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_acquired", "on_released", "on_stopped"]
    assert heard.causes(EventKind.ERROR) == ["health_failed"]
    assert heard.causes(EventKind.LOST) == [LossCause.UNKNOWN]
    assert backend.verbs[:6] == ["open", "try_acquire", "renew", "close", "open", "try_acquire"]


async def test_a_loss_that_the_store_shows_by_itself_is_not_waited_for():
    election, backend, heard = make_election(health_interval_s=1000.0)
    async with election:
        await election.wait_for_leadership()
        assert backend.loss is not None
        backend.loss.set_result(LeadershipLost("session ended", cause=LossCause.SESSION_TERMINATED))
        await until(lambda: "on_lost" in heard.words, timeout_s=1)
    assert heard.causes(EventKind.LOST) == [LossCause.SESSION_TERMINATED]
    assert heard.causes(EventKind.ERROR) == ["db_error"]


async def test_without_auto_reacquire_a_loss_is_the_end():
    election, backend, heard = make_election(ScriptedBackend(renew=[DOWN]), auto_reacquire=False)
    await election.start()
    await until_state(election, LockState.STOPPED)
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_stopped"]
    assert not backend.is_open


async def test_leadership_ends_for_is_leader_before_any_callback_is_notified():
    seen = []
    election, _, _ = make_election(ScriptedBackend(renew=[DOWN]))
    election.on_state_change(lambda before, after: seen.append((after, election.is_leader)))
    election.on_lost(lambda: seen.append(("lost", election.is_leader)))
    async with election:
        await asyncio.sleep(5.5)
    assert ("lost", False) in seen


async def test_on_lost_has_returned_before_the_session_is_closed():
    election, backend, _ = make_election(ScriptedBackend(renew=[DOWN]))
    closed_when_lost = []

    @election.on_lost
    async def lost() -> None:
        await asyncio.sleep(0.1)
        closed_when_lost.append("close" in backend.verbs)

    async with election:
        await asyncio.sleep(6)
    assert closed_when_lost == [False]


async def test_on_stopped_is_called_after_the_session_is_closed():
    election, backend, _ = make_election()
    open_when_stopped = []
    election.on_stopped(lambda: open_when_stopped.append(backend.is_open))
    async with election:
        await election.wait_for_leadership()
    assert open_when_stopped == [False]


# --- Flap damping ---------------------------------------------------------------------------------------------------


async def test_a_recovery_within_the_grace_period_is_silent():
    election, backend, heard = make_election(ScriptedBackend(renew=[DOWN], open=[None, DOWN]), reconnect_grace_s=10.0)
    async with election:
        await election.wait_for_leadership()
        await until_state(election, LockState.RECONNECTING)
        assert not election.is_leader
        await until_state(election, LockState.LEADER)
        assert election.is_leader
    assert heard.words == ["on_acquired", "on_error", "recovered", "on_released", "on_stopped"]
    assert backend.times("open") == pytest.approx([0.0, 5.0, 7.0])


async def test_a_recovered_leader_has_a_new_grant():
    election, _, heard = make_election(
        ScriptedBackend(renew=[DOWN], try_acquire=[Grant(token=1), Grant(token=2)]), reconnect_grace_s=10.0
    )
    async with election:
        await asyncio.sleep(6)
    assert [event.token for event in heard.events if event.kind is EventKind.RECOVERED] == [2]


async def test_failed_attempts_to_reconnect_close_nothing_before_the_loss_is_reported():
    """What a backend still holds then keeps a successor waiting, so that on_lost comes before its on_acquired."""
    backend = ScriptedBackend(renew=[DOWN])
    election, _, heard = make_election(backend, reconnect_grace_s=7.0)
    closed_when_lost: list[bool] = []
    election.on_lost(lambda: closed_when_lost.append("close" in backend.verbs))
    async with election:
        await election.wait_for_leadership()
        backend.defaults["open"] = DOWN
        await until(lambda: "on_lost" in heard.words)
    assert backend.times("open")[1:4] == pytest.approx([5.0, 7.0, 9.0])
    assert closed_when_lost == [False]


async def test_a_lock_taken_by_another_ends_the_grace_at_once():
    election, backend, heard = make_election(
        ScriptedBackend(renew=[DOWN], try_acquire=[Grant(), None]), reconnect_grace_s=1000.0
    )
    async with election:
        await until(lambda: "on_lost" in heard.words, timeout_s=5.5)
        assert election.state in {LockState.FOLLOWER, LockState.ACQUIRING, LockState.LEADER}
    assert heard.causes(EventKind.LOST) == [LossCause.HELD_BY_ANOTHER]


async def test_a_server_that_stays_away_ends_the_grace_when_its_time_is_up():
    backend = ScriptedBackend(renew=[DOWN])
    election, _, heard = make_election(backend, reconnect_grace_s=7.0)
    async with election:
        await election.wait_for_leadership()
        backend.defaults["open"] = DOWN
        await until(lambda: "on_lost" in heard.words)
    (lost,) = [event for event in heard.events if event.kind is EventKind.LOST]
    assert lost.cause == "grace_expired"
    assert lost.at == pytest.approx(12.0)
    assert lost.error is DOWN


async def test_a_reconnection_that_hangs_is_cut_short_by_the_grace_period():
    election, backend, heard = make_election(ScriptedBackend(renew=[DOWN], open=[None, HANG]), reconnect_grace_s=3.0)
    async with election:
        await until(lambda: "on_lost" in heard.words)
    assert backend.cut_short == ["open"]
    assert heard.causes(EventKind.LOST) == ["grace_expired"]


@pytest.mark.parametrize("answer", [None, float("nan")])
async def test_a_strategy_that_gives_up_while_reconnecting_stops_the_election(answer):
    class Never:
        def next_delay_s(self, ctx: RetryContext) -> float | None:
            return answer  # type: ignore[no-any-return]

    backend = ScriptedBackend(renew=[DOWN])
    election, _, heard = make_election(backend, reconnect_grace_s=100.0, retry_strategy=Never())
    await election.start()
    await election.wait_for_leadership()
    backend.defaults["open"] = DOWN
    await until_state(election, LockState.STOPPED)
    assert heard.words == ["on_acquired", "on_error", "on_lost", "on_error", "on_stopped"]


async def test_a_stop_ends_the_grace_at_once():
    election, backend, heard = make_election(ScriptedBackend(renew=[DOWN], open=[None, HANG]), reconnect_grace_s=1000.0)
    await election.start()
    await until_state(election, LockState.RECONNECTING)
    await election.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]
    assert backend.cut_short == ["open"]


async def test_a_step_down_ends_the_grace_with_on_lost():
    election, _, heard = make_election(ScriptedBackend(renew=[DOWN], open=[None, HANG]), reconnect_grace_s=1000.0)
    async with election:
        await until_state(election, LockState.RECONNECTING)
        await election.step_down()
        assert election.state is not LockState.RECONNECTING
    assert heard.causes(EventKind.LOST) == [LossCause.STEPPED_DOWN]


# --- Stepping down --------------------------------------------------------------------------------------------------


async def test_step_down_releases_and_lets_others_try_first():
    election, backend, heard = make_election(retry_strategy=FixedInterval(3.0))
    async with election:
        await election.wait_for_leadership()
        await election.step_down()
        assert election.state is LockState.FOLLOWER
        assert heard.words == ["on_acquired", "on_released"]
        assert await election.wait_for_leadership()
    assert backend.times("try_acquire") == [0.0, 3.0]
    assert backend.times("open") == [0.0]


async def test_step_down_without_auto_reacquire_stops():
    election, _, heard = make_election(auto_reacquire=False)
    await election.start()
    await election.wait_for_leadership()
    await election.step_down()
    await until_state(election, LockState.STOPPED)
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_step_down_when_not_leading_does_nothing():
    backend = ScriptedBackend()
    backend.defaults["try_acquire"] = None
    election, _, heard = make_election(backend)
    await election.step_down()
    async with election:
        await asyncio.sleep(1)
        await election.step_down()
        assert election.state is LockState.FOLLOWER
    assert "release" not in backend.verbs


async def test_several_step_downs_at_once_are_one():
    election, backend, heard = make_election()
    async with election:
        await election.wait_for_leadership()
        await asyncio.gather(*(election.step_down() for _ in range(5)))
    assert backend.verbs.count("release") == 1
    assert heard.words.count("on_released") == 1


async def test_a_release_that_does_not_answer_in_time_closes_the_session_and_goes_on_as_released():
    election, backend, heard = make_election(ScriptedBackend(release=[HANG]))
    async with election:
        await election.wait_for_leadership()
        await election.step_down(timeout_s=1.5)
        assert election.state is LockState.FOLLOWER
        assert asyncio.get_running_loop().time() == pytest.approx(1.5, abs=0.01)
        assert not backend.holds
    assert backend.cut_short == ["release"]
    assert heard.words[:2] == ["on_acquired", "on_released"]
    assert heard.errors == []


async def test_a_second_step_down_can_be_less_patient_than_the_first():
    election, backend, _ = make_election(ScriptedBackend(release=[HANG]))
    async with election:
        await election.wait_for_leadership()
        patient = asyncio.create_task(election.step_down())
        await until_state(election, LockState.RELEASING)
        await election.step_down(timeout_s=0)
        await patient
    assert backend.cut_short == ["release"]


@pytest.mark.parametrize(
    ("failure", "cause"),
    [(LockError("not held"), "release_failed"), (DOWN, "db_error")],
    ids=["refused", "unreachable"],
)
async def test_a_release_that_fails_stops_with_an_error(failure, cause):
    election, backend, heard = make_election(ScriptedBackend(release=[failure]))
    await election.start()
    await election.wait_for_leadership()
    await election.step_down()
    await until_state(election, LockState.STOPPED)
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]
    assert heard.errors == [failure]
    assert heard.causes(EventKind.STOPPED) == [cause]
    assert not backend.holds


async def test_a_stop_during_a_step_down_lets_the_release_finish_and_then_stops():
    gate = asyncio.Event()

    async def slow_release() -> None:
        await gate.wait()

    election, backend, heard = make_election(ScriptedBackend(release=[slow_release]))
    await election.start()
    await election.wait_for_leadership()
    stepping = asyncio.create_task(election.step_down())
    await until_state(election, LockState.RELEASING)
    stopping = asyncio.create_task(election.shutdown())
    await asyncio.sleep(1)
    assert election.state is LockState.RELEASING
    gate.set()
    await asyncio.gather(stepping, stopping)
    assert election.state is LockState.STOPPED
    assert backend.verbs.count("release") == 1
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_a_stop_and_a_step_down_in_the_same_moment_are_one_release():
    election, backend, heard = make_election()
    await election.start()
    await election.wait_for_leadership()
    await asyncio.gather(election.shutdown(), election.step_down(), election.shutdown())
    assert backend.verbs.count("release") == 1
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


@pytest.mark.parametrize("ask", ["shutdown", "step_down"])
async def test_a_renewal_under_way_is_let_finish_before_the_release(ask):
    gate = asyncio.Event()

    async def slow_renewal() -> Grant:
        await gate.wait()
        return Grant()

    election, backend, heard = make_election(ScriptedBackend(renew=[slow_renewal]))
    await election.start()
    await until(lambda: "renew" in backend.verbs)
    asking = asyncio.create_task(getattr(election, ask)())
    await asyncio.sleep(1)
    assert election.state is LockState.RELEASING
    assert "release" not in backend.verbs
    gate.set()
    await asking
    assert backend.verbs[-2 if ask == "shutdown" else -1] == "release"
    assert heard.words[:2] == ["on_acquired", "on_released"]
    await election.shutdown()
    assert heard.errors == []


@pytest.mark.parametrize("renewal_fails", [True, False])
async def test_a_release_that_fails_says_what_broke_the_session_in_the_first_place(renewal_fails):
    gate = asyncio.Event()

    async def slow_renewal() -> Grant:
        await gate.wait()
        if renewal_fails:
            raise ConnectionError("no answer")
        return Grant()

    scripts: dict[str, list[Any]] = {"renew": [slow_renewal], "release": [ConnectionError("the session is closed")]}
    election, backend, heard = make_election(ScriptedBackend(**scripts))
    await election.start()
    await until(lambda: "renew" in backend.verbs)
    asking = asyncio.create_task(election.shutdown())
    await asyncio.sleep(1)
    gate.set()
    await asking
    assert [str(error) for error in heard.errors] == ["no answer" if renewal_fails else "the session is closed"]


async def test_renewal_that_hangs_is_cancelled_only_after_validity_has_ended():
    """Cutting it short closes a session, which frees what keeps a successor waiting."""
    valid = []

    class Hanging(ScriptedBackend):
        async def renew(self, grant: Grant) -> Grant:
            try:
                return await super().renew(grant)
            finally:
                valid.append(election.is_leader)

    backend = Hanging(renew=[HANG], try_acquire=[Grant(1, trusted_until=20.0, lost_at=15.0), None])
    election, _, heard = make_election(backend)
    backend.defaults["try_acquire"] = None
    async with election:
        await until(lambda: bool(valid))
        assert valid == [False]
        assert asyncio.get_running_loop().time() == pytest.approx(15.0, abs=0.1)
        await until(lambda: "on_lost" in heard.words)
    # The store did not say that the lock is another's, and a session with a time limit of its own reports the same.
    assert [(type(error), getattr(error, "cause", None)) for error in heard.errors] == [
        (ConnectionError, LossCause.RENEW_TIMEOUT)
    ]


async def test_a_renewal_that_hangs_does_not_keep_a_bounded_step_down_waiting():
    election, backend, heard = make_election(ScriptedBackend(renew=[HANG]))
    async with election:
        await until(lambda: "renew" in backend.verbs)
        await election.step_down(timeout_s=1.0)
        assert election.state is LockState.FOLLOWER
        assert backend.cut_short == ["renew"]
        assert not backend.holds
    assert heard.words[:2] == ["on_acquired", "on_released"]


async def test_a_renewal_that_fails_while_a_stop_is_asked_for_does_not_keep_it_from_stopping():
    async def failing_renewal() -> Grant:
        await asyncio.sleep(1)
        raise DOWN

    election, backend, heard = make_election(ScriptedBackend(renew=[failing_renewal], release=[DOWN]))
    await election.start()
    await until(lambda: "renew" in backend.verbs)
    await election.shutdown()
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]


async def test_loss_during_a_step_down_is_reported_as_a_loss_and_the_caller_does_not_wait_for_ever():
    election, backend, heard = make_election()
    async with election:
        await election.wait_for_leadership()
        assert backend.loss is not None
        backend.loss.set_result(DOWN)
        await election.step_down()
        await election.wait_for_leadership()
    assert heard.words.count("on_lost") == 1


# --- Shutting down --------------------------------------------------------------------------------------------------


async def test_shutdown_releases_and_closes():
    election, backend, heard = make_election()
    await election.start()
    await election.wait_for_leadership()
    await election.shutdown()
    assert election.state is LockState.STOPPED
    assert backend.verbs == ["open", "try_acquire", "release", "close"]
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_shutdown_of_what_never_ran_and_shutdown_twice_do_nothing():
    election, backend, heard = make_election()
    await election.shutdown()
    await election.start()
    await asyncio.gather(election.shutdown(), election.shutdown())
    await election.shutdown()
    assert heard.words == ["on_stopped"]


@pytest.mark.parametrize("verb", ["open", "try_acquire"])
async def test_shutdown_cuts_a_hanging_call_short(verb):
    election, backend, heard = make_election(ScriptedBackend(**{verb: [HANG]}))
    await election.start()
    await asyncio.sleep(1)
    await election.shutdown()
    assert backend.cut_short == [verb]
    assert heard.words == ["on_stopped"]


async def test_shutdown_does_not_wait_for_the_retry_delay():
    backend = ScriptedBackend(try_acquire=[None])
    election, _, _ = make_election(backend, retry_strategy=FixedInterval(1000))
    await election.start()
    await asyncio.sleep(1)
    await election.shutdown()
    assert asyncio.get_running_loop().time() == 1.0


async def test_shutdown_past_its_time_closes_the_session_and_reports_it():
    election, backend, heard = make_election(ScriptedBackend(release=[HANG]))
    await election.start()
    await election.wait_for_leadership()
    await election.shutdown(timeout_s=2.0)
    assert election.state is LockState.STOPPED
    assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.5)
    (error,) = heard.errors
    assert isinstance(error, ShutdownError)
    assert "2 s" in str(error)
    assert not backend.holds
    assert heard.words == ["on_acquired", "on_error", "on_stopped"]


async def test_a_leadership_won_at_the_moment_of_the_stop_is_not_announced():
    election, backend, heard = make_election()

    async def win_while_stopping() -> Grant:
        asyncio.get_running_loop().call_soon(lambda: None)
        task = asyncio.create_task(election.shutdown())
        await asyncio.sleep(0)
        del task
        return Grant()

    backend.scripts["try_acquire"] = [win_while_stopping]
    await election.start()
    await until_state(election, LockState.STOPPED)
    await election.shutdown()
    assert heard.words == ["on_stopped"]
    assert not backend.holds


async def test_an_external_event_stops_the_election():
    stop = asyncio.Event()
    election, backend, heard = make_election(shutdown_event=stop)
    await election.start()
    await election.wait_for_leadership()
    stop.set()
    await until_state(election, LockState.STOPPED)
    await election.shutdown()
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_a_stopped_election_can_be_started_again():
    election, backend, heard = make_election()
    for _ in range(3):
        async with election:
            assert await election.wait_for_leadership()
        assert election.state is LockState.STOPPED
    assert heard.words == ["on_acquired", "on_released", "on_stopped"] * 3


async def test_start_during_a_shutdown_waits_for_it_and_starts_anew():
    gate = asyncio.Event()

    async def slow_release() -> None:
        await gate.wait()

    election, backend, heard = make_election(ScriptedBackend(release=[slow_release]))
    await election.start()
    await election.wait_for_leadership()
    stopping = asyncio.create_task(election.shutdown())
    await until_state(election, LockState.RELEASING)
    starting = [asyncio.create_task(election.start()) for _ in range(2)]
    await asyncio.sleep(1)
    gate.set()
    await asyncio.gather(stopping, *starting)
    assert await election.wait_for_leadership()
    assert heard.words == ["on_acquired", "on_released", "on_stopped", "on_acquired"]
    await election.shutdown()


async def test_leaving_the_block_with_an_exception_shuts_down_in_bounded_time():
    election, backend, heard = make_election(ScriptedBackend(release=[HANG]))
    with pytest.raises(KeyError):
        async with election:
            await election.wait_for_leadership()
            raise KeyError("the work failed")
    assert election.state is LockState.STOPPED
    assert isinstance(heard.errors[0], ShutdownError)


async def test_a_caller_that_stops_waiting_for_the_shutdown_does_not_stop_the_shutdown():
    gate = asyncio.Event()

    async def slow_release() -> None:
        await gate.wait()

    election, _, heard = make_election(ScriptedBackend(release=[slow_release]))
    await election.start()
    await election.wait_for_leadership()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(election.shutdown(), 1.0)
    gate.set()
    await until_state(election, LockState.STOPPED)
    assert heard.words[1] == "on_released"
    await election.shutdown()


# --- Cancellation ---------------------------------------------------------------------------------------------------


def lifecycle_task() -> asyncio.Task[None]:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "pgleaderlock lifecycle"]
    return task


@pytest.mark.parametrize("hanging", ["open", "try_acquire", "renew", "release", None])
async def test_a_cancelled_lifecycle_leaves_nothing_behind_wherever_it_was(hanging):
    election, backend, heard = make_election(ScriptedBackend(**({hanging: [HANG]} if hanging else {})))
    await election.start()
    await asyncio.sleep(1)
    stepping = []
    if hanging == "release":
        stepping.append(asyncio.create_task(election.step_down()))
        await until_state(election, LockState.RELEASING)
    if hanging == "renew":
        await asyncio.sleep(5)
    task = lifecycle_task()
    task.cancel()
    await asyncio.wait({task})
    assert election.state is LockState.STOPPED
    assert not backend.is_open
    assert not backend.holds
    assert isinstance(heard.errors[-1], ShutdownError)
    assert heard.words[-1] == "on_stopped"
    await asyncio.gather(*stepping)
    await election.start()
    assert await election.wait_for_leadership()
    await election.shutdown()


async def test_a_cancellation_in_the_middle_of_stopping_still_closes_and_tells():
    election, backend, heard = make_election()

    @election.on_released
    async def slow() -> None:
        await asyncio.sleep(3600)

    await election.start()
    await election.wait_for_leadership()
    stopping = asyncio.create_task(election.shutdown())
    await until(lambda: "on_released" in heard.words)
    lifecycle_task().cancel()
    await stopping
    assert election.state is LockState.STOPPED
    assert not backend.is_open
    assert heard.words[-1] == "on_stopped"


def test_the_end_of_the_event_loop_is_a_clean_end_too():
    async def main() -> tuple[Election, ScriptedBackend, Witness]:
        election, backend, heard = make_election()
        await election.start()
        await election.wait_for_leadership()
        return election, backend, heard

    election, backend, heard = asyncio.run(main())
    assert election.state is LockState.STOPPED
    assert not backend.is_open
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_stopped"]


async def test_a_bug_in_the_engine_stops_it_without_leaving_the_lock_held(caplog):
    election, backend, heard = make_election(ScriptedBackend())
    election._machine._state = LockState.STOPPED
    await election.start()
    await election.wait_for_leadership()
    del election._work[LockState.LEADER]
    await until_state(election, LockState.STOPPED)
    await election.shutdown()
    assert heard.words == ["on_acquired", "on_lost", "on_error", "on_stopped"]
    assert not backend.holds
    assert "engine_failed" in caplog.text


# --- Callbacks and the engine ---------------------------------------------------------------------------------------


async def test_a_slow_callback_never_delays_a_renewal():
    election, backend, _ = make_election(health_interval_s=1.0)
    election.on_acquired(lambda: asyncio.sleep(10))
    async with election:
        await asyncio.sleep(5.5)
        assert backend.times("renew") == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_waiting_for_leadership_ends_after_the_callbacks_ran():
    election, _, _ = make_election()
    ran = []

    @election.on_acquired
    async def slow() -> None:
        await asyncio.sleep(3)
        ran.append(True)

    async with election:
        assert not await election.wait_for_leadership(timeout_s=2)
        assert election.is_leader
        assert await election.wait_for_leadership()
        assert ran == [True]
        assert await election.wait_for_leadership(timeout_s=0)


async def test_waiting_for_leadership_ends_with_false_when_the_time_is_up_or_the_election_stops():
    backend = ScriptedBackend()
    backend.defaults["try_acquire"] = None
    election, _, _ = make_election(backend)
    await election.start()
    assert not await election.wait_for_leadership(timeout_s=5)
    waiting = asyncio.create_task(election.wait_for_leadership())
    await asyncio.sleep(1)
    await election.shutdown()
    assert not await waiting
    assert not await election.wait_for_leadership()


async def test_waiting_for_an_election_that_was_never_started_is_an_error_and_not_a_lost_race():
    election, _, _ = make_election(ScriptedBackend())
    with pytest.raises(LockError, match=r"Election was not started.*call start\(\) first"):
        await election.wait_for_leadership(timeout_s=5)


async def test_a_plain_with_says_async_with_and_where_the_blocking_classes_are():
    election, _, _ = make_election(ScriptedBackend())
    group = LeaderGroup("postgresql://db/app", ["a"])
    for each in (election, group, group["a"], LeaderLock("postgresql://db/app", 1, 2)):
        manager: Any = each
        with pytest.raises(TypeError, match=r"is for asyncio: write `async with`.* pgleaderlock\.sync has"), manager:
            pass


async def test_callbacks_run_in_the_order_of_transitions_even_when_slow():
    election, _, _ = make_election(ScriptedBackend(renew=[DOWN]))
    order: list[str] = []

    @election.on_acquired
    async def acquired() -> None:
        order.append("acquired begins")
        await asyncio.sleep(8)
        order.append("acquired ends")

    @election.on_lost
    def lost() -> None:
        order.append("lost")

    async with election:
        await asyncio.sleep(9)
    assert order[:3] == ["acquired begins", "acquired ends", "lost"]


async def test_a_callback_may_step_down_and_shut_down():
    election, _, heard = make_election()

    @election.on_acquired
    async def acquired() -> None:
        await election.step_down()

    @election.on_released
    async def released() -> None:
        await election.shutdown()

    await election.start()
    await until_state(election, LockState.STOPPED)
    await election.shutdown()
    assert heard.words == ["on_acquired", "on_released", "on_stopped"]


async def test_a_callback_may_not_wait_for_itself():
    election, _, heard = make_election()
    election.on_acquired(election.wait_for_leadership)
    election.on_stopped(election.start)
    async with election:
        await election.wait_for_leadership()
    assert [type(error) for error in heard.errors] == [LockError, LockError]
    assert all("create_task" in str(error) for error in heard.errors)


async def test_start_in_a_callback_of_a_running_election_does_nothing():
    election, _, heard = make_election()
    election.on_acquired(election.start)
    async with election:
        await election.wait_for_leadership()
    assert heard.errors == []


async def test_a_callback_that_never_returns_does_not_keep_a_bounded_shutdown_waiting():
    election, backend, heard = make_election()
    election.on_acquired(lambda: asyncio.sleep(10**6))
    await election.start()
    await until_state(election, LockState.LEADER)
    await election.shutdown(timeout_s=1.0)
    assert election.state is LockState.STOPPED
    assert asyncio.get_running_loop().time() < 3
    assert heard.words[-1] == "on_stopped"
    assert not backend.is_open


async def test_a_callback_that_refuses_to_be_cancelled_does_not_keep_a_bounded_shutdown_waiting(caplog):
    election, backend, _ = make_election()
    release = asyncio.Event()

    @election.on_acquired
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(10**6)
            except asyncio.CancelledError:
                continue

    await election.start()
    await until_state(election, LockState.LEADER)
    await election.shutdown(timeout_s=1.0)
    assert election.state is LockState.STOPPED
    assert not backend.is_open
    release.set()
    await asyncio.sleep(1)


async def test_a_failing_callback_is_reported_and_the_election_goes_on():
    election, _, heard = make_election()
    boom = RuntimeError("boom")

    @election.on_acquired
    def broken() -> None:
        raise boom

    async with election:
        assert await election.wait_for_leadership()
        assert election.is_leader
    assert heard.errors == [boom]


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("is_async", [False, True])
def test_callback_that_exits_the_program_neither_hangs_it_nor_keeps_the_lock_nor_skips_other_callbacks(
    is_async: bool, end: BaseException
):
    backend, told = ScriptedBackend(), list[str]()

    def exit_now() -> None:
        raise end

    async def exit_soon() -> None:
        await asyncio.sleep(0)
        raise end

    async def main() -> None:
        election, _, _ = make_election(backend)
        election.on_acquired(exit_soon if is_async else exit_now)
        election.on_acquired(lambda: told.append("acquired"))
        election.on_lost(lambda: told.append("lost"))
        election.on_stopped(lambda: told.append("stopped"))
        await election.start()
        await asyncio.sleep(3600)

    with pytest.raises(type(end)) as ended:
        asyncio.run(main())
    assert ended.value is end
    assert not backend.holds
    assert not backend.is_open
    assert told == ["acquired", "lost", "stopped"]


def test_a_callback_that_exits_while_the_program_exits_does_not_cut_its_end_short():
    backend, told = ScriptedBackend(), list[str]()

    async def main() -> None:
        election, _, _ = make_election(backend)

        @election.on_acquired
        async def give_up() -> None:
            raise SystemExit(3)

        @election.on_lost
        async def give_up_again() -> None:
            raise SystemExit(4)

        election.on_stopped(lambda: told.append("stopped"))
        await election.start()
        await asyncio.sleep(3600)

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert not backend.is_open
    assert told == ["stopped"]


def test_an_event_loop_that_survives_an_exit_has_an_election_that_still_notifies():
    """As in a notebook, whose loop goes on: a leader without listeners would never ask its work to stop."""
    loop, told = asyncio.new_event_loop(), list[str]()

    async def begin() -> Election:
        election, _, _ = make_election(ScriptedBackend())
        election.on_acquired(lambda: sys.exit(3))
        election.on_released(lambda: told.append("released"))
        await election.start()
        return election

    async def led(election: Election) -> None:
        await election.wait_for_leadership()
        await asyncio.sleep(3600)

    try:
        election = loop.run_until_complete(begin())
        leading = loop.create_task(led(election))
        with pytest.raises(SystemExit):
            loop.run_until_complete(leading)
        assert election.is_leader
        leading.cancel()
        loop.run_until_complete(election.shutdown())
        assert told == ["released"]
    finally:
        loop.close()


async def test_a_callback_that_raises_no_exception_but_worse_is_reported_too():
    class Worse(BaseException):
        pass

    election, _, heard = make_election()

    @election.on_acquired
    def worse() -> None:
        raise Worse("than an exception")

    async with election:
        assert await election.wait_for_leadership()
    assert "Worse: than an exception" in str(heard.errors[0])
    assert heard.words[-1] == "on_stopped"


async def test_waiting_for_a_stopped_election_lets_others_run():
    election, _, _ = make_election()
    await election.start()
    await election.shutdown()
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    await election.wait_for_leadership()
    assert ran == [True]


async def test_a_call_from_another_event_loop_is_refused_instead_of_hanging():
    election, _, _ = make_election()
    refused: list[str] = []

    def elsewhere() -> None:
        for call in (election.start, election.step_down, election.shutdown, election.wait_for_leadership):
            try:
                asyncio.run(call())
            except LockError as error:
                refused.append(str(error))

    async with election:
        await election.wait_for_leadership()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert election.is_leader
    assert len(refused) == 4
    assert all("run_coroutine_threadsafe" in message for message in refused)


# --- The lease ------------------------------------------------------------------------------------------------------


def leased_grant(token: int = 1, at: float = 0.0) -> Grant:
    """A grant of a lease of 15 s, sent at this time."""
    return Grant(token, trusted_until=at + 13.5, lost_at=at + 10.0)


async def test_a_renewal_that_does_not_answer_is_a_loss_when_the_grant_says_so_and_not_later():
    election, backend, heard = make_election(ScriptedBackend(try_acquire=[leased_grant()], renew=[HANG]))
    async with election:
        await until(lambda: "on_lost" in heard.words)
    (lost,) = [event for event in heard.events if event.kind is EventKind.LOST]
    assert lost.at == pytest.approx(10.0)
    assert lost.cause is LossCause.RENEW_TIMEOUT
    assert lost.token == 1
    assert backend.cut_short == ["renew"]


async def test_a_renewal_whose_answer_is_read_too_late_is_called_that():
    """Whether the answer came late or was read late is unknown: that the process stood still may be untrue."""
    now = [0.0]

    async def answer_and_sleep() -> Grant:
        now[0] = 20.0
        return leased_grant(at=5.0)

    election, _, heard = make_election(
        ScriptedBackend(try_acquire=[leased_grant()], renew=[answer_and_sleep]),
        clock=lambda: asyncio.get_running_loop().time() + now[0],
    )
    async with election:
        await until(lambda: "on_lost" in heard.words)
    assert [event.cause for event in heard.events if event.kind is EventKind.LOST] == [LossCause.RENEW_TIMEOUT]


async def test_an_election_that_stood_still_past_its_grant_does_not_even_ask():
    now = [0.0]
    election, backend, heard = make_election(
        ScriptedBackend(try_acquire=[leased_grant()]), clock=lambda: asyncio.get_running_loop().time() + now[0]
    )
    async with election:
        await election.wait_for_leadership()
        now[0] = 100.0
        assert not election.is_leader
        await until(lambda: "on_lost" in heard.words)
    assert [event.cause for event in heard.events if event.kind is EventKind.LOST] == [LossCause.STALLED]
    assert "renew" not in backend.verbs


async def test_grant_that_is_read_after_it_expired_starts_no_term_and_notifies_no_callback():
    """Found by the exhaustive check: a node that slept through it would announce a term older than another's."""
    now = [0.0]

    async def won_and_fell_asleep() -> Grant:
        grant = leased_grant(token=1)
        now[0] = 100.0
        return grant

    election, backend, heard = make_election(
        ScriptedBackend(try_acquire=[won_and_fell_asleep, None]),
        clock=lambda: asyncio.get_running_loop().time() + now[0],
    )
    async with election:
        await until(lambda: "on_acquire_failed" in heard.words)
    assert "on_acquired" not in heard.words
    assert [str(error) for error in heard.errors] == [
        "this process stood still while it was granted the lock: leadership of key1=1 key2=2 ends"
    ]
    assert backend.verbs[:3] == ["open", "try_acquire", "close"]


async def test_a_term_whose_session_ended_before_it_was_announced_is_not_announced():
    """Found by the exhaustive check: the last answer waited to be read, and the session had ended since."""

    class Ended(ScriptedBackend):
        def look(self, grant: Grant) -> Grant:
            return grant.ended() if grant.token == 1 else grant

    election, _, heard = make_election(Ended(try_acquire=[leased_grant(token=1), None]))
    async with election:
        await until(lambda: "on_acquire_failed" in heard.words)
    assert "on_acquired" not in heard.words
    assert [str(error) for error in heard.errors] == [
        "its session ended before the term began: leadership of key1=1 key2=2 ends"
    ]


async def test_the_announcement_of_a_term_whose_session_has_ended_is_not_leadership():
    """The end is seen by is_leader before the engine has read it: a caller that waits then waits for the next term."""
    has_ended = False

    class Ended(ScriptedBackend):
        def look(self, grant: Grant) -> Grant:
            return grant.ended() if grant.token == 1 and has_ended else grant

    backend = Ended(try_acquire=[leased_grant(token=1), leased_grant(token=2, at=5.0)], renew=[DOWN, Grant(token=2)])
    election, _, _ = make_election(backend, health_interval_s=5.0, retry_strategy=FixedInterval(0.01))
    async with election:
        assert await election.wait_for_leadership()
        has_ended = True
        assert not await election.wait_for_leadership(1.0)
        assert await election.wait_for_leadership()
        assert election.token == 2


async def test_a_lapsed_validity_that_a_renewal_extends_ends_the_wait_for_leadership():
    election, _, _ = make_election(
        ScriptedBackend(try_acquire=[Grant(trusted_until=2.0)], renew=[Grant(trusted_until=8.0)]), health_interval_s=3.0
    )
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(2.5)
        assert not await election.wait_for_leadership(0)
        assert await election.wait_for_leadership(1)


async def test_a_renewal_that_was_answered_too_late_to_be_followed_by_another_is_named_as_the_cause():
    """Not a process that stood still: it needed no sleep to miss the little that was left."""
    now = [0.0]

    class Late(ScriptedBackend):
        lease_s = 15.0
        waits = 0

        async def lost(self) -> Any:
            self.waits += 1
            if self.waits == 2:
                now[0] = 0.2  # more than the answer has left
            return await super().lost()

    async def slowly() -> Grant:
        await asyncio.sleep(4.9)
        return leased_grant()  # as it was when the renewal was sent

    election, _, heard = make_election(
        Late(try_acquire=[leased_grant(), None], renew=[slowly]),
        clock=lambda: asyncio.get_running_loop().time() + now[0],
        health_interval_s=5.0,
    )
    async with election:
        await until(lambda: "on_lost" in heard.words)
    [lost] = [event for event in heard.events if event.kind is EventKind.LOST]
    assert lost.cause is LossCause.RENEW_TIMEOUT
    assert "the renewal was answered too late" in str(lost.error)


async def test_a_recovery_that_is_read_too_late_is_tried_again():
    now = [0.0]

    async def recovered_and_fell_asleep() -> Grant:
        grant = leased_grant(token=2)
        now[0] = 100.0
        return grant

    election, _, heard = make_election(
        ScriptedBackend(renew=[DOWN], try_acquire=[Grant(token=1), recovered_and_fell_asleep, Grant(token=3)]),
        clock=lambda: asyncio.get_running_loop().time() + now[0],
        reconnect_grace_s=50.0,
    )
    async with election:
        await until(lambda: "recovered" in heard.words)
    assert [event.token for event in heard.events if event.kind is EventKind.RECOVERED] == [3]


async def test_slow_on_lost_keeps_the_session_open_no_longer_than_the_lease_is_valid():
    election, backend, heard = make_election(ScriptedBackend(try_acquire=[leased_grant()], renew=[DOWN]))
    election.on_lost(lambda: asyncio.sleep(1000))
    await election.start()
    await until(lambda: "close" in backend.verbs)
    assert backend.times("close") == pytest.approx([13.5])
    await election.shutdown(timeout_s=0)


async def test_what_is_exposed_of_the_lease_is_exposed_while_leading_only():
    election, _, _ = make_election(ScriptedBackend(try_acquire=[leased_grant(token=42)]))
    assert (election.token, election.trusted_until, election.time_left_s) == (None, None, 0.0)
    async with election:
        await election.wait_for_leadership()
        assert (election.token, election.trusted_until, election.time_left_s) == (42, 13.5, 13.5)
        await asyncio.sleep(3)
        assert election.time_left_s == pytest.approx(10.5)
    assert (election.token, election.trusted_until, election.time_left_s) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionError("ended", cause=LossCause.SESSION_TERMINATED), LossCause.SESSION_TERMINATED),
        (LeadershipLost("taken", cause=LossCause.HELD_BY_ANOTHER), LossCause.HELD_BY_ANOTHER),
        (DOWN, LossCause.UNKNOWN),
    ],
)
async def test_every_loss_says_why(error, cause):
    election, _, heard = make_election(ScriptedBackend(renew=[error]))
    async with election:
        await until(lambda: "on_lost" in heard.words)
    assert [event.cause for event in heard.events if event.kind is EventKind.LOST] == [cause]


# --- Found by attack ------------------------------------------------------------------------------------------------


def test_tasks_that_are_cancelled_twice_still_let_the_program_end():
    """The usual recipe at the end of a program cancels every task, and asyncio.run then cancels what is left again."""
    backend = ScriptedBackend()

    async def main() -> None:
        election, _, _ = make_election(backend)
        await election.start()
        await election.wait_for_leadership()
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(3600)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert not backend.is_open


@pytest.mark.parametrize("cancels", [2, 3, 5])
async def test_a_lifecycle_that_is_cancelled_again_and_again_ends(cancels):
    election, backend, heard = make_election()
    election.on_lost(lambda: asyncio.sleep(1))
    await election.start()
    await election.wait_for_leadership()
    task = lifecycle_task()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.wait({task})
    await until(lambda: heard.words[-1] == "on_stopped")
    assert not backend.is_open
    await asyncio.sleep(1)
    assert {task.get_name() for task in asyncio.all_tasks() if "pgleaderlock" in task.get_name()} == set()


async def test_an_election_that_stopped_by_itself_can_be_started_from_its_last_callback():
    backend = ScriptedBackend()
    backend.defaults["try_acquire"] = None
    election, _, heard = make_election(backend, retry_strategy=GiveUpAfter(1))
    tasks = []

    @election.on_stopped
    def again() -> None:
        if heard.words.count("on_stopped") == 1:
            backend.defaults["try_acquire"] = Grant()
            tasks.append(asyncio.create_task(election.start()))

    await election.start()
    await until(lambda: election.is_leader)
    await asyncio.gather(*tasks)
    await election.shutdown()


async def test_start_right_after_an_election_gave_up_starts_it_anew():
    backend = ScriptedBackend(try_acquire=[None])
    election, _, heard = make_election(backend, retry_strategy=GiveUpAfter(1))
    election.on_stopped(lambda: asyncio.sleep(1))
    await election.start()
    await until_state(election, LockState.STOPPED)
    await election.start()
    assert await election.wait_for_leadership()
    await election.shutdown()


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_a_lock_that_can_be_started():
    election, _, heard = make_election()
    await election.start()
    lifecycle_task().cancel()
    await until_state(election, LockState.STOPPED)
    await until(lambda: "on_stopped" in heard.words)
    await election.shutdown()
    await election.start()
    assert await election.wait_for_leadership()
    await election.shutdown()


_CLOSED_LOOP = """
import asyncio, gc
from pgleaderlock.errors import LockError
from tests.support.doubles import ScriptedBackend, make_election

backend, made, first = ScriptedBackend(), [], asyncio.new_event_loop()

async def begin():
    made.append(make_election(backend, clock=lambda: 0.0)[0])
    await made[0].start()
    await made[0].wait_for_leadership()

async def go_on():
    for call in (made[0].start, made[0].shutdown, made[0].step_down, made[0].wait_for_leadership):
        try:
            await call()
        except LockError as error:
            assert "was closed while it ran: make a new election" in str(error)
        else:
            raise AssertionError(call)

first.run_until_complete(begin())
assert made[0].is_leader
first.close()
assert not made[0].is_leader
asyncio.run(go_on())
made.clear()
del backend
gc.collect()  # the tasks that died with the loop are closed now, and await nothing any more
print("as it should be")
"""


def test_an_election_whose_loop_was_closed_under_it_is_no_leader_and_is_refused():
    """In a process of its own, because asyncio complains of the tasks that died with that loop, and rightly so."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _CLOSED_LOOP], capture_output=True, text=True, cwd=root, check=False)
    assert done.stdout == "as it should be\n", done.stderr
    assert "Exception ignored" not in done.stderr


async def test_a_driver_that_cancels_its_own_call_is_an_error_and_not_the_end():
    election, _, heard = make_election(
        ScriptedBackend(try_acquire=[asyncio.CancelledError()], open=[asyncio.CancelledError()])
    )
    async with election:
        assert await election.wait_for_leadership()
    assert [type(error) for error in heard.errors] == [ConnectionError, ConnectionError]


async def test_a_cancellation_while_the_backend_is_closing_loses_no_event_and_no_waiter():
    election, backend, heard = make_election()
    close = backend.close

    async def slow_close() -> None:
        await asyncio.sleep(1)
        await close()

    backend.close = slow_close  # type: ignore[method-assign]
    await election.start()
    await election.wait_for_leadership()
    callers = [asyncio.create_task(election.shutdown()), asyncio.create_task(election.step_down())]
    await asyncio.sleep(0.5)
    lifecycle_task().cancel()
    await asyncio.gather(*callers)
    await until(lambda: heard.words[-1] == "on_stopped")
    assert "on_released" in heard.words


async def test_step_down_returns_after_the_callbacks_ran_but_not_later_than_asked():
    election, _, _ = make_election()
    ran = []

    @election.on_released
    async def slow() -> None:
        await asyncio.sleep(2)
        ran.append(True)

    async with election:
        await election.wait_for_leadership()
        await election.step_down()
        assert ran == [True]
        await election.wait_for_leadership()
        before = asyncio.get_running_loop().time()
        await election.step_down(timeout_s=0.5)
        assert asyncio.get_running_loop().time() - before < 2


async def test_a_strategy_that_gives_up_after_a_step_down_says_so():
    election, _, heard = make_election(retry_strategy=GiveUpAfter(1))
    await election.start()
    await election.wait_for_leadership()
    await election.step_down()
    await until(lambda: "on_stopped" in heard.words)
    assert "after a step-down" in str(heard.errors[0])


# --- Storms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_any_storm_of_calls_ends_in_a_sane_state(seed):
    import random

    rng = random.Random(seed)
    backend = ScriptedBackend(
        try_acquire=[rng.choice([None, Grant(), DOWN]) for _ in range(20)],
        renew=[rng.choice([Grant(), DOWN]) for _ in range(5)],
        open=[rng.choice([None, DOWN]) for _ in range(5)],
    )
    election, _, heard = make_election(
        backend,
        retry_strategy=FixedInterval(0.3),
        health_interval_s=0.5,
        reconnect_grace_s=rng.choice([None, 1.0]),
        auto_reacquire=rng.choice([True, False]),
    )
    ways = [
        election.start,
        lambda: election.shutdown(rng.choice([None, 0, 0.5])),
        lambda: election.step_down(rng.choice([None, 0, 0.5])),
        lambda: election.wait_for_leadership(0.2),
    ]
    await election.start()

    async def caller() -> None:
        for _ in range(10):
            await rng.choice(ways)()
            await asyncio.sleep(rng.random())

    await asyncio.gather(*(caller() for _ in range(6)))
    await election.shutdown()
    assert election.state is LockState.STOPPED
    assert not backend.is_open
    assert not backend.holds
    assert not any("engine_failed" in str(error) for error in heard.errors)
    assert all(not isinstance(error, LockError) or "failed and was stopped" not in str(error) for error in heard.errors)


async def test_stop_request_is_obeyed_although_every_call_fails_at_once():
    class AtOnce:
        def next_delay_s(self, ctx: RetryContext) -> float:
            return 0.0

    backend = ScriptedBackend()
    backend.defaults["open"] = ConnectionError("no")
    election, _, heard = make_election(backend, retry_strategy=AtOnce())
    await election.start()
    for _ in range(200):  # the clock stands still here, because some task is always busy
        await asyncio.sleep(0)
    assert len(heard.errors) > 3
    await election.shutdown()
    assert election.state is LockState.STOPPED


async def test_a_wait_that_fails_while_reconnecting_is_waited_on():
    class Waiting(ScriptedBackend):
        async def wait(self, timeout_s: float) -> None:
            raise ConnectionError("no news here")

    scripts: dict[str, list[Any]] = {"renew": [ConnectionError("gone")], "open": [None, ConnectionError("down")] * 5}
    election, backend, heard = make_election(Waiting(**scripts), reconnect_grace_s=60)
    async with election:
        await until(lambda: "recovered" in heard.words)
        attempts = backend.times("open")[1:]
        assert all(later - earlier >= 1.9 for earlier, later in itertools.pairwise(attempts))


# --- Backends that do what they must not ------------------------------------------------------------------------------


def test_a_url_is_not_a_backend():
    with pytest.raises(TypeError, match=r"Election\(open_backend\(url\)\)"):
        Election("file:///tmp/x")  # type: ignore[arg-type]


async def test_a_backend_whose_close_raises_does_not_end_the_election():
    election, backend, _ = make_election(ScriptedBackend(renew=[LeadershipLost("gone")]), health_interval_s=1.0)

    async def fail() -> None:
        backend.calls.append((0.0, "close"))
        raise OSError("it was closed already")

    backend.close = fail  # type: ignore[method-assign]
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(10)
        assert election.is_leader


class Odd(BaseException):
    """Something that no backend should raise."""


async def test_any_exception_of_a_backend_is_reported_and_the_call_is_retried():
    election, _, heard = make_election(ScriptedBackend(try_acquire=[Odd("?"), None]))
    async with election:
        assert await election.wait_for_leadership(30)
        assert "Odd" in str(heard.errors[0])
