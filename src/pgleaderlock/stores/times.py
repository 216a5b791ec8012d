"""The times of a lease for all stores: its duration, the interval of renewals, and the pauses between retries.

A value that the caller did not give follows from the one that it gave: a lease is three intervals, an interval is a
third of the lease. A given interval is used, counted from when the last renewal was sent, as long as it leaves time to
retry a failed renewal: leadership is declared lost after two thirds of the lease, so a renewal is sent after 0.6 of it
at the latest, and earlier where answers take long. One failure never ends a term: the time limit of the first attempt
leaves time for another, and the pauses shrink with the time that is left.
"""

from typing import NamedTuple

from pgleaderlock._base.checks import check_seconds
from pgleaderlock.stores.base import LOST_SHARE

__all__ = [
    "RENEWALS_PER_LEASE",
    "SOON_SHARE",
    "USUAL_INTERVAL_S",
    "USUAL_LEASE_S",
    "LeaseTimes",
    "UsualInterval",
    "answer_bound_s",
    "choose_times",
    "effective_interval_s",
    "first_answer_s",
    "is_too_rare",
    "retry_pause_s",
    "too_rare",
    "until_renewal_s",
]

RENEWALS_PER_LEASE = 3
"""How often a leader renews in a lease, unless an interval was given."""
SOON_SHARE = 0.05
"""A part of a lease: if a renewal is answered so late that no more is left, no other can follow it."""
_SHORTEST_DEFAULT_LEASE_S = 1.5
_RENEWED_BY = 0.6
"""The part of a lease after which a renewal is sent at the latest."""


class UsualInterval(float):
    """The default value 5.0 of the specification, of a type of its own: a 5.0 that the caller gave is not replaced."""

    __slots__ = ()


USUAL_INTERVAL_S = UsualInterval(5.0)
"""How often a leader renews where neither the interval nor the lease was given."""
USUAL_LEASE_S = RENEWALS_PER_LEASE * float(USUAL_INTERVAL_S)
"""The lease duration where neither was given."""


class LeaseTimes(NamedTuple):
    """The lease duration, and the effective interval between two renewals."""

    lease_s: float
    health_interval_s: float


def choose_times(lease_s: float | None, health_interval_s: float = USUAL_INTERVAL_S) -> LeaseTimes:
    """Return both times; ValueError for an interval after which leadership is lost before the first renewal."""
    interval_s = check_seconds("health_interval_s", health_interval_s)
    if lease_s is None:
        return LeaseTimes(max(RENEWALS_PER_LEASE * interval_s, _SHORTEST_DEFAULT_LEASE_S), interval_s)
    check_seconds("lease_s", lease_s)
    if isinstance(health_interval_s, UsualInterval):
        return LeaseTimes(lease_s, lease_s / RENEWALS_PER_LEASE)
    if is_too_rare(interval_s, lease_s):
        raise ValueError(too_rare(f"health_interval_s={interval_s:g}", f"lease_s={lease_s:g}"))
    return LeaseTimes(lease_s, effective_interval_s(interval_s, lease_s))


def effective_interval_s(interval_s: float, lease_s: float | None) -> float:
    """Return the effective interval between renewals for a given one; ``lease_s`` None: the lock never expires."""
    return interval_s if lease_s is None else min(interval_s, _RENEWED_BY * lease_s)


def until_renewal_s(interval_s: float, left_s: float, lease_s: float | None) -> float:
    """Return the seconds from an answered renewal to the next; ``left_s`` is the time until the loss is declared.

    It leaves the next renewal, and a retry of it, as much time as the last answer took.
    """
    if lease_s is None:
        return min(interval_s, max(0.0, left_s / 2))
    took_s = max(0.0, LOST_SHARE * lease_s - left_s)
    return max(0.0, min(effective_interval_s(interval_s, lease_s) - took_s, left_s - 2 * took_s))


def answer_bound_s(lease_s: float) -> float:
    """Return how long to wait for any answer of a store: a later one comes after leadership was declared lost."""
    return LOST_SHARE * lease_s


def first_answer_s(left_s: float, lease_s: float) -> float:
    """Return how long to wait for the answer to the first attempt of a renewal, so that another can follow."""
    return left_s - min(left_s / 2, lease_s / 12)


def retry_pause_s(left_s: float, lease_s: float) -> float:
    """Return the seconds from the beginning of a failed attempt to the beginning of the next."""
    return max(lease_s / 200, min(lease_s / 15, left_s / 3))


def is_too_rare(interval_s: float, lease_s: float) -> bool:
    """Whether leadership would be declared lost before the first renewal is sent."""
    return interval_s >= LOST_SHARE * lease_s


def too_rare(interval: str, lease: str) -> str:
    """Return the error for such an interval. Both are given with their names, as the caller knows them."""
    return f"{interval} must be less than two thirds of {lease}: leadership would be lost before the first renewal"
