"""A dashboard on a thread of its own, showing what a test stages: the real server, the real page, invented roles."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.dashboard import Dashboard, Source
from pgleaderlock.ops.dashboard._picture import Look
from pgleaderlock.ops.registry.asking import Target
from pgleaderlock.ops.registry.audit import Line
from pgleaderlock.ops.registry.reading import Candidate, Leader, RoleStatus
from tests.conftest import free_port

WINDOW_S = 3600.0
LEASE_S = 15.0
TOKEN = "let-me-in"


class Stage:
    """Roles that never were, as the store would return them."""

    def __init__(self) -> None:
        self.roles: dict[str, RoleStatus] = {}
        self.lines: dict[str, list[Line]] = {}
        self._token = 4000
        self._times: dict[str, float] = {}

    def term(self, role: str, node: str, began_ago_s: float, ended_ago_s: float | None, *how: str | None) -> None:
        """Add a term; ``how`` is the event that ended it, and its cause."""
        lock, now = f"bigint:{len(role)}:{role[:40]}", time.time()
        self._token += 1
        lines = list(self.lines.get(lock, ()))
        begun = (lock, role, node, _instance(node))
        lines.append(Line(*begun, "acquired", None, self._token, now - began_ago_s))
        status = self.roles.setdefault(role, RoleStatus(lock, role))
        if ended_ago_s is None:
            status.leader = self._leader(node, now - began_ago_s)
        else:
            event, cause = (*how, None, None)[:2]
            lines.append(Line(*begun, event or "released", cause, self._token, now - ended_ago_s))
        self.lines[lock] = lines

    def stand(self, role: str, *nodes: str, silent: str = "", heir: str = "") -> None:
        """Have these nodes stand for the role."""
        now = time.time()
        status = self.roles.setdefault(role, RoleStatus(f"bigint:{len(role)}:{role[:40]}", role))
        leads = status.leader.node if status.leader else None
        status.candidates = [
            Candidate(
                node, _instance(node), "leader" if node == leads else "follower", now - 1900, now - 1, "10.0.4.17",
                4242 + index, "0.2.0.dev0", {}, is_alive=node != silent,
                place="heir" if node == heir else None,
            )
            for index, node in enumerate(nodes)
        ]  # fmt: skip

    def move(self, role: str, to: str | None, event: str = "lost", cause: str | None = "connection_lost") -> None:
        """End the term of the leader, and begin that of another at once."""
        status, now = self.roles[role], time.time()
        if status.leader is not None:
            was = (status.lock, role, status.leader.node, status.leader.instance)
            ended = Line(*was, event, cause, status.leader.token, now - 0.004)
            self.lines[status.lock] = [*self.lines[status.lock], ended]
            status.leader = None
        if to is not None:
            self.term(role, to, 0.0, None)
        self.stand(role, *(each.node for each in status.candidates))

    def renew(self, role: str, ago_s: float = 0.0, lease_s: float = LEASE_S) -> None:
        """Have the leader seen for the last time so long ago. A long lease gives a busy machine time."""
        status, seen_at = self.roles[role], time.time() - ago_s
        assert status.leader is not None
        until = seen_at + lease_s * 0.9
        status.leader = replace(status.leader, renewed_at=seen_at, lease_until=until, heartbeat_s=lease_s / 3)

    def tell(self, role: str, node: str, event: str, ago_s: float, token: int | None = None) -> None:
        """Add a line to the history, written now, of something that happened so long ago."""
        lock = self.roles[role].lock
        added = Line(lock, role, node, _instance(node), event, None, token or self._token, time.time() - ago_s)
        self.lines[lock] = [*self.lines.get(lock, ()), added]

    def look(self) -> Look:
        """What the store would say now."""
        at = time.time()
        roles = [self.roles[name] for name in sorted(self.roles)]
        return Look(at, at - WINDOW_S, [_copy(each) for each in roles], dict(self.lines))

    def _leader(self, node: str, since: float) -> Leader:
        now = time.time()
        return Leader(
            node, _instance(node), self._token, since, now, now + LEASE_S * 0.9, 77, "10.0.4.17", 4242, "0.2.0.dev0",
            {}, is_alive=True, read_at=now, heartbeat_s=LEASE_S / 3,
        )  # fmt: skip


class StagedSource:
    """Follows a stage: one look whenever the test says so."""

    kind = "registry"
    where = "db=app on db:5432"
    can_ask = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.is_broken = False
        self.asked: list[tuple[str, Target]] = []
        self._shown: dict[str, int] = {}
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self) -> None:
        """Say that there is something new to look at. The dashboard has a thread of its own."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def follow(self) -> AsyncGenerator[tuple[Look, list[Line]], None]:
        """One look after another."""
        self._loop = asyncio.get_running_loop()
        while True:
            if self.is_broken:
                raise ConnectionError("connection refused: is the server running on db:5432?")
            look = self.stage.look()
            new = [line for lock, lines in look.lines.items() for line in lines[self._shown.get(lock, 0) :]]
            is_first = not self._shown
            self._shown = {lock: len(lines) for lock, lines in look.lines.items()}
            yield look, [] if is_first else new
            await self._news.wait()
            self._news.clear()

    async def ask_to_step_down(self, lock: str, leader: Target) -> str:
        """Remember which term was asked."""
        self.asked.append((lock, leader))
        return "node"


