"""A synchronous standby is absent: no lock stays with a dead process, and elections go on when it is back."""

import pytest

from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation import CALM, FAULT_PROFILES, Simulation
from pgleaderlock.testing.simulation.postgres import ModelledPostgres


@pytest.mark.proof
@pytest.mark.parametrize("store", ["postgres", "group", "postgres-strict"])
def test_no_lock_stays_with_a_dead_process(store: str):
    reports = [simulate(seed, profile=FAULT_PROFILES["absent-standby"], store=store, hours=0.2) for seed in range(8)]
    assert sum(report.faults["lose_standby"] for report in reports) > 8


@pytest.fixture
def led() -> Simulation:
    simulation = Simulation(1, profile=CALM, lease_s=10.0, settings={})
    simulation.start()
    simulation.run(30)
    return simulation


def test_a_leader_goes_on_without_a_standby_and_the_next_one_leads_when_it_is_back(led: Simulation):
    assert isinstance(led.server, ModelledPostgres)
    try:
        leader = led.checker.leader
        assert leader is not None
        led.server.lose_standby()
        led.run(60)
        assert led.checker.leader is leader  # a renewal writes nothing
        leader.crash()
        led.run(15)
        assert led.checker.leader is None  # a token is written
        led.server.find_standby()
        led.run(30)
        assert led.checker.leader is not None
    finally:
        led.end()


def test_a_lock_that_a_dead_process_holds_is_found(led: Simulation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ModelledPostgres, "_stuck_holders", lambda *_: ([],))  # or the third node would end it
    assert isinstance(led.server, ModelledPostgres)
    try:
        leader = led.checker.leader
        assert leader is not None
        led.server.lose_standby()
        leader.crash()
        led.run(1)
        stuck = [each for each in led.server.sessions.values() if each.waits_for_standby_since is not None]
        heir = next(node for node in led.nodes if node.name == stuck[0].client.owner)
        assert led.server.dead_holder() is None  # it waits, and its client with it
        heir.crash()
        led.run(1)
        dead = led.server.dead_holder()
        assert dead is not None
        assert (dead[0].client.owner, dead[1]) == (heir.name, "42, 1")
        with pytest.raises(
            SimulationFailed, match=f"lock 42, 1 has been held .* by a session of {heir.name}"
        ) as raised:
            led.run(60)
        assert raised.value.kind == "stuck"
    finally:
        led.end()


def test_elections_go_on_although_a_standby_is_away_now_and_then():
    for seed in range(3):
        profile = FAULT_PROFILES["absent-standby"].but("often absent", every=1.0)
        assert simulate(seed, profile=profile, hours=0.1).faults["lose_standby"]
