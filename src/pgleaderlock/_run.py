"""What belongs to one start-to-stop of an election and to the event loop that it runs on.

Callers speak to the lifecycle task through the :class:`Inbox`: what they ask for are inputs to the same table as the
facts that the engine learns by itself.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pgleaderlock._calls import Calls
from pgleaderlock.fsm import Input
from pgleaderlock.models import Grant
from pgleaderlock.stream import EventStream

__all__ = ["Fact", "Inbox", "Run"]


@dataclass(frozen=True, slots=True)
class Fact:
    """What a state's I/O came to."""

    input: Input
    error: Exception | None = None
    grant: Grant | None = None
    took_s: float | None = None


class Inbox:
    """Inputs from callers, in order, each at most once until it is heard."""

    def __init__(self) -> None:
        self._asks: deque[tuple[Input, Exception | None]] = deque()
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when somebody's patience is over: then nothing more is waited for."""

    def put(self, ask: Input, error: Exception | None = None) -> None:
        """Ask for something, unless the same is asked for already."""
        if all(ask is not queued for queued, _ in self._asks):
            self._asks.append((ask, error))
        if ask is Input.ABORTED and not self.aborted.done():
            self.aborted.set_result(None)
        if not self.news.done():
            self.news.set_result(None)

    def take(self) -> Fact:
        """Hear the oldest ask."""
        ask, error = self._asks.popleft()
        self._settle()
        return Fact(ask, error)

    def drop(self, *stale: Input) -> None:
        """Forget asks that the course of events has answered."""
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
        self._changed = asyncio.Event()
        self.yielded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the term that is now held, or now ending, is over."""
        self.releasing: asyncio.Task[None] | None = None
        """The release under way, if there is one: it outlasts an ask that comes meanwhile."""
        self.draining: asyncio.Task[None] | None = None
        """What was asked to finish before the release, if there is one to come."""
        self.later: set[asyncio.Task[None]] = set()
        """What callbacks asked for and could not wait for; kept, because asyncio does not."""
        self.is_leaving = False
        """Whether its end is only a matter of time: work is finished first, and then it is asked to stop."""
        self.task: asyncio.Task[None]
        self.signal_task: asyncio.Task[None] | None = None

    def note_change(self) -> None:
        """Let those look again who wait in :meth:`until`."""
        self._changed.set()
        self._changed.clear()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until it is true after some change."""
        while not is_true():
            await self._changed.wait()

    def ask_to_stop(self) -> None:
        """Ask for the end of this run."""
        self.is_leaving = True
        self.inbox.put(Input.STOP_REQUESTED)

    def end_term(self) -> None:
        """Let go of those who waited for the term's end."""
        if self.draining is not None:
            self.draining.cancel()
        self.releasing = self.draining = None
        self.yielded.set_result(None)
        self.yielded = asyncio.get_running_loop().create_future()
