"""Find out from a server's unread bytes whether PostgreSQL has announced the end of the session.

PostgreSQL sends the error that ends a session, then frees its locks, then closes the socket. So this message, which may
be unread while the event loop is busy, is the first sign of the end, and the only one before the locks are free.

The bytes are read message by message. All of them come from the server itself: a lock session receives no
notifications, whose payloads any user of the database may choose, and behind which the end would be hidden. Encrypted
bytes show nothing.
"""

from struct import Struct

_HEAD = Struct("!cI")  # its kind, and its length without the kind
_ENDS = (b"VFATAL", b"VPANIC")  # V: the severity, in English for every language of the server


def announce_end(unread: bytes) -> bool:
    """Return whether one of these messages is an error that ends the session.

    A partial message at the beginning, or anything else that is no message, ends the search: the answer is then False.
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
