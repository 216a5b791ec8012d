"""What a server's unread bytes say: whether PostgreSQL has announced the end of the session.

PostgreSQL sends the error that ends a session, then frees its locks, then closes the socket. So these words, which
may lie unread while the event loop is busy, are the first sign of the end, and the only one before the locks are free.

The bytes are walked message by message. They are the server's own: a lock session hears no notifications, whose
payloads any user of the database may choose, and behind which an end would not show. Encrypted bytes say nothing.
"""

from struct import Struct

__all__ = ["announce_end"]

_HEAD = Struct("!cI")  # its kind, and its length without the kind
_ENDS = (b"VFATAL", b"VPANIC")  # V: the severity, in English whatever the server speaks


def announce_end(unread: bytes) -> bool:
    """Return whether there is an error among these messages that ends the session.

    A part of a message at their beginning, or whatever else is no message, ends the walk: then nothing is known.
    """
    start = 0
    while len(unread) - start >= _HEAD.size:
        kind, length = _HEAD.unpack_from(unread, start)
        end = start + 1 + length
        if length < _HEAD.size - 1 or end > len(unread):
            return False
        if kind == b"E" and _is_end(unread[start + _HEAD.size : end]):
            return True
        start = end
    return False


def _is_end(fields: bytes) -> bool:
    return any(field in _ENDS for field in fields.split(b"\0"))
