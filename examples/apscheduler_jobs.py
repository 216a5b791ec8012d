"""APScheduler in several processes, of which one runs the jobs.

PG_DSN=postgresql://... python examples/apscheduler_jobs.py
"""

import asyncio
import os
import signal

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from pgleaderlock import LeaderLock
from pgleaderlock.integrations.apscheduler import gate_scheduler

EVERY_S = 1


async def report() -> None:
    """Stands for what must not be done twice."""
    print(f"job in process {os.getpid()}", flush=True)


async def main() -> None:
    """Take part until told to stop."""
    lock = LeaderLock(os.environ["PG_DSN"], role="examples/apscheduler", health_interval_s=1.0)
    scheduler = AsyncIOScheduler()
    scheduler.add_job(report, IntervalTrigger(seconds=EVERY_S))
    gate_scheduler(lock, scheduler)

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with lock:
        print("taking part", flush=True)
        await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
