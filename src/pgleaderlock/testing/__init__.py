"""Tools to test code that elects leaders, without sleeping."""

from pgleaderlock.testing.virtual_time import Deadlock, VirtualTimeLoop

__all__ = ["Deadlock", "VirtualTimeLoop"]
