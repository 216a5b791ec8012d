"""A dashboard that runs: a source that is followed, a board that it is shown on, an HTTP server in front.

It lives on the caller's event loop and takes no signals for itself, so that it can stand beside elections.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import uvicorn

from pgleaderlock._checks import check_int
from pgleaderlock._logging import get_logger
from pgleaderlock.dashboard._board import Board
from pgleaderlock.dashboard._sources import Source
from pgleaderlock.dashboard.app import Action, make_app
from pgleaderlock.election import Election
from pgleaderlock.errors import ConnectionError, LockError

__all__ = ["Dashboard"]

_BEAT_S = 3.0
_AGAIN_S = 1.0
_CLOSE_S = 1.0


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when it listens, which the original leaves to be guessed."""
        try:
            await super().startup(sockets)
        finally:
            self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the program's."""
        yield


class Dashboard:
    """One page for everything that a source shows. Also an async context manager."""

    def __init__(
        self,
        source: Source,
        *,
        host: str = "127.0.0.1",
        port: int = 8765,
        token: str | None = None,
        hosts: Iterable[str] = (),
        elections: Mapping[str, Election] | None = None,
        actions: Mapping[str, Action] | None = None,
        metrics: Any = None,
    ) -> None:
        if not host:
            raise ValueError("host must not be empty, which would be every address of this machine: that is '0.0.0.0'")
        check_int("port", port, 0, 65535)
        self._source = source
        self._host, self._port = host, port
        can = {"step_down": source.can_ask and token is not None, "demo": sorted(actions or {}) if token else []}
        self.board = Board(kind=source.kind, where=source.where, can=can)
        """What the page shows."""
        app = make_app(
            self.board, source, token=token, hosts=(*hosts, host), elections=elections, actions=actions, metrics=metrics
        )
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="error",  # whoever sends nonsense writes no lines into our log
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._logger = get_logger()

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/"

    async def start(self) -> None:
        """Listen, and begin to look. LockError if the address cannot be had."""
        listening = self._listen()
        self._port = listening.getsockname()[1]
        serve = self._server.serve(sockets=[listening])
        self._tasks = [asyncio.ensure_future(each) for each in (serve, self._look(), self._beat())]
        await self._server.listens.wait()

    async def close(self) -> None:
        """Stop: open streams are ended, each by itself; cut off by the server, they would be logged as errors."""
        self.board.streams.end()
        self._server.should_exit = self._server.force_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_S + 2)
            for task in late:
                task.cancel()
        self._tasks = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            return socket.create_server((self._host, self._port), family=family, backlog=1024)
        except OSError as error:
            reason = error.strerror or str(error)
            raise LockError(f"the dashboard cannot listen on {self._host}:{self._port}: {reason}") from error

    async def _look(self) -> None:
        """Follow the source; when its store goes away, say so, and try again until it is back."""
        while True:
            try:
                async with contextlib.aclosing(self._source.follow()) as looks:
                    async for look, new_lines in looks:
                        self.board.show(look, new_lines)
            except ConnectionError as error:
                self.board.show_stale(str(error))
            except Exception as bug:  # whatever it is, the page must not stand still without a word
                self._logger.error("dashboard_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
                self.board.show_stale(f"the dashboard failed: {bug!r}")
            await asyncio.sleep(_AGAIN_S)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            self.board.beat()
