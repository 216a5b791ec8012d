"""The options of a scheduled job, as users give them."""

from typing import Any, TypedDict

from pgleaderlock._base.durations import parse_duration
from pgleaderlock.work.schedule.policy import IfKilled, IfMissed, JobPolicy

__all__ = ["JobOptions", "policy_of"]


class JobOptions(TypedDict, total=False):
    """The name of a job, and what becomes of slots that were missed or cut off. All of them may be left out."""

    name: str
    """The name of the job in the ledger, the same in every process and for ever. By default the function's."""
    if_killed: IfKilled
    """A slot whose run was cut off half-way: ``leave`` it (the default) or ``repeat`` it."""
    if_missed: IfMissed
    """Slots that were not run in time: run the newest ``once`` (the default), or ``all``, or ``skip`` them."""
    max_attempts: int
    """How often a slot is run at most, with ``repeat``; 5 by default."""
    max_missed: int
    """How many missed slots are run, with ``all``, the newest; 100 by default."""
    grace: str | float
    """How late a slot may begin, with ``skip``; by default half the time to the next one, at most a minute."""
    keep_days: int
    """How long the ledger keeps what happened; 30 by default."""


def policy_of(options: JobOptions) -> JobPolicy:
    """Check the options of a job. TypeError names an unknown one, ValueError a value out of range."""
    if unknown := set(options) - set(JobOptions.__annotations__):
        raise TypeError(
            f"unknown option {', '.join(sorted(unknown))}: there are {', '.join(JobOptions.__annotations__)}"
        )
    settings: dict[str, Any] = {name: value for name, value in options.items() if name not in {"name", "grace"}}
    return JobPolicy(grace_s=_grace_s(options.get("grace")), **settings)


def _grace_s(grace: str | float | None) -> float | None:
    try:
        return None if grace is None else parse_duration(grace)
    except ValueError as error:
        raise ValueError(f"grace {error}") from None
