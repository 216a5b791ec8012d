"""APScheduler 3.x: a scheduler that runs its jobs on the leader, and is paused elsewhere.

    scheduler = AsyncIOScheduler()  # or BackgroundScheduler
    scheduler.add_job(report, "cron", minute=0)
    gate_scheduler(lock, scheduler)

It is started with the first term, resumed with each later one, and paused at the end of each. The lock is kept until
jobs under way have ended, for as long as leadership can be trusted; what runs longer is an overrun (``on_overrun``).
What fell due while paused is missed, as far as the job's ``misfire_grace_time`` says so (one second by default).

Needs ``pgleaderlock[apscheduler]``. Shutting the scheduler down is up to the code that made it.

Not promised: an end of jobs under way. APScheduler cannot cancel one; let it ask ``lock.term``.
"""

import asyncio
from typing import Any

from pgleaderlock.engine.election import Election
from pgleaderlock.engine.functions import to_the_end
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import MissingExtra

try:
    from apscheduler.schedulers.base import STATE_STOPPED, BaseScheduler
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"gate_scheduler() needs the package {error.name}: pip install 'pgleaderlock[apscheduler]'"
    ) from error

__all__ = ["SchedulerService", "gate_scheduler"]

_LOOK_AGAIN_S = 0.02


class SchedulerService:
    """A scheduler as a service, for :class:`~pgleaderlock.work.services.LeaderServices`."""

    def __init__(self, scheduler: BaseScheduler) -> None:
        if not isinstance(scheduler, BaseScheduler):
            raise TypeError(f"scheduler must be one of APScheduler 3.x, not {type(scheduler).__name__}")
        self._scheduler: Any = scheduler

    async def start(self) -> None:
        """Start it, or resume it. On the event loop, where an AsyncIOScheduler has to be started."""
        if self._scheduler.state == STATE_STOPPED:
            self._scheduler.start()
        else:
            self._scheduler.resume()

    async def stop(self) -> None:
        """Pause it, and return when no job runs any more."""
        if self._scheduler.state == STATE_STOPPED:
            return
        self._scheduler.pause()
        # A scheduler's thread that looked just before we paused submits what is due, and is given time to.
        await asyncio.sleep(_LOOK_AGAIN_S)
        while self._is_busy():  # noqa: ASYNC110 - it has no event that comes in time
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _is_busy(self) -> bool:
        """Whether jobs are being submitted, or run. Its events tell too late: after a job was submitted."""
        lock = self._scheduler._jobstores_lock  # noqa: SLF001 - 3.x is finished: its inside does not change any more
        if not lock.acquire(blocking=False):
            return True
        try:
            executors = list(self._scheduler._executors.values())  # noqa: SLF001
            return any(executor._instances for executor in executors)  # noqa: SLF001
        finally:
            lock.release()


def gate_scheduler(lock: Election, scheduler: BaseScheduler, *, name: str = "apscheduler") -> None:
    """Let this scheduler run its jobs while ``lock`` leads. To be called once, before or after the lock is started."""
    service = SchedulerService(scheduler)

    @lock.while_leader(name=name, drains=True)
    async def run(term: Term) -> None:
        try:
            await service.start()
            await term.wait_until_ending()
        finally:
            await to_the_end(service.stop())
