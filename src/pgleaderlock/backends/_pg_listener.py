"""Hearing that something changed, by LISTEN, where a connection is really one session.

Behind a transaction pooler LISTEN would be said to one session and forgotten with it. So the connection is looked at
first, and a pooler is not listened through: once found out, it is not asked again.
"""

import asyncio
from typing import Any

import psycopg
from psycopg import sql

from pgleaderlock._logging import get_logger
from pgleaderlock.backends._connector import Connector
from pgleaderlock.backends._driver import close_connection
from pgleaderlock.errors import ConnectionError

__all__ = ["Listener"]


class Listener:
    """One connection that hears what is notified on a channel with a certain payload."""

    def __init__(self, connector: Connector, channel: str, payload: str) -> None:
        self._connector = connector
        self._channel = channel
        self._payload = payload
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._is_possible = True
        self._was_told = False

    async def listen(self) -> bool:
        """Begin to listen, unless it has begun; False where it cannot be done."""
        if self._connection is not None and not self._connection.closed:
            return True
        if not self._is_possible:
            return False
        try:
            self._connection = await self._connect()
        except (ConnectionError, psycopg.Error) as error:
            self._tell_once(error)
            return False  # it is only a quicker way to what polling brings as well
        self._was_told = False
        return self._connection is not None

    def _tell_once(self, error: Exception) -> None:
        """A wrong ``listen_dsn`` would otherwise never show; told at each try, it would hide everything else."""
        if not self._was_told:
            self._was_told = True
            get_logger().warning("not_notified", reason="followers poll", error=error)

    async def _connect(self) -> psycopg.AsyncConnection[Any] | None:
        connection: psycopg.AsyncConnection[Any] = await self._connector.connect()
        try:
            row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
            if row is None or row[0] != connection.info.backend_pid:
                self._is_possible = False
                get_logger().info("not_notified", reason="a pooler stands before the server: followers poll")
                await close_connection(connection)
                return None
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except BaseException:
            await close_connection(connection)
            raise
        return connection

    async def heard(self, timeout_s: float) -> None:
        """Return when it was notified, or the connection ended, or the time is up."""
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
        """Read what came. An end counts as news: whoever listens must look, and listen anew."""
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
