"""A node under torture, as a process: ``python -m pgleaderlock.testing.torture._node '{"role": ...}'``.

It is a candidate for one role and writes two logs of its own, which outlive it: the times in which it claims to lead,
sampled (:mod:`pgleaderlock.testing.torture._claim`), and the events of its election, one JSON object per line. Its
event loop is busy, as an application's is: it does not read from its sockets at once.

The connection string comes in the environment, and the password in ``$PGPASSWORD``: every user of the machine can read
arguments, and a password is not the only secret that such a string may hold. The node ends when its stdin does: the
parent process holds the other end, and the kernel closes it if the parent is killed.
"""

import asyncio
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Literal

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.retry import FixedInterval
from pgleaderlock.testing.demo._node import say, until_stdin_ends
from pgleaderlock.testing.torture._claim import pause, sample_forever

__all__ = ["DSN_VARIABLE", "be_busy", "main"]

DSN_VARIABLE = "PGLEADERLOCK_TORTURE_DSN"
"""The environment variable with the connection string."""

_SHUTDOWN_S = 1.5
_BUSY_S = 0.005
_TAKING_PART = frozenset({EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED})
_SILENT = frozenset({EventKind.RENEWED, EventKind.STATE_CHANGE, EventKind.ACQUIRE_FAILED})


class _EventLog:
    """Writes each event as one line with one write(2), so that it survives a kill of the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_ready = False

    def on_event(self, event: Event) -> None:
        if event.kind in _TAKING_PART and not self._is_ready:  # it leads, or was refused and is queued
            self._is_ready = True
            self._write(event="ready")
            say("ready")
        if event.kind not in _SILENT:
            self._write(
                event=event.kind.value,
                token=event.token,
                cause=None if event.loss is None else event.loss.value,
                detail=None if event.error is None else str(event.error),
            )

    def _write(self, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"at": clock(), **facts}) + "\n").encode())


def _watch(lock: LeaderLock, claims: Path) -> None:
    """Sample for ever, and end the process on failure: an unsampled node would look like one that never leads."""
    try:
        sample_forever(lambda: lock.token, claims, clock)
    except BaseException:  # noqa: BLE001 - any failure ends the node
        traceback.print_exc()
        os._exit(1)


async def be_busy() -> None:
    """Block the event loop for a few milliseconds at a time, for ever."""
    while True:
        pause(_BUSY_S)
        await asyncio.sleep(_BUSY_S)


async def main(
    *, dsn: str, role: str, lease_s: float, takeover: Literal["fast", "strict"], schema: str, claims: str, events: str
) -> None:
    """Take part until stdin ends."""
    lock = LeaderLock(
        dsn,
        role=role,
        lease_s=lease_s,
        retry_strategy=FixedInterval(min(0.5, lease_s / 3)),
        takeover=takeover,
        term_table=takeover == "strict",
        schema=schema,
    )
    lock.subscribe(_EventLog(events).on_event)
    threading.Thread(target=_watch, args=(lock, Path(claims)), daemon=True).start()
    await lock.start()
    busy = asyncio.ensure_future(be_busy())
    await until_stdin_ends()
    busy.cancel()
    await lock.shutdown(_SHUTDOWN_S)


if __name__ == "__main__":
    asyncio.run(main(dsn=os.environ.pop(DSN_VARIABLE), **json.loads(sys.argv[1])))
