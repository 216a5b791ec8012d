"""Await a database driver so that a cancelled call ends at once, whatever the driver does.

The engine cancels calls, and must not wait for an answer that a dead network never delivers. psycopg makes that hard:
it catches the cancellation, asks the server to cancel the query, and waits for the answer, for up to ten seconds
(psycopg issue 1371). That answer is not needed here, because a session whose call was cancelled is closed. So
:func:`close_on_cancel` replaces the one method in which psycopg waits: when it is cancelled, it only closes the
connection. By then the descriptor's reader is gone from the event loop, so a later file with the same number is safe.

Text is read as text. With ``client_encoding=SQL_ASCII``, from a connection string, the environment or a caller's own
connection, psycopg would return bytes, which cannot be compared with names.

Another driver's call runs in a task of its own, which is abandoned when it does not end.

What the fence needs to know of users' own psycopg connections is here too: their types, and whether one is idle.
"""

import asyncio
import contextlib
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection, Error, waiting
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import PipelineStatus, TransactionStatus

from pgleaderlock._base.portable import at_fork

__all__ = [
    "AsyncConnection",
    "Connection",
    "DriverError",
    "call_driver",
    "close_connection",
    "close_on_cancel",
    "forget_connection",
    "is_idle",
    "is_in_pipeline",
    "is_psycopg",
    "open_connection",
]

T = TypeVar("T")

DriverError = Error
"""The base class of psycopg's errors."""

_CLOSE_TIMEOUT_S = 1.0  # for a connection that is not psycopg's, whose close() may do anything
_WAKE_INTERVAL_S = 60.0  # psycopg requires an interval at which its wait wakes up; nothing here needs it

_taken_over: weakref.WeakSet[AsyncConnection[Any]] = weakref.WeakSet()
_abandoned: set[asyncio.Future[Any]] = set()  # asyncio keeps only weak references to tasks


def is_psycopg(connection: object) -> bool:
    """Return whether it is psycopg's own class: a mock with a spec passes isinstance(), but not this."""
    return issubclass(type(connection), AsyncConnection)


def forget_connection(error: Exception) -> None:
    """Take the record of a failed connection, with all its parameters, out of psycopg's error."""
    if isinstance(error, Error):
        error._pgconn = None  # noqa: SLF001 - psycopg offers no other way


def is_idle(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a user's own connection is outside a transaction."""
    return connection.info.transaction_status == TransactionStatus.IDLE


def is_in_pipeline(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a user's own connection is in a pipeline."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


class _TextLoader(Loader):
    """Reads text as the encoding of the connection says, or as UTF-8 where it says nothing. Never fails."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        known = "ascii" if self.connection is None else self.connection.info.encoding
        self._encoding = "utf-8" if known == "ascii" else known

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(self._encoding, "backslashreplace")


_TEXT_TYPES = ("text", "varchar", "name", "bpchar")


def close_on_cancel(
    connection: AsyncConnection[Any],
    close: Callable[[], object] | None = None,
    look: Callable[[], object] | None = None,
) -> None:
    """Make a cancelled call on this connection end at once and close the connection, by ``close`` if it is given.

    ``look`` is called whenever something has arrived during a call: before libpq reads it, and afterwards. Also make
    psycopg return text as str.
    """
    for type_name in _TEXT_TYPES:
        connection.adapters.register_loader(type_name, _TextLoader)

    async def wait(gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        steps = gen if look is None else _looking(gen, look)
        try:
            return await waiting.wait_async(steps, connection.pgconn.socket, interval=_WAKE_INTERVAL_S)
        except asyncio.CancelledError:
            (close or connection.pgconn.finish)()
            raise

    connection.wait = wait  # type: ignore[method-assign]
    _taken_over.add(connection)


def _looking(gen: Generator[Any, Any, T], look: Callable[[], object]) -> Generator[Any, Any, T]:
    """Do the steps of a call of psycopg, and look before and after each of them."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            look()
            wanted = gen.send(ready)
            look()
    except StopIteration as done:
        result: T = done.value
        return result


def _close_sockets_in_child() -> None:
    """In a forked child, close our copies of the sockets: while they are open, the server does not see our death.

    Their numbers are redirected to the null device, so that the terminate message which libpq sends in the child does
    not reach the server.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for connection in list(_taken_over):
        if not connection.closed:
            os.dup2(null, connection.pgconn.socket, inheritable=False)
    os.close(null)


at_fork(after_in_child=_close_sockets_in_child)


async def call_driver(connection: Any, call: Awaitable[T]) -> T:
    """Await the driver. If we are cancelled, return at once, even if the driver goes on."""
    if is_psycopg(connection):
        return await call
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        _abandon(task)
        raise
    return task.result()


async def open_connection(connect: Callable[[], Any]) -> Any:
    """Await a connection factory; if we are cancelled, close the connection that it may still return."""
    answer = connect()
    if not inspect.isawaitable(answer):
        return answer
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        _abandon(task, _close_late_arrival)
        raise
    return task.result()


async def close_connection(connection: Any) -> None:
    """Close a connection of any driver, in bounded time and without raising."""
    if is_psycopg(connection):
        connection.pgconn.finish()  # what its close() does, without the bookkeeping of a pool it may belong to
        return
    try:
        answer = connection.close()
    except Exception:  # noqa: BLE001 - the connection is not used again
        return
    if inspect.isawaitable(answer):
        task = asyncio.ensure_future(answer)
        _abandon(task)  # not cancelled: half a close is worse than a late one
        await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT_S)


def _close_late_arrival(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None and task.result() is not None:
        _abandon(asyncio.ensure_future(close_connection(task.result())))


def _abandon(task: asyncio.Future[Any], then: Callable[[asyncio.Future[Any]], object] | None = None) -> None:
    """Keep the task alive until it ends, and retrieve its outcome, or asyncio would log it."""

    def done(ended: asyncio.Future[Any]) -> None:
        _abandoned.discard(ended)
        # Also of a cancelled task: this frees its traceback, and with it the socket that the frames refer to.
        with contextlib.suppress(asyncio.CancelledError):
            ended.exception()
        if then is not None:
            then(ended)

    _abandoned.add(task)
    task.add_done_callback(done)
