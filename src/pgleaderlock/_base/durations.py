"""Durations as people write them, ``"500ms"``, ``"5s"``, ``"1m30s"``, and as the library counts them, in seconds.

Each unit may appear once, from the largest to the smallest; blanks between them may help to read it (``"1h 30m"``). A
number without a unit counts seconds, as in Python. Texts and seconds are exact images of each other: what is shown
can be pasted into the file.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

_UNITS = {"h": Fraction(3600), "m": Fraction(60), "s": Fraction(1), "ms": Fraction(1, 1000)}
_FIGURE = r"(\d{1,10}(?:\.\d{1,20})?)"
_WRITTEN = re.compile("(?=.)" + "".join(f"(?:{_FIGURE}{unit})?" for unit in _UNITS), re.ASCII)
_PLAIN = re.compile(_FIGURE, re.ASCII)
_BETWEEN = re.compile(r"(?<=[hms]) +(?=\d)", re.ASCII)
_SHORTEST_S = 0.001  # PostgreSQL counts milliseconds
_LONGEST_S = 100 * 366 * 24 * 3600.0
_FORMS = 'must be a duration such as "500ms", "5s" or "1m30s", or a number of seconds'


def parse_duration(written: Any) -> float:
    """Return the seconds that a text or a number stands for: 0, or between a millisecond and a hundred years.

    Anything else is a ``ValueError`` that does not repeat what was written.
    """
    seconds = _seconds(written)
    if seconds != 0 and not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise ValueError("must be at least 1ms and at most a hundred years")
    return seconds


def _seconds(written: Any) -> float:
    if isinstance(written, str):
        return float(_sum_of_units(written))
    if isinstance(written, bool) or not isinstance(written, int | float) or not 0 <= written < math.inf:
        raise ValueError(_FORMS)
    return float(min(written, 10 * _LONGEST_S))  # float() of a huge int would be an error of another kind


def _sum_of_units(text: str) -> Fraction:
    if plain := _PLAIN.fullmatch(text):
        return Fraction(plain[1])
    match = _WRITTEN.fullmatch(_BETWEEN.sub("", text))
    if match is None:
        raise ValueError(_FORMS)
    figures = zip(match.groups(), _UNITS.values(), strict=True)
    return sum((Fraction(figure) * unit for figure, unit in figures if figure), Fraction(0))


def show_duration(seconds: float) -> str:
    """Return the text that :func:`parse_duration` makes the same number of."""
    if seconds == int(seconds):
        return _whole(int(seconds))
    in_ms = f"{round(seconds * 1000)}ms"
    if seconds < 1 and parse_duration(in_ms) == seconds:
        return in_ms
    return f"{Decimal(repr(float(seconds))):f}s"


def _whole(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    figures = zip((hours, rest // 60, rest % 60), "hms", strict=True)
    return "".join(f"{figure}{unit}" for figure, unit in figures if figure) or "0s"
