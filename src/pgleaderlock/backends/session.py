"""The port through which the PostgreSQL protocol speaks to a server.

Everything that decides (:mod:`.leased`) is written against these few methods, so that the same decisions can be driven
by psycopg and by a simulation. A session answers within a bound or is closed; there is no third way.

Errors are :class:`~pgleaderlock.errors.ConnectionError` with a typed cause. After any error the session is closed.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgleaderlock.errors import ConnectionError

__all__ = ["OpenSession", "ServerFacts", "Session"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server without asking it."""

    version: int
    """Such as 180004 for 18.4."""
    session_pid: int
    """The process id that the connection was told at its start. A pooler tells another than the server's."""


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
        """Wait, beside :meth:`ended` and only together with it, until something was notified. May be cancelled."""
        ...

    async def ended(self) -> ConnectionError:
        """Wait, while nothing else is asked of it, until the server ends the session; say why. May be cancelled."""
        ...

    async def close(self) -> None:
        """End it. Does not raise, does not hang, may be repeated."""
        ...


OpenSession = Callable[[], Awaitable[Session]]
"""Opens one more session of the same kind. Raises ConnectionError when it cannot."""
