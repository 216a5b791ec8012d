"""What tests of dashboard share with others."""

import asyncio
import queue
import time
from collections.abc import AsyncGenerator
from typing import Any

from pgleaderlock import ConnectionError
from pgleaderlock.ops.dashboard._picture import Look, past_record, standing_record
from pgleaderlock.ops.registry.asking import AskRefused, Target
from pgleaderlock.ops.registry.audit import Line
from pgleaderlock.ops.registry.reading import Candidate, Leader, RoleStatus

TOKEN = "a-token-that-nobody-guesses"


def line(event: str, at: float, node: str = "a", token: int | None = 1, lock: str = "l", **more: Any) -> Line:
    return Line(lock, "role", node, node, event, more.pop("cause", None), token, at, **more)


def leader(node: str = "a", token: int = 1, at: float = 100.0, **more: Any) -> Leader:
    alive = more.pop("is_alive", True)
    return Leader(node, node, token, at, at, at + 10, 1, "host", 2, "0", {}, is_alive=alive, read_at=at)


def candidate(
    node: str, state: str = "follower", *, is_alive: bool = True, seen_at: float = 100.0, place: str | None = None
) -> Candidate:
    return Candidate(node, node, state, 50.0, seen_at, "host", 2, "0", {}, is_alive=is_alive, place=place)


def record(role: RoleStatus, lines: list[Line], since: float = 0.0, at: float = 200.0) -> dict[str, Any]:
    return {**standing_record(role), **past_record(role, lines, since=since, at=at)}


class Looks:
    """A queue that is filled by the test, and emptied on the dashboard's thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Look | Exception] = queue.SimpleQueue()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def put_nowait(self, look: Look | Exception) -> None:
        self._items.put(look)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def get(self) -> Look | Exception:
        self._loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            try:
                return self._items.get_nowait()
            except queue.Empty:
                await self._news.wait()


class FixedSource:
    """A source that shows what the test gives it."""

    kind, where, can_ask = "registry", "a test", True

    def __init__(self, *roles: RoleStatus) -> None:
        self.looks = Looks()
        self.asked: list[tuple[str, Target]] = []
        self.looks.put_nowait(Look(200.0, 0.0, roles))

    async def follow(self) -> AsyncGenerator[tuple[Look, list[Line]], None]:
        while True:
            look = await self.looks.get()
            if isinstance(look, Exception):
                raise look
            yield look, []

    async def ask_to_step_down(self, lock: str, leader: Target) -> str:
        if lock == "broken":
            raise ConnectionError("cannot ask")
        if lock == "unwilling":
            raise AskRefused("the leader refused: it is too soon")
        self.asked.append((lock, leader))
        return "the node that answered"


def until_true(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
