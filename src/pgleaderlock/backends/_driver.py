"""Awaiting a database driver without being at its mercy.

The engine cuts a call short by cancelling it, and must not wait for what a dead network never brings. psycopg makes
that hard: it catches the cancellation, asks the server to cancel the query, and waits for the answer, for up to ten
seconds (psycopg issue 1371). Nobody needs that answer here, because a session whose call was cut short is thrown away.
So :func:`take_over` replaces the one method in which psycopg waits: cancelled, it closes the connection, and that is
all. By then the descriptor's reader is gone from the event loop, so its number cannot be mistaken for a later one's.

Text is read as text. With ``client_encoding=SQL_ASCII``, from a connection string, the environment or a caller's own
connection, psycopg would return bytes, which no name can be compared with.

Another driver's call runs in a task of its own, which is left behind when it does not end.
"""

import asyncio
import contextlib
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from psycopg import AsyncConnection, waiting
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader

__all__ = ["call_driver", "close_connection", "is_psycopg", "open_connection", "take_over"]

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 1.0  # for a connection that is not psycopg's, whose close() may do anything
_WAKE_INTERVAL_S = 60.0  # how often psycopg looks up while it waits; nothing needs it to, but it wants a number

_taken_over: weakref.WeakSet[AsyncConnection[Any]] = weakref.WeakSet()
_abandoned: set[asyncio.Future[Any]] = set()  # asyncio keeps only weak references to tasks


def is_psycopg(connection: object) -> bool:
    """Whether it really is psycopg's: a mock with a spec passes isinstance(), but not this."""
    return issubclass(type(connection), AsyncConnection)


class _TextLoader(Loader):
    """Reads text as the encoding of the connection says, or as UTF-8 where it says nothing. Never fails."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        known = "ascii" if self.connection is None else self.connection.info.encoding
        self._encoding = "utf-8" if known == "ascii" else known

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(self._encoding, "backslashreplace")


_TEXT_TYPES = ("text", "varchar", "name", "bpchar")


def take_over(connection: AsyncConnection[Any], close: Callable[[], object] | None = None) -> None:
    """Make a cancelled call on this connection end at once, and the connection with it; ``close`` does the closing.

    And make text be read as text.
    """
    for type_name in _TEXT_TYPES:
        connection.adapters.register_loader(type_name, _TextLoader)

    async def wait(gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        try:
            return await waiting.wait_async(gen, connection.pgconn.socket, interval=_WAKE_INTERVAL_S)
        except asyncio.CancelledError:
            (close or connection.pgconn.finish)()
            raise

    connection.wait = wait  # type: ignore[method-assign]
    _taken_over.add(connection)


def _let_go_in_child() -> None:
    """In a forked child, give up our copies of the sockets: with them open, the server would not see our death.

    The numbers stay taken, by the null device, so that libpq's good-bye in the child reaches nobody.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for connection in list(_taken_over):
        if not connection.closed:
            os.dup2(null, connection.pgconn.socket, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_let_go_in_child)


async def call_driver(connection: Any, call: Awaitable[T]) -> T:
    """Await the driver. If we are cancelled, the call is over for us, whatever the driver does."""
    if is_psycopg(connection):
        return await call
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        _leave_behind(task)
        raise
    return task.result()


async def open_connection(connect: Callable[[], Any]) -> Any:
    """Await a connection factory; if we are cancelled, close what it may still bring."""
    answer = connect()
    if not inspect.isawaitable(answer):
        return answer
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        _leave_behind(task, _close_late_arrival)
        raise
    return task.result()


async def close_connection(connection: Any) -> None:
    """Close it, whatever it is, in bounded time and without raising."""
    if is_psycopg(connection):
        connection.pgconn.finish()  # what its close() does, without the bookkeeping of a pool it may belong to
        return
    try:
        answer = connection.close()
    except Exception:  # noqa: BLE001 - it is being thrown away
        return
    if inspect.isawaitable(answer):
        task = asyncio.ensure_future(answer)
        _leave_behind(task)  # and never cancelled: half a close is worse than a late one
        await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT_S)


def _close_late_arrival(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None and task.result() is not None:
        _leave_behind(asyncio.ensure_future(close_connection(task.result())))


def _leave_behind(task: asyncio.Future[Any], then: Callable[[asyncio.Future[Any]], object] | None = None) -> None:
    """Keep the task alive until it ends, and look at its outcome so that nobody is told it was forgotten."""

    def done(ended: asyncio.Future[Any]) -> None:
        _abandoned.discard(ended)
        # Asked even of a cancelled one: that lets go of its traceback, and of the socket in whose frames it is.
        with contextlib.suppress(asyncio.CancelledError):
            ended.exception()
        if then is not None:
            then(ended)

    _abandoned.add(task)
    task.add_done_callback(done)
