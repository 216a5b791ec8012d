"""The wall clock of a server is set forward or back: no second leader, and no wait longer than a lease."""

import pytest

from pgleaderlock.models import LossCause
from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES, STORM, FaultProfile, Simulation
from pgleaderlock.testing.simulation.postgres import ServerSession
from tests.support.simulated_clocks import led, postgres_of
from tests.support.sweeps import sweep

__all__ = ["led"]  # fixtures


def only(*faults: str) -> FaultProfile:
    return STORM.but("only " + ", ".join(faults), faults=dict.fromkeys(faults, 1.0), every=4.0, slow_share=0.0)


@pytest.mark.parametrize("store", sweep(["postgres", "group"], "postgres"))
@pytest.mark.slow
def test_a_clock_set_forward_after_a_restart_gives_no_second_leader(store: str):
    for seed in range(4):
        assert simulate(seed, profile=only("cut_and_restart_and_step"), store=store, hours=0.1).faults


@pytest.mark.parametrize("store", sweep(["postgres", "group"], "postgres"))
@pytest.mark.slow
def test_a_clock_set_back_after_a_restart_costs_no_more_than_a_lease(store: str):
    for seed in range(4):
        assert simulate(seed, profile=only("restart_and_step"), store=store, hours=0.1, lease_s=5).faults


@pytest.mark.parametrize("store", sweep(["postgres", "group"], "postgres"))
@pytest.mark.slow
def test_statistics_that_are_reset_cost_a_wait_and_no_more(store: str):
    for seed in range(2):
        assert simulate(seed, profile=only("reset_statistics", "kill_session"), store=store, hours=0.5).terms > 1


@pytest.mark.slow
def test_sessions_that_end_early_by_the_wall_clock_let_a_second_one_lead_and_strict_closes_it():
    profile = FAULT_PROFILES["time-outs"]
    with pytest.raises(SimulationFailed) as raised:
        for seed in range(20):
            simulate(seed, profile=profile, hours=0.2)
    assert raised.value.kind == "two_leaders"
    reports = [simulate(seed, profile=profile, store="postgres-strict", hours=0.1) for seed in range(4)]
    assert sum(report.faults["early_time_outs"] for report in reports) > 1


# --- The model -------------------------------------------------------------------------------------------------------


def age_of(simulation: Simulation) -> float:
    server = postgres_of(simulation)
    since = max(server._started_at, server._recovered_at)
    return server.wall_clock - since


def test_the_age_of_a_server_is_a_difference_of_wall_clock_times(led: Simulation):
    try:
        server = postgres_of(led)
        server.restart(0.0)
        led.run(3)
        assert age_of(led) == pytest.approx(3)
        server.step_clock(100)
        assert age_of(led) == pytest.approx(103)
        server.step_clock(-500)
        assert age_of(led) == pytest.approx(-397)
        server.crash(0.0)
        led.run(1)
        assert age_of(led) == pytest.approx(1 if server._recovered_at > server._started_at else -396)
        server.step_clock(397)
        server.reset_statistics()
        assert age_of(led) == pytest.approx(0)
    finally:
        led.end()


@pytest.mark.parametrize(("by_s", "ends_after_s"), [(4.0, 6.0), (0.0, 10.0), (-5.0, 15.0), (60.0, 0.0)])
def test_an_idle_session_ends_by_the_wall_clock_if_the_fault_says_so(by_s: float, ends_after_s: float):
    led = Simulation(1, nodes=1, profile="calm", lease_s=10.0, settings={})
    led.start()
    led.run(30)
    try:
        node = led.checker.leader
        assert node is not None
        node.freeze()
        server, began_at = postgres_of(led), led.world.now
        held = server.holders_of(node.name)
        server.step_clock(1000.0)  # which moves no time-out
        server.step_clock(by_s, moves_time_outs=True)
        ended = _note_ends(held, led)
        led.run(30)
        assert {cause for _, cause in ended} == {LossCause.SILENCED}
        # Each was last seen up to a health interval before it was frozen.
        assert all(ends_after_s - 4 <= max(at - began_at, 0) <= ends_after_s for at, _ in ended)
    finally:
        led.end()


def _note_ends(sessions: list[ServerSession], simulation: Simulation) -> list[tuple[float, LossCause | None]]:
    ended: list[tuple[float, LossCause | None]] = []
    for session in sessions:
        end = session.end

        def note(cause: LossCause | None, *, quickly: bool = False, end=end) -> None:
            ended.append((simulation.world.now, cause))
            end(cause, quickly=quickly)

        session.end = note  # type: ignore[method-assign]
    return ended


@pytest.mark.parametrize("fault", ["step_clock", "late_time_outs"])
def test_a_clock_that_is_stepped_without_a_restart_gives_no_second_leader(fault: str):
    assert simulate(2, profile=only(fault, "step_down"), hours=0.1).faults[fault]
