"""psycopg behind the session port."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from pgleaderlock.backends._driver import take_over
from pgleaderlock.backends._hangup import HangupProbe
from pgleaderlock.backends.session import ServerFacts
from pgleaderlock.causes import LossCause
from pgleaderlock.errors import ConnectionError

__all__ = ["PsycopgSession"]

_CAUSES = {
    "57P01": LossCause.SESSION_TERMINATED,  # admin_shutdown
    "57P02": LossCause.SERVER_RESTART,  # crash_shutdown
    "57P03": LossCause.SERVER_RESTART,  # cannot_connect_now
    "57P05": LossCause.SILENCED,  # idle_session_timeout
}

_LISTEN_S = 10.0

Explain = Callable[[str, Exception, LossCause], ConnectionError]
"""Makes the error that a person will read out of what happened; knows the lock, the server and the secrets."""


class PsycopgSession:
    """A psycopg connection whose calls are bounded and whose end is noticed."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], explain: Explain) -> None:
        self._connection = connection
        self._explain = explain
        self._facts = ServerFacts(connection.info.server_version, connection.info.backend_pid)
        self._last_words: tuple[str, str] | None = None  # SQLSTATE and message
        self._notified = asyncio.Event()
        take_over(connection)
        self._probe = HangupProbe(connection.pgconn.socket)
        connection.add_notice_handler(self._hear)

    @property
    def facts(self) -> ServerFacts:
        """As the server reported them when the connection was made."""
        return self._facts

    @property
    def closed(self) -> bool:
        """Whether libpq gave it up, or we did."""
        return self._connection.closed

    @property
    def has_ended(self) -> bool:
        """What the kernel shows, without reading the socket."""
        return self._connection.closed or self._probe.has_ended

    @property
    def descriptor(self) -> int | None:
        """The one that libpq opened."""
        return None if self._connection.closed else self._connection.pgconn.socket

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        """Run it; without parameters it may be several statements, sent at once."""
        try:
            async with asyncio.timeout(bound_s):
                cursor = self._connection.cursor(row_factory=tuple_row)  # a caller's own may make anything of a row
                await cursor.execute(statement, parameters or None)
                while cursor.nextset():
                    pass
                return await cursor.fetchone() if cursor.description else None
        except TimeoutError as error:
            await self.close()
            raise self._explain(f"no answer within {bound_s:.3g} s", error, LossCause.RENEW_TIMEOUT) from None
        except psycopg.Error as error:
            await self.close()
            raise self._explain("the session failed", error, self._cause(error.sqlstate)) from error
        except asyncio.CancelledError:
            await self.close()
            raise

    async def listen(self, channel: str) -> None:
        """What comes during a call is heard too."""
        self._connection.add_notify_handler(lambda _: self._notified.set())
        await self.fetch(f'LISTEN "{channel}"', bound_s=_LISTEN_S)

    async def notified(self) -> None:
        """Told by whoever reads the socket."""
        await self._notified.wait()
        self._notified.clear()

    async def ended(self) -> ConnectionError:
        """Watch the socket. psycopg has its own reader there during a call, so only between calls."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        descriptor = self._connection.pgconn.socket
        error: ConnectionError | None = None
        while error is None:
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                # Before libpq reads: at an end it closes its descriptor. While a copy is open (the probe's, a
                # guardian's), epoll would report that number for ever, because it could no longer be taken out.
                loop.remove_reader(descriptor)
            readable.clear()
            error = self._consume()
        await self.close()
        return error

    def _consume(self) -> ConnectionError | None:
        """Read what came. A notification or a notice is nothing; an end has the server's last words before it."""
        pgconn = self._connection.pgconn
        end: Exception | None = None
        try:
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                self._notified.set()
        except psycopg.Error as error:
            end = error
        pgconn.is_busy()  # parses what was read, before the end too, and hands last words to the notice handler
        if self._last_words is not None:
            end = psycopg.OperationalError(self._last_words[1])
        if end is None:
            return None
        explained = self._explain("the session ended", end, self._cause(None))
        explained.__cause__ = end
        return explained

    def _hear(self, words: Diagnostic) -> None:
        if words.sqlstate in _CAUSES:  # copied, because libpq frees it when we return
            self._last_words = words.sqlstate, words.message_primary or ""

    def _cause(self, sqlstate: str | None) -> LossCause:
        if sqlstate is None and self._last_words is not None:
            sqlstate = self._last_words[0]
        return _CAUSES.get(sqlstate or "", LossCause.UNKNOWN if sqlstate else LossCause.CONNECTION_LOST)

    async def close(self) -> None:
        """Close the socket. libpq sends a goodbye and does not wait for an answer."""
        self._connection.pgconn.finish()
        self._probe.close()
