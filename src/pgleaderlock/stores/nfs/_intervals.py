"""Lifetimes and time-outs as callers give them: seconds, whole or fractional, or a timedelta."""

from datetime import timedelta

from pgleaderlock._base.checks import check_seconds

SHORTEST_S = 0.001  # a file operation takes longer than less than that, so the lock could never be acquired
LONGEST_S = 100 * 365.25 * 86400

Interval = timedelta | float
"""Seconds, or a timedelta."""


def seconds(name: str, interval: Interval, *, zero_ok: bool = False) -> float:
    """Return the seconds; ValueError or TypeError when it is not a duration."""
    value = interval.total_seconds() if isinstance(interval, timedelta) else interval
    return check_seconds(name, value, zero_ok=zero_ok)


def check_lifetime(name: str, interval: Interval) -> float:
    """Return the seconds; ValueError or TypeError when the lifetime is too long, too short, or no duration."""
    lifetime_s = seconds(name, interval)
    if not SHORTEST_S <= lifetime_s <= LONGEST_S:
        raise ValueError(f"{name} must be between a millisecond and a hundred years, got {lifetime_s:g} s")
    return lifetime_s
