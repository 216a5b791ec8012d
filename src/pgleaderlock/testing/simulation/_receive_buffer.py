"""The unread bytes of one connection at a host, and whether a check of the socket shows the end behind them.

The product looks at a socket without reading it (:mod:`pgleaderlock.postgres._hangup`), and the model shows what that
look would see. The error that ends a session shows among the first unread bytes, and no further. The close shows once
all that was sent before it has come; it cannot come while the receive buffer is full. So whatever is unread can hide an
end: notifications above all, because any user of the database may send as many as they like. What an answer takes up is
left out: each is read before the next is asked for, and is small. A reset waits behind what is unread here, and on a
real host it does not: the model is the harder case.
"""

import math
from collections.abc import Callable

from pgleaderlock.postgres._hangup import LOOKED_AT_BYTES

_ROOM_BYTES = 6 << 20
"""What Linux keeps for one connection that is not read, at most (tcp_rmem)."""
_EXIT_S = 0.002
"""From the error that ends a session to the close of its socket. The locks are freed in between."""


class ReceiveBuffer:
    """The receive buffer of one connection."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._unread_bytes = 0
        self._is_announced = False
        self._closes_at = math.inf

    def take_in(self, size_bytes: int) -> None:
        """Keep what was sent until it is read. What does not fit waits at the server, and is read after it."""
        self._unread_bytes += size_bytes

    def take_in_end(self, *, is_announced: bool) -> None:
        """Keep the close behind all that is unread, and in front of it the error that says why, if there is one."""
        self._is_announced = is_announced
        self._closes_at = self._now() + (_EXIT_S if is_announced else 0.0)

    def read(self) -> None:
        """Let the process read everything, also what did not fit."""
        self._unread_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._unread_bytes > _ROOM_BYTES

    @property
    def shows_end(self) -> bool:
        """Whether a check of the socket shows that the session has ended."""
        if self._is_announced and self._unread_bytes < LOOKED_AT_BYTES:
            return True
        return not self.is_full and self._now() >= self._closes_at
