"""Time and chance of a simulated world: one heap of scheduled calls, one random generator, nothing else.

Every run with the same seed takes the same steps in the same order. No code of the simulation may read a real clock:
that would end the repeatability.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count

__all__ = ["Appointment", "ServerThatGoesDown", "World"]


class Appointment:
    """A scheduled call, which can be cancelled."""

    __slots__ = ("call", "is_off")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_off = False

    def call_off(self) -> None:
        """Cancel the call."""
        self.is_off = True


class World:
    """The virtual time, and the scheduled calls."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        """Seconds since the beginning, on a clock that no node can read."""
        self.random = random.Random(seed)  # noqa: S311 - to be repeatable is the point
        self.steps = 0
        self._agenda: list[tuple[float, int, Appointment]] = []
        self._order = count()

    def at(self, when: float, call: Callable[[], object]) -> Appointment:
        """Schedule a call. Calls for the same moment are made in the order in which they were scheduled."""
        appointment = Appointment(call)
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), appointment))
        return appointment

    def later(self, delay_s: float, call: Callable[[], object]) -> Appointment:
        """Schedule a call for ``delay_s`` seconds from now."""
        return self.at(self.now + delay_s, call)

    def run(self, until: float, *, unless: Callable[[], bool] | None = None) -> None:
        """Make all calls up to ``until``; stop early once ``unless()`` is true."""
        while self._agenda and self._agenda[0][0] <= until:
            when, _, appointment = heapq.heappop(self._agenda)
            if appointment.is_off:
                continue
            self.now = when
            self.steps += 1
            appointment.call()
            if unless is not None and unless():
                return
        self.now = max(self.now, until)


class ServerThatGoesDown:
    """The part of a modelled server that can be down for a while."""

    def __init__(self, world: World, note: Callable[[str, str], None]) -> None:
        self.world = world
        self.note = note
        self.is_up = True

    def go_down(self, down_s: float) -> None:
        """Answer no client for a while. All that was written is kept."""
        self.is_up = False
        self.world.later(down_s, self.come_back)

    def come_back(self) -> None:
        """Answer again."""
        if not self.is_up:
            self.is_up = True
            self.note("server", "is up")

    def end(self) -> None:
        """Do nothing: there is nothing to remove."""
