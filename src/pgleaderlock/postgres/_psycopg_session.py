"""The session port (:mod:`.session`), implemented with psycopg."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._driver import close_on_cancel
from pgleaderlock.postgres._hangup import HangupProbe
from pgleaderlock.postgres._search_path import PIN, PINNED
from pgleaderlock.postgres.session import OnEnd, ServerFacts

__all__ = ["PsycopgSession"]

_CAUSES = {
    "57P01": LossCause.SESSION_TERMINATED,  # admin_shutdown
    "57P02": LossCause.SERVER_RESTART,  # crash_shutdown
    "57P03": LossCause.SERVER_RESTART,  # cannot_connect_now
    "57P05": LossCause.SILENCED,  # idle_session_timeout
}

_LISTEN_S = 10.0

Explain = Callable[[str, Exception, LossCause], ConnectionError]
"""Makes a readable error of what happened, with the lock and the server, and without secrets."""


class PsycopgSession:
    """A psycopg connection whose calls are bounded and whose end is noticed."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], explain: Explain) -> None:
        self._connection = connection
        self._explain = explain
        self._facts = ServerFacts(connection.info.server_version, connection.info.backend_pid)
        self._is_pinned = False
        self._last_message: tuple[str, str] | None = None  # SQLSTATE and message
        self._notified = asyncio.Event()
        self._on_end: OnEnd | None = None
        self._error: ConnectionError | None = None
        self._bound: tuple[asyncio.Timeout, float] | None = None  # of the call in flight
        self._loop = asyncio.get_running_loop()
        close_on_cancel(connection, self._cut_short)
        self._probe = HangupProbe(connection.pgconn.socket)
        connection.add_notice_handler(self._note_last_message)

    @property
    def facts(self) -> ServerFacts:
        """The facts that the server reported when the connection was made."""
        return self._facts

    @property
    def closed(self) -> bool:
        """Whether libpq or this object has closed the connection."""
        return self._connection.closed

    @property
    def has_ended(self) -> bool:
        """Whether the kernel has received the end of the connection. The socket is not read."""
        return self._connection.closed or self._probe.has_ended

    @property
    def descriptor(self) -> int | None:
        """The socket that libpq opened."""
        return None if self._connection.closed else self._connection.pgconn.socket

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        """Execute it; without parameters it may be several statements, sent at once."""
        if self._error is not None:
            raise self._error
        try:
            async with asyncio.timeout(bound_s) as timeout:
                self._bound = timeout, bound_s
                return await self._fetch(statement, parameters)
        except TimeoutError:
            raise self._end(self._silence()) from None
        except psycopg.Error as error:
            explained = self._explain("the session failed", error, self._cause(error.sqlstate))
            raise self._end(explained) from error
        except asyncio.CancelledError:
            self._cut_short()
            raise
        finally:
            self._bound = None

    async def _fetch(self, statement: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        """Execute it; until the session is pinned for good, after the pin for one transaction, in the same message."""
        if self._is_pinned:
            cursor = self._connection.cursor(row_factory=tuple_row)  # a caller's own may make anything of a row
            await cursor.execute(statement, parameters or None)
        else:
            # Bound by the client: with parameters beside it, a message has room for one statement only.
            cursor = psycopg.AsyncClientCursor(self._connection, row_factory=tuple_row)
            await cursor.execute(PIN + statement, parameters or None)
        while cursor.nextset():
            pass
        row = await cursor.fetchone() if cursor.description else None
        if PINNED in statement and row is not None and row[0] is not None:  # the set-up, which did not refuse
            self._is_pinned = True
        return row

    async def listen(self, channel: str) -> None:
        """Listen to a channel. Notifications that arrive during a call are received too."""
        self._connection.add_notify_handler(lambda _: self._notified.set())
        await self.fetch(f'LISTEN "{channel}"', bound_s=_LISTEN_S)

    async def notified(self) -> None:
        """Wait for a notification, which the reader of the socket reports."""
        await self._notified.wait()
        self._notified.clear()

    def watch(self, on_end: OnEnd) -> None:
        """Watch a copy of the socket: psycopg puts its own reader on the original during a call, and takes it away."""
        self._on_end = on_end
        if self._error is not None:
            self._report(self._error)
        else:
            self._loop.add_reader(self._probe.number, self._look)

    def _look(self) -> None:
        """Read the socket, unless a call is in flight: then psycopg reads, and the failing call reports the end."""
        if self._bound is None and (error := self._consume()) is not None:
            self._end(error)

    def _consume(self) -> ConnectionError | None:
        """Read the socket, and return the error if the session has ended. The server's last message gives the cause."""
        pgconn = self._connection.pgconn
        end: Exception | None = None
        try:
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                self._notified.set()
        except psycopg.Error as error:
            end = error
        pgconn.is_busy()  # parses what was read, also before an end, and passes the last message to the notice handler
        if self._last_message is not None:
            end = psycopg.OperationalError(self._last_message[1])
        if end is None:
            return None
        explained = self._explain("the session ended", end, self._cause(None))
        explained.__cause__ = end
        return explained

    def _note_last_message(self, words: Diagnostic) -> None:
        if words.sqlstate in _CAUSES:  # copied, because libpq frees it when we return
            self._last_message = words.sqlstate, words.message_primary or ""

    def _cause(self, sqlstate: str | None) -> LossCause:
        if sqlstate is None and self._last_message is not None:
            sqlstate = self._last_message[0]
        return _CAUSES.get(sqlstate or "", LossCause.UNKNOWN if sqlstate else LossCause.CONNECTION_LOST)

    def _silence(self) -> ConnectionError:
        bound_s = 0.0 if self._bound is None else self._bound[1]
        silence = TimeoutError("the server, or the network to it, is silent")
        return self._explain(f"no answer within {bound_s:.3g} s", silence, LossCause.RENEW_TIMEOUT)

    def _cut_short(self) -> None:
        """End the session together with a call that was cancelled, by its bound or by the caller."""
        if self._bound is not None and self._bound[0].expired():
            self._end(self._silence())
        else:
            self._end(self._closed_by("a call that was cut short", LossCause.ABORTED))

    def _end(self, error: ConnectionError) -> ConnectionError:
        """Report the end, and only then close, because closing frees the locks. The first reason counts."""
        if self._error is None:
            self._error = error
            self._report(error)
            self._shut()
        return self._error

    def _report(self, error: ConnectionError) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)

    def _shut(self) -> None:
        self._loop.remove_reader(self._probe.number)
        self._connection.pgconn.finish()
        self._probe.close()

    async def close(self) -> None:
        """Close the socket. libpq sends a terminate message and does not wait for an answer."""
        self._on_end = None
        if self._error is None:
            self._end(self._closed_by("this process", LossCause.CONNECTION_LOST))

    def _closed_by(self, whom: str, cause: LossCause) -> ConnectionError:
        return self._explain("the session was closed", Exception(f"by {whom}"), cause)
