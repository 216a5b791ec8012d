"""An HTTP server on a thread of its own, with an event loop of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvicorn

from pgleaderlock._logging import get_logger
from pgleaderlock.errors import LockError
from pgleaderlock.ops.http._acceptor import Acceptor
from pgleaderlock.ops.http._limits import HttpLimits
from pgleaderlock.ops.http._protocol import Connection
from pgleaderlock.ops.http._rare_log import RareLog
from pgleaderlock.ops.http._waiting_room import LARGEST_HEAD, Classify, Visit, WaitingRoom

T = TypeVar("T")

_BACKLOG: Final = 1024
_GRACEFUL_S: Final = 1
_CLOSE_S: Final = 5.0
_DEAD_PEER_MS: Final = 30_000


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 is a free one. OSError if the address cannot be had."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listening.settimeout(0)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # what is accepted inherits it: a stream to a host that is gone ends
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
    return listening


def listen_for(what: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens there. LockError, which says what cannot listen, if the address is not available."""
    try:
        return listen(host, port)
    except OSError as error:
        raise LockError(f"the {what} cannot listen on {host}:{port}: {error.strerror or error}") from error


def url_of(host: str, port: int) -> str:
    """Return the address of what listens there."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, with our acceptor and waiting room in the place of asyncio's."""

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, limits: HttpLimits, classify: Classify, log: RareLog
    ) -> None:
        super().__init__(config)
        self._listening, self._limits = listening, limits
        self._classify, self._log = classify, log
        self._connecting: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - the original's
        self.servers = []
        self._room = WaitingRoom(self._limits, self._log, self._classify, self._begin)
        self._acceptor = Acceptor(self._listening, self._room, self._limits, self._log)
        self._room.open()
        self._acceptor.open()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then what the original does; whatever is still open is cut, and its handler ends by that."""
        self._acceptor.close()
        self._room.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_GRACEFUL_S)

    def _begin(self, client: socket.socket, head: bytes) -> Connection:
        """Begin to answer the request that begins with this head."""
        limits, on_lost = self._limits, self._room.leave
        connection = Connection(self.config, self.server_state, {}, head=head, limits=limits, on_lost=on_lost)
        task = asyncio.get_running_loop().create_task(self._connect(connection, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return connection

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
        except OSError:  # its client is gone
            self._room.leave(connection)
            client.close()


class HttpServer:
    """Serves an ASGI application from its own thread, within limits.

    ``beside`` are coroutine functions that run on the same event loop for as long as the server does; ``on_close`` is
    called there before it ends. Elections are not on this loop: it may only ask them what any thread may ask.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        limits: HttpLimits,
        *,
        name: str,
        classify: Classify = lambda _head: Visit.ANONYMOUS,
        beside: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (),
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self._beside, self._on_close = tuple(beside), on_close
        log = RareLog(get_logger().bind(server=name, port=self.port))
        self._server = _Uvicorn(_config(app), listening, limits, classify, log)
        self._loop = asyncio.new_event_loop()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"pgleaderlock {name}", daemon=True)

    def start(self) -> None:
        """Begin to serve. The address listens already: no client that connects from now on is refused."""
        self._thread.start()

    def call(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin a call on the server's event loop, from any other thread."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the server's event loop, from any thread. Nothing happens once the server has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def ask_to_end(self) -> "Future[None]":
        """Begin to stop, and return what is done when the thread has ended."""
        self.call_soon(self._end)
        return self._ended

    def close(self) -> None:
        """Stop, and wait for it: some tenths of a second, which an event loop must not wait for."""
        self.ask_to_end().result(_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _end(self) -> None:
        self._on_close()
        self._server.should_exit = self._server.force_exit = True

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as bug:  # noqa: BLE001 - raised where the end is waited for
            self._ended.set_exception(bug)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        tasks = [asyncio.ensure_future(start()) for start in self._beside]
        try:
            await self._server.serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=Connection,
        ws="none",  # a connection that is upgraded would leave the limits behind
        log_config=None,
        log_level="error",  # a client that sends nonsense writes no lines into our log
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        h11_max_incomplete_event_size=LARGEST_HEAD,
        headers=[("Connection", "close")],  # one request each: see the package
        timeout_graceful_shutdown=_GRACEFUL_S,
    )
