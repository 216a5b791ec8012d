"""The port (interface) between the PostgreSQL protocol and a server.

All decisions (:mod:`.pair`) are written against these few methods, so that the same code runs on psycopg and in a
simulation. A session answers within a bound or is closed; there is no third outcome.

Errors are :class:`~pgleaderlock.errors.ConnectionError` with a typed cause. After any error the session is closed.

**The end of a session is reported once, to its watcher, before it has any other effect**: found at the socket while the
session is idle, and by the failing call while one is in flight. A session that closes itself, because a call was not
answered or was cancelled, reports that before it closes: its locks are free only after the close, so the watcher ends
validity first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgleaderlock.errors import ConnectionError

__all__ = ["FetchAll", "Heard", "OnEnd", "OpenSession", "Parameters", "Row", "ServerFacts", "Session", "end_of"]

Row = tuple[Any, ...]
"""One row of an answer."""
Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for the placeholders of a statement, in their order or by name."""
FetchAll = Callable[[str, Parameters], Awaitable[list[Row]]]
"""Runs a statement and returns all rows of its last result."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known about a server without a request."""

    version: int
    """Such as 180004 for 18.4."""
    session_pid: int
    """The process id that the connection received at its start. A pooler sends another than the server's."""


OnEnd = Callable[[ConnectionError], None]
"""Called with the reason when a session has ended, on the event loop; must not block, and must not raise."""

Heard = Callable[[int, str], None]
"""Called with the pid of the sender and the payload of a notification, on the event loop; must not raise."""


class Session(Protocol):
    """One connection to one server process, used by one caller at a time."""

    @property
    def facts(self) -> ServerFacts:
        """The facts that the connection received at its start."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the session is over, for any reason."""
        ...

    @property
    def has_ended(self) -> bool:
        """True once the kernel of this host has received the end of the connection, or the session was closed.

        Nothing is read and nothing is awaited: this is what ``poll`` shows (POLLRDHUP), also while a call is in flight
        and before the event loop has noticed. May be called from any thread.
        """
        ...

    @property
    def descriptor(self) -> int | None:
        """The socket, to be copied and never used; None when it is closed, or there is none."""
        ...

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        """Execute it, and return the first row of its last result. Without an answer in time the session is closed."""
        ...

    def on_announcement(self, call: Callable[[], None]) -> None:
        """From now on, call it when the server announces a grant in the middle of a statement; it must not raise."""
        ...

    async def listen(self, channel: str, heard: Heard | None = None) -> None:
        """Listen to this channel, and pass each notification on."""
        ...

    async def notified(self) -> None:
        """Wait for a notification, on a session that is watched. May be cancelled."""
        ...

    def watch(self, on_end: OnEnd) -> None:
        """From now on, report the end of the session: once, as soon as it is known, unless we close it first."""
        ...

    async def close(self) -> None:
        """End it. Does not raise, does not hang, may be repeated."""
        ...


OpenSession = Callable[[], Awaitable[Session]]
"""Opens one more session of the same kind. Raises ConnectionError when it cannot."""


async def end_of(session: Session) -> ConnectionError:
    """Watch the session, wait for its end and return the reason. May be cancelled."""
    ended: asyncio.Future[ConnectionError] = asyncio.get_running_loop().create_future()
    session.watch(lambda error: None if ended.done() else ended.set_result(error))
    return await ended
