"""The dashboard's HTTP application: the page, its data as JSON, updates as a stream, and health checks.

Everything is read from the :class:`~pgleaderlock.ops.dashboard._board.Board`, which one task keeps up to date: a
thousand open pages cost the store as much as one.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pgleaderlock.engine.election import Election
from pgleaderlock.errors import LockError, MissingExtra, PgLeaderLockError
from pgleaderlock.ops.dashboard._board import Board, dumps
from pgleaderlock.ops.dashboard._exposition import exposition
from pgleaderlock.ops.dashboard._security import Guard, is_operator, refusal
from pgleaderlock.ops.dashboard._sources import Source
from pgleaderlock.ops.dashboard._streams import Listener, Streams, TooManyListeners
from pgleaderlock.ops.registry.asking import Target

__all__ = ["Action", "make_app"]

Action = Callable[[Mapping[str, Any]], Awaitable[str]]
"""The action of a button of the demo; returns a text for the page. A LockError becomes a 409 with its text."""

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_LARGEST_BODY = 10_000
_WHICH_TERM = "name the term: instance and token of the leader, as in /api/roles"
_PIECE = 32_768


class _Pages:
    """The endpoints, and the state that they share."""

    def __init__(
        self,
        board: Board,
        source: Source,
        *,
        token: str | None,
        elections: Mapping[str, Election],
        actions: Mapping[str, Action],
        metrics: Any,
    ) -> None:
        self._board, self._source = board, source
        self._token = token
        self._elections = elections
        self._actions = actions
        self._metrics = metrics
        self._files = _static_files()

    # --- The page and its data ---

    async def page(self, _request: Request) -> Response:
        return self._file("index.html")

    async def robots(self, _request: Request) -> Response:
        return self._file("robots.txt")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            return JSONResponse({"error": "there is no such file"}, 404)
        content, content_type = found
        return Response(content, media_type=content_type, headers={"Cache-Control": "no-cache"})

    async def state(self, _request: Request) -> Response:
        return StreamingResponse(_pieces(self._board.snapshot_parts()), media_type="application/json")

    def part(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for one part of the state."""

        async def answer(_request: Request) -> Response:
            return StreamingResponse(_pieces(self._board.part(name)), media_type="application/json")

        return answer

    async def role(self, request: Request) -> Response:
        for role in self._board.roles:
            if request.path_params["lock"] in (role["lock"], role["role"]):
                return Response(dumps(role), media_type="application/json")
        return JSONResponse({"error": "there is no such role"}, 404)

    async def events(self, request: Request) -> Response:
        try:
            listener = self._board.streams.open(is_operator=is_operator(request.headers, self._token))
        except TooManyListeners:
            text = "too many pages are open; a page with the token can still be opened"
            return JSONResponse({"error": text}, 503, headers={"Retry-After": "5"})
        return _EventStream(self._board.streams, listener)

    # --- For load balancers, orchestrators and Prometheus ---

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def ready(self, _request: Request) -> Response:
        return JSONResponse({"ok": self._board.is_fresh}, 200 if self._board.is_fresh else 503)

    async def leader(self, request: Request) -> Response:
        """Return 200 on the leader, 503 elsewhere. It checks the election in this process, by the clock."""
        name = request.query_params.get("role")
        if name is None and len(self._elections) == 1:
            name = next(iter(self._elections))
        election = self._elections.get(name or "")
        leads = election is not None and election.is_leader
        answer: dict[str, Any] = {"role": name, "leads": leads, "takes_part": election is not None}
        if leads and election is not None:
            answer["token"] = election.token
        return JSONResponse(answer, 200 if leads else 503)

    async def scrape(self, _request: Request) -> Response:
        try:
            text, content_type = exposition(self._board, self._metrics)
        except MissingExtra as error:
            return JSONResponse({"error": str(error)}, 501)
        return Response(text, headers={"Content-Type": content_type})

    # --- What changes something ---

    async def step_down(self, request: Request) -> Response:
        async def ask(body: Mapping[str, Any]) -> Response:
            lock = body.get("lock")
            role = next((each for each in self._board.roles if each["lock"] == lock), None)
            if role is None:
                return JSONResponse({"error": "there is no such role"}, 404)
            if role["leader"] is None:
                return JSONResponse({"error": f"no node leads {role['role']}"}, 409)
            target = _target(body)
            if target is None:
                return JSONResponse({"error": _WHICH_TERM}, 400)
            node = await self._source.ask_to_step_down(str(lock), target)
            return JSONResponse({"asked": True, "node": node, "token": target.token}, 202)

        return await self._ask(request, ask)

    async def demo(self, request: Request) -> Response:
        action = self._actions.get(request.path_params["action"])
        if action is None:
            return JSONResponse({"error": "there is no such action"}, 404)

        async def act(body: Mapping[str, Any]) -> Response:
            return JSONResponse({"text": await action(body)}, 202)

        return await self._ask(request, act)

    async def _ask(self, request: Request, do: Callable[[Mapping[str, Any]], Awaitable[Response]]) -> Response:
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        body = await _body(request)
        if body is None:
            return JSONResponse({"error": "the body must be a small JSON object"}, 400)
        try:
            return await do(body)
        except LockError as error:
            return JSONResponse({"error": str(error)}, 409)
        except PgLeaderLockError as error:
            return JSONResponse({"error": str(error)}, 503)


