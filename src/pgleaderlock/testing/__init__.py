"""Tools to test code that elects leaders: a clock that jumps, a world in bad weather, what every backend must do."""

from pgleaderlock.testing.contract import BackendContract, InProcessContract
from pgleaderlock.testing.simulation import Node, Report, SimulationFailed, Weather, simulate
from pgleaderlock.testing.virtual_time import Deadlock, VirtualTimeLoop

__all__ = [
    "BackendContract",
    "Deadlock",
    "InProcessContract",
    "Node",
    "Report",
    "SimulationFailed",
    "VirtualTimeLoop",
    "Weather",
    "simulate",
]
