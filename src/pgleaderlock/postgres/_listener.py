"""Receive notifications of changes, by LISTEN, where a connection is really one session.

Behind a transaction pooler, LISTEN would be executed on a session that is lent to another client next. So the
connection is checked first. Behind a pooler the listener is not used, and does not try again.
"""

import asyncio
from typing import Any

import psycopg
from psycopg import sql

from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._driver import close_connection

__all__ = ["Listener"]


class Listener:
    """One connection that listens to a channel for notifications with a certain payload."""

    def __init__(self, connector: Connector, channel: str, payload: str) -> None:
        self._connector = connector
        self._channel = channel
        self._payload = payload
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._is_possible = True
        self._was_warned = False

    async def listen(self) -> bool:
        """Begin to listen, unless it has begun. Return False where that is not possible."""
        if self._connection is not None and not self._connection.closed:
            return True
        if not self._is_possible:
            return False
        try:
            self._connection = await self._connect()
        except (ConnectionError, psycopg.Error) as error:
            self._warn_once(error)
            return False  # polling finds the same changes, only later
        self._was_warned = False
        return self._connection is not None

    def _warn_once(self, error: Exception) -> None:
        """Log the error, once: a wrong ``listen_dsn`` would otherwise stay unnoticed, or flood the log."""
        if not self._was_warned:
            self._was_warned = True
            get_logger().warning("not_notified", reason="followers poll", error=error)

    async def _connect(self) -> psycopg.AsyncConnection[Any] | None:
        connection: psycopg.AsyncConnection[Any] = await self._connector.connect()
        try:
            row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
            if row is None or row[0] != connection.info.backend_pid:
                self._is_possible = False
                get_logger().info("not_notified", reason="there is a pooler before the server: followers poll")
                await close_connection(connection)
                return None
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except BaseException:
            await close_connection(connection)
            raise
        return connection

    async def wait(self, timeout_s: float) -> None:
        """Wait for a notification, the end of the connection or the time-out."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        descriptor = connection.pgconn.socket
        loop.add_reader(descriptor, readable.set)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._was_notified(connection):
                    await readable.wait()
                    readable.clear()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)

    def _was_notified(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Read the connection. Its end counts as a notification: the caller has to read the row and listen again."""
        try:
            connection.pgconn.consume_input()
        except psycopg.Error:
            connection.pgconn.finish()
            return True
        while (notification := connection.pgconn.notifies()) is not None:
            if notification.extra == self._payload.encode():
                return True
        return False

    async def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)