class PageServer:
    """The server's thread. Used from the test's own thread, which belongs to the browser."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page-server", daemon=True)
        self._thread.start()
        self.port = free_port()
        self.dashboard: Dashboard | None = None
        self.source: Source | None = None
        self.did: list[tuple[str, Mapping[str, Any]]] = []

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"

    def serve(self, source: Source, *, token: str | None = TOKEN, actions: Sequence[str] = ()) -> None:
        """Start, on the same port each time."""

        async def start() -> None:
            self.source = source
            doing = {action: self._action(action) for action in actions}
            self.dashboard = Dashboard(source, port=self.port, token=token, actions=doing)
            await self.dashboard.start()

        self._call(start)

    def stop(self) -> None:
        """Go away as a process does that is killed: what is open ends at once."""

        async def die() -> None:
            if self.dashboard is not None and self.dashboard._server is not None:
                for connection in list(self.dashboard._server._server.server_state.connections):
                    self.dashboard._server.call_soon(connection.transport.abort)
                await self.dashboard.close()
            self.dashboard = None

        self._call(die)

    def look_again(self, *, broken: bool = False) -> None:
        """Have the source look once more."""

        async def look() -> None:
            assert isinstance(self.source, StagedSource)
            self.source.is_broken = broken
            self.source.tell()

        self._call(look)

    def note(self, action: str | None, phase: str, text: str, failover_ms: float | None = None) -> None:
        """Show on every page what the demo did."""
        assert self.dashboard is not None
        self.dashboard.note({"action": action, "phase": phase, "text": text, "failover_ms": failover_ms})

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _action(self, name: str) -> Callable[[Mapping[str, Any]], Awaitable[str]]:
        async def act(body: Mapping[str, Any]) -> str:
            self.did.append((name, body))
            return f"{name}: done"

        return act

    def _call(self, make: Callable[[], Any]) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(make(), self._loop)
        future.result(timeout=10)


def _instance(node: str) -> str:
    return f"instance of {node[:40]}"


def _copy(role: RoleStatus) -> RoleStatus:
    leader = None if role.leader is None else replace(role.leader, read_at=time.time())
    return replace(role, leader=leader, candidates=list(role.candidates))


def one_role() -> Stage:
    """A scheduler that three nodes stand for, with an hour of history."""
    stage = Stage()
    role = "billing/scheduler"
    stage.term(role, "node-a", 3300, 2410, "released", None)
    stage.term(role, "node-b", 2409.99, 1500, "lost", "connection_lost")
    stage.term(role, "node-c", 1478, 900, "vanished", None)
    stage.term(role, "node-a", 899.99, 192.5, "lost", "session_terminated")
    stage.term(role, "node-b", 192, None)
    stage.stand(role, "node-a", "node-b", "node-c")
    return stage


def many_roles(count: int = 200, nodes: int = 50, terms: int = 50) -> Stage:
    """Two hundred roles, fifty nodes, ten thousand terms; two roles without a leader and one whose leader is silent."""
    stage = Stage()
    areas = ("billing", "search", "mail", "import", "reports", "metrics", "orders", "stock")
    jobs = ("scheduler", "compactor", "outbox", "reaper", "indexer", "digest", "sync", "watcher")
    for number in range(count):
        role = f"{areas[number % 8]}/{jobs[number // 8 % 8]}-{number:03d}"
        began = 3500.0
        for term in range(terms):
            node = f"node-{(number * 7 + term * (number % 5 + 1)) % nodes:02d}"
            is_last = term == terms - 1
            ended = None if is_last else began - 3400 / terms
            how = ("released", None) if term % 3 else ("lost", "connection_lost")
            stage.term(role, node, began, ended, *how)
            began = (ended or 0) - 0.02
        leader = stage.roles[role].leader
        assert leader is not None
        others = [f"node-{(number * 3 + step * 11) % nodes:02d}" for step in range(1, 4)]
        stage.stand(role, leader.node, *(each for each in dict.fromkeys(others) if each != leader.node))
        if number in {17, 90}:
            stage.move(role, None)
    return stage
