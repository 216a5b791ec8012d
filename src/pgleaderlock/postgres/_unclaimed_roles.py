"""Find roles that no node takes, because ``max_roles`` of all nodes together is too small. Pure.

A node with room takes a free role at its next poll. So if this node, which has no room, sees a role free again and
again, for longer than any node's poll and the wait after a refusal take, then no node has room for it. This needs no
message from the other nodes.

Not promised: that a node which has room itself (it takes the role), or is no candidate for the role, notices it.
"""

from collections.abc import Collection

from pgleaderlock.postgres.keys import LockKey

_LOOKS = 3
_POLLS_BETWEEN = 4
_CALM_FACTOR = 10
"""A look at all locks of a server costs more than a poll: while all roles are held, looks are rarer by this factor."""


class Unclaimed:
    """Counts how often each role was seen free, and decides when to warn: once for each time that it is free."""

    def __init__(self, poll_s: float) -> None:
        self._every_s = _POLLS_BETWEEN * poll_s
        self._look_at = 0.0
        self._times: dict[LockKey, int] = {}

    def is_due(self, now: float) -> bool:
        """Return whether the next look is due."""
        return now >= self._look_at

    def saw(self, free: Collection[LockKey], now: float) -> list[LockKey]:
        """Note the roles that are free now; return those that were seen free the third time in a row."""
        self._look_at = now + self._every_s * (1 if free else _CALM_FACTOR)
        self._times = {key: self._times.get(key, 0) + 1 for key in free}
        return [key for key, times in self._times.items() if times == _LOOKS]

    def forget(self) -> None:
        """Start again, because this node has room and takes free roles itself."""
        self._times.clear()
        self._look_at = 0.0
