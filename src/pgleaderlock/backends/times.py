"""How long a lease is, how often it is renewed, and how soon a failed renewal is repeated: the one rule for all.

What was not given follows from what was: a lease is three intervals, an interval is a third of the lease. An interval
that was given is kept, counted from when the last renewal was sent, as long as it leaves time to repeat a renewal that
failed: leadership is declared lost after two thirds of the lease, so a renewal is sent after 0.6 of it at the latest,
and earlier where answers take long. One failure never ends a term: the first attempt is not waited for so long that no
other could follow, and the pauses shrink with the time that is left.
"""

from typing import NamedTuple

from pgleaderlock._checks import check_seconds
from pgleaderlock.backends.base import LOST_SHARE

__all__ = [
    "RENEWALS_PER_LEASE",
    "SOON_SHARE",
    "USUAL_INTERVAL_S",
    "LeaseTimes",
    "UsualInterval",
    "choose_times",
    "effective_interval_s",
    "first_answer_s",
    "is_too_rare",
    "retry_pause_s",
    "until_renewal_s",
]

RENEWALS_PER_LEASE = 3
"""How often a leader renews in a lease, unless an interval was given."""
SOON_SHARE = 0.05
"""Of a lease: a renewal that was answered so late that no more is left cannot be followed by another."""
_SHORTEST_DEFAULT_LEASE_S = 1.5
_RENEWED_BY = 0.6
"""The part of a lease after which a renewal is sent at the latest."""


class UsualInterval(float):
    """The default of a signature: the specification wants 5.0 there, and a 5.0 that was given must not be replaced."""

    __slots__ = ()


USUAL_INTERVAL_S = UsualInterval(5.0)
"""How often a leader renews where neither the interval nor the lease was given."""


class LeaseTimes(NamedTuple):
    """A lease, and the interval between two renewals of it, as it will be."""

    lease_s: float
    health_interval_s: float


def choose_times(lease_s: float | None, health_interval_s: float = USUAL_INTERVAL_S) -> LeaseTimes:
    """Return both times. Refuse an interval in which no renewal could succeed before leadership is declared lost."""
    interval_s = check_seconds("health_interval_s", health_interval_s)
    if lease_s is None:
        return LeaseTimes(max(RENEWALS_PER_LEASE * interval_s, _SHORTEST_DEFAULT_LEASE_S), interval_s)
    check_seconds("lease_s", lease_s)
    if isinstance(health_interval_s, UsualInterval):
        return LeaseTimes(lease_s, lease_s / RENEWALS_PER_LEASE)
    if is_too_rare(interval_s, lease_s):
        raise ValueError(
            f"health_interval_s={interval_s:g} must be less than two thirds of lease_s={lease_s:g}: leadership "
            "would be lost before the first renewal"
        )
    return LeaseTimes(lease_s, effective_interval_s(interval_s, lease_s))


def effective_interval_s(interval_s: float, lease_s: float | None) -> float:
    """Return how often a leader renews that was given this interval; None: nothing ends its lock."""
    return interval_s if lease_s is None else min(interval_s, _RENEWED_BY * lease_s)


def until_renewal_s(interval_s: float, left_s: float, lease_s: float | None) -> float:
    """Return in how many seconds to renew, now that a renewal was answered; ``left_s`` before the loss is declared.

    What the last answer took is left for the next one, and for another after it.
    """
    if lease_s is None:
        return min(interval_s, max(0.0, left_s / 2))
    took_s = max(0.0, LOST_SHARE * lease_s - left_s)
    return max(0.0, min(effective_interval_s(interval_s, lease_s) - took_s, left_s - 2 * took_s))


def first_answer_s(left_s: float, lease_s: float) -> float:
    """Return how long to wait for the answer to the first attempt of a renewal: another must be able to follow."""
    return left_s - min(left_s / 2, lease_s / 12)


def retry_pause_s(left_s: float, lease_s: float) -> float:
    """Return how long after the beginning of a failed attempt the next one begins."""
    return max(lease_s / 200, min(lease_s / 15, left_s / 3))


def is_too_rare(interval_s: float, lease_s: float) -> bool:
    """Whether leadership would be declared lost before the first renewal is sent."""
    return interval_s >= LOST_SHARE * lease_s
