"""Look at a socket, without reading it and without an event loop, whether the other side has ended the connection.

The kernel knows of an end before any code of this process has read it: also while the event loop is busy, while
another call is in flight on the socket, and in the first moment after the process was frozen. A server that ends a
session sends its last words and closes; those words may lie unread for long, and POLLRDHUP shows the close behind them.
Where there is no POLLRDHUP (macOS), POLLHUP shows an end once both directions are closed.
"""

import os
import select

from pgleaderlock._files.descriptor import Descriptor

__all__ = ["HangupProbe"]

_END = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


class HangupProbe:
    """A look at one socket, through a descriptor of its own: libpq may close its own one at any time.

    The copy keeps the connection open, so it must be closed together with the original.
    """

    def __init__(self, descriptor: int) -> None:
        self._copy = Descriptor(lambda: os.dup(descriptor))

    @property
    def number(self) -> int:
        """The copy's number, for an event loop to watch; -1 when it is closed."""
        return self._copy.number

    @property
    def has_ended(self) -> bool:
        """Whether the end of the connection was received, or this was closed. Takes about a microsecond; any thread."""
        number = self._copy.number
        if number < 0:
            return True
        look = select.poll()  # one for each look: two threads may not share one
        look.register(number, _END)
        try:
            has_ended = bool(look.poll(0))
        except OSError:  # pragma: no cover - ENOMEM: what cannot be seen is not trusted
            return True
        # Closed meanwhile by another thread, the number may already have been another file's.
        return has_ended or not self._copy.is_open

    def close(self) -> None:
        """Give the copy up. May be repeated."""
        self._copy.close()
