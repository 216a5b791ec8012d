"""A relay that passes bytes on and counts: who has how many connections open, and how often a client asks.

A request is counted where a client speaks after its server spoke (or first of all), whatever the protocol; what it
sends in one go before an answer is one request. So a round trip is one, a poll is one, a ping is one. TLS does not hide
it.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Self

__all__ = ["Relay"]


class Relay:
    """From a loopback port of its own to a server's, in a thread of its own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.requests = 0
        self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port = server.sockets[0].getsockname()[1]
        self._server = server
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        turn = _Turn()
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                await _until_first_ends(
                    self._pass_on(client, to_server, turn, is_client=True),
                    self._pass_on(server, to_client, turn, is_client=False),
                )
            finally:
                to_server.close()
        except (OSError, asyncio.CancelledError):
            pass  # either side may end as it likes; and a cancelled one is reported by Python 3.11 as if it had failed
        finally:
            self.connections -= 1
            to_client.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: "_Turn", *, is_client: bool
    ) -> None:
        while data := await reader.read(65536):
            if turn.is_request(is_client=is_client):
                self.requests += 1
            writer.write(data)
            await writer.drain()


class _Turn:
    """Which side spoke last, on one connection."""

    def __init__(self) -> None:
        self._client_spoke = False

    def is_request(self, *, is_client: bool) -> bool:
        began = is_client and not self._client_spoke
        self._client_spoke = is_client
        return began


async def _until_first_ends(*ways: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
