"""Find out whether the other side of a socket has ended the connection, without reading it and without an event loop.

The kernel knows of an end before any code of this process has read it: also while the event loop is busy, while
another call is in flight on the socket, and right after the process was frozen. A server that ends a session sends a
last message and closes. POLLRDHUP shows the close behind unread messages; the unread messages themselves are looked at
too, because the server frees the session's locks between the two. Where there is no POLLRDHUP (macOS), POLLHUP shows an
end once both directions are closed; without poll (Windows), an end behind other unread messages is not seen.
gevent's poll is not used: it may wait, and shows no end.

The number of the copy matters for speed alone: Linux was seen to close the sockets of a killed process from the highest
number down, and on a machine with few processors the server process of the first one may run to its end, for a
millisecond, before the next one frees its locks. The lock session is opened before the witness session and should end
before it, so that the heir begins meanwhile; so copies are numbered downwards. With hundreds of sessions in one process
the order is lost, and nothing else.
"""

import contextlib
import itertools
import select
import socket

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock._base.portable import native
from pgleaderlock.postgres._end_message import announce_end

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_poll, _select, _socket = native("select", "poll"), native("select", "select"), native("socket", "socket")
_END = sum(getattr(select, name, 0) for name in ("POLLRDHUP", "POLLHUP", "POLLERR", "POLLNVAL"))
_POLLIN = getattr(select, "POLLIN", 0)
_DOWNWARDS = range(240, 40, -1)  # below the least limit of open files that is common, 256
_NUMBERS = itertools.cycle(_DOWNWARDS)
_PEEK = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)
LOOKED_AT_BYTES = 16384  # behind an answer that is longer than that, only the close shows


class HangupProbe:
    """A look at one socket, through a descriptor of its own: libpq may close its own one at any time.

    The copy keeps the connection open, so it must be closed together with the original.
    """

    def __init__(self, descriptor: int) -> None:
        self._copy = Descriptor(lambda: _copy(descriptor), socket.close)
        # One for all looks: each new one would take over socket.setdefaulttimeout(), and wait for so long when libpq
        # in another thread reads first. libpq's sockets do not block either, so this changes nothing for it.
        self._view: socket.socket = _socket(fileno=self._copy.number)
        self._view.settimeout(0)

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
        try:
            has_ended = self._shows_end_by_select(number) if _poll is None else self._shows_end(number)
        except OSError:  # pragma: no cover - closed meanwhile, or ENOMEM: what cannot be checked is not valid
            return True
        # Closed meanwhile by another thread, the number may already have been another file's.
        return has_ended or not self._copy.is_open

    def close(self) -> None:
        """Close the copy. May be repeated."""
        self._view.detach()
        self._copy.close()

    def __del__(self) -> None:
        if hasattr(self, "_view"):  # there may have been no descriptor left
            self._view.detach()  # or it would close the number, which the copy closes

    def _shows_end(self, number: int) -> bool:
        look = _poll()  # one for each look: two threads may not share one
        look.register(number, _END | _POLLIN)
        seen = look.poll(0)
        return bool(seen) and (bool(seen[0][1] & _END) or announce_end(self._peek() or b""))

    def _shows_end_by_select(self, number: int) -> bool:
        if not _select([number], [], [], 0)[0]:
            return False
        unread = self._peek()
        return unread is not None and (not unread or announce_end(unread))

    def _peek(self) -> bytes | None:
        """Return the unread bytes, without consuming them; none at the end, None when libpq has read them meanwhile."""
        try:
            return self._view.recv(LOOKED_AT_BYTES, _PEEK)
        except BlockingIOError:
            return None


def _copy(descriptor: int) -> int:
    if fcntl is not None:
        with contextlib.suppress(OSError, AttributeError):  # too few files are allowed, or an old system
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, next(_NUMBERS))
    return socket.dup(descriptor)  # Windows knows sockets only so
