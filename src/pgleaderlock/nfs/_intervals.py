"""Lifetimes and time-outs, as users of such locks give them: seconds, whole or not, or a timedelta."""

from datetime import timedelta

from pgleaderlock._checks import check_seconds

__all__ = ["Interval", "seconds"]

Interval = timedelta | float
"""Seconds, or a timedelta."""


def seconds(name: str, interval: Interval, *, zero_ok: bool = False) -> float:
    """Return the seconds; ValueError or TypeError when it is not a duration."""
    value = interval.total_seconds() if isinstance(interval, timedelta) else interval
    return check_seconds(name, value, zero_ok=zero_ok)
