"""The state of one run of an election, from start to stop, on one event loop.

Callers reach the lifecycle task through the :class:`Inbox`: their requests are inputs to the same table as the facts
that the engine finds by itself.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pgleaderlock.engine._calls import Calls
from pgleaderlock.engine.delivery import EventStream
from pgleaderlock.engine.fsm import Input
from pgleaderlock.models import Grant


@dataclass(frozen=True, slots=True)
class Fact:
    """The outcome of a state's I/O, or a request: one input to the table."""

    input: Input
    error: Exception | None = None
    grant: Grant | None = None
    took_s: float | None = None


class Inbox:
    """Requests from callers, in order; each kind at most once until it is taken."""

    def __init__(self) -> None:
        self._asks: deque[tuple[Input, Exception | None]] = deque()
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a shutdown ran out of time: the engine then waits for nothing more."""

    def put(self, ask: Input, error: Exception | None = None) -> None:
        """Add a request, unless the same one is waiting already."""
        if all(ask is not queued for queued, _ in self._asks):
            self._asks.append((ask, error))
        if ask is Input.ABORTED and not self.aborted.done():
            self.aborted.set_result(None)
        if not self.news.done():
            self.news.set_result(None)

    def take(self) -> Fact:
        """Return the oldest request, and remove it."""
        ask, error = self._asks.popleft()
        self._settle()
        return Fact(ask, error)

    def drop(self, *stale: Input) -> None:
        """Remove requests that have become pointless."""
        self._asks = deque(item for item in self._asks if item[0] not in stale)
        self._settle()

    def _settle(self) -> None:
        if not self._asks and self.news.done():
            self.news = self.news.get_loop().create_future()


class Run:
    """One run: its inbox, its stream, its task, and the futures that callers wait for."""

    def __init__(self, stream: EventStream) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.inbox = Inbox()
        self.calls = Calls(lambda: self.inbox.news)
        self.stream = stream
        self.is_announced = False
        """Whether this process leads, and the ``on_acquired`` callbacks have run."""
        self._changed: asyncio.Event | None = None  # made when a task first waits: thousands of roles may start at once
        self.yielded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the term that is now held, or now ending, is over."""
        self.releasing: asyncio.Task[None] | None = None
        """The release in progress, if there is one: a request that comes meanwhile does not cancel it."""
        self.draining: asyncio.Task[None] | None = None
        """The drain before a requested release, if one is in progress."""
        self.later: set[asyncio.Task[None]] = set()
        """Tasks that :meth:`do` began; referenced here, because asyncio keeps only weak references."""
        self.is_leaving = False
        """Whether a shutdown was requested: work is drained first, then STOP_REQUESTED is put into the inbox."""
        self.error: Exception | None = None
        """The error of the newest fact: after the end of the run, the one that ended it."""
        self.task: asyncio.Task[None]
        self.signal_task: asyncio.Task[None] | None = None

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this beside the election."""
        task = self.loop.create_task(work)
        self.later.add(task)
        task.add_done_callback(self.later.discard)
        return task

    def note_change(self) -> None:
        """Wake the tasks that wait in :meth:`until`."""
        if self._changed is not None:
            self._changed.set()
            self._changed.clear()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is evaluated again after each change."""
        changed = self._changed = self._changed or asyncio.Event()
        while not is_true():
            await changed.wait()

    def ask_to_stop(self) -> None:
        """Request the end of this run."""
        self.is_leaving = True
        self.inbox.put(Input.STOP_REQUESTED)

    def end_term(self) -> None:
        """Wake the tasks that wait for the term's end, and prepare for the next term."""
        if self.draining is not None:
            self.draining.cancel()
        self.releasing = self.draining = None
        self.yielded.set_result(None)
        self.yielded = asyncio.get_running_loop().create_future()
