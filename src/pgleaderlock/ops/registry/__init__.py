"""Who leads each role, who else stands for it, and what happened: written down by each node, for people to look at."""

from pgleaderlock.ops.registry.registry import Registry

__all__ = ["Registry"]
