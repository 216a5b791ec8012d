"""Broadcast messages to any number of listeners, so that a slow listener does not affect the others.

Messages are text, encoded once and shared by all. Each listener has a short queue; when it is full, the queue is
emptied, and the listener gets the whole content again when it next reads. So memory is bounded by the number of
listeners, and no listener waits for another. A message is a sequence of texts: the long ones are the same object for
all listeners, and only the parts that differ belong to one listener.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

_LONGEST_QUEUE: Final = 32


class TooManyListeners(Exception):  # noqa: N818 - what happened
    """The limit of anonymous listeners is reached."""


class Listener:
    def __init__(self, afresh: Callable[[], Sequence[str]]) -> None:
        self._afresh = afresh
        self._queue: deque[str] = deque()
        self._is_behind = True  # a new listener first needs the whole content
        self._has_ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, message: str) -> None:
        """Queue a message for this listener. Does not block."""
        if self._is_behind:
            return
        if len(self._queue) >= _LONGEST_QUEUE:
            self._queue.clear()
            self._is_behind = True
        else:
            self._queue.append(message)
        self._news.set()

    def end(self) -> None:
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
    def __init__(self, afresh: Callable[[], Sequence[str]], most: int) -> None:
        self._afresh = afresh
        self._most = most
        self._listeners: set[Listener] = set()
        self._operators: set[Listener] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def open(self, *, is_operator: bool = False) -> Listener:
        """Return a new listener. Its first message is the whole content. Operators do not count towards the limit."""
        if not is_operator and len(self._listeners) - len(self._operators) >= self._most:
            raise TooManyListeners
        listener = Listener(self._afresh)
        self._listeners.add(listener)
        if is_operator:
            self._operators.add(listener)
        return listener

    def close(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self._operators.discard(listener)

    def say(self, message: str) -> None:
        for listener in self._listeners:
            listener.put(message)

    def end(self) -> None:
        for listener in self._listeners:
            listener.end()
