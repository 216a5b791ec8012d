"""The only edge to psycopg: one class around a connection, for lock sessions, tables, lease rows and questions.

What holds for every connection of ours, whatever it is used for:

- its ``search_path`` is pinned by the first message on it (:mod:`._search_path`);
- a call is answered within its bound, or the connection is closed; a call that is cancelled closes it at once
  (:mod:`._driver`);
- a driver's error becomes :class:`~pgleaderlock.errors.ConnectionError`, without secrets, with its ``sqlstate``;
- its end is noticed at the socket while no call is in flight, by the failing call otherwise, and reported once.

So it implements the session port (:mod:`.session`), and a little more for tables: all rows, and transactions.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import tuple_row

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._driver import close_on_cancel
from pgleaderlock.postgres._hangup import HangupProbe
from pgleaderlock.postgres._search_path import PIN, PINNED, pin_own
from pgleaderlock.postgres._sql import ANNOUNCEMENT
from pgleaderlock.postgres.session import FetchAll, Heard, OnEnd, Parameters, Row, ServerFacts

__all__ = ["Connection", "Explain", "Heard", "connect", "message_of"]

Explain = Callable[[str, Exception, LossCause], ConnectionError]
"""Makes a readable error of what happened, with the lock and the server, and without secrets."""

_CAUSES = {
    "57P01": LossCause.SESSION_TERMINATED,  # admin_shutdown
    "57P02": LossCause.SERVER_RESTART,  # crash_shutdown
    "57P03": LossCause.SERVER_RESTART,  # cannot_connect_now
    "57P05": LossCause.SILENCED,  # idle_session_timeout
}

_SETUP_S = 10.0  # for a pin or a LISTEN, which a server that lives answers at once


async def connect(conninfo: str) -> psycopg.AsyncConnection[Any]:
    """Return a new connection in autocommit mode; an error of psycopg when there is none."""
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True)


def message_of(error: Exception) -> str:
    """Return the server's message without the statement that psycopg quotes after it; of another error, its text."""
    return (error.diag.message_primary if isinstance(error, psycopg.Error) else None) or str(error)


class _Call:
    """The block of one bounded call. A class, because a generator would cost a tenth of a round trip in each call."""

    __slots__ = ("_bound_s", "_of", "_timeout")

    def __init__(self, of: "Connection", bound_s: float) -> None:
        self._of, self._bound_s, self._timeout = of, bound_s, asyncio.timeout(bound_s)

    async def __aenter__(self) -> None:
        self._of._begin_call(self._timeout, self._bound_s)  # noqa: SLF001 - this is a part of it, as below
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)  # raises TimeoutError if it is what cancelled the call
            if error is not None:
                self._of._fail_call(error)  # noqa: SLF001
        except TimeoutError as late:
            self._of._fail_call(late)  # noqa: SLF001
        finally:
            self._of._end_call()  # noqa: SLF001


