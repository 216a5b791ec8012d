"""Where connections wait until their request has come, and which of them gives way when there are too many.

Nothing here is a transport or a task: a connection that sends nothing, or a byte now and then, costs a descriptor and
some microseconds. It leaves the room when the head of its request is complete. An operator's request is answered at
once. One of an anonymous client is answered when the thread has processor time left and not too many are answered
already; anonymous requests may use three quarters of all connections, so there is always room in which a newcomer can
show that it is an operator. At the limit a newcomer takes the place of the connection that has waited longest; but each
has had a moment to send its request, which a client that connects in order to ask something does at once.
"""

import asyncio
import contextlib
import enum
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from pgleaderlock.ops.http._limits import HttpLimits
from pgleaderlock.ops.http._processor_time import ProcessorTime
from pgleaderlock.ops.http._rare_log import RareLog

LARGEST_HEAD: Final = 16_384
_MOMENT_S: Final = 0.1
_SLOW_S: Final = 1.0
_SWEEP_S: Final = 0.25
_PAUSE_S: Final = 0.01
_BEGUN_PER_TURN: Final = 8  # then the event loop sees to those that were begun before
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: 51\r\n\r\nToo many connections. Try again in a few seconds.\r\n"
)


class Visit(enum.Enum):
    """Whose request it is."""

    OPERATOR = enum.auto()
    ANONYMOUS = enum.auto()
    ANONYMOUS_STREAM = enum.auto()
    """One that is not over when it is answered, and of which there are fewer places."""


Classify = Callable[[bytes], Visit]
"""Say whose request it is, from its head."""


class Answered(Protocol):
    """A connection whose request is being answered."""

    @property
    def stalled_since(self) -> float | None:
        """Since when its client has not read what was written; None if it reads."""

    def abort(self) -> None:
        """Close it at once."""


@dataclass(slots=True, eq=False)
class _Visitor:
    client: socket.socket
    since: float
    head: bytearray = field(default_factory=bytearray)

    def read(self) -> bool:
        """Take in what has come. False when there is nothing more to come."""
        try:
            chunk = self.client.recv(LARGEST_HEAD)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.head += chunk
        return bool(chunk)

    @property
    def is_complete(self) -> bool:
        """Whether the head has come, or is too large to be one, which the protocol will say."""
        return b"\r\n\r\n" in self.head or b"\n\n" in self.head or len(self.head) >= LARGEST_HEAD

    def refuse(self) -> None:
        with contextlib.suppress(OSError):
            self.client.send(_BUSY)
        self.client.close()


