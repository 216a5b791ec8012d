"""A node of the demo or of a torture, as a process: ``python -m pgleaderlock.testing.demo._node '{"role": ...}'``.

In the demo it has a name, runs a leader task while it leads, and reports on stdout, one JSON object per line:

- ``{"says": "claims", "token": 7, "at": 1.0}``: from here on ``is_leader`` is True;
- ``{"says": "ceased", "token": 7, "at": 2.0}``: the last time at which ``is_leader`` was sampled and was True. A thread
  samples it about every millisecond, so this is what any thread of the program would have seen;
- ``{"says": "worked", "token": 7, "at": 1.5}``: a leader task did something;
- ``{"says": "event", "event": "on_lost", "at": 2.0, ...}``: an event of the election.

Under torture it writes two logs, which outlive it: the times in which it claims to lead, sampled
(:mod:`pgleaderlock.testing._claim`), and its events; and on stdout only ``{"says": "ready"}``. Its event loop
is busy then, as an application's is: it does not read from its sockets at once.

``at`` is by the machine's one clock, which all processes of one boot share. Nothing is decided by it, only measured.

The connection string comes in the environment, and a password in ``$PGPASSWORD``: every user of the machine can read
arguments, and a password is not the only secret that such a string may hold. The node ends when its stdin does: the
parent process holds the other end, and the kernel closes it if the parent is killed.
"""

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.engine.term import Term
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.ops.registry import Registry
from pgleaderlock.retry import FixedInterval
from pgleaderlock.testing._claim import pause, sample_forever

DSN_VARIABLE = "PGLEADERLOCK_NODE_DSN"
"""The environment variable with the connection string."""

_ASK_EVERY_S = 0.001
_WORK_EVERY_S = 0.25
_BUSY_S = 0.005
_SHUTDOWN_S = 1.5
_TAKING_PART = frozenset({EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED})
_UNLOGGED = frozenset({EventKind.RENEWED, EventKind.STATE_CHANGE, EventKind.ACQUIRE_FAILED})


def say(what: str, **facts: Any) -> None:
    """Write one report with one write(2), from any thread. If the parent is gone, the end of stdin ends the node."""
    line = json.dumps({"says": what, **facts}) + "\n"
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode())


class ClaimWatch:
    """Reports when this node begins and ceases to claim to lead. Costs nothing while another node leads."""

    def __init__(self, lock: LeaderLock) -> None:
        self._lock = lock
        self._terms: queue.SimpleQueue[tuple[int | None, float]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True, name="claim").start()

    def on_event(self, event: Event) -> None:
        """Report the beginning of a term in the same step in which it begins."""
        if event.kind in (EventKind.ACQUIRED, EventKind.RECOVERED):
            at = clock()
            say("claims", token=event.token, at=at)
            self._terms.put((event.token, at))

    def _watch(self) -> None:
        while True:
            token, last = self._terms.get()
            asked = last
            while self._lock.token == token:
                # The answer was True at the latest when we began to ask: a process frozen since then has not acted.
                last = asked
                time.sleep(_ASK_EVERY_S)
                asked = clock()
            say("ceased", token=token, at=last)


def _report(event: Event) -> None:
    if event.kind not in (EventKind.RENEWED, EventKind.STATE_CHANGE):
        say("event", event=event.kind.value, state=event.to_state.value, cause=event.cause, at=clock())


async def _work(term: Term) -> None:
    """Act as the leader, and check the leadership before each step."""
    while not term.is_ending:
        at = clock()
        term.check()
        say("worked", token=term.token, at=at)
        await asyncio.sleep(_WORK_EVERY_S)


async def until_stdin_ends() -> None:
    """Return when the parent process closes our stdin, or is gone."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await stdin.read()


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
        if event.kind not in _UNLOGGED:
            self._write(
                event=event.kind.value,
                token=event.token,
                cause=event.cause if event.kind is EventKind.LOST else None,
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


async def main(*, role: str, lease_s: float, node: str | None = None, logs: str | None = None, **settings: Any) -> None:
    """Take part until stdin ends: as a node of the demo or, with ``logs`` (a path without suffix), of a torture."""
    dsn = os.environ.pop(DSN_VARIABLE)
    retry_strategy = FixedInterval(min(0.5, lease_s / 3))
    lock = LeaderLock(dsn, role=role, lease_s=lease_s, retry_strategy=retry_strategy, **settings)
    async with _in_the_demo(lock, dsn, node, lease_s) if logs is None else _under_torture(lock, logs):
        await lock.start()
        await until_stdin_ends()
        await lock.shutdown(_SHUTDOWN_S)


@contextlib.asynccontextmanager
async def _in_the_demo(lock: LeaderLock, dsn: str, node: str | None, lease_s: float) -> AsyncIterator[None]:
    lock.subscribe(ClaimWatch(lock).on_event)
    lock.subscribe(_report)
    lock.while_leader(_work)
    registry = Registry(dsn, node=node, heartbeat_s=min(1.0, lease_s / 6))  # the page shows a missing renewal early
    registry.attach(lock)
    await registry.start()
    yield
    await registry.close()


@contextlib.asynccontextmanager
async def _under_torture(lock: LeaderLock, logs: str) -> AsyncIterator[None]:
    lock.subscribe(_EventLog(f"{logs}.events").on_event)
    threading.Thread(target=_watch, args=(lock, Path(f"{logs}.beliefs")), daemon=True).start()
    busy = asyncio.ensure_future(be_busy())
    yield
    busy.cancel()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
