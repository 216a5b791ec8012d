"""A node of the demo, as a process: ``python -m pgleaderlock.testing.demo._node '{"dsn": ...}'``.

It is a candidate for one role, runs a leader task while it leads, and reports on stdout, one JSON object per line:

- ``{"says": "claims", "token": 7, "at": 1.0}``: from here on ``is_leader`` is True;
- ``{"says": "ceased", "token": 7, "at": 2.0}``: the last time at which ``is_leader`` was sampled and was True. A thread
  samples it about every millisecond, so this is what any thread of the program would have seen;
- ``{"says": "worked", "token": 7, "at": 1.5}``: a leader task did something;
- ``{"says": "event", "event": "on_lost", "at": 2.0, ...}``: an event of the election.

``at`` is by the machine's one clock, which all processes of one boot share. Nothing is decided by it, only measured.

The node ends when its stdin does: the parent process holds the other end, and the kernel closes it if the parent is
killed.
"""

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.engine.term import Term
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.ops.registry import Registry
from pgleaderlock.retry import FixedInterval

__all__ = ["ClaimWatch", "main", "say", "until_stdin_ends"]

_ASK_EVERY_S = 0.001
_WORK_EVERY_S = 0.25
_SHUTDOWN_S = 1.5


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
        loss = None if event.loss is None else event.loss.value
        say("event", event=event.kind.value, state=event.to_state.value, loss=loss, at=clock())


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


async def main(dsn: str, role: str, node: str, lease_s: float) -> None:
    """Take part until stdin ends."""
    lock = LeaderLock(
        dsn,
        role=role,
        lease_s=lease_s,
        settle_s=0,  # no earlier leader can exist: the demo's server is new
        retry_strategy=FixedInterval(min(1.0, lease_s / 3)),
    )
    lock.subscribe(ClaimWatch(lock).on_event)
    lock.subscribe(_report)
    lock.while_leader(_work)
    registry = Registry(dsn, node=node, heartbeat_s=min(1.0, lease_s / 6))  # the page shows a missing renewal early
    registry.attach(lock)
    await registry.start()
    await lock.start()
    await until_stdin_ends()
    await lock.shutdown(_SHUTDOWN_S)
    await registry.close()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
