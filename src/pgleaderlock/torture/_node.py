"""A node under torture, as a process: ``python -m pgleaderlock.torture._node '{"dsn": ...}'``.

It stands for one role and writes two logs of its own, which outlive it: what it believes, sampled
(:mod:`pgleaderlock.torture._belief`), and what its election told, one JSON object per line. Its event loop is busy, as
an application's is: it does not read the news at once.

The password, if there is one, comes in ``$PGPASSWORD``: arguments can be read by everybody on the machine. It ends when
its stdin does: whoever started it holds the other end, and the kernel closes it if that one is killed.
"""

import asyncio
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Literal

from pgleaderlock.clock import suspend_aware_clock as clock
from pgleaderlock.demo._node import say, until_stdin_ends
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.retry import FixedInterval
from pgleaderlock.torture._belief import pause, sample_forever

__all__ = ["be_busy", "main"]

_SHUTDOWN_S = 1.5
_BUSY_S = 0.005
_SILENT = frozenset({EventKind.RENEWED, EventKind.STATE_CHANGE, EventKind.ACQUIRE_FAILED})


def _write_event(file: int, event: Event) -> None:
    """Write one event as one line in one piece, which is the kernel's from then on."""
    if event.kind in _SILENT:
        if event.kind is EventKind.ACQUIRE_FAILED:
            say("in_line")
        return
    record = {
        "at": clock(),
        "event": event.kind.value,
        "token": event.token,
        "cause": None if event.loss is None else event.loss.value,
        "detail": None if event.error is None else str(event.error),
    }
    os.write(file, (json.dumps(record) + "\n").encode())
    if event.kind is EventKind.ACQUIRED:
        say("leads")


def _watch(lock: LeaderLock, beliefs: Path) -> None:
    """Sample for ever. A node of which nothing is known must not be taken for one that believes nothing."""
    try:
        sample_forever(lambda: lock.token, beliefs, clock)
    except BaseException:  # noqa: BLE001 - whatever it was
        traceback.print_exc()
        os._exit(1)


async def be_busy() -> None:
    """Keep the event loop from its news for a few milliseconds at a time, for ever."""
    while True:
        pause(_BUSY_S)
        await asyncio.sleep(_BUSY_S)


async def main(
    *, dsn: str, role: str, lease_s: float, takeover: Literal["fast", "strict"], schema: str, beliefs: str, events: str
) -> None:
    """Take part until stdin ends."""
    lock = LeaderLock(
        dsn,
        role=role,
        lease_s=lease_s,
        health_interval_s=lease_s / 3,
        retry_strategy=FixedInterval(min(0.5, lease_s / 3)),
        takeover=takeover,
        term_table=takeover == "strict",
        schema=schema,
    )
    file = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lock.subscribe(lambda event: _write_event(file, event))
    threading.Thread(target=_watch, args=(lock, Path(beliefs)), daemon=True).start()
    await lock.start()
    busy = asyncio.ensure_future(be_busy())
    await until_stdin_ends()
    busy.cancel()
    await lock.shutdown(_SHUTDOWN_S)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
