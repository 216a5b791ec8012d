"""How long a lease is, and how often it is renewed: the one rule for all that take either.

What was not given follows from what was: a lease is three intervals, an interval is a third of the lease.
"""

from typing import NamedTuple

from pgleaderlock._checks import check_seconds
from pgleaderlock.backends.base import LOST_SHARE

__all__ = ["RENEWALS_PER_LEASE", "USUAL_INTERVAL_S", "LeaseTimes", "UsualInterval", "choose_times", "is_too_rare"]

RENEWALS_PER_LEASE = 3
"""How often a leader renews in a lease, unless an interval was given."""
_SHORTEST_DEFAULT_LEASE_S = 1.5


class UsualInterval(float):
    """The default of a signature: the specification wants 5.0 there, and a 5.0 that was given must not be replaced."""

    __slots__ = ()


USUAL_INTERVAL_S = UsualInterval(5.0)
"""How often a leader renews where neither the interval nor the lease was given."""


class LeaseTimes(NamedTuple):
    """A lease, and the interval between two renewals of it."""

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
    return LeaseTimes(lease_s, interval_s)


def is_too_rare(interval_s: float, lease_s: float) -> bool:
    """Whether leadership would be declared lost before the first renewal is sent."""
    return interval_s >= LOST_SHARE * lease_s
