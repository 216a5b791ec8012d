"""A running dashboard: a source, a board with the content of the page, and an HTTP server.

All three run on the thread and the event loop of the HTTP server (:mod:`pgleaderlock.ops.http`), so that neither
browsers nor a slow store can delay an election in the same process. A leader is asked to step down through its store,
which is safe from any thread. The actions of the demo's buttons run on the event loop that started the dashboard.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from pgleaderlock._base.checks import check_int
from pgleaderlock._logging import get_logger
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.dashboard._alerts import Watched
from pgleaderlock.ops.dashboard._board import Board
from pgleaderlock.ops.dashboard._security import classify
from pgleaderlock.ops.dashboard._sources import Source
from pgleaderlock.ops.dashboard.app import Action, make_app
from pgleaderlock.ops.http import HttpServer, limits_for, listen_for, url_of

__all__ = ["Dashboard"]

_MOST_CONNECTIONS: Final = 1000
_BEAT_S = 3.0
_AGAIN_S = 1.0


class Dashboard:
    """A web page with all roles of a source. Also an async context manager."""

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
        watched: Watched | None = None,
    ) -> None:
        if not host:
            raise ValueError(
                "host must not be empty, which would mean all addresses of this machine: for that, write '0.0.0.0'"
            )
        check_int("port", port, 0, 65535)
        self._source = source
        self._host, self._port, self._token = host, port, token
        self._limits = limits_for(_MOST_CONNECTIONS)
        can = {"step_down": source.can_ask and token is not None, "demo": sorted(actions or {}) if token else []}
        self.board = Board(
            kind=source.kind, where=source.where, can=can, most_streams=self._limits.most_streams, watched=watched
        )
        """The content of the page. It changes on the server's thread, and can be read from any thread."""
        self._app = make_app(
            self.board,
            source,
            token=token,
            hosts=(*hosts, host),
            elections=elections,
            actions={name: self._at_home(action) for name, action in (actions or {}).items()},
            metrics=metrics,
        )
        self._home: asyncio.AbstractEventLoop | None = None
        self._server: HttpServer | None = None
        self._logger = get_logger()

    @property
    def url(self) -> str:
        """The address of the page."""
        return url_of(self._host, self._port)

    async def start(self) -> None:
        """Listen, and begin to read the source. LockError if the address is not available."""
        listening = listen_for("dashboard", self._host, self._port)
        self._home = asyncio.get_running_loop()
        self._server = HttpServer(
            self._app,
            listening,
            self._limits,
            name="dashboard",
            classify=classify(self._token),
            beside=(self._look, self._beat),
            on_close=self.board.streams.end,
        )
        self._port = self._server.port
        self._server.start()

    async def close(self) -> None:
        """Stop. Open streams are ended first: if the server cut them off, they would be logged as errors."""
        if self._server is not None:
            await asyncio.wrap_future(self._server.ask_to_end())
            self._server = None

    def note(self, record: Mapping[str, Any]) -> None:
        """Show a record of the demo on every page. May be called from any thread."""
        if self._server is not None:
            self._server.call_soon(self.board.note, dict(record))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _at_home(self, action: Action) -> Action:
        """Wrap an action so that the server can call it: it runs on the loop that started the dashboard."""

        async def call(body: Mapping[str, Any]) -> str:
            return await action(body)

        async def run(body: Mapping[str, Any]) -> str:
            assert self._home is not None  # noqa: S101 - there is no request before start()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(body), self._home))

        return run

    async def _look(self) -> None:
        """Follow the source; while its store cannot be read, mark the page as stale and retry."""
        while True:
            try:
                async with contextlib.aclosing(self._source.follow()) as looks:
                    async for look, new_lines in looks:
                        self.board.show(look, new_lines)
            except ConnectionError as error:
                self.board.show_stale(str(error))
            except Exception as bug:  # the page must show that it is stale
                self._logger.error("dashboard_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
                self.board.show_stale(f"the dashboard failed: {bug!r}")
            await asyncio.sleep(_AGAIN_S)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            self.board.beat()
