"""A simulated world for elections: see :func:`simulate`."""

from pgleaderlock.testing.simulation.checks import SimulationFailed
from pgleaderlock.testing.simulation.node import Node
from pgleaderlock.testing.simulation.simulation import Report, Simulation, simulate
from pgleaderlock.testing.simulation.stores import STORES, Store
from pgleaderlock.testing.simulation.weather import CALM, STORM, WEATHERS, Weather

__all__ = [
    "CALM",
    "STORES",
    "STORM",
    "WEATHERS",
    "Node",
    "Report",
    "Simulation",
    "SimulationFailed",
    "Store",
    "Weather",
    "simulate",
]
