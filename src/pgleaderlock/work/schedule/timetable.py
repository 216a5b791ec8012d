"""When a job is due: slots, which are moments that every process computes alike.

A slot is named by its time, to the microsecond and in UTC, so that all processes agree on its name. Everything here is
pure: the caller passes the time in, and it comes from the database.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from pgleaderlock._base.checks import quoted
from pgleaderlock._base.durations import parse_duration, show_duration

__all__ = ["EARLY", "Every", "Schedule", "due_slots", "slot_meant"]

EARLY = timedelta(seconds=30)
"""How far the clock of a host may be ahead of the database's: see :func:`slot_meant`."""
_FARTHEST = timedelta(days=366 * 9)  # 29 February comes every four years, and once a century after eight
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(Protocol):
    """A sequence of slots."""

    @property
    def written(self) -> str:
        """The schedule as text, for the ledger."""
        ...

    @property
    def zone(self) -> tzinfo:
        """The time zone of the schedule."""
        ...

    def after(self, at: datetime) -> datetime:
        """Return the first slot that is later than this, in UTC."""
        ...


class Every:
    """Slots at whole multiples of an interval since 1970 in UTC: "5m" is at :00, :05, :10, wherever a process began."""

    zone: tzinfo = UTC

    def __init__(self, interval: str | float) -> None:
        try:
            seconds = parse_duration(interval)
        except ValueError as error:
            raise ValueError(f"the interval {error}, not {quoted(interval)}") from None
        if seconds == 0:
            raise ValueError(f"the interval must be longer than nothing, not {quoted(interval)}")
        self._interval = timedelta(seconds=seconds)
        self.written = f"every {show_duration(seconds)}"

    def after(self, at: datetime) -> datetime:
        """Return the next multiple."""
        return _EPOCH + ((at - _EPOCH) // self._interval + 1) * self._interval


def due_slots(schedule: Schedule, after: datetime, now: datetime, limit: int) -> tuple[list[datetime], bool]:
    """Return the slots in ``(after, now]``, the oldest first; of more than ``limit`` the newest, and True.

    A job of every second that was not run for a year has thirty million slots, which are never enumerated.
    """
    found = _some(_walk(schedule, after, now), limit + 1)
    if len(found) <= limit:
        return found, False
    window = found[-1] - after
    while len(newest := list(_walk(schedule, max(after, now - window), now))) < limit:
        window *= 2
    return newest[-limit:], True


def _walk(schedule: Schedule, after: datetime, now: datetime) -> Iterator[datetime]:
    slot = schedule.after(after)
    while slot <= now:
        yield slot
        slot = schedule.after(slot)


def _some(slots: Iterator[datetime], limit: int) -> list[datetime]:
    return [slot for slot, _ in zip(slots, range(limit), strict=False)]


def slot_meant(schedule: Schedule, now: datetime) -> datetime:
    """Return the slot that a process means which was started for a slot: the last one, or the next if it is near.

    A host whose clock is ahead starts early, by up to :data:`EARLY`, or a quarter of the time between the two slots if
    that is shorter. Any later start, of a host whose clock is behind or which is busy, means the slot before.
    """
    coming = schedule.after(now)
    window = timedelta(minutes=1)
    while not (found := due_slots(schedule, now - window, now, 1)[0]):
        if window > _FARTHEST:
            return coming
        window *= 2
    last = found[-1]
    return coming if coming - now <= min(EARLY, (coming - last) / 4) else last