class _EventStream(StreamingResponse):
    """The stream of one listener. When the client is gone, the listener is removed at once, not by the collector."""

    def __init__(self, streams: Streams, listener: Listener) -> None:
        super().__init__(_tell(listener), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._streams, self._listener = streams, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.close(self._listener)


async def _tell(listener: Listener) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    while (message := await listener.get()) is not None:
        async for piece in _pieces(message):
            yield piece


async def _pieces(parts: Sequence[str]) -> AsyncIterator[str]:
    """Yield a long text in pieces: a client that does not read then costs one piece, not a copy of the whole."""
    for part in parts:
        for place in range(0, len(part), _PIECE):
            yield part[place : place + _PIECE]


async def _body(request: Request) -> Mapping[str, Any] | None:
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > _LARGEST_BODY:
                return None
        body = json.loads(content or b"{}")
    except (ValueError, RecursionError, ClientDisconnect):
        return None
    return body if isinstance(body, dict) else None


def _target(body: Mapping[str, Any]) -> Target | None:
    """Return the term that a body names; None if it names none. A leader may have no token; then it is null."""
    instance, token = body.get("instance"), body.get("token", False)
    is_named = isinstance(instance, str) and (token is None or type(token) is int)
    return Target(str(instance), token) if is_named else None


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Read the files of the page once. No other file can be requested."""
    found = {}
    for file in resources.files("pgleaderlock.ops.dashboard").joinpath("static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if file.is_file() and suffix in _TYPES:
            found[file.name] = (file.read_bytes(), f"{_TYPES[suffix]}; charset=utf-8")
    return found


def make_app(
    board: Board,
    source: Source,
    *,
    token: str | None = None,
    hosts: Iterable[str] = (),
    elections: Mapping[str, Election] | None = None,
    actions: Mapping[str, Action] | None = None,
    metrics: Any = None,
) -> Starlette:
    """Return the application. ``elections`` are those of this process, for ``/leader``."""
    pages = _Pages(board, source, token=token, elections=elections or {}, actions=actions or {}, metrics=metrics)
    routes = [
        Route("/", pages.page),
        Route("/static/{name}", pages.static),
        Route("/robots.txt", pages.robots),
        Route("/events", pages.events),
        Route("/api/state", pages.state),
        Route("/api/roles/{lock:path}", pages.role),
        *(Route(f"/api/{part}", pages.part(part)) for part in ("roles", "nodes", "alerts", "events")),
        Route("/healthz", pages.health),
        Route("/readyz", pages.ready),
        Route("/leader", pages.leader),
        Route("/metrics", pages.scrape),
        Route("/api/step-down", pages.step_down, methods=["POST"]),
        Route("/api/demo/{action}", pages.demo, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=tuple(hosts))])
