"""The database's time of day, computed from this process's own clock.

An event is written later than it happened, perhaps much later, and nodes must agree on its time. So each node computes
from round trips how far the server's clock is ahead of its own: the server read its clock between the sending of the
query and the arrival of the answer. The shortest round trip is the most exact; its uncertainty grows with time, because
two clocks drift.

When the server's clock is set, its answers contradict what was computed before, which is then discarded.
"""

_DRIFT = 1e-4  # of two clocks against each other: far more than crystals do, far less than the promise needs


class ServerClock:
    """Turns readings of our own clock into the server's time of day."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._within_s: float | None = None
        self._known_at = 0.0

    @property
    def is_known(self) -> bool:
        return self._within_s is not None

    def note(self, sent: float, received: float, server_s: float) -> None:
        """Learn from an answer: the server's time of day, and between which readings of ours it was taken."""
        ahead_s, within_s = server_s - (sent + received) / 2, (received - sent) / 2
        known_within_s = self.within_s(received)
        contradicts = known_within_s is not None and abs(ahead_s - self._ahead_s) > within_s + known_within_s
        if known_within_s is None or contradicts or within_s <= known_within_s:
            self._ahead_s, self._within_s, self._known_at = ahead_s, within_s, received

    def at(self, ours: float) -> float:
        """Return the server's time of day at that reading, in seconds of the epoch."""
        return ours + self._ahead_s

    def within_s(self, now: float) -> float | None:
        """Return how exactly that is known now; None before the first answer."""
        if self._within_s is None:
            return None
        return self._within_s + _DRIFT * max(0.0, now - self._known_at)
