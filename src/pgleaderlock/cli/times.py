"""Times and durations: printing them for people and programs, and parsing ``--since``."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from pgleaderlock._base.checks import quoted

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = frozenset({"at", "since", "until", "lease_until", "slot", "skipped_from"})
_TOLERANCE_S = 60.0  # of a time that a script took from its own host's clock
SINCE_FORMS = "a span (30s, 15m, 1h, 7d) or a time (2026-11-15T10:00, in UTC, or with its zone: 2026-11-15T10:00+01:00)"


def iso(at: float | None) -> str | None:
    """Return a time of the database as ISO 8601, in UTC and with milliseconds."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # PostgreSQL has more years than Python
        return f"{at:g} s after 1970"


def fields_of(record: object, *names: str) -> dict[str, Any]:
    """Return these attributes for JSON, times of the database as ISO 8601."""
    values = ((name, getattr(record, name)) for name in names)
    return {name: iso(value) if name in _TIMES or name.endswith("_at") else value for name, value in values}


def duration(seconds: float) -> str:
    """Return a duration for people, with two units at most."""
    if not math.isfinite(seconds):  # a time in PostgreSQL can be infinite
        return f"{seconds} s"
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 10:  # noqa: PLR2004 - two digits are enough
        return f"{seconds:.1f} s"
    minutes, left_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left_s} s" if minutes else f"{left_s} s"


@dataclass(frozen=True, slots=True)
class Since:
    """The value of ``--since``: seconds ago, or a time; with neither, the beginning of the history."""

    ago_s: float | None = None
    at: float | None = None

    def resolve(self, now: float) -> float:
        """Return it in seconds of the epoch, by the database's clock; a time in the future is wrong usage."""
        if self.ago_s is not None:
            return max(0.0, now - self.ago_s)
        if self.at is not None and self.at > now + _TOLERANCE_S:
            raise click.UsageError(f"--since is in the future: it is {iso(now)} by the database's clock.")
        return max(0.0, self.at or 0.0)


def parse_since(text: str) -> Since:
    """Parse either form; a ValueError shows both forms."""
    if (span := _SPAN.fullmatch(text.strip())) is not None:
        return Since(ago_s=float(span[1]) * _SECONDS[span[2]])
    try:
        at = datetime.fromisoformat(text.strip())
        return Since(at=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ValueError(f"{quoted(text)} is neither a span nor a time: write {SINCE_FORMS}.") from None
