"""Tools to test code that elects leaders: a clock that jumps, and what every backend must do."""

from pgleaderlock.testing.contract import BackendContract, InProcessContract
from pgleaderlock.testing.virtual_time import Deadlock, VirtualTimeLoop

__all__ = ["BackendContract", "Deadlock", "InProcessContract", "VirtualTimeLoop"]
