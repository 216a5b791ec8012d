"""A simulated world for elections: see :func:`simulate`."""

from pgleaderlock.testing.simulation.checks import SimulationFailed
from pgleaderlock.testing.simulation.fault_profiles import CALM, FAULT_PROFILES, STORM, FaultProfile
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.simulation import Report, Simulation, simulate
from pgleaderlock.testing.simulation.stores import STORES, Store

__all__ = [
    "CALM",
    "FAULT_PROFILES",
    "STORES",
    "STORM",
    "FaultProfile",
    "Report",
    "SimulatedNode",
    "Simulation",
    "SimulationFailed",
    "Store",
    "simulate",
]
