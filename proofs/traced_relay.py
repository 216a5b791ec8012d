"""Relays between candidates and a PostgreSQL, as one process of their own, which writes down when news passed.

    python -m proofs.traced_relay '{"target": "/x/.s.PGSQL.5432", "folders": ["/x/relay0", ...], "log": "/x/trace"}'

A candidate can know of the end of its session only when that has reached its own socket. So the relay passes an end on
in the same step in which it sees it, runs with a raised priority where it may, and writes down, by the machine's one
clock: when the server closed a session and when that was at the candidate's socket (:class:`Ending`), and how long a
request was under way where that was long (:class:`SlowAnswer`).

It is controlled by input lines (``{"node": 0, "connect_delay_s": 1.5}``), answers each with ``done``, and ends with
its input.
"""

import asyncio
import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pgleaderlock._base.clock import suspend_aware_clock as clock

__all__ = ["Ending", "RelayProcess", "SlowAnswer", "find_backend_pid", "read_trace"]

_SLOW_S = 0.1
_NICER_BY = -10
_SOCKET = ".s.PGSQL.5432"
_LAST_WORDS = b"VFATAL\0"  # a field of an ErrorResponse, in no language


@dataclass(frozen=True)
class Ending:
    """A session that the server ended: when the relay saw that, and when the candidate could.

    A candidate that has read the server's last message may close its socket before the server does; then both times are
    those of its own close.
    """

    node: int
    pid: int
    """Of the server's process."""
    closed_at: float
    forwarded_at: float
    said_at: float = float("inf")
    """When the last message of the server (a FATAL error) was at the candidate's socket; infinite if there was none."""


@dataclass(frozen=True)
class SlowAnswer:
    """A request that was under way for long; until infinity if its session ended without an answer."""

    node: int
    pid: int
    asked_at: float
    answered_at: float


def read_trace(lines: Iterable[str]) -> Iterator[Ending | SlowAnswer]:
    """Read what a relay wrote; half a last line is none."""
    for line in lines:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            yield Ending(**record) if "closed_at" in record else SlowAnswer(**record)


def find_backend_pid(said: bytes) -> int | None:
    """Return the pid that a server says at the beginning of a session (BackendKeyData); None if it is not there yet."""
    place = 0
    while len(said) >= place + 9:
        kind, length = said[place : place + 1], struct.unpack_from("!i", said, place + 1)[0]
        if kind == b"K":
            return int(struct.unpack_from("!i", said, place + 5)[0])
        place += 1 + length
    return None


class _Side(asyncio.Protocol):
    """One end of a session; what it receives goes to the other."""

    transport: asyncio.Transport
    other: "_Side | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def pass_on(self, data: bytes) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class _NodeSide(_Side):
    def __init__(self, relay: "_Relay") -> None:
        self._relay = relay
        self.asked_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        await asyncio.sleep(self._relay.connect_delay_s)
        server_side = _ServerSide(self, self._relay)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: server_side, self._relay.target)
        except OSError:
            self.transport.close()
            return
        self.other = server_side
        if self.transport.is_closing():
            server_side.transport.close()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.asked_at = self.asked_at or clock()
        self.pass_on(data)


class _ServerSide(_Side):
    def __init__(self, node_side: _NodeSide, relay: "_Relay") -> None:
        self.other = self._node_side = node_side
        self._relay = relay
        self._head = b""
        self._pid: int | None = None
        self._has_ended = False
        self._said_at = float("inf")

    def data_received(self, data: bytes) -> None:
        self.pass_on(data)
        if _LAST_WORDS in data:
            self._said_at = clock()
        if self._pid is None:
            self._head += data
            self._pid = find_backend_pid(self._head)
        self._note_answer(clock())

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()  # a server's process that leaves something unread resets the connection
        super().connection_lost(error)

    def _end(self) -> None:
        """Pass the end on, unless the candidate ended the connection without being asked to."""
        if self._has_ended:
            return
        self._has_ended, closed_at = True, clock()
        is_open = not self._node_side.transport.is_closing()
        if is_open:
            with contextlib.suppress(OSError):
                self._node_side.transport.write_eof()  # at once: nothing is left in the buffer
        forwarded_at = clock()
        self._note_answer(float("inf"))
        if self._pid is not None and (is_open or self._said_at < closed_at):
            self._relay.write(Ending(self._relay.node, self._pid, closed_at, forwarded_at, self._said_at))

    def _note_answer(self, at: float) -> None:
        asked_at, self._node_side.asked_at = self._node_side.asked_at, None
        if asked_at is not None and self._pid is not None and at - asked_at > _SLOW_S:
            self._relay.write(SlowAnswer(self._relay.node, self._pid, asked_at, at))


class _Relay:
    def __init__(self, node: int, target: str, log: int) -> None:
        self.node = node
        self.target = target
        self.connect_delay_s = 0.0
        self._log = log

    def write(self, record: Ending | SlowAnswer) -> None:
        os.write(self._log, (json.dumps(asdict(record)) + "\n").encode())


def _say_done() -> None:
    os.write(sys.stdout.fileno(), b"done\n")


async def _serve(*, target: str, folders: list[str], log: str) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(_NICER_BY)
    loop = asyncio.get_running_loop()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    relays = [_Relay(node, target, descriptor) for node in range(len(folders))]
    for relay, folder in zip(relays, folders, strict=True):
        await loop.create_unix_server(partial(_NodeSide, relay), f"{folder}/{_SOCKET}")
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _say_done()
    while line := await commands.readline():
        command = json.loads(line)
        relays[command["node"]].connect_delay_s = command["connect_delay_s"]
        _say_done()


class RelayProcess:
    """The relays, as the process that starts them sees them."""

    def __init__(self, folder: Path, target: Path, nodes: int) -> None:
        self.folders = [folder / f"relay{node}" for node in range(nodes)]
        self._log = folder / "trace"
        self._target = target
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        for folder in self.folders:
            folder.mkdir(mode=0o700)
        words: dict[str, Any] = {"target": str(self._target), "folders": [str(folder) for folder in self.folders]}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "proofs.traced_relay",
            json.dumps({**words, "log": str(self._log)}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._await_done()

    async def delay_connects(self, node: int, seconds: float) -> None:
        """Return when new connections of this node take so much longer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"node": node, "connect_delay_s": seconds}).encode() + b"\n")
        await self._await_done()

    async def _await_done(self) -> None:
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != b"done\n":
            raise RuntimeError("the relay has ended")

    async def stop(self) -> list[Ending | SlowAnswer]:
        """End it, and return what it has seen."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        return list(read_trace(self._log.read_text().splitlines() if self._log.exists() else []))


if __name__ == "__main__":
    asyncio.run(_serve(**json.loads(sys.argv[1])))
