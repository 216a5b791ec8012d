"""Slots by a cron expression in a time zone, also when its clocks are changed.

The expression names times of the wall clock. Twice a year, in many zones, some of those do not exist, and some exist
twice. What happens then:

- An expression that names certain hours (``30 2 * * *``) has each of its times **once**. A time that does not exist is
  at the moment to which the clocks were put forward (2:30 is at 3:00, when 2:00 became 3:00); several such times are
  one slot. Of a time that comes twice, the first counts.
- An expression for every hour (``*/5 * * * *``) means time that passes: it is due all through the hour that comes
  twice, and nothing is made up for the hour that does not come.

The parsing and the walk from one match to the next are cronsim's (the extra ``cron``).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pgleaderlock._base.checks import quoted
from pgleaderlock.errors import MissingExtra

if TYPE_CHECKING:
    from cronsim import CronSim

__all__ = ["Cron"]

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ALL_HOURS = set(range(24))
_MINUTE = timedelta(minutes=1)


class Cron:
    """Slots at the times that a cron expression of five fields, or of six that begin with seconds, names."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        if not isinstance(expression, str):
            raise TypeError(f"a cron expression must be a str, not {type(expression).__name__}")
        self._expression = _ALIASES.get(expression.strip().lower(), expression)
        self.zone: tzinfo = _find_zone(tz)
        self.written = f"cron {' '.join(expression.split())}" + ("" if tz == "UTC" else f" {tz}")
        self._by_wall_clock = self._simulate(datetime(2000, 1, 1)).hours != _ALL_HOURS  # noqa: DTZ001 - a wall clock's
        self._check_it_ever_comes()

    def after(self, at: datetime) -> datetime:
        """Return the next match in UTC, with the rules above where clocks are changed."""
        return next(slot for slot in self._slots(at.astimezone(self.zone)) if slot > at)

    def _slots(self, local: datetime) -> Iterator[datetime]:
        if not self._by_wall_clock:
            yield from (slot.astimezone(UTC) for slot in self._simulate(local))
            return
        for wall in self._simulate(local.replace(tzinfo=None)):
            yield _real(wall, self.zone)

    def _simulate(self, start: datetime) -> "CronSim":
        try:
            from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra, needed by no other schedule
        except ImportError as error:
            raise MissingExtra('cron() needs the package cronsim: pip install "pgleaderlock[cron]"') from error
        try:
            # With six fields cronsim leaves a zone's clocks alone. What it does to five, we do to all of them.
            parts = self._expression.split()
            return CronSim(" ".join(["0", *parts] if len(parts) == 5 else parts), start)  # noqa: PLR2004 - see above
        except CronSimError as error:
            raise ValueError(f"{quoted(self._expression)} is not a cron expression: {error}. {_FORMS}") from None
        except ValueError:  # a number of thousands of digits
            raise ValueError(f"{quoted(self._expression)} is not a cron expression: a number is too long") from None

    def _check_it_ever_comes(self) -> None:
        try:
            self.after(datetime.now(UTC))
        except StopIteration:  # which is what a next() makes of fifty years without a match
            raise ValueError(f"the cron expression {quoted(self._expression)} names a time that never comes") from None


_FORMS = 'Write "minute hour day month weekday", as "*/5 * * * *", or ' + ", ".join(_ALIASES)


def _find_zone(name: str) -> tzinfo:
    if name == "UTC":  # also on systems without a data base of time zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise ValueError(
            f"tz {quoted(name)} is not a time zone that this system knows: write it as Europe/Berlin; on a system "
            "without a data base of time zones, install the package tzdata"
        ) from None


def _real(wall: datetime, zone: tzinfo) -> datetime:
    """Return when a wall clock shows this for the first time; if it never does, when it is put forward past it."""
    real = wall.replace(tzinfo=zone).astimezone(UTC)
    if real.astimezone(zone).replace(tzinfo=None) == wall:
        return real
    # In a gap, what the offset before it makes of the wall clock's time lies after the gap, by as much as it was into
    # it. Gaps begin and end with a minute.
    into = wall.replace(second=0, microsecond=0)
    while (earlier := into - _MINUTE).replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(
        tzinfo=None
    ) != earlier:
        into = earlier
    return into.replace(tzinfo=zone).astimezone(UTC)
