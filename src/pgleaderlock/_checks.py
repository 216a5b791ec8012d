"""Checks of arguments, shared by every constructor so that wrong values fail alike and early.

``True`` is an ``int`` and NaN is a ``float`` in Python; neither is ever a sensible key or duration, so both are
refused here, by name, before anything runs.
"""

import math
from typing import Any

__all__ = ["check_callable", "check_flag", "check_int", "check_number", "check_seconds"]

_PRINTABLE_BITS = 256


def check_int(name: str, value: Any, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number in ``low..high``; say what is wrong otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        # A number of thousands of digits cannot be printed, and the attempt would raise an error of its own.
        got = str(value) if value.bit_length() <= _PRINTABLE_BITS else f"a number of {value.bit_length()} bits"
        raise ValueError(f"{name} must be between {low} and {high}, got {got}")
    return value


def check_number(name: str, value: Any, what: str = "a number") -> float:
    """Return ``value`` as a finite float; say what is wrong otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {what}, not {type(value).__name__}")
    # float() of a huge int raises OverflowError, which would name neither the argument nor the cause.
    if isinstance(value, int) and abs(value) > 10**15:  # in seconds, thirty million years
        raise ValueError(f"{name} is too large to be {what}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def check_seconds(name: str, value: Any, *, zero_ok: bool = False) -> float:
    """Return ``value`` as a finite positive number of seconds; say what is wrong otherwise."""
    seconds = check_number(name, value, "a number of seconds")
    if seconds < 0 or (seconds == 0 and not zero_ok):
        wanted = "zero or more" if zero_ok else "greater than zero"
        raise ValueError(f"{name} must be {wanted}, got {value}")
    return seconds


def check_flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is a bool; a string "false" would be true otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called, at registration instead of at the first event."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
