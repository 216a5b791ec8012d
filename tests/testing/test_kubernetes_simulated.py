"""A Kubernetes Lease in virtual time: an API server that is slow, and a person who empties the holder by hand."""

import pytest

from pgleaderlock import ExponentialBackoff
from pgleaderlock.testing.simulation.fault_profiles import CALM
from pgleaderlock.testing.simulation.network import Cable
from pgleaderlock.testing.simulation.simulation import Simulation, quiet

LEASE_S = 3.0


def cluster(seed: int) -> Simulation:
    settings: dict[str, object] = {"retry_strategy": ExponentialBackoff(), "health_interval_s": LEASE_S / 3}
    return Simulation(seed, profile=CALM, store="kubernetes", lease_s=LEASE_S, settings=settings)


class Slow(Cable):
    """Every message takes the same, so every answer takes 0.55 s on whatever clock."""

    def draw_delay_s(self) -> float:
        return 0.275


@pytest.mark.parametrize("seed", range(3))
def test_there_is_a_leader_all_the_time_when_answers_take_half_a_second(seed: int) -> None:
    """With a bound of a sixth of the lease, nearly every request was given up before its answer came."""
    with quiet(seed):
        simulation = cluster(seed)
        for node in simulation.nodes:
            node.cable = Slow(simulation.world)
        try:
            simulation.start()
            simulation.run(10)
            for _ in range(1000):
                simulation.run(0.1)
                assert simulation.checker.is_led
            simulation.checker.raise_failure()
        finally:
            simulation.end()


@pytest.mark.parametrize("seed", range(10))
def test_a_holder_that_is_emptied_by_hand_is_seen_by_the_leader_before_another_leads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network that is well: the leader needs one message to know, a successor three to lead.

    That callbacks were notified before is not promised here: nothing keeps a successor waiting.
    """
    with quiet(seed):
        simulation = cluster(seed)
        monkeypatch.setattr(simulation.checker, "_check_notified", lambda _: None)
        try:
            simulation.start()
            simulation.run(10 + seed / 7)
            for _ in range(20):
                assert simulation.checker.is_led
                terms = simulation.checker.course.terms
                simulation.faults.strike("empty_holder", simulation.nodes[0], 0.0)
                simulation.run(LEASE_S * 1.1)
                simulation.checker.raise_failure()
                assert simulation.checker.course.terms > terms
        finally:
            simulation.end()
