"""How much of a process HTTP may use: every cap and every time-out of the dashboard and the metrics endpoint."""

from dataclasses import dataclass
from typing import Final

_SHARE: Final = 4  # a server uses at most this part of the descriptors, and leaves at least this part free
_FEWEST: Final = 8
_MANY_DESCRIPTORS: Final = 1 << 20  # where the limit is infinite


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one server. An operator is a client whose request carries the token; others are anonymous."""

    most_connections: int
    most_anonymous: int
    """How many requests of anonymous clients are answered at once, streams included."""
    most_streams: int
    """How many event streams anonymous clients may have open."""
    highest_descriptor: int
    """A connection whose descriptor is not below this one is closed: the rest belongs to the elections.

    The kernel always gives out the lowest free number, so the number itself says how many are in use, by any
    part of the process.
    """
    request_s: float = 5.0
    """A connection is closed if this time passes without a complete request, the body included."""
    stall_s: float = 15.0
    """A connection is closed if its client reads nothing of an answer for this time."""
    processor_share: float = 0.3
    """Requests of anonymous clients wait while the server's thread has used more of one processor than this."""


def limits_for(most_connections: int, descriptors: int | None = None) -> HttpLimits:
    """Return the limits of a server that wants so many connections, in a process with so many descriptors."""
    available = _descriptor_limit() if descriptors is None else descriptors
    most = max(_FEWEST, min(most_connections, available // _SHARE))
    return HttpLimits(
        most_connections=most,
        most_anonymous=most * 3 // 4,
        most_streams=most // 2,
        highest_descriptor=available - available // _SHARE,
    )


def _descriptor_limit() -> int:
    try:
        import resource  # noqa: PLC0415
    except ModuleNotFoundError:  # Windows, which has no such limit
        return _MANY_DESCRIPTORS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
