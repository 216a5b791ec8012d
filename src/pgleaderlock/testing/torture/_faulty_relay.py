"""The relay between one node and the server, with network faults: delay, throttling, silence, cuts.

For a server on a Unix socket it listens on one, in a folder that only this user can enter. For any other server it
listens on the loopback address, and the node keeps the server's own name (libpq's ``host`` beside ``hostaddr``), so
that certificates and passwords are what they were: nothing is decrypted here.

Faults:

- ``delay``: every piece of data arrives later by so many seconds;
- ``connect``: a new connection is made later by so many seconds, and existing ones are quick;
- ``throttle``: so many bytes per second, and no more;
- ``cut``: nothing passes, and it arrives late when the fault is over;
- ``drop``: silence for ever. What is sent is read, acknowledged and lost, and neither side is notified when the other
  closes: a half-open connection. New ones are like that too until the fault is over;
- ``reset``: a connection is reset on both sides.

The relay also limits the load on the server: so many connections at once, so many messages per second, whatever the
nodes try.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock.testing.demo._relay import CHUNK_BYTES, Relay, Stream, first_of

_SIDES = 2
_HANG_UP_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is: a socket's path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    async def connect(self) -> Stream:
        """Connect to the server, or raise OSError."""
        if self.path is not None:
            return await asyncio.open_unix_connection(self.path)
        return await asyncio.open_connection(self.host, self.port)


class Allowance:
    """How many connections there may be at once, and how many messages per second, for all nodes together."""

    def __init__(self, connections: int, messages_per_s: float, clock: Callable[[], float]) -> None:
        self.connections = connections
        self.messages_per_s = messages_per_s
        self.in_use = self.most_in_use = self.refused = 0
        self._clock = clock
        self._paid_until = 0.0

    @contextlib.contextmanager
    def connection(self) -> Iterator[None]:
        """Count one connection; ConnectionRefusedError if there are enough."""
        if self.in_use >= self.connections:
            self.refused += 1
            raise ConnectionRefusedError
        self.in_use += 1
        self.most_in_use = max(self.most_in_use, self.in_use)
        try:
            yield
        finally:
            self.in_use -= 1

    async def message(self) -> None:
        """Return when one more message may be sent. A second's worth may come at once: elections send in bursts."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + 1 / self.messages_per_s
        if self._paid_until - now > 1.0:
            await asyncio.sleep(self._paid_until - now - 1.0)


class FaultyRelay(Relay):
    """Forwards data between a node and the server, subject to its faults."""

    def __init__(self, folder: Path, target: Target, allowance: Allowance) -> None:
        super().__init__(folder, folder)
        self._target = target
        self._allowance = allowance
        self._conversations: list[_Conversation] = []
        self.delay_s = self.connect_delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.is_dropping = False
        self.port = 5432
        """What the node has to connect to, beside the folder or the loopback address."""

    @property
    def folder(self) -> Path | None:
        """Where the socket is; None if it is a port on the loopback address."""
        return self._folder if self._target.path is not None else None

    @property
    def is_fair(self) -> bool:
        """Whether it has no fault."""
        return not (self.delay_s or self.connect_delay_s or self.bytes_per_s or self.is_dropping or self.is_cut)

    @property
    def is_quick(self) -> bool:
        """Whether data on the existing connections arrives at once: none of them has fallen silent."""
        is_bad = self.delay_s or self.bytes_per_s or self.is_dropping or self.is_cut
        return not (is_bad or any(conversation.is_mute for conversation in self._conversations))

    async def start(self) -> None:
        """Listen for the node's connections."""
        if self._target.path is not None:
            await super().start()
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop(self) -> None:
        """Make all open connections silent for ever, and those that are opened until :meth:`heal`."""
        self.is_dropping = True
        for conversation in self._conversations:
            conversation.is_mute = True

    def reset(self, which: int | None) -> int:
        """Reset the oldest (0) or the newest (-1) connection that is not silent, or all (None). Return how many."""
        audible = [each for each in self._conversations if not each.is_mute]
        chosen = audible if which is None else audible[which:][:1]
        for conversation in chosen:
            conversation.break_off()
        return len(chosen)

    def heal(self) -> None:
        """End every fault. Silent connections stay silent: with bytes missing, the protocol cannot go on."""
        self.delay_s, self.connect_delay_s, self.bytes_per_s, self.is_dropping = 0.0, 0.0, None, False
        super().heal()

    async def delay(self, length: int) -> None:
        """Wait for as long as these bytes take."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.bytes_per_s:
            await asyncio.sleep(length / self.bytes_per_s)
        await self._passes.wait()

    async def until_clear(self) -> None:
        await self._passes.wait()

    async def message(self) -> None:
        """Wait until the allowance permits one more message."""
        await self._allowance.message()

    async def _reach_server(self) -> Stream:
        if self.connect_delay_s:
            await asyncio.sleep(self.connect_delay_s)
        return await self._target.connect()

    async def _link(self, from_node: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        try:
            with self._allowance.connection():
                await super()._link(from_node, to_node)
        except ConnectionRefusedError:
            to_node.close()

    async def _converse(self, node: Stream, server: Stream) -> None:
        conversation = _Conversation(self, node, server)
        self._conversations.append(conversation)
        try:
            await conversation.run()
        finally:
            self._conversations.remove(conversation)


class _Conversation:
    """One connection of a node, and whether it has fallen silent."""

    def __init__(self, relay: FaultyRelay, node: Stream, server: Stream) -> None:
        self._relay = relay
        self._node, self._server = node, server
        self.is_mute = relay.is_dropping
        self._ended = 0
        self._both_ended = asyncio.Event()

    async def run(self) -> None:
        """Forward until one side has closed; if the connection is silent, until both have."""
        ways = self._pump(self._node[0], self._server[1], counts=True), self._pump(self._server[0], self._node[1])
        await first_of(*ways)

    def break_off(self) -> None:
        for _, writer in (self._node, self._server):
            connection = writer.get_extra_info("socket")
            if connection.family != socket.AF_UNIX:  # an RST, not a polite end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP_AT_ONCE)
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool = False) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK_BYTES):
                if counts:
                    await self._relay.message()
                await self._relay.delay(len(data))
                if not self.is_mute:
                    sink.write(data)
                    await sink.drain()
        await self._relay.until_clear()  # the close of one side is held back, too
        self._ended += 1
        if self._ended == _SIDES:
            self._both_ended.set()
        if self.is_mute:  # each has to find out by itself
            await self._both_ended.wait()
