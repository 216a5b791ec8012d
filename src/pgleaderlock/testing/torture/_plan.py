"""The plan: which fault comes next, on which node, and for how long. Pure: a seed gives the same order on any machine.

The plan is drawn beforehand, from the seed alone. A fault that is not possible when its turn comes (the node to freeze
is frozen already, a session must not be ended yet) is skipped and counted; the faults after it do not change.

Not promised: that the same seed gives the same run. When each node notices a fault depends on the machine.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FAULTS = {
    "kill": "a node is killed with -9, and started again",
    "freeze": "a node is stopped (SIGSTOP), and goes on later",
    "session": "the server ends the session that holds the lock",
    "witness": "the server ends the session that holds the second lock",
    "both": "the server ends both at once",
    "apart": "the server ends one of them, and the other up to half a second later",
    "delay": "a node's way to the server is slow",
    "connect": "new connections of a node are slow, and those that exist are quick",
    "throttle": "a node's way to the server is narrow",
    "cut": "a node is cut off, and what it sent arrives late",
    "drop": "a node's connections fall silent for ever, half open",
    "reset": "a connection of a node is broken off",
    "restart": "the server is restarted",
    "standby": "commits wait for a synchronous standby that is not there",
    "step": "the server's wall clock is stepped by more than a lease, as it runs or after a restart",
    "clock": "a node's wall clock jumps",
}
"""Every kind of fault, and what it does."""

_WEIGHTS = {"kill": 4, "freeze": 5, "session": 3, "apart": 3, "restart": 0.6, "standby": 0.6, "step": 1.2, "clock": 1}
_TO_LEADER = 0.7
_AT_ONCE = 0.2
_JUMPS_S = (-86_400, -3600, -5, 5, 3600, 86_400)


@dataclass(frozen=True, slots=True)
class Deed:
    wait_s: float
    """How long after the fault before it."""
    kind: str
    to_leader: bool
    """Whether the fault hits the leader of that moment; otherwise, or without a leader, it hits ``node``."""
    node: int
    lasts_s: float
    strength: float
    """Between 0 and 1: how slow, how narrow, which connection; its meaning depends on the kind."""
    jump_s: int


def draw(seed: int, kinds: Sequence[str], nodes: int, *, lease_s: float, every_s: float) -> Iterator[Deed]:
    """Yield planned faults for ever. Most come about ``every_s`` apart, some at once: both happen in production."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    weights = [_WEIGHTS.get(kind, 2) for kind in kinds]
    while True:
        at_once = rng.random() < _AT_ONCE
        yield Deed(
            wait_s=rng.uniform(0.0, 0.1) * every_s if at_once else rng.uniform(0.4, 1.6) * every_s,
            kind=rng.choices(kinds, weights)[0],
            to_leader=rng.random() < _TO_LEADER,
            node=rng.randrange(nodes),
            lasts_s=rng.uniform(0.1, 1.6) * lease_s,
            strength=rng.random(),
            jump_s=rng.choice(_JUMPS_S),
        )
