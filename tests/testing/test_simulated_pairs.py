"""Both sessions of a leader end, one while the other is being replaced or both at once: no second leader."""

from dataclasses import replace

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.models import Event, EventKind, LossCause
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES, STORM, FaultProfile, Simulation
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation.node import SimulatedNode
from tests.support.simulated_clocks import led, postgres_of
from tests.support.sweeps import sweep

__all__ = ["led"]  # the fixture

PAIR_STORES = ("postgres", "postgres-poll", "postgres-terms", "group")
FAULTS = ("end_apart", "end_both", "frozen_end_both", "late_answers_and_freeze", "late_answers_and_kill")


def only(*faults: str) -> FaultProfile:
    return STORM.but("only " + ", ".join(faults), faults=dict.fromkeys(faults, 1.0), every=3.0, slow_share=0.0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("store", sweep(PAIR_STORES, "postgres"))
@pytest.mark.slow
def test_there_is_one_leader_when_the_sessions_of_a_leader_end_or_answer_late(store: str, fault: str):
    for seed in range(3):
        assert simulate(seed, profile=only(fault), store=store, hours=0.1).faults[fault]


def test_unread_notifications_do_not_hide_the_end_of_a_lock_session():
    for seed in range(3):
        assert simulate(seed, profile=only("flood_and_end_both"), store="group", hours=0.1).faults["flood_and_end_both"]


@pytest.mark.proof
@pytest.mark.parametrize("store", [*PAIR_STORES, "postgres-strict"])
def test_a_leader_without_sessions_leaves_at_once_also_while_it_connects(store: str):
    for seed in range(6):
        assert simulate(seed, profile=FAULT_PROFILES["ended-pairs"], store=store, hours=0.15).faults


@pytest.mark.slow
def test_strict_takeover_needs_no_look_at_the_sockets():
    for seed in range(3):
        report = simulate(seed, profile=only("end_both", "frozen_end_both"), store="postgres-strict", hours=0.15)
        assert report.faults


def leader_of(simulation: Simulation) -> SimulatedNode:
    assert simulation.checker.leader is not None
    return simulation.checker.leader


def sessions_of(node: SimulatedNode) -> list[SimulatedSession]:
    return [each for each in node.sessions if isinstance(each, SimulatedSession) and not each.closed]


def test_late_answers_come_late_on_the_connections_that_a_node_has_and_are_punctual_again(led: Simulation):
    node = leader_of(led)
    led.faults.strike("late_answers_and_kill", node, 60.0)
    late = [session for session in sessions_of(node) if session.to_client.late_s]
    assert late == sessions_of(node)
    assert not any(session.to_client.is_quick for session in late)
    led.faults.clear()
    assert not any(session.to_client.late_s for session in late)
    led.run(30)  # what was to strike later does not, in clear profile
    assert leader_of(led) is node
    led.end()


def test_a_node_with_slow_connects_has_quick_answers_on_the_sessions_that_it_has(led: Simulation):
    node = leader_of(led)
    node.cable.connect_s = 2.0
    try:
        token = node.lock.token
        led.run(60)
        assert leader_of(led).lock.token == token  # it went on renewing
        led.faults.strike("kill_witness", node, 0.0)
        witnesses = len(led.faults._sessions_of(node))
        led.run(0.5)  # at least 0.3 of 2 s
        assert len(led.faults._sessions_of(node)) == witnesses
        led.run(2)
        assert len(led.faults._sessions_of(node)) == witnesses + 1
    finally:
        led.end()


def test_the_end_of_a_session_shows_before_a_frozen_process_reads_it(led: Simulation):
    node = leader_of(led)
    try:
        sessions = sessions_of(node)
        led.faults.strike("frozen_end_both", node, 5.0)
        assert not any(session.has_ended for session in sessions)
        led.world.run(led.world.now + 0.002)
        assert all(session.has_ended for session in sessions)
        assert not any(session.closed for session in sessions)
    finally:
        led.end()


def test_what_is_unread_hides_the_end_of_the_session_that_listens_and_of_no_other():
    simulation = Simulation(1, profile="calm", store="group", lease_s=10.0, settings={})
    simulation.start()
    simulation.run(30)
    node, server = leader_of(simulation), postgres_of(simulation)
    try:
        lock, witness = sessions_of(node)
        node.freeze()
        server.flood(12_000_000)
        assert simulation.faults.end_both(node) is not False
        simulation.world.run(simulation.world.now + 1.0)
        assert lock.has_ended
        assert not node.acts_as_leader
        assert not witness.has_ended
        node.thaw()
        simulation.run(1)
        assert witness.closed
    finally:
        simulation.end()


def test_where_no_session_listens_nothing_is_flooded():
    simulation = Simulation(1, profile="calm", store="postgres-poll", lease_s=10.0, settings={})
    simulation.start()
    simulation.run(30)
    try:
        assert simulation.faults.flood_and_end_both(leader_of(simulation), 5.0) is False
    finally:
        simulation.end()


def test_a_leader_that_was_a_follower_does_not_listen_any_more(led: Simulation):
    try:
        assert postgres_of(led).has_listeners  # the followers do
        leader_of(led).crash()
        led.run(30)
        assert not any(session.channels for session in postgres_of(led).sessions_of(leader_of(led).name))
    finally:
        led.end()


@pytest.mark.parametrize("trouble", ["a cable that is out", "a slow message ahead", "a connection that was forgotten"])
def test_pair_whose_end_would_not_be_delivered_is_not_ended(led: Simulation, trouble: str):
    node = leader_of(led)
    try:
        if trouble == "a cable that is out":
            node.cable.pull()
        elif trouble == "a slow message ahead":
            sessions_of(node)[0].to_client.send(lambda: None, after_s=3.0)
        else:
            node.sessions[0].vanish()
        assert led.faults.end_both(node) is False
        assert led.faults.end_apart(node, 5.0) is False
    finally:
        led.end()


def test_a_busy_event_loop_takes_its_turns_late_and_comes_back(led: Simulation):
    node = leader_of(led)
    try:
        node.keep_busy(1.0, 5.0)
        asked_at, answered_at = led.world.now, []
        node.loop.call_soon(lambda: answered_at.append(led.world.now))
        led.run(1.1)
        assert answered_at
        assert answered_at[0] > asked_at + 1e-3
        assert node.is_busy
        led.run(5)
        assert not node.is_busy
        assert node.loop.turn_s < 1e-3
    finally:
        led.end()


def test_a_loss_that_is_blamed_on_a_process_that_was_awake_is_found(led: Simulation):
    node = leader_of(led)
    try:
        led.run(60)
        events: list[Event] = []
        node.lock.subscribe(events.append)
        led.faults.strike("cut", node, 30.0)
        led.run(30)
        lost = next(event for event in events if event.kind is EventKind.LOST)
        assert lost.cause is not LossCause.STALLED
        with pytest.raises(SimulationFailed, match="reports that it stalled, and it did not") as raised:
            led.checker.heard(node, replace(lost, cause=LossCause.STALLED))
        assert raised.value.kind == "cause"
    finally:
        led.end()


def test_a_candidate_whose_sessions_end_before_it_leads_does_not_lead_beside_another():
    assert simulate(1, profile=only("end_newcomer", "step_down", "busy"), hours=0.1).faults["end_newcomer"]


@pytest.mark.parametrize("store", ["postgres", "group"])
def test_a_leader_takes_its_witness_lock_again_if_that_session_ended_just_after_it_was_granted(store: str):
    profile = replace(only("end_newcomers_witness", "late_answers_and_kill"), every=0.7)
    for seed in range(6):
        assert simulate(seed, profile=profile, store=store, hours=0.1).faults


@pytest.mark.parametrize("store", ["postgres", "group"])
def test_a_witness_that_was_not_replaced_is_the_cause_also_where_the_last_answer_comes_too_late(
    store: str, monkeypatch: pytest.MonkeyPatch
):
    """The lock session is asked ever sooner up to the deadline: the last answer has no time to come."""
    simulation = Simulation(1, profile="calm", store=store, lease_s=10.0, settings={})
    simulation.start()
    simulation.run(30)
    node, losses = leader_of(simulation), []
    node.lock.subscribe(lambda event: losses.append(event.cause) if event.kind is EventKind.LOST else None)

    async def fail(self: SessionPair) -> None:
        raise ConnectionError("too many clients already")

    monkeypatch.setattr(SessionPair, "open_witness", fail)
    try:
        simulation.faults.strike("kill_witness", node, 0.0)
        for session in sessions_of(node):
            session.to_client.late_s = 0.2
        simulation.run(15)
        assert losses == [LossCause.WITNESS_LOST.value]
    finally:
        simulation.end()