class Connection:
    """A psycopg connection whose calls are bounded and whose end is noticed. One call at a time.

    After any error it is closed, unless it ``survives_errors``: then a statement that the server refuses leaves it
    open. ``failure`` begins the text of an error in a call.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        explain: Explain,
        *,
        survives_errors: bool = False,
        failure: str = "the session failed",
    ) -> None:
        self._connection = connection
        self._explain = explain
        self._survives_errors = survives_errors
        self._failure = failure
        self.user = connection.info.user
        """The database role that we connected as; known also after the end."""
        self._facts = ServerFacts(connection.info.server_version, connection.info.backend_pid)
        self._is_pinned = False
        self._last_message: tuple[str, str] | None = None  # SQLSTATE and message
        self._notified = asyncio.Event()
        self._heard: Heard | None = None
        self._announced: Callable[[], None] | None = None
        self._on_end: OnEnd | None = None
        self._error: ConnectionError | None = None
        self._bound: tuple[asyncio.Timeout, float] | None = None  # of the call in flight
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        close_on_cancel(connection, self._cut_short, None if survives_errors else self._look)
        self._probe = HangupProbe(connection.pgconn.socket)
        connection.add_notice_handler(self._note_message)
        connection.add_notify_handler(lambda each: self._hear(each.pid, each.payload))

    # --- Facts ---------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> ServerFacts:
        """The facts that the server reported when the connection was made."""
        return self._facts

    @property
    def info(self) -> psycopg.ConnectionInfo:
        """What libpq knows of the connection: user, database, address. Its password too: never show it whole."""
        return self._connection.info

    @property
    def is_own(self) -> bool:
        """Whether the session was pinned for good, because no pooler shares it with other clients."""
        return self._is_pinned

    @property
    def closed(self) -> bool:
        """Whether libpq or this object has closed the connection."""
        return self._connection.closed

    @property
    def has_ended(self) -> bool:
        """Whether the kernel has received the end of the connection, or its announcement. The socket is not read."""
        return self._connection.closed or self._is_ending or self._probe.has_ended

    def _look(self) -> None:
        """Note during a call that the session is ending, before the call itself fails.

        A server that ends a session announces it, frees the locks, and then closes. libpq reads the announcement, which
        the socket does not show any more, but psycopg raises only at the close. Any other error ends the session too.
        """
        if not self._is_ending and (self._probe.has_ended or self._connection.pgconn.error_message):
            self._is_ending = True

    @property
    def descriptor(self) -> int | None:
        """The socket that libpq opened."""
        return None if self._connection.closed else self._connection.pgconn.socket

    # --- Calls ---------------------------------------------------------------------------------------------------

    async def fetch(self, statement: str, parameters: Parameters = (), *, bound_s: float) -> Row | None:
        """Execute it and return the first row of the last result. Without parameters it may be several statements."""
        async with self._bounded(bound_s):
            cursor = await self._execute(statement, parameters)
            row = await cursor.fetchone() if cursor.description else None
        if PINNED in statement and row is not None and row[0] is not None:  # the set-up, which did not refuse
            self._is_pinned = True
        return row

    async def fetch_all(self, statement: str, parameters: Parameters = (), *, bound_s: float) -> list[Row]:
        """Execute it and return all rows of the last result."""
        async with self._bounded(bound_s):
            return await self._fetch_all(statement, parameters)

    @contextlib.asynccontextmanager
    async def transaction(self, *, bound_s: float) -> AsyncIterator[FetchAll]:
        """Yield a function that runs statements in one transaction, which is committed at the end of the block.

        The bound is for the whole block. An error rolls all of it back.
        """
        async with self._bounded(bound_s), self._connection.transaction():
            yield self._fetch_all

    async def pin(self) -> None:
        """Pin the session for good if it is ours alone; else every statement goes on to bring its own pin.

        A failure closes it. Nothing is prepared afterwards: a pooler may hand the next statement to another session.
        """
        self._connection.prepare_threshold = None
        try:
            await self.fetch(pin_own(self._facts.session_pid), bound_s=_SETUP_S)
        except ConnectionError:
            await self.close()
            raise

    async def _fetch_all(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        cursor = await self._execute(statement, parameters)
        return await cursor.fetchall() if cursor.description else []

    async def _execute(self, statement: str, parameters: Parameters) -> psycopg.AsyncCursor[Row]:
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
        return cursor

    def _bounded(self, bound_s: float) -> "_Call":
        """Close the connection unless the block ends in time, uncancelled and without an error that it survives."""
        return _Call(self, bound_s)

    def _begin_call(self, timeout: asyncio.Timeout, bound_s: float) -> None:
        if self._error is not None:
            raise self._error
        self._bound = timeout, bound_s

    def _fail_call(self, error: BaseException) -> None:
        """Raise what the caller gets for an error in a call; return for an error that is the caller's own."""
        if isinstance(error, TimeoutError):
            raise self._end(self._silence()) from None
        if isinstance(error, psycopg.Error):
            explained = self._explain(self._failure, error, self._cause(error.sqlstate))
            if self._survives_errors and not self._connection.closed:
                raise explained from error
            raise self._end(explained) from error
        if isinstance(error, asyncio.CancelledError):
            self._cut_short()

    def _end_call(self) -> None:
        self._bound = None

    # --- Notifications -------------------------------------------------------------------------------------------

    async def listen(self, channel: str, heard: Heard | None = None) -> None:
        """Listen to a channel. Notifications that arrive during a call are received too."""
        self._heard = heard
        await self.fetch(f'LISTEN "{channel}"', bound_s=_SETUP_S)

    def on_announcement(self, call: Callable[[], None]) -> None:
        """From now on, call it when the server announces a grant in the middle of a statement."""
        self._announced = call

    async def notified(self) -> None:
        """Wait for a notification, which the reader of the socket reports."""
        await self._notified.wait()
        self._notified.clear()

    def _hear(self, pid: int, payload: str) -> None:
        self._notified.set()
        if self._heard is not None:
            self._heard(pid, payload)

    def receive(self) -> None:
        """Read the socket, unless a call is in flight: then psycopg reads, and the failing call reports the end."""
        if self._error is None and self._bound is None and (error := self._consume()) is not None:
            self._end(error)

    @contextlib.contextmanager
    def readable(self, call: Callable[[], None]) -> Iterator[None]:
        """Call it when something has arrived, which :meth:`receive` then reads. Not on a connection that is watched."""
        if self._error is None:
            self._loop.add_reader(self._probe.number, call)
        try:
            yield
        finally:
            if self._error is None:  # closed meanwhile, its number may be another file's
                self._loop.remove_reader(self._probe.number)

    # --- The end -------------------------------------------------------------------------------------------------

    def watch(self, on_end: OnEnd) -> None:
        """Watch a copy of the socket: psycopg puts its own reader on the original during a call, and takes it away."""
        self._on_end = on_end
        if self._error is not None:
            self._report(self._error)
        else:
            self._loop.add_reader(self._probe.number, self.receive)

    def _consume(self) -> ConnectionError | None:
        """Read the socket, and return the error if the session has ended. The server's last message gives the cause."""
        pgconn = self._connection.pgconn
        # libpq takes the announcement of the end off the socket: a look from another thread must go on seeing it.
        self._is_ending = self._is_ending or self._probe.has_ended
        end: Exception | None = None
        try:
            pgconn.consume_input()
            while (each := pgconn.notifies()) is not None:
                self._hear(each.be_pid, each.extra.decode(errors="replace"))
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

    def _note_message(self, words: Diagnostic) -> None:
        if words.message_primary == ANNOUNCEMENT and self._announced is not None:
            self._announced()
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
