"""Find out whether the other side of a socket has ended the connection, without reading it and without an event loop.

The kernel knows of an end before any code of this process has read it: also while the event loop is busy, while
another call is in flight on the socket, and right after the process was frozen. A server that ends a session sends a
last message and closes. POLLRDHUP shows the close behind unread messages; the unread messages themselves are looked at
too, because the server frees the session's locks between the two. Where there is no POLLRDHUP (macOS), POLLHUP shows an
end once both directions are closed.
"""

import os
import select
import socket

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock.postgres._end_message import announce_end

_END = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
_PEEK = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)
LOOKED_AT_BYTES = 16384  # behind an answer that is longer than that, only the close shows


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
        """Whether an end was received or announced, or this was closed. Takes about a microsecond; any thread."""
        number = self._copy.number
        if number < 0:
            return True
        look = select.poll()  # one for each look: two threads may not share one
        look.register(number, _END | select.POLLIN)
        try:
            seen = look.poll(0)
            has_ended = bool(seen) and (bool(seen[0][1] & _END) or announce_end(_peek(number)))
        except OSError:  # pragma: no cover - closed meanwhile, or ENOMEM: what cannot be checked is not valid
            return True
        # Closed meanwhile by another thread, the number may already have been another file's.
        return has_ended or not self._copy.is_open

    def close(self) -> None:
        """Close the copy. May be repeated."""
        self._copy.close()


def _peek(number: int) -> bytes:
    """Return the unread bytes, without consuming them; nothing when libpq has read them meanwhile."""
    # This opens no descriptor: a leader must not lose its term because the process has none left.
    view = socket.socket(fileno=number)
    try:
        return view.recv(LOOKED_AT_BYTES, _PEEK)
    except BlockingIOError:  # pragma: no cover - a race with the reader
        return b""
    finally:
        view.detach()
