"""A way to an NFS server on which single messages get lost, or late: a TCP proxy that understands just enough of RPC.

    python tests/support/nfs_reply_eater.py ADDRESS LISTEN_PORT SERVER_PORT CONTROL_SOCKET

``tools/nfs_hosts.py`` starts it on the way of one host. It passes everything on, until a client connects to its control
socket (:class:`Eater` does) and sends one of these lines, to which the first answer is ``armed``. OPERATION is one of
LINK, OPEN (NFSv3: CREATE), REMOVE, RENAME; it is counted from then on, and the order ends with its connection.

- ``eat OPERATION``: the server carries out the next such request, but its reply is lost and the connection breaks. The
  client connects again and sends the request again. To the server it comes from another port, so that NFSv3's cache of
  recent replies does not know it: as after a restart of the server, or with replies that were long ago. ``eaten`` is
  said when the reply is lost.
- ``repeat OPERATION``: the same, but the client's next connection is the same one to the server, whose cache does know.
- ``hold OPERATION``: the next such request does not arrive. ``held`` is said, and at the line ``release`` it goes on
  its way, whatever became of who had sent it, and ``released`` is said.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

_NFS, _CALL = 100003, 0
_NFS3 = {"LINK": 15, "OPEN": 8, "REMOVE": 12, "RENAME": 14}
_NFS4 = {"LINK": 11, "OPEN": 18, "REMOVE": 28, "RENAME": 29}
_COMPOUND, _PUTFH, _SAVEFH, _SEQUENCE = 1, 22, 32, 53
_LAST = 0x8000_0000
_LONGEST = 4 * 2**20


class Eater:
    """One order to the proxy, as a test gives it. It ends with its block."""

    def __init__(self, path: str, order: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rw", encoding="ascii")
        self._say(order)
        self.wait_for("armed", 10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def wait_for(self, word: str, timeout_s: float = 20.0) -> None:
        """Return when it says ``eaten``, ``held`` or ``released``."""
        self._socket.settimeout(timeout_s)
        said = self._file.readline().strip()
        assert said == word, f"the reply eater said {said!r}, not {word!r}"

    def release(self) -> None:
        """Return when what was held is on its way."""
        self._say("release")
        self.wait_for("released")

    def _say(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()


class _Order:
    def __init__(self, verb: str, operation: str) -> None:
        self.verb, self.operation = verb, operation
        self.has_happened, self.is_released = asyncio.Event(), asyncio.Event()


class _Server:
    """A connection to the server, which may outlive the client's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer


