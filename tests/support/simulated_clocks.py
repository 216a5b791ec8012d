"""What tests of simulated clocks share with others."""

import pytest

from pgleaderlock.testing.simulation import Simulation
from pgleaderlock.testing.simulation.postgres import ModelledPostgres


@pytest.fixture
def led() -> Simulation:
    simulation = Simulation(1, profile="calm", lease_s=10.0, settings={})
    simulation.start()
    simulation.run(30)
    return simulation


def postgres_of(simulation: Simulation) -> ModelledPostgres:
    assert isinstance(simulation.server, ModelledPostgres)
    return simulation.server
