"""A network that falls silent: a TCP proxy whose sockets go on acknowledging everything and never answer again.

    python -m tests.support.silent_proxy TARGET_HOST TARGET_PORT

It says on which port it listens (``port 12345``). It is controlled by input lines, says each of them on its output
once it is so, and ends with its input. It also says ``accepted`` for each connection.

- ``mute``: connections are accepted and read from on both sides, and not a byte is passed on, nor the end of either
  side. What is mute stays so for ever: with bytes missing in its middle, no conversation could go on.
- ``deaf``: as mute, but what clients send is passed on: the server obeys, and its answers are lost.
- ``pass``: what connects from now on is passed on both ways, as in the beginning.

It is a process of its own, so that it acknowledges whatever the event loop of a test is doing.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from tests.support.processes import Process


class SilentProxy(Process):
    """The proxy before the server of a connection string, as a test sees it."""

    def __init__(self, dsn: str) -> None:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo  # not needed by the process: it starts at once

        parts = conninfo_to_dict(dsn)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        where = str(parts["host"]), str(parts.get("port", 5432))
        super().__init__(sys.executable, "-m", "tests.support.silent_proxy", *where, env={"PYTHONPATH": path})
        try:
            self.port = int(self.wait_for("port ").split()[1])
            self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self.port)
            self.wait_for("pass")
        except BaseException:
            self.__exit__()
            raise

    def mute(self) -> None:
        """Return when not another byte will be passed on."""
        self.say("mute")
        self.wait_for("mute")

    def lose_answers(self) -> None:
        """Return when no byte of the server will be passed on any more."""
        self.say("deaf")
        self.wait_for("deaf")

    def let_pass(self) -> None:
        """Return when new connections are passed on again."""
        self.say("pass")
        self.wait_for("pass")


class _Link:
    """One accepted connection, and whether it still is one."""

    def __init__(self) -> None:
        self.is_mute = False
        self.loses_answers = False

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool = False) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if not (self.is_mute or (self.loses_answers and is_answer)):
                    sink.write(data)
                    await sink.drain()
        if not (self.is_mute or self.loses_answers):
            sink.close()


class _Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._is_mute = False
        self._links: list[_Link] = []
        self._writers: list[asyncio.StreamWriter] = []  # kept, or the garbage collector would close what is mute

    def obey(self, command: str) -> None:
        self._is_mute = command == "mute"
        for link in self._links:
            link.is_mute |= self._is_mute
            link.loses_answers |= command == "deaf"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        link.is_mute = self._is_mute
        self._links.append(link)
        self._writers.append(writer)
        _say("accepted")
        if link.is_mute:
            await link.pump(reader, writer)
            return
        try:
            from_target, to_target = await asyncio.open_connection(*self._target)
        except OSError:
            if not link.is_mute:
                writer.close()
            return
        self._writers.append(to_target)
        await asyncio.gather(link.pump(reader, to_target), link.pump(from_target, writer, is_answer=True))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _serve(target_host: str, target_port: str) -> None:
    proxy = _Proxy(target_host, int(target_port))
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    _say(f"port {server.sockets[0].getsockname()[1]}")
    command = "pass"
    while command:
        proxy.obey(command)
        _say(command)
        command = (await commands.readline()).decode().strip()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
