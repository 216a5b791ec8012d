"""A Kubernetes API server for tests, in this process and over real HTTP: Leases, pods, tokens, and all that can fail.

::

    async with FakeKubernetes() as server:
        backend = new_from_env("my-lease", environ={"KUBECONFIG": str(server.write_kubeconfig(tmp_path / "config"))})

It answers as the real one does (``_lease_api.py``, ``_pod_api.py``), and can be frozen, cut off, restarted, throttled
and locked against chosen verbs. Nothing but the standard library.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from pgleaderlock.testing._fake_http import Request, chunk, decode, head, read_request
from pgleaderlock.testing._lease_api import LeaseApi, Refusal
from pgleaderlock.testing._pod_api import PodApi

__all__ = ["FakeKubernetes"]


class FakeKubernetes:
    """A Kubernetes API server in this process. Its data survive :meth:`stop` and :meth:`start`, as etcd's would."""

    def __init__(
        self,
        *,
        namespaces: tuple[str, ...] = ("default",),
        tokens: tuple[str, ...] = (),
        coordinated: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.api = LeaseApi(namespaces=namespaces, coordinated=coordinated)
        self.pods = PodApi()
        self.tokens = set(tokens)
        """Bearer tokens that are accepted; when empty, every client is."""
        self.forbidden: set[str] = set()
        """Verbs that are answered with 403; for pods as ``list pods``."""
        self.asked: list[str] = []
        """The verb of every request that was read; for pods as ``get pods``."""
        self._answers: deque[bytes] = deque()
        self._lost_answers = 0
        self._breaks_off = False
        self._tls = tls
        self._port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    # --- Life --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and end those that there are."""
        if self._server is not None:
            self._server.close()
            await self.drop_connections()
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def write_kubeconfig(self, path: Path, *, namespace: str = "default", user: dict[str, Any] | None = None) -> Path:
        """Write a kubeconfig that leads here, and return its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": namespace}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": user or {}}],
        }
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        return path

    # --- Faults ------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Accept and read, and answer nothing until :meth:`thaw`. Nothing that is asked meanwhile is done."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Do what was requested since :meth:`freeze`, and answer."""
        self._thawed.set()

    async def drop_connections(self) -> None:
        """End all connections, watches too."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # for the sockets themselves

    def throttle(self, times: int = 1, retry_after_s: int = 1) -> None:
        """Answer the next requests with 429."""
        body = Refusal(429, "TooManyRequests", "too many requests, please try again later").body
        for _ in range(times):
            self.answer_next(429, json.dumps(body), f"Retry-After: {retry_after_s}\r\n")

    def answer_next(self, status: int, body: str, headers: str = "") -> None:
        """Answer the next request with this, whatever it is, and do nothing of what it asks."""
        self._answers.append(head(status, len(body.encode()), headers) + body.encode())

    def lose_answers(self, times: int = 1) -> None:
        """Do what the next requests ask, and end their connections instead of answering."""
        self._lost_answers = times

    def break_off_next(self) -> None:
        """Do what the next request asks, and end its connection in the middle of the answer."""
        self._breaks_off = True

    def touch(self) -> None:
        """Wake the watches, after ``api`` was changed from outside."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- HTTP --------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in one
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the connection is to be dropped: either way this is its end
        finally:
            writer.transport.abort()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do what was asked. False when the connection is to end."""
        self.asked.append(request.named)
        await self._thawed.wait()
        if self._answers:
            writer.write(self._answers.popleft())
            await writer.drain()
            return True
        try:
            self._check_access(request)
            if request.verb == "watch":
                await self._stream(request, reader, writer)
                return False
            status, content = self._do(request)
        except Refusal as refusal:
            status, content = refusal.status, refusal.body
        if self._lost_answers:
            self._lost_answers -= 1
            return False
        body = json.dumps(content).encode()
        breaks_off, self._breaks_off = self._breaks_off, False
        writer.write(head(status, len(body)) + (body[: len(body) // 2] if breaks_off else body))
        await writer.drain()
        if breaks_off:
            writer.close()  # abort() would take back what was sent
            await writer.wait_closed()
        return not breaks_off

    def _check_access(self, request: Request) -> None:
        if self.tokens and request.token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if request.named in self.forbidden:
            group = "coordination.k8s.io" if request.resource == "leases" else ""
            text = (
                f'{request.resource}{group and f".{group}"} is forbidden: User "me" cannot {request.verb} resource '
                f'"{request.resource}" in API group "{group}" in the namespace "{request.namespace}"'
            )
            raise Refusal(403, "Forbidden", text)

    def _do(self, request: Request) -> tuple[int, dict[str, Any]]:
        if request.resource == "pods":
            return self._do_with_pods(request)
        match request.verb, request.name:
            case "get", str(name):
                return 200, self.api.get(request.namespace, name)
            case "list", None:
                return 200, self.api.listing(request.namespace, request.selected)
            case "create", None:
                status, content = 201, self.api.create(request.namespace, decode(request.body))
            case "update", str(name):
                status, content = self.api.replace(request.namespace, name, decode(request.body))
            case "delete", str(name):
                status, content = 200, self.api.delete(request.namespace, name)
            case _:
                raise Refusal(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )
        self.touch()
        return status, content

    def _do_with_pods(self, request: Request) -> tuple[int, dict[str, Any]]:
        match request.verb, request.name:
            case "get", str(name):
                return 200, self.pods.get(request.namespace, name)
            case "list", None:
                return 200, self.pods.listing(request.namespace, request.query.get("labelSelector", ""))
            case "patch", str(name):
                return 200, self.pods.patch(request.namespace, name, decode(request.body))
            case _:
                raise Refusal(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )

    async def _stream(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = request.since  # refused before anything is said, if it is none
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for event in self._events(request, reader):
            line = json.dumps(event).encode() + b"\n"
            writer.write(chunk(line))
            await writer.drain()
        writer.write(chunk(b""))
        await writer.drain()

    async def _events(self, request: Request, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        since = self.api.revision if request.since is None else request.since
        if request.since is None:  # then a watch begins with what there is
            for lease in self.api.listing(request.namespace, request.selected)["items"]:
                yield {"type": "ADDED", "object": lease}
        if since < self.api.forgotten_up_to:
            yield {"type": "ERROR", "object": Refusal(410, "Expired", f"too old resource version: {since}").body}
            return
        end = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds") or 1800)
        hung_up = asyncio.ensure_future(reader.read(1))  # a client says nothing more, so this is its end
        try:
            while not hung_up.done() and (left_s := end - asyncio.get_running_loop().time()) > 0:
                changed = asyncio.ensure_future(self._changed.wait())
                for revision, event in self.api.events(request.namespace, request.selected, since):
                    await self._thawed.wait()
                    since = revision
                    yield event
                try:
                    await asyncio.wait({hung_up, changed}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            hung_up.cancel()
