"""Time and chance of a simulated world: one heap of things to happen, one random generator, nothing else.

Every run with the same seed takes the same steps in the same order. Nothing here reads a real clock, and whoever adds
something that does ends that.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count

__all__ = ["Appointment", "World"]


class Appointment:
    """Something that will happen, unless it is called off."""

    __slots__ = ("call", "is_off")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_off = False

    def call_off(self) -> None:
        """Let it not happen."""
        self.is_off = True


class World:
    """What time it is, and what comes next."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        """Seconds since the beginning, on a clock that no node can read."""
        self.random = random.Random(seed)  # noqa: S311 - to be repeatable is the point
        self.steps = 0
        self._agenda: list[tuple[float, int, Appointment]] = []
        self._order = count()

    def at(self, when: float, call: Callable[[], object]) -> Appointment:
        """Make an appointment. Those for the same moment are kept in the order in which they were made."""
        appointment = Appointment(call)
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), appointment))
        return appointment

    def later(self, delay_s: float, call: Callable[[], object]) -> Appointment:
        """Make an appointment for so many seconds from now."""
        return self.at(self.now + delay_s, call)

    def run(self, until: float, *, unless: Callable[[], bool] | None = None) -> None:
        """Keep all appointments up to then; stop early once ``unless`` holds."""
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