class WaitingRoom:
    """All connections of one server. Used on the server's event loop only."""

    def __init__(
        self, limits: HttpLimits, log: RareLog, classify: Classify, begin: Callable[[socket.socket, bytes], Answered]
    ) -> None:
        self._limits, self._log = limits, log
        self._classify, self._begin = classify, begin
        self._loop = asyncio.get_running_loop()
        self._time = ProcessorTime(limits.processor_share)
        self._selector = selectors.DefaultSelector()
        self._silent: dict[_Visitor, None] = {}  # the longest wait first, as in the next
        self._ready: dict[_Visitor, None] = {}
        self._streams: set[_Visitor | Answered] = set()  # of anonymous clients: ready, or being answered
        self._anonymous: set[Answered] = set()
        self._operators: set[Answered] = set()
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._serve_handle: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to look after the clients that connect."""
        # The selector is one descriptor that is readable when any of its own is.
        self._loop.add_reader(self._selector, self.look)
        self._sweep()

    def close(self) -> None:
        self._loop.remove_reader(self._selector)
        for handle in (self._sweep_handle, self._serve_handle):
            if handle is not None:
                handle.cancel()
        for visitor in [*self._silent, *self._ready]:
            visitor.client.close()
        self._silent.clear()
        self._ready.clear()
        self._streams.clear()
        self._selector.close()

    def __len__(self) -> int:
        return len(self._silent) + len(self._ready) + len(self._anonymous) + len(self._operators)

    def make_room(self) -> bool:
        """Return whether one more connection can be taken in, after closing another if need be."""
        if len(self) < self._limits.most_connections:
            return True
        self.look()  # no client whose request has come is taken for silent
        if len(self) < self._limits.most_connections:
            return True
        longest = next(iter(self._silent), None) or next(iter(self._ready), None)
        if longest is None or self._loop.time() - longest.since < _MOMENT_S:
            return False
        self._log.warning("http_connections_exhausted", limit=self._limits.most_connections)
        self._drop(longest)
        return True

    def add(self, client: socket.socket) -> None:
        visitor = _Visitor(client, self._loop.time())
        self._silent[visitor] = None
        self._selector.register(client, selectors.EVENT_READ, visitor)

    def leave(self, connection: Answered) -> None:
        """Forget a connection whose answer is over."""
        self._streams.discard(connection)
        self._anonymous.discard(connection)
        self._operators.discard(connection)

    def look(self) -> None:
        """Take in what has come on all connections that wait."""
        for key, _ in self._selector.select(0):
            visitor: _Visitor = key.data
            goes_on = visitor.read()
            if not visitor.is_complete and goes_on:
                continue
            self._selector.unregister(visitor.client)
            del self._silent[visitor]
            if visitor.is_complete:
                self._receive(visitor)
            else:
                visitor.client.close()
        self._serve()

    def _receive(self, visitor: _Visitor) -> None:
        visit = self._classify(bytes(visitor.head))
        if visit is Visit.OPERATOR:
            self._operators.add(self._begin(visitor.client, bytes(visitor.head)))
            return
        if visit is Visit.ANONYMOUS_STREAM:
            if len(self._streams) >= self._limits.most_streams:
                visitor.refuse()
                return
            self._streams.add(visitor)
        self._ready[visitor] = None

    def _serve(self) -> None:
        """Begin to answer anonymous clients, as many as may be; come back for the rest."""
        if self._serve_handle is not None:
            return
        for _ in range(_BEGUN_PER_TURN):
            if not self._ready or not self._time.is_left or not self._has_place():
                break
            self._begin_anonymous(next(iter(self._ready)))
        if self._ready:
            self._serve_handle = self._loop.call_later(_PAUSE_S, self._serve_again)

    def _begin_anonymous(self, visitor: _Visitor) -> None:
        del self._ready[visitor]
        connection = self._begin(visitor.client, bytes(visitor.head))
        self._anonymous.add(connection)
        if visitor in self._streams:
            self._streams.remove(visitor)
            self._streams.add(connection)

    def _serve_again(self) -> None:
        self._serve_handle = None
        self._serve()

    def _has_place(self) -> bool:
        """Return whether one more anonymous request can be answered, after closing an unread one if need be."""
        if len(self._anonymous) < self._limits.most_anonymous:
            return True
        stalled = [(each.stalled_since, each) for each in self._anonymous if each.stalled_since is not None]
        since, slowest = min(stalled, key=lambda each: each[0], default=(None, None))
        if since is None or slowest is None or self._loop.time() - since < _SLOW_S:
            return False
        self.leave(slowest)
        slowest.abort()
        return True

    def _sweep(self) -> None:
        """Close what has waited too long."""
        ended = self._loop.time() - self._limits.request_s
        for visitors in (self._silent, self._ready):
            for visitor in list(visitors):
                if visitor.since > ended:
                    break
                self._drop(visitor)
        self._sweep_handle = self._loop.call_later(_SWEEP_S, self._sweep)

    def _drop(self, visitor: _Visitor) -> None:
        if visitor in self._ready:
            del self._ready[visitor]
            self._streams.discard(visitor)
            visitor.refuse()
        else:
            del self._silent[visitor]
            self._selector.unregister(visitor.client)
            visitor.client.close()
