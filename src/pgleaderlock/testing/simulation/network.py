"""The way between a node and a server: delays, cables that are pulled, connections that one side alone believes in.

Each connection carries messages in order, as TCP does. What is sent while the cable is out is delivered once it is back
in, however old it is by then: that is what retransmission does, and it is worse than loss. A connection may also die
for one direction or both without a word to anybody (a firewall that forgot it, a host that lost power).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pgleaderlock.testing.simulation.world import World

__all__ = ["Cable", "Pipe"]


@dataclass(slots=True)
class Cable:
    """What one node's connections have in common."""

    world: World
    latency_s: float = 0.001
    slow_share: float = 0.0
    """How many of the messages take long."""
    slow_s: float = 0.0
    """How long they take at most."""
    is_out: bool = False
    troubled_at: float = -math.inf
    """When it last held something back."""
    _waiting: list[Callable[[], object]] = field(default_factory=list)

    def draw_delay_s(self) -> float:
        """How long this message takes."""
        random = self.world.random
        if self.slow_share and random.random() < self.slow_share:
            self.troubled_at = self.world.now
            return random.uniform(0, self.slow_s)
        return self.latency_s * random.uniform(0.5, 1.5)

    def pull(self) -> None:
        """Nothing gets through."""
        self.is_out = True

    def plug_in(self) -> None:
        """Everything gets through, what was sent meanwhile first."""
        self.is_out = False
        waiting, self._waiting = self._waiting, []
        for deliver in waiting:
            deliver()

    def when_in(self, deliver: Callable[[], object]) -> None:
        """Deliver now, or when the cable is back."""
        if self.is_out:
            self.troubled_at = self.world.now
            self._waiting.append(deliver)
        else:
            deliver()


class Pipe:
    """One direction of one connection."""

    def __init__(self, cable: Cable) -> None:
        self._cable = cable
        self._last_at = 0.0
        self.is_dead = False
        """Whether what is sent vanishes."""

    def send(self, deliver: Callable[[], object]) -> None:
        """Deliver it, in order, some time."""
        world = self._cable.world
        self._last_at = max(self._last_at, world.now + self._cable.draw_delay_s())
        world.at(self._last_at, lambda: self._cable.when_in(lambda: self._arrive(deliver)))

    def _arrive(self, deliver: Callable[[], object]) -> None:
        if not self.is_dead:
            deliver()
