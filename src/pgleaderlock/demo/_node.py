"""A node of the demo, as a process: ``python -m pgleaderlock.demo._node '{"dsn": ...}'``.

It stands for one role, works while it leads, and says on stdout what it believes, one JSON object per line:

- ``{"says": "believes", "token": 7, "at": 1.0}``: from here on ``is_leader`` is True;
- ``{"says": "ceased", "token": 7, "at": 2.0}``: this was the last time that it was asked and said True. A thread asks
  about every millisecond, so it is the truth as any thread of the program would have got it, not the engine's opinion;
- ``{"says": "worked", "token": 7, "at": 1.5}``: gated work did something;
- ``{"says": "event", "event": "on_lost", "at": 2.0, ...}``: what the election told.

``at`` is by the machine's one clock, which all processes of one boot share. Nothing is decided by it, only measured.

It ends when its stdin does: whoever started it holds the other end, and the kernel closes it if that one is killed.
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

from pgleaderlock.clock import suspend_aware_clock as clock
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.registry import Registry
from pgleaderlock.retry import FixedInterval
from pgleaderlock.term import Term

__all__ = ["BeliefWatch", "main", "say", "until_stdin_ends"]

_ASK_EVERY_S = 0.001
_WORK_EVERY_S = 0.25
_SHUTDOWN_S = 1.5


def say(what: str, **facts: Any) -> None:
    """Write a line in one piece, from any thread. If nobody is there to read it, the end of stdin will tell."""
    line = json.dumps({"says": what, **facts}) + "\n"
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode())


class BeliefWatch:
    """Says when the lock is believed in, and when it ceased to be. Costs nothing while another leads."""

    def __init__(self, lock: LeaderLock) -> None:
        self._lock = lock
        self._terms: queue.SimpleQueue[tuple[int | None, float]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True, name="belief").start()

    def hear(self, event: Event) -> None:
        """Note the beginning of a term in the very step in which it begins."""
        if event.kind in (EventKind.ACQUIRED, EventKind.RECOVERED):
            at = clock()
            say("believes", token=event.token, at=at)
            self._terms.put((event.token, at))

    def _watch(self) -> None:
        while True:
            token, last = self._terms.get()
            asked = last
            while self._lock.token == token:
                # What was True was so when we began to ask: whoever is frozen in between has not acted meanwhile.
                last = asked
                time.sleep(_ASK_EVERY_S)
                asked = clock()
            say("ceased", token=token, at=last)


def _tell(event: Event) -> None:
    if event.kind not in (EventKind.RENEWED, EventKind.STATE_CHANGE):
        loss = None if event.loss is None else event.loss.value
        say("event", event=event.kind.value, state=event.to_state.value, loss=loss, at=clock())


async def _work(term: Term) -> None:
    """Do what only a leader may, and look before each time."""
    while not term.is_ending:
        at = clock()
        term.check()
        say("worked", token=term.token, at=at)
        await asyncio.sleep(_WORK_EVERY_S)


async def until_stdin_ends() -> None:
    """Return when whoever started us wants us to end, or is gone."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await stdin.read()


async def main(dsn: str, role: str, node: str, lease_s: float) -> None:
    """Take part until stdin ends."""
    lock = LeaderLock(
        dsn,
        role=role,
        lease_s=lease_s,
        health_interval_s=lease_s / 3,
        settle_s=0,  # the demo's server has no past
        retry_strategy=FixedInterval(min(1.0, lease_s / 3)),
    )
    lock.subscribe(BeliefWatch(lock).hear)
    lock.subscribe(_tell)
    lock.while_leader(_work)
    registry = Registry(dsn, node=node, heartbeat_s=min(1.0, lease_s / 6))  # a page shows early what is not renewed
    registry.attach(lock)
    await registry.start()
    await lock.start()
    await until_stdin_ends()
    await lock.shutdown(_SHUTDOWN_S)
    await registry.close()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
