"""Awaiting a database driver without being at its mercy.

A time-out or a cancellation around a psycopg call is not enough: psycopg catches the cancellation, asks the server to
cancel the query, and waits for the answer, which a dead network never brings. So the driver's call runs in a task of
its own. When the caller is cancelled, the socket is shut down and the task is left to notice that by itself: the read
it waits for ends at once, and only then is the descriptor closed. Closing it earlier could take the number away under
the driver's feet, and with it the reader of whoever got the number next.
"""

import asyncio
import inspect
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from psycopg import AsyncConnection

__all__ = ["call_driver", "close_connection", "is_psycopg", "open_connection"]

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 1.0  # for a connection that is not psycopg's, whose close() may do anything

_abandoned: set[asyncio.Future[Any]] = set()  # asyncio keeps only weak references to tasks


def is_psycopg(connection: object) -> bool:
    """Whether it really is psycopg's: a mock with a spec passes isinstance(), but not this."""
    return issubclass(type(connection), AsyncConnection)


async def call_driver(connection: Any, call: Awaitable[T]) -> T:
    """Await the driver; if we are cancelled, cut the connection and leave the call behind."""
    task = asyncio.ensure_future(call)
    try:
        await _until_done(task)
    except asyncio.CancelledError:
        _cut(connection, task)
        raise
    return task.result()


async def _until_done(task: asyncio.Future[Any]) -> None:
    """Wait without handing a cancellation on. As asyncio.wait() does, at half the cost: this is on every call's way."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any]) -> None:
        if not done.done():
            done.set_result(None)

    task.add_done_callback(wake)
    await done


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
        try:
            await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT_S)
        finally:
            if not task.done():
                task.cancel()
            _leave_behind(task)


def _cut(connection: Any, task: asyncio.Future[Any]) -> None:
    """Make the call in flight fail, and close the connection when it has."""
    if is_psycopg(connection):
        _shut_down_socket(connection)
        _leave_behind(task, lambda _: connection.pgconn.finish())
    else:
        task.cancel()
        _leave_behind(task)


def _shut_down_socket(connection: AsyncConnection[Any]) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    except Exception:  # noqa: BLE001 - no socket, or one that the other side ended already
        return


def _close_late_arrival(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None and task.result() is not None:
        closing = asyncio.ensure_future(close_connection(task.result()))
        _leave_behind(closing)


def _leave_behind(task: asyncio.Future[Any], then: Callable[[asyncio.Future[Any]], object] | None = None) -> None:
    """Keep the task alive until it ends, look at its outcome so that nobody is told it was forgotten."""

    def done(ended: asyncio.Future[Any]) -> None:
        _abandoned.discard(ended)
        if not ended.cancelled():
            ended.exception()
        if then is not None:
            then(ended)

    _abandoned.add(task)
    task.add_done_callback(done)
