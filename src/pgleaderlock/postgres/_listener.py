"""Receive notifications of changes, by LISTEN, where a connection is really one session.

Behind a transaction pooler, LISTEN would be executed on a session that is lent to another client next. So the
connection is checked first. Behind a pooler the listener is not used, and does not try again.
"""

import asyncio
import contextlib

from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.connection import Connection


class Listener:
    """One connection that listens to a channel for notifications with a certain payload."""

    def __init__(self, connector: Connector, channel: str, payload: str) -> None:
        self._connector = connector
        self._channel = channel
        self._payload = payload
        self._connection: Connection | None = None
        self._notified = asyncio.Event()
        self._is_possible = True
        self._was_warned = False

    @property
    def is_listening(self) -> bool:
        """Whether every notification since the last :meth:`wait` ends the next one."""
        return self._connection is not None and not self._connection.closed

    async def listen(self) -> bool:
        """Begin to listen, unless it has begun. Return False where that is not possible."""
        if self.is_listening:
            return True
        if not self._is_possible:
            return False
        try:
            self._connection = await self._connect()
        except ConnectionError as error:
            self._warn_once(error)
            return False  # polling finds the same changes, only later
        self._was_warned = False
        return self._connection is not None

    def _warn_once(self, error: Exception) -> None:
        """Log the error, once: a wrong ``listen_dsn`` would otherwise stay unnoticed, or flood the log."""
        if not self._was_warned:
            self._was_warned = True
            get_logger().warning("not_notified", reason="followers poll", error=error)

    async def _connect(self) -> Connection | None:
        connection = await self._connector.open()
        if not connection.is_own:
            self._is_possible = False
            get_logger().info("not_notified", reason="there is a pooler before the server: followers poll")
            await connection.close()
            return None
        self._notified = asyncio.Event()  # of this event loop: a stopped election may be started on another
        await connection.listen(self._channel, self._hear)
        connection.watch(lambda _: self._notified.set())
        return connection

    def _hear(self, _: int, payload: str) -> None:
        if payload == self._payload:
            self._notified.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a notification, the end of the connection or the time-out.

        The end counts as a notification: the caller has to read the row and listen again.
        """
        if not self.is_listening:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._notified.wait()
        self._notified.clear()

    async def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
