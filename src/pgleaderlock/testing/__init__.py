"""Tools to test code that elects leaders: a virtual clock, a simulated cluster with faults, a contract for backends."""

from pgleaderlock.testing.contract import BackendContract, InProcessContract
from pgleaderlock.testing.simulation import FaultProfile, Report, SimulatedNode, SimulationFailed, simulate
from pgleaderlock.testing.virtual_time import Deadlock, VirtualTimeLoop

__all__ = [
    "BackendContract",
    "Deadlock",
    "FaultProfile",
    "InProcessContract",
    "Report",
    "SimulatedNode",
    "SimulationFailed",
    "VirtualTimeLoop",
    "simulate",
]
