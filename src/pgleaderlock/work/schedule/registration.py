"""``every`` and ``cron`` on a lock: how jobs are registered. What runs them is imported with the first job."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from pgleaderlock._base.durations import parse_duration
from pgleaderlock.work.schedule.policy import IfKilled, IfMissed, JobPolicy
from pgleaderlock.work.schedule.timetable import Every, Schedule

if TYPE_CHECKING:
    from pgleaderlock.work.schedule.scheduler import Scheduler

__all__ = ["JobOptions", "Scheduled"]

W = TypeVar("W", bound=Callable[..., Any])


class JobOptions(TypedDict, total=False):
    """How a job is run when things do not go as they should. All of them may be left out."""

    name: str
    """What the ledger knows the job by, in every process and for ever. By default the function's."""
    if_killed: IfKilled
    """A slot whose run was cut off half-way: ``leave`` it (the default) or ``repeat`` it."""
    if_missed: IfMissed
    """Slots that nobody ran in time: run the newest ``once`` (the default), or ``all``, or ``skip`` them."""
    max_attempts: int
    """How often a slot is run at most, with ``repeat``; 5 by default."""
    max_missed: int
    """How many missed slots are run, with ``all``, the newest; 100 by default."""
    grace: str | float
    """How late a slot may begin, with ``skip``; by default half the time to the next one, at most a minute."""
    keep_days: int
    """How long the ledger keeps what happened; 30 by default."""


class Scheduled:
    """Registration of scheduled jobs."""

    @functools.cached_property
    def _scheduler(self) -> "Scheduler":
        return self._make_scheduler()

    def _make_scheduler(self) -> "Scheduler":
        """Return what runs the jobs of this lock. Called when the first job is registered."""
        raise NotImplementedError

    @overload
    def every(self, interval: str | float, fn: W, **options: Unpack[JobOptions]) -> W: ...
    @overload
    def every(self, interval: str | float, **options: Unpack[JobOptions]) -> Callable[[W], W]: ...
    def every(self, interval: str | float, fn: W | None = None, **options: Unpack[JobOptions]) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at every multiple of the interval, in whichever process leads.

        "5m" is at :00, :05, :10 by the database's clock, in UTC. Each slot is claimed in a ledger before it is run, by
        one term only: a failover runs none twice and forgets none. Coroutine functions are cancelled when leadership
        ends, plain ones run in a thread and look at ``tick.is_ending``. One run of a job at a time.

            @lock.every("5m", if_killed="repeat")
            async def send_reminders(tick: Tick) -> None: ...

        What a function raises is recorded, and not repeated. The other options are those of :class:`JobOptions`. Needs
        ``term_table=True``.
        """
        return self._schedule(Every(interval), fn, options)

    @overload
    def cron(self, expression: str, fn: W, *, tz: str = "UTC", **options: Unpack[JobOptions]) -> W: ...
    @overload
    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[JobOptions]) -> Callable[[W], W]: ...
    def cron(
        self, expression: str, fn: W | None = None, *, tz: str = "UTC", **options: Unpack[JobOptions]
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at the times of a cron expression in a time zone; otherwise as :meth:`every`.

        ``@daily`` and its like are understood. What happens when clocks are changed:
        :mod:`pgleaderlock.work.schedule.cron`. Needs the extra ``cron``.
        """
        from pgleaderlock.work.schedule.cron import Cron  # noqa: PLC0415 - it needs an extra of its own

        return self._schedule(Cron(expression, tz), fn, options)

    def _schedule(self, schedule: Schedule, fn: W | None, options: JobOptions) -> W | Callable[[W], W]:
        policy = _policy_of(options)

        def register(work: W) -> W:
            self._scheduler.add(schedule, work, options.get("name"), policy)
            return work

        return register if fn is None else register(fn)


def _policy_of(options: JobOptions) -> JobPolicy:
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
