"""Every fault is injected where it can be, and counts as not injected where it cannot."""

import pytest

from pgleaderlock.testing import simulate
from pgleaderlock.testing.simulation import STORM, Simulation

OF_POSTGRES = (
    "cut_and_restart_and_step",
    "double_ambush_and_kill",
    "empty_holder",
    "end_apart",
    "flood_and_end_both",
    "kill_session",
    "late_time_outs",
    "lose_standby",
    "overtake_heir",
    "reset_statistics",
    "restart_and_step",
    "step_clock",
)


@pytest.mark.parametrize(
    ("fault", "store"),
    [
        ("overtake_heir", "postgres"),
        ("double_ambush_and_kill", "postgres-strict"),
        ("cut_and_replace", "postgres-terms"),
        ("cut_and_switch", "postgres-terms"),
    ],
)
@pytest.mark.slow
def test_the_fault_is_injected_and_there_is_one_leader(fault: str, store: str):
    profile = STORM.but(f"only {fault}", faults={fault: 1.0}, every=3.0, slow_share=0.0)
    assert sum(simulate(seed, profile=profile, store=store, hours=0.2).faults[fault] for seed in range(3))


@pytest.mark.parametrize("store", ["records", "postgres"])
def test_a_fault_that_is_not_possible_is_not_injected(store: str):
    simulation = Simulation(1, profile="calm", store=store, lease_s=10.0, settings={})
    try:
        simulation.start()
        simulation.run(30)
        faults, node = simulation.faults, simulation.nodes[0]
        if store == "postgres":  # the server is down, and the node has crashed
            faults.restart(node, 10.0)
            faults.crash(node, 10.0)
        assert {name: getattr(faults, name)(node, 1.0) for name in OF_POSTGRES} == dict.fromkeys(OF_POSTGRES, False)
        assert faults.compact(node, 1.0) is False
        assert faults.late_answers_and_kill(node, 1.0) is False
        assert faults.late_answers_and_freeze(node, 1.0) is False
    finally:
        simulation.end()
