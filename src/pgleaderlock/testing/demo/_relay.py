"""The relay between one node and PostgreSQL, which can be cut.

Each node reaches the server through a relay of its own: a Unix socket in a folder that only this user can enter. A TCP
port would let every user of this machine in, as the superuser of a server that asks for no password.

A relay that is cut holds back every byte and the close of either side, as a network does whose cable was pulled:
neither side is notified. When it is healed, what was held back arrives, late.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from urllib.parse import quote

SOCKET_NAME = ".s.PGSQL.5432"
"""The file name that libpq expects for the socket of port 5432."""
CHUNK_BYTES = 65536
"""How much is read at a time."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""One side of a relayed connection."""


class Relay:
    """Forwards data between a node and PostgreSQL, unless it is cut."""

    def __init__(self, folder: Path, server_socket: Path) -> None:
        self._folder = folder
        self._server_socket = server_socket
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self._folder), safe='')}&port=5432"

    @property
    def is_cut(self) -> bool:
        return not self._passes.is_set()

    async def start(self) -> None:
        self._folder.mkdir(mode=0o700)
        self._server = await asyncio.start_unix_server(self._accept, self._folder / SOCKET_NAME)

    def cut(self) -> None:
        """Let nothing pass from now on, without closing any connection."""
        self._passes.clear()

    def heal(self) -> None:
        """Forward what was held back, and all that follows."""
        self._passes.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.get_running_loop().create_task(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, from_node: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(to_node.close)
            await self._passes.wait()
            with contextlib.suppress(OSError):  # the server is not there, or one side has closed
                from_server, to_server = await self._reach_server()
                stack.callback(to_server.close)
                await self._converse((from_node, to_node), (from_server, to_server))

    async def _reach_server(self) -> Stream:
        return await asyncio.open_unix_connection(self._server_socket)

    async def _converse(self, node: Stream, server: Stream) -> None:
        """Forward in both directions until one side has closed."""
        await first_of(self._pump(node[0], server[1]), self._pump(server[0], node[1]))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK_BYTES):
                await self._passes.wait()
                sink.write(data)
                await sink.drain()
        await self._passes.wait()  # the close of one side is held back, too


async def first_of(*ways: Coroutine[None, None, None]) -> None:
    """Run all of them; when the first has ended, cancel the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
