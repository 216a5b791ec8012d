"""One voice, any number of listeners, none of whom can harm another.

What is said is text, made once and shared by all. A listener who is slow has a short queue; when it is full, everything
in it is thrown away and the listener is told anew, from the beginning, when it listens again. So memory is bounded by
the number of listeners, and nobody waits for anybody. A message is a few texts, one after the other: what is long is
the same object for all who are told it, and only what differs between them is each one's own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["Listener", "Streams", "TooManyListeners"]

_LONGEST_QUEUE: Final = 32


class TooManyListeners(Exception):  # noqa: N818 - what happened
    """Anonymous listeners have no place left."""


class Listener:
    """One open stream."""

    def __init__(self, afresh: Callable[[], Sequence[str]]) -> None:
        self._afresh = afresh
        self._queue: deque[str] = deque()
        self._is_behind = True  # who has just come knows nothing
        self._has_ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, message: str) -> None:
        """Say something. Returns at once."""
        if self._is_behind:
            return
        if len(self._queue) >= _LONGEST_QUEUE:
            self._queue.clear()
            self._is_behind = True
        else:
            self._queue.append(message)
        self._news.set()

    def end(self) -> None:
        """Say no more."""
        self._has_ended = True
        self._news.set()

    async def get(self) -> Sequence[str] | None:
        """Wait for the next message, in parts; None when there will be none."""
        await self._news.wait()
        if self._has_ended:
            return None
        if self._is_behind:
            self._is_behind = False
            message = self._afresh()
        else:
            message = (self._queue.popleft(),)
        if not self._queue:
            self._news.clear()
        return message


class Streams:
    """All open streams."""

    def __init__(self, afresh: Callable[[], Sequence[str]], most: int) -> None:
        self._afresh = afresh
        self._most = most
        self._listeners: set[Listener] = set()
        self._operators: set[Listener] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def open(self, *, is_operator: bool = False) -> Listener:
        """Begin to listen. The first thing to be heard is everything. An operator does not count towards the limit."""
        if not is_operator and len(self._listeners) - len(self._operators) >= self._most:
            raise TooManyListeners
        listener = Listener(self._afresh)
        self._listeners.add(listener)
        if is_operator:
            self._operators.add(listener)
        return listener

    def close(self, listener: Listener) -> None:
        """Listen no more."""
        self._listeners.discard(listener)
        self._operators.discard(listener)

    def say(self, message: str) -> None:
        """Tell everybody."""
        for listener in self._listeners:
            listener.put(message)

    def end(self) -> None:
        """Let everybody go."""
        for listener in self._listeners:
            listener.end()
