"""Roles that nobody takes while this node has no room for them: what a limit that does not add up looks like. Pure.

Whoever has room takes what is free at its next poll. So a role that is seen free again and again, for longer than any
node's poll and the wait after a refusal would take, is one for which nobody has room. That needs no word of the others.

Not promised: that it is noticed by a node which has room itself (it takes the role), or which does not stand for it.
"""

from collections.abc import Collection

from pgleaderlock.keys import LockKey

__all__ = ["Unclaimed"]

_LOOKS = 3
_POLLS_BETWEEN = 4
_CALM_FACTOR = 10
"""A look at all locks of a server costs more than a poll: while everything is held, they are rarer."""


class Unclaimed:
    """Counts how often each role was seen free, and says when it is time to warn, once for each time it is free."""

    def __init__(self, poll_s: float) -> None:
        self._every_s = _POLLS_BETWEEN * poll_s
        self._look_at = 0.0
        self._times: dict[LockKey, int] = {}

    def is_due(self, now: float) -> bool:
        """Whether to look."""
        return now >= self._look_at

    def saw(self, free: Collection[LockKey], now: float) -> list[LockKey]:
        """Note what is free now; return those that were so every time for a while."""
        self._look_at = now + self._every_s * (1 if free else _CALM_FACTOR)
        self._times = {key: self._times.get(key, 0) + 1 for key in free}
        return [key for key, times in self._times.items() if times == _LOOKS]

    def forget(self) -> None:
        """There is room: whatever is free is taken."""
        self._times.clear()
        self._look_at = 0.0
