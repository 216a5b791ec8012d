"""The client's end of a connection to the modelled server, behind the port that psycopg stands behind in production."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres.session import Heard, OnEnd, ServerFacts
from pgleaderlock.testing.simulation._futures import resolve
from pgleaderlock.testing.simulation._receive_buffer import ReceiveBuffer
from pgleaderlock.testing.simulation._statements import read
from pgleaderlock.testing.simulation.network import Cable, Pipe
from pgleaderlock.testing.simulation.postgres import VERSION, ModelledPostgres, ServerSession

__all__ = ["SimulatedSession"]

_ANNOUNCED = (LossCause.SESSION_TERMINATED, LossCause.SILENCED)
"""Ends before which PostgreSQL sends an error that is FATAL. Before that of a crash it sends a warning, if anything."""
_LISTEN_S = 5.0


class SimulatedSession:
    """One connection of one node."""

    def __init__(self, owner: str, cable: Cable, server: ModelledPostgres) -> None:
        self.owner = owner
        self._cable = cable
        self.to_server, self.to_client = Pipe(cable), Pipe(cable)
        self._server = server
        self._there: ServerSession | None = None
        self._answer: asyncio.Future[tuple[Any, ...] | None] | None = None
        self._end: asyncio.Future[LossCause] = asyncio.get_running_loop().create_future()
        self._connected: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._notified = asyncio.Event()
        self._pid = 0
        self._is_closed = self._is_watched = False
        self._loop = asyncio.get_running_loop()
        self._unread = ReceiveBuffer(lambda: cable.world.now)
        self._on_end: OnEnd | None = None
        self._heard: Heard | None = None
        self._announced: Callable[[], None] | None = None

    async def connect(self) -> None:
        self.to_server.send(self._knock, after_s=self._cable.draw_connect_s())
        try:
            pid = await self._connected
        except asyncio.CancelledError:
            await self.close()
            raise
        if pid is None:
            await self.close()
            raise ConnectionError("the simulated server refuses connections")
        self._pid = pid

    def _knock(self) -> None:
        self._there = self._server.accept(self, self.to_client)
        pid = None if self._there is None else self._there.pid
        self.to_client.send(lambda: resolve(self._connected, pid))

    # --- The port ----------------------------------------------------------------------------------------------

    @property
    def facts(self) -> ServerFacts:
        """The facts of a recent server without a pooler."""
        return ServerFacts(VERSION, self._pid)

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def has_ended(self) -> bool:
        """Whether the socket shows the end, even if the process is frozen and has not read it."""
        return self._is_closed or self._unread.shows_end

    @property
    def descriptor(self) -> int | None:
        return None

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        """Send a statement, and wait for the answer, the time-out, or the end. Close, unless an answer comes."""
        ask = read(statement)
        if self._is_closed:
            raise self._ended()
        self._answer = asyncio.get_running_loop().create_future()
        self.to_server.send(lambda: self._deliver((ask, parameters)))
        try:
            async with asyncio.timeout(bound_s):
                futures: set[asyncio.Future[Any]] = {self._answer, self._end}
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise self._give_up(f"no answer within {bound_s:.3g} s", LossCause.RENEW_TIMEOUT) from None
        except asyncio.CancelledError:
            self._give_up("the call was cut short", LossCause.ABORTED)
            raise
        self._unread.read()
        if not self._answer.done():
            self._report_end()
            raise self._ended()
        return self._answer.result()

    def _give_up(self, what: str, cause: LossCause) -> ConnectionError:
        """Report the end, and then close, as the real session does."""
        error = ConnectionError(what, cause=cause)
        self._report(error)
        self._shut()
        return error

    def _report_end(self) -> None:
        if not self._is_closed:
            self._report(self._ended())
            self._shut()

    def _report(self, error: ConnectionError) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)

    def on_announcement(self, call: Callable[[], None]) -> None:
        """Call it when the server announces a grant."""
        self._announced = call

    async def listen(self, channel: str, heard: Heard | None = None) -> None:
        """Listen on a channel."""
        self._heard = heard
        await self.fetch(f'LISTEN "{channel}"', bound_s=_LISTEN_S)

    async def notified(self) -> None:
        """Wait for ever, if the session does not listen."""
        await self._notified.wait()
        self._notified.clear()

    def watch(self, on_end: OnEnd) -> None:
        """Report the end, on the node's own loop: a frozen process is notified when it thaws."""
        self._on_end, self._is_watched = on_end, True
        self._unread.read()
        if self._is_closed:
            self._report(self._ended())
        else:
            self._end.add_done_callback(lambda _: self._report_end())

    async def close(self) -> None:
        self._on_end = None
        self._shut()

    def _shut(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.hang_up()

    # --- The network -------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """Close the connection, as the kernel does for a process that closes its socket or dies."""
        self.to_server.send(lambda: self._deliver(None))

    def vanish(self) -> None:
        """Make the connection silent without a close, as when the host loses power, or a firewall drops its state."""
        self.to_server.is_dead = self.to_client.is_dead = True
        self._cable.troubled_at = self._cable.world.now

    def receive_answer(self, answer: tuple[Any, ...] | None) -> None:
        """Handle an answer; one whose request was given up is dropped with its session."""
        if self._answer is not None:
            resolve(self._answer, answer)

    def receive_announcement(self) -> None:
        """Handle an announcement, which the process reads in its next turn, unless it has closed the session."""
        if self._announced is not None and not self._is_closed:
            self._loop.call_soon(self._announced)

    def receive_end(self, cause: LossCause) -> None:
        """Handle the end. A server that cannot write ends a session without an error message."""
        cause = LossCause.CONNECTION_LOST if self._unread.is_full else cause
        self._unread.take_in_end(is_announced=cause in _ANNOUNCED)
        resolve(self._connected, None)
        resolve(self._end, cause)

    def receive_notification(self, size_bytes: int, sender_pid: int = 0, payload: str = "") -> None:
        """Handle a notification, which is unread until the process takes its next turn."""
        self._unread.take_in(size_bytes)
        self._notified.set()
        if self._heard is not None:
            self._heard(sender_pid, payload)
        if self._is_watched:
            self._loop.call_soon(self._unread.read)

    def _deliver(self, request: Any) -> None:
        if self._there is not None:
            self._there.receive(request)

    def _ended(self) -> ConnectionError:
        """Return the server's last error, if it was received; psycopg keeps it too."""
        cause = self._end.result() if self._end.done() else LossCause.CONNECTION_LOST
        return ConnectionError("the simulated session ended", cause=cause)
