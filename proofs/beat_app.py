"""The Celery application of the beat torture: one tick per slot of the wall clock, and a journal that outlives kill -9.

A process that is a beat writes a stamped line every few milliseconds for as long as it is alive, from the moment on in
which it imports this.
"""

import os
import sys
import threading
import time
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, signals
from celery.schedules import BaseSchedule, schedstate

SLOT_S = float(os.environ.get("SLOT_S", "5"))
_JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND) if "JOURNAL" in os.environ else None

app = Celery("beat_app", broker=os.environ.get("BROKER", "memory://"))


class Slots(BaseSchedule):  # type: ignore[misc] # Celery has no types
    """Due at each multiple of so many seconds, whenever beat was started."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(seconds=(last_run_at.timestamp() // SLOT_S + 1) * SLOT_S - time.time())

    def is_due(self, last_run_at: datetime) -> Any:
        left_s = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(left_s <= 0, SLOT_S - time.time() % SLOT_S if left_s <= 0 else left_s)

    def __reduce__(self) -> Any:
        return type(self), ()


app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": Slots()}}
app.conf.task_ignore_result = True


def _note(what: str) -> None:
    if _JOURNAL is not None:
        line = f"{time.clock_gettime(time.CLOCK_BOOTTIME):.6f} {os.getpid()} {what} {time.time():.6f}\n"
        os.write(_JOURNAL, line.encode())


def _live() -> None:
    _note("begin")
    while True:
        time.sleep(0.005)
        _note("beat")


@signals.after_task_publish.connect  # type: ignore[untyped-decorator] # celery ships no types
def _sent(**_: object) -> None:
    _note("sent")


if "beat" in sys.argv:
    threading.Thread(target=_live, daemon=True).start()
