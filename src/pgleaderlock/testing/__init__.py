"""Tools to test code that elects leaders: a virtual clock, a simulated cluster with faults, a contract for backends.

Each name is imported when it is asked for: the simulation and the contract need a POSIX system, the rest does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgleaderlock.testing.contract import BackendContract as BackendContract
    from pgleaderlock.testing.contract import InProcessContract as InProcessContract
    from pgleaderlock.testing.losing import lose_leadership as lose_leadership
    from pgleaderlock.testing.simulation import FaultProfile as FaultProfile
    from pgleaderlock.testing.simulation import Report as Report
    from pgleaderlock.testing.simulation import SimulatedNode as SimulatedNode
    from pgleaderlock.testing.simulation import SimulationFailed as SimulationFailed
    from pgleaderlock.testing.simulation import simulate as simulate
    from pgleaderlock.testing.virtual_time import Deadlock as Deadlock
    from pgleaderlock.testing.virtual_time import LoopClock as LoopClock
    from pgleaderlock.testing.virtual_time import VirtualTimeLoop as VirtualTimeLoop

_HOMES = {
    "BackendContract": "contract",
    "Deadlock": "virtual_time",
    "FaultProfile": "simulation",
    "InProcessContract": "contract",
    "LoopClock": "virtual_time",
    "Report": "simulation",
    "SimulatedNode": "simulation",
    "SimulationFailed": "simulation",
    "VirtualTimeLoop": "virtual_time",
    "lose_leadership": "losing",
    "simulate": "simulation",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - strings


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
