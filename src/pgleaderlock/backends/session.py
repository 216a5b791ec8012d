"""The port through which the PostgreSQL protocol speaks to a server.

Everything that decides (:mod:`.pair`) is written against these few methods, so that the same decisions can be driven
by psycopg and by a simulation. A session answers within a bound or is closed; there is no third way.

Errors are :class:`~pgleaderlock.errors.ConnectionError` with a typed cause. After any error the session is closed.

**The end of a session is reported once, to the one who watches it, before anything else follows from it**: by the
socket while the session rests, by the call that fails while one is in flight. A session that closes itself, because a
call was not answered or was cut short, reports that before it closes: what it holds is free only afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgleaderlock.errors import ConnectionError

__all__ = ["OnEnd", "OpenSession", "ServerFacts", "Session", "end_of"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server without asking it."""

    version: int
    """Such as 180004 for 18.4."""
    session_pid: int
    """The process id that the connection was told at its start. A pooler tells another than the server's."""


OnEnd = Callable[[ConnectionError], None]
"""Takes in why a session ended. Called on the event loop; must not wait, and must not raise."""


class Session(Protocol):
    """One connection to one server process, used by one caller at a time."""

    @property
    def facts(self) -> ServerFacts:
        """What the connection itself tells."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it is over, by whatever end."""
        ...

    @property
    def has_ended(self) -> bool:
        """True once the kernel of this host has received the end of the connection, or the session was closed.

        Nothing is read and nothing is awaited: this is what ``poll`` shows (POLLRDHUP), also while a call is in flight
        and before the event loop has come to look. May be asked from any thread.
        """
        ...

    @property
    def descriptor(self) -> int | None:
        """The socket, to be copied and never used; None when it is closed, or there is none."""
        ...

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        """Run it, and return the first row of its last result. Past the bound the session is closed."""
        ...

    async def listen(self, channel: str) -> None:
        """Begin to hear what is notified there."""
        ...

    async def notified(self) -> None:
        """Wait until something was notified, on a session that is watched. May be cancelled."""
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
