"""The sidecar: answers programs in any language over HTTP who leads, and whether this process does.

    election = Election(open_backend(url))
    async with Sidecar(election, LeaderView(url), port=4040), election:
        ...

``pgleaderlock sidecar`` does that for you. Needs uvicorn, of the extra ``metrics``.

**What is true when it is answered.** That this process leads: the election is asked at that moment, by its clock, and
the store grants the lock to no other candidate before that time is over. From the request to stop on, the answer is
no, also while the lock is still held.

**What is a hint.** Which *other* process leads: the last answer of the store, at most six seconds old, with its age.
If the store does not answer, or still shows this process after its term, the leader is unknown, and no older answer is
given. Nor is an answer true for longer than it takes to read it.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Self

from pgleaderlock._base.checks import check_int
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import MissingExtra
from pgleaderlock.models import Event, EventKind, LeaderSeen, LeaderUnknown
from pgleaderlock.ops.answers import host_of, is_alive, is_ready, leader_fields, own_fields
from pgleaderlock.stores.watching import LeaderView

try:
    from pgleaderlock.ops.http import HttpServer, limits_for, listen_for, url_of
except ModuleNotFoundError as error:
    raise MissingExtra(f'the sidecar needs the package {error.name}: pip install "pgleaderlock[metrics]"') from error

__all__ = ["DEFAULT_PORT", "Sidecar"]

DEFAULT_PORT: Final = 4040
"""The default port, which is that of the image ``leader-elector`` in its own examples."""
_MOST_CONNECTIONS: Final = 64
_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
_Answer = tuple[int, dict[str, Any]]


class Sidecar:
    """Answers who leads over HTTP, on a thread of its own. Also an async context manager.

    There is no password and no TLS: every client that reaches ``host`` can read who leads.
    """

    def __init__(self, lock: Election, view: LeaderView, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> None:
        if not host:
            raise ValueError("host must not be empty, which would be every address of this machine: that is '0.0.0.0'")
        self._lock, self._view = lock, view
        self._host, self._port = host, check_int("port", port, 0, 65535)
        self._server: HttpServer | None = None
        self._since: str | None = None
        self._paths: dict[str, Callable[[], _Answer]] = {
            "/": self._name,
            "/leader": self._am_i_it,
            "/election": self._who,
            "/healthz": lambda: self._probe(is_good=is_alive(self._lock)),
            # A new pod that cannot reach the store must not replace one that can.
            "/readyz": lambda: self._probe(is_good=is_ready(self._lock) and self._view.has_answered),
        }
        lock.subscribe(self._note)

    @property
    def url(self) -> str:
        """The URL at which it answers."""
        return url_of(self._host, self._port)

    async def start(self) -> None:
        """Listen, and begin to watch the store. LockError if the address is not available."""
        listening = listen_for("sidecar", self._host, self._port)
        limits = limits_for(_MOST_CONNECTIONS)
        self._server = HttpServer(self._serve, listening, limits, name="sidecar", beside=(self._view.keep,))
        self._port = self._server.port
        self._server.start()

    async def close(self) -> None:
        """Stop the HTTP server and the watch of the store."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.wrap_future(server.ask_to_end())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- What is known ---

    def _note(self, event: Event) -> None:
        """Note when the term began. Called on the event loop of the election."""
        if event.kind is EventKind.ACQUIRED:
            self._since = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        elif not event.to_state.is_in_term:
            self._since = None

    def _own(self) -> dict[str, Any]:
        """Return the fields of this process. From the request to stop on, it is no leader."""
        fields = own_fields(self._lock)
        return {**fields, "is_leader": False, "token": None, "time_left_s": 0.0} if self._lock.is_stopping else fields

    def _leader(self, own: dict[str, Any]) -> LeaderSeen | LeaderUnknown | None:
        identity = self._lock.identity
        if own["is_leader"]:
            return LeaderSeen(identity or socket.gethostname(), self._lock.address, own["token"], self._since)
        seen = self._view.leader
        if isinstance(seen, LeaderSeen) and seen.name == identity:
            return LeaderUnknown("the store shows this process, which does not lead")
        return seen

    # --- The answers ---

    def _name(self) -> _Answer:
        """Answer as the image ``leader-elector`` did: the name alone. Its clients compare it with their host name."""
        own = self._own()
        leader = self._leader(own)
        if not isinstance(leader, LeaderSeen):
            return 200 if leader is None else 503, {"name": ""}
        host, own_host = host_of(leader.name), socket.gethostname()
        # The name of a session has only the end of a long host name.
        return 200, {"name": own_host if own["is_leader"] and own_host.endswith(host) else host}

    def _am_i_it(self) -> _Answer:
        body = self._all()
        return 200 if body["is_leader"] else 503, body

    def _who(self) -> _Answer:
        body = self._all()
        return 503 if body["leadership"] == "unknown" else 200, body

    def _probe(self, *, is_good: bool) -> _Answer:
        return 200 if is_good else 503, self._own()

    def _all(self) -> dict[str, Any]:
        own = self._own()
        found = leader_fields(self._leader(own))
        age_s = 0.0 if own["is_leader"] else self._view.age_s
        return {
            **own,
            "leadership": found["state"],
            "leader": found["leader"],
            "age_s": None if age_s is None or found["state"] == "unknown" else round(age_s, 3),
            "error": found["error"],
        }

    async def _serve(self, scope: dict[str, Any], _receive: object, send: Callable[..., Any]) -> None:
        """Answer one request: the application of the HTTP server."""
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, {"error": "only GET is answered"}
        elif (answer := self._paths.get(scope["path"])) is None:
            status, body = 404, {"error": f"there are {', '.join(self._paths)}"}
        else:
            status, body = answer()
        content = json.dumps(body, separators=(",", ":")).encode()
        headers = [*_HEADERS, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
