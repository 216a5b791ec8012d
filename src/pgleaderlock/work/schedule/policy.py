"""The decision about slots that have come: which one is run, and which are recorded as skipped. Pure.

A slot is *missed* when there was no leader at its time, the database did not answer, or the run before it took too
long. One plan covers all slots up to the one that it runs: so each slot is either run or recorded as skipped.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from pgleaderlock._base.checks import check_int, check_seconds
from pgleaderlock.work.schedule.timetable import Schedule, due_slots

__all__ = ["IfKilled", "IfMissed", "JobPolicy", "Plan", "make_plan"]

IfKilled = Literal["leave", "repeat"]
"""What a successor does with a slot whose run ended with its process or its leadership."""
IfMissed = Literal["once", "all", "skip"]
"""What a leader does with slots that were not run in time."""

_MOST_MISSED = 1000
_ONE_BY_ONE = _MOST_MISSED + 1  # so many slots have a row of their own; those before them share one
_LONGEST_GRACE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """What one job does about slots that were missed or killed."""

    if_killed: IfKilled = "leave"
    if_missed: IfMissed = "once"
    max_attempts: int = 5
    """How often a slot is run at most: a run that kills its process would kill every successor's, too."""
    max_missed: int = 100
    """With ``all``: how many missed slots are run; those before them are skipped."""
    grace_s: float | None = None
    """With ``skip``: how late a slot may begin; by default half the time to the next one, at most a minute."""
    keep_days: int = 30
    """How long the ledger keeps its records."""

    def __post_init__(self) -> None:
        for name, kind in (("if_killed", IfKilled), ("if_missed", IfMissed)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
        check_int("max_attempts", self.max_attempts, 1, 1_000_000)
        check_int("max_missed", self.max_missed, 1, _MOST_MISSED)
        check_int("keep_days", self.keep_days, 1, 36_500)
        if self.grace_s is not None:
            check_seconds("grace_s", self.grace_s, zero_ok=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record about the slots that have come, in one statement."""

    run: datetime | None
    """The slot to claim, and to run."""
    skipped: tuple[datetime, ...]
    skipped_from: datetime | None
    """Set if there were more than ``skipped`` has: the first of them stands for all since this time."""
    through: datetime
    """With this plan every slot up to here is run or recorded."""


def make_plan(schedule: Schedule, policy: JobPolicy, after: datetime, now: datetime) -> Plan | None:
    """Return the plan for the slots after ``after``; None if none has come."""
    slots, is_cut = due_slots(schedule, after, now, _ONE_BY_ONE)
    if not slots:
        return None
    number_run = policy.max_missed if policy.if_missed == "all" else 1
    skipped, kept = slots[:-number_run], slots[-number_run:]
    run = kept[0]
    if policy.if_missed == "skip" and now - run > _grace(schedule, policy, run):
        return Plan(None, tuple(slots), after if is_cut else None, run)
    return Plan(run, tuple(skipped), after if is_cut else None, run)


def _grace(schedule: Schedule, policy: JobPolicy, slot: datetime) -> timedelta:
    if policy.grace_s is not None:
        return timedelta(seconds=policy.grace_s)
    return min(_LONGEST_GRACE, (schedule.after(slot) - slot) / 2)
