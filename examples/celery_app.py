"""A Celery application with a beat, of which one is alive however many were started.

Without a change to any code, under `exec`, on as many hosts as you like:

    pgleaderlock exec --role beat --restart -- celery -A celery_app beat --schedule /var/lib/myapp/beat

Or with the beat in a program of your own, which is what this file is when it is run:

    PG_DSN=postgresql://... BROKER=redis://localhost python examples/celery_app.py
"""

import asyncio
import os
import signal

from celery import Celery, signals

from pgleaderlock import LeaderLock
from pgleaderlock.integrations.celery import gate_beat

app = Celery("celery_app", broker=os.environ.get("BROKER", "redis://localhost"))
app.conf.beat_schedule = {"tick": {"task": "celery_app.tick", "schedule": 1.0}}


@app.task(name="celery_app.tick", ignore_result=True)  # type: ignore[untyped-decorator] # Celery has no types
def tick() -> None:
    """Stands for what must be sent once."""


@signals.before_task_publish.connect  # type: ignore[untyped-decorator]
def say(sender: str | None = None, **_: object) -> None:
    """Show what beat sends."""
    print(f"process {os.getpid()} sends {sender}", flush=True)


async def main() -> None:
    """Beat while leading, until told to stop."""
    lock = LeaderLock(os.environ["PG_DSN"], role="examples/celery", health_interval_s=1.0)
    gate_beat(lock, app, schedule_file=os.environ.get("SCHEDULE_FILE"))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with lock:
        print("taking part", flush=True)
        await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
