"""The network between a node and a server: delays, cables that are pulled, half-open connections.

Each connection carries messages in order, as TCP does. What is sent while the cable is out is delivered once it is back
in, however old it is by then: that is what retransmission does, and it is worse than loss. A connection may also die in
one direction or both without a notice to either side (a firewall that dropped its state, a host that lost power).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pgleaderlock.testing.simulation.world import World

__all__ = ["Cable", "Pipe"]


@dataclass(slots=True)
class Cable:
    """The network of one node, which all its connections share."""

    world: World
    latency_s: float = 0.001
    slow_share: float = 0.0
    """The share of the messages that are slow."""
    slow_s: float = 0.0
    """How long a slow message takes at most."""
    connect_s: float = 0.0
    """How long a new connection takes at most, while existing ones are as quick as ever."""
    is_out: bool = False
    troubled_at: float = -math.inf
    """When it last delayed a message."""
    _waiting: list[Callable[[], object]] = field(default_factory=list)

    def draw_delay_s(self) -> float:
        """Draw how long the next message takes."""
        random = self.world.random
        if self.slow_share and random.random() < self.slow_share:
            self.troubled_at = self.world.now
            return random.uniform(0, self.slow_s)
        return self.latency_s * random.uniform(0.5, 1.5)

    def draw_connect_s(self) -> float:
        """Draw how much longer than a message the next new connection takes."""
        if not self.connect_s:
            return 0.0
        return self.world.random.uniform(0.3, 1.0) * self.connect_s

    def pull(self) -> None:
        """Let nothing pass."""
        self.is_out = True

    def plug_in(self) -> None:
        """Let everything pass; what was sent meanwhile comes first."""
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
        self.late_s = 0.0
        """How much later than usual everything arrives on this connection."""
        self.is_dead = False
        """Whether everything that is sent is lost."""

    def send(self, deliver: Callable[[], object], *, after_s: float = 0.0) -> None:
        """Deliver a message, in order, after a random delay; ``after_s`` later than usual."""
        world = self._cable.world
        if self.late_s:
            self._cable.troubled_at = world.now
        self._last_at = max(self._last_at, world.now + after_s + self.late_s + self._cable.draw_delay_s())
        world.at(self._last_at, lambda: self._cable.when_in(lambda: self._arrive(deliver)))

    @property
    def is_quick(self) -> bool:
        """Whether a message arrives within the usual time if sent now: none before it is lost, held back or slow."""
        usual_s = 2 * self._cable.latency_s
        is_well = not self.is_dead and not self.late_s and not self._cable.is_out
        return is_well and self._last_at <= self._cable.world.now + usual_s

    def send_quickly(self, deliver: Callable[[], object]) -> None:
        """Deliver a message in the usual time, whatever happens to the cable. Only if :attr:`is_quick`."""
        world, latency_s = self._cable.world, self._cable.latency_s
        self._last_at = max(self._last_at, world.now + latency_s * world.random.uniform(0.5, 1.5))
        world.at(self._last_at, deliver)

    def _arrive(self, deliver: Callable[[], object]) -> None:
        if not self.is_dead:
            deliver()
