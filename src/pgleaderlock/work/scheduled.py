"""``every``, ``cron`` and ``once`` of a lock.

:mod:`~pgleaderlock.work.schedule`, which runs the jobs, is imported by the first job: most locks have none.
"""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.postgres._connector import ConnectFn
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn

if TYPE_CHECKING:
    from pgleaderlock.work.schedule.once import Once, OnceOptions, SlotOf
    from pgleaderlock.work.schedule.policy import IfKilled
    from pgleaderlock.work.schedule.registration import JobOptions
    from pgleaderlock.work.schedule.scheduler import Scheduler
    from pgleaderlock.work.schedule.timetable import Schedule

__all__ = ["Scheduled"]

W = TypeVar("W", bound=Callable[..., Any])


class Scheduled:
    """Registration of scheduled jobs."""

    _leader_tasks: LeaderTasks
    _key: LockKey
    _lease: Lease
    _dsn: Dsn
    _connect_fn: ConnectFn | None

    @overload
    def every(self, interval: str | float, fn: W, **options: "Unpack[JobOptions]") -> W: ...
    @overload
    def every(self, interval: str | float, **options: "Unpack[JobOptions]") -> Callable[[W], W]: ...
    def every(
        self, interval: str | float, fn: W | None = None, **options: "Unpack[JobOptions]"
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at every multiple of the interval, in the process that leads.

        "5m" is at :00, :05, :10 by the database's clock, in UTC. Each slot is claimed in a ledger before it is run, by
        one term only: a failover runs none twice and forgets none. Coroutine functions are cancelled when leadership
        ends, plain ones run in a thread and check ``tick.is_ending``. One run of a job at a time.

            @lock.every("5m", if_killed="repeat")
            async def send_reminders(tick: Tick) -> None: ...

        What a function raises is recorded, and not repeated. The other options are those of :class:`JobOptions`. Needs
        ``term_table=True``.
        """
        from pgleaderlock.work.schedule.timetable import Every  # noqa: PLC0415 - most locks have no jobs

        return self._schedule(Every(interval), fn, options)

    @overload
    def cron(self, expression: str, fn: W, *, tz: str = "UTC", **options: "Unpack[JobOptions]") -> W: ...
    @overload
    def cron(self, expression: str, *, tz: str = "UTC", **options: "Unpack[JobOptions]") -> Callable[[W], W]: ...
    def cron(
        self, expression: str, fn: W | None = None, *, tz: str = "UTC", **options: "Unpack[JobOptions]"
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at the times of a cron expression in a time zone; otherwise as :meth:`every`.

        ``@daily`` and its like are understood. What happens when clocks are changed:
        :mod:`pgleaderlock.work.schedule.cron`. Needs the extra ``cron``.
        """
        from pgleaderlock.work.schedule.cron import Cron  # noqa: PLC0415 - it needs an extra of its own

        return self._schedule(Cron(expression, tz), fn, options)

    def once(
        self,
        name: str,
        slot: datetime,
        *,
        if_killed: "IfKilled" = "leave",
        max_attempts: int = 5,
        keep_days: int = 30,
    ) -> "Once":
        """Let one of all processes that ask for this slot run it. None of them has to lead, or to take part.

            async with lock.once("report", slot) as mine:
                if mine:
                    await make_report()

        The slot is a time with a zone that all processes compute alike, such as the full hour. Of the processes that
        enter the block with the same lock, name and slot, ``mine`` is true in one. In the others it says which process
        has the slot and in what state (:class:`~pgleaderlock.work.schedule.once.SlotClaim`); they do not wait.

        **At most once** by default: a slot whose process died in the block, or whose block raised an error, is not run
        again. The next process that asks finds it ``killed``, or ``failed``. With ``if_killed="repeat"`` the next one
        that asks runs a slot that was cut off again, up to ``max_attempts`` times: **at least once**, if a process
        asks after that. A slot counts as cut off when the session of its run has ended; a process that lost only its
        session may then still be in its block. An error is not repeated.

        The end of a run removes slots of this job that are older than ``keep_days``. From then on no slot of that age
        can be claimed (LockError), because it is not known any more whether it was run: none is run a second time.
        Makes the tables of the schema if they are missing; needs no ``term_table``. ConnectionError if the database
        does not answer: then nothing is run. The name must not be that of a job of :meth:`every`.
        """
        from pgleaderlock.work.schedule.once import OnceOptions  # noqa: PLC0415 - most locks have no jobs

        return self._once(name, slot, OnceOptions(if_killed, max_attempts, keep_days))

    def _once(self, name: str, slot: "datetime | SlotOf", options: "OnceOptions", schedule: str = "once") -> "Once":
        from pgleaderlock.work.schedule.once import Once  # noqa: PLC0415 - most locks have no jobs

        return Once(
            self._key, self._lease, name, slot, options, dsn=self._dsn, connect_fn=self._connect_fn, schedule=schedule
        )

    def _schedule(self, schedule: "Schedule", fn: W | None, options: "JobOptions") -> W | Callable[[W], W]:
        from pgleaderlock.work.schedule.registration import policy_of  # noqa: PLC0415 - most locks have no jobs

        policy = policy_of(options)

        def register(work: W) -> W:
            self._scheduler.add(schedule, work, options.get("name"), policy)
            return work

        return register if fn is None else register(fn)

    @functools.cached_property
    def _scheduler(self) -> "Scheduler":
        from pgleaderlock.work.schedule.scheduler import Scheduler  # noqa: PLC0415 - most locks have no jobs

        return Scheduler(self._leader_tasks, self._key, self._lease, dsn=self._dsn, connect_fn=self._connect_fn)