class _Proxy:
    def __init__(self, address: str, server_port: int) -> None:
        self._address, self._server_port = address, server_port
        self._orders: list[_Order] = []
        self._kept: _Server | None = None  # for the client's next connection
        self._late: set[asyncio.Task[None]] = set()

    # --- The way ---------------------------------------------------------------------------------------------------

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry messages both ways between a client and the server, until one of them, or an order, ends it."""
        server, self._kept = self._kept, None
        if server is None:
            server = _Server(*await asyncio.open_connection(self._address, self._server_port))
        eaten: dict[int, _Order] = {}
        there = asyncio.create_task(self._carry_calls(reader, server.writer, eaten))
        back = asyncio.create_task(self._carry_replies(server, writer, eaten))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        writer.transport.abort()
        if self._kept is not server:
            server.writer.transport.abort()

    async def _carry_calls(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, eaten: dict[int, _Order]
    ) -> None:
        while True:
            message = await _read_message(source)
            order = next((order for order in self._orders if is_call(message, order.operation)), None)
            if order is not None:
                self._orders.remove(order)
                if order.verb == "hold":
                    order.has_happened.set()
                    self._send_late(order, message, sink)
                    continue
                eaten[_word(message, 0)] = order
            await _write_message(sink, message)

    def _send_late(self, order: _Order, message: bytes, sink: asyncio.StreamWriter) -> None:
        async def send() -> None:
            await order.is_released.wait()
            if sink.is_closing():  # the client went away and came back: it gets there by another connection
                _, other = await asyncio.open_connection(self._address, self._server_port)
                await _write_message(other, message)
                return
            await _write_message(sink, message)

        task = asyncio.create_task(send())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _carry_replies(self, server: _Server, sink: asyncio.StreamWriter, eaten: dict[int, _Order]) -> None:
        while True:
            message = await _read_message(server.reader)
            order = eaten.get(_word(message, 0)) if _word(message, 4) != _CALL else None
            if order is not None:
                if order.verb == "repeat":
                    self._kept = server
                order.has_happened.set()
                return
            await _write_message(sink, message)

    # --- The orders ------------------------------------------------------------------------------------------------

    async def obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one order, and say what becomes of it."""
        verb, operation = (await reader.readline()).decode("ascii").split()
        order = _Order(verb, operation)
        self._orders.append(order)
        gone = asyncio.create_task(self._wait_for_release(reader, order))
        writer.write(b"armed\n")
        happened = asyncio.create_task(order.has_happened.wait())
        await asyncio.wait([gone, happened], return_when=asyncio.FIRST_COMPLETED)
        if order.has_happened.is_set():
            writer.write(b"held\n" if verb == "hold" else b"eaten\n")
            await gone
            if order.is_released.is_set():
                writer.write(b"released\n")
        elif order in self._orders:
            self._orders.remove(order)
        happened.cancel()
        writer.close()

    @staticmethod
    async def _wait_for_release(reader: asyncio.StreamReader, order: _Order) -> None:
        if (await reader.readline()).strip() == b"release":
            order.is_released.set()


# --- Just enough of RPC --------------------------------------------------------------------------------------------


async def _read_message(source: asyncio.StreamReader) -> bytes:
    """Return the next message, whose fragments are put together."""
    parts: list[bytes] = []
    header = 0
    while not header & _LAST:
        (header,) = struct.unpack(">I", await source.readexactly(4))
        length = header & ~_LAST
        if length > _LONGEST:
            raise ConnectionError("that is no RPC")
        parts.append(await source.readexactly(length))
    return b"".join(parts)


async def _write_message(sink: asyncio.StreamWriter, message: bytes) -> None:
    sink.write(struct.pack(">I", _LAST | len(message)) + message)
    await sink.drain()


def is_call(message: bytes, operation: str) -> bool:
    """Whether it asks an NFS server for this operation."""
    if _word(message, 4) != _CALL or _word(message, 12) != _NFS:
        return False
    version, procedure = _word(message, 16), _word(message, 20)
    if version == 3:
        return procedure == _NFS3[operation]
    return procedure == _COMPOUND and _NFS4[operation] in _operations(message)


def _operations(message: bytes) -> Iterator[int]:
    """Yield what a COMPOUND begins with, up to the first operation that is no mere preparation."""
    at = 24
    for _ in ("credential", "verifier"):
        at = _after_opaque(message, at + 4)
    at = _after_opaque(message, at) + 4  # the tag, the minor version
    count, at = _word(message, at), at + 4
    for _ in range(count):
        operation, at = _word(message, at), at + 4
        yield operation
        if operation == _SEQUENCE:
            at += 16 + 4 * 4
        elif operation == _PUTFH:
            at = _after_opaque(message, at)
        elif operation != _SAVEFH:
            return


def _after_opaque(message: bytes, at: int) -> int:
    return at + 4 + (_word(message, at) + 3) // 4 * 4


def _word(message: bytes, at: int) -> int:
    word: int = struct.unpack_from(">I", message, at)[0]
    return word


async def _main(address: str, listen_port: str, server_port: str, control: str) -> None:
    proxy = _Proxy(address, int(server_port))
    await asyncio.start_server(proxy.carry, address, int(listen_port), limit=_LONGEST)
    await asyncio.start_unix_server(proxy.obey, Path(control))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
