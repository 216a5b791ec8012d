"""The stage: the nodes of a demo, the leader among them, the faults that are injected into it, and their measurement.

One fault at a time is measured. Repair goes on beside it: a killed node is replaced, and a node that was frozen or cut
off comes back when another node leads.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock._base.overlaps import Overlap
from pgleaderlock.errors import LockError, PgLeaderLockError
from pgleaderlock.models import EventKind
from pgleaderlock.ops.registry.reading import Leader, RegistryReader, open_reader
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres._schema import make_tables
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.testing.demo._actor import Actor
from pgleaderlock.testing.demo._ledger import Ledger, ReportedClaim
from pgleaderlock.testing.demo._relay import Relay
from pgleaderlock.testing.embedded import Server

ROLE = "demo"
"""The role for which all nodes are candidates."""
ACTIONS = ("kill", "freeze", "cut", "step_down")
"""What can be done to a leader."""

_REGISTERED_S, _LOOK_AGAIN_S = 10.0, 0.25
_START_S = 60.0
_SLACK_S = 10.0
_REPLACED_AFTER_S = 0.5
_OWN_REPORT_S = 0.25
_OBEYED_WITHIN_S = 0.25  # a leader obeys one ask per lease, and counts from when it read the last one
_LEAVE_S = 3.0
_MOST_STILLBORN = 3
_MS_PER_S = 1000

_HARMED = {
    "kill": "{node} is killed (kill -9)",
    "freeze": "{node} is frozen (SIGSTOP)",
    "cut": "{node} is cut off from PostgreSQL",
    "step_down": "{node} is asked to step down",
}
_DONE = {
    "kill": "{heir} leads {ms} after {node} was killed: its sessions ended with it, and the next in the queue led",
    "freeze": (
        "{heir} leads {ms} after {node} froze: its lease, {lease}, had to end first, because a frozen leader cannot be "
        "told from a slow one"
    ),
    "cut": (
        "{heir} leads {ms} after {node} was cut off: its lease, {lease}, had to end first, because a leader that is "
        "cut off cannot be told from a slow one"
    ),
    "step_down": "{heir} leads {ms} after {node} was asked: it ended its work, and then released",
}
_BACK = {
    "freeze": "{node} runs again: it knew at once that its lease had ended, and is back as a follower",
    "cut": "{node} is connected again, and is back as a follower",
    "kill": "{node} is back as a follower, in a new process",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A message for the audience: the page, the terminal or the script."""

    text: str
    action: str | None = None
    node: str | None = None
    """The node that took over."""
    from_node: str | None = None
    failover_ms: float | None = None
    stopped_ms: float | None = None
    is_alarm: bool = False
    """Whether it reports a failure."""
    is_aside: bool = False
    """Whether it is a side remark, which must not replace the measurement before it."""
    is_overlap: bool = False
    """Whether it reports a split brain."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The outcome of one action. Times are in milliseconds since the action."""

    action: str
    from_node: str
    to_node: str | None
    failover_ms: float | None
    """Until the next node led; None if no node did in time."""
    stopped_ms: float | None
    """Until the old leader stopped acting as one, by its own report; None if there is none (yet)."""


class Stage:
    """The nodes of a demo on one server. Also an async context manager.

    ``hear`` is called with every message. ``linger_s`` is how long a leader that was frozen or cut off stays so after
    it was replaced, for the audience to see.
    """

    def __init__(
        self, server: Server, *, nodes: int, lease_s: float, hear: Callable[[Said], None], linger_s: float = 2.0
    ) -> None:
        self._server = server
        self.lease_s = lease_s
        self._notify = hear
        self._linger_s = linger_s
        self._ledger = Ledger()
        self._notified: set[tuple[int, int]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._under_way: str | None = None
        self._asked_at = -math.inf
        self._failure: PgLeaderLockError | None = None
        folder = server.folder.parent / "nodes"
        socket = server.socket_path
        settings = {"role": ROLE, "lease_s": lease_s, "settle_s": 0}  # its server is new: there is no earlier leader
        self._actors = {
            name: Actor(name, Relay(folder / name, socket), folder / f"{name}.log", settings, self._heed)
            for name in (f"node-{chr(ord('a') + number)}" for number in range(nodes))
        }

    # --- State ---

    @property
    def leader(self) -> str | None:
        """The node that claims to lead, by its own report."""
        claim = self._ledger.current()
        return None if claim is None else claim.node

    @property
    def overlaps(self) -> list[Overlap[ReportedClaim]]:
        """Every split brain that was found: none, if the library keeps its promise."""
        return list(self._ledger.overlaps.values())

    # --- Lifecycle ---

    async def start(self) -> None:
        """Start the nodes, and return when one leads and all others are queued."""
        for actor in self._actors.values():
            await actor.relay.start()
            self._spawn(self._keep_alive(actor))
        await self.wait_until_whole(_START_S)

    async def close(self) -> None:
        """End every process, also those that are frozen or cut off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        actors = self._actors.values()
        for actor in actors:
            actor.ask_to_end()
        await asyncio.gather(*(actor.stop(_LEAVE_S) for actor in actors))
        for actor in actors:
            await actor.relay.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait_until_whole(self, timeout_s: float = 30.0) -> None:
        """Return when one node leads and all the others are queued. LockError if that takes too long."""
        try:
            await self._until(self._is_whole, timeout_s)
        except TimeoutError:
            ill = [actor for actor in self._actors.values() if not actor.is_well]
            who = ", ".join(actor.name for actor in ill) or "a leader"
            words = "".join(f"\n{actor.last_words()}" for actor in ill).rstrip()
            raise LockError(f"the demo is not ready after {timeout_s:g} s: still missing {who}{words}") from None

    async def wait_until_failed(self) -> None:
        """Wait until the demo fails, as when a node does not start; then raise LockError."""
        await self._until(lambda: False, None)

    # --- Faults ---

    def begin(self, action: str) -> str:
        """Begin an action on the leader, and return a text about it. LockError if it is not possible now."""
        claim = self._choose(action)
        self._spawn(self._measure(action, claim))
        return _HARMED[action].format(node=claim.node)

    async def act(self, action: str) -> Failover:
        """Do an action to the leader, and return its outcome. LockError if it is not possible now."""
        return await self._measure(action, self._choose(action))

    def _choose(self, action: str) -> ReportedClaim:
        """Return the leader's claim, and refuse other actions until this one has been measured."""
        if self._under_way is not None:
            raise LockError(
                f"one at a time: {_HARMED[self._under_way].format(node='the leader')}, and no other node leads yet"
            )
        claim = self._ledger.current()
        if claim is None or not self._actors[claim.node].is_well:
            raise LockError("no node leads at this moment: try again when one does")
        others = [actor for actor in self._actors.values() if actor.name != claim.node]
        if not any(actor.is_well for actor in others):
            away = ", ".join(actor.name for actor in others)
            raise LockError(f"no follower is ready to take over yet: {away} will be back in a moment")
        self._under_way = action
        return claim

    async def _measure(self, action: str, claim: ReportedClaim) -> Failover:
        actor = self._actors[claim.node]
        try:
            self._notify(Said(_HARMED[action].format(node=actor.name), action, from_node=actor.name))
            at = await self._harm(action, actor)
            with contextlib.suppress(TimeoutError):
                await self._until(lambda: self._ledger.successor(claim.token) is not None, self.lease_s + _SLACK_S)
            if action in ("cut", "step_down"):  # after these the old leader can report by now
                with contextlib.suppress(TimeoutError):
                    await self._until(lambda: claim.has_ceased, _OWN_REPORT_S)
        finally:
            self._under_way = None
            self._spawn(self._mend(action, actor))
        failover = _failover(action, at, claim, self._ledger.successor(claim.token))
        self._notify(self._outcome(failover))
        return failover

    async def _harm(self, action: str, actor: Actor) -> float:
        """Do the action, and return when it began."""
        if action == "step_down":
            await make_tables(self._server.dsn, DEFAULT_SCHEMA, None)  # the nodes may not have made them yet
            async with open_reader(self._server.dsn, DEFAULT_SCHEMA) as reader:
                leader = await _registered(reader, actor.name)
                await asyncio.sleep(max(0.0, self._asked_at + self.lease_s + _OBEYED_WITHIN_S - clock()))
                at = self._asked_at = clock()
                await reader.ask_to_step_down(str(LockKey.named(ROLE)), by="the demo", leader=leader)
                return at
        at = clock()
        {"kill": actor.kill, "freeze": actor.freeze, "cut": actor.cut_off}[action]()
        return at

    async def _mend(self, action: str, actor: Actor) -> None:
        """Undo the action. :meth:`_keep_alive` replaces a killed node."""
        if action in ("freeze", "cut"):
            await asyncio.sleep(self._linger_s)
            actor.thaw()
            actor.relay.heal()
        if action in _BACK:
            await self._until(lambda: actor.is_well, None)
            text = "{node} is back" if self.overlaps else _BACK[action]
            self._notify(Said(text.format(node=actor.name), action, is_aside=True))

    def _outcome(self, failover: Failover) -> Said:
        if failover.failover_ms is None:
            text = f"no node has taken over from {failover.from_node}: that should not happen"
            return Said(text, failover.action, from_node=failover.from_node, is_alarm=True)
        text = _DONE[failover.action].format(
            heir=failover.to_node,
            node=failover.from_node,
            ms=_readable(failover.failover_ms),
            lease=f"{self.lease_s:g} s",
        )
        if failover.stopped_ms is not None:
            text += f"; {failover.from_node} had stopped acting as leader after {_readable(failover.stopped_ms)}"
        return Said(
            text, failover.action, failover.to_node, failover.from_node, failover.failover_ms, failover.stopped_ms
        )

    # --- The nodes ---

    def _is_whole(self) -> bool:
        return self.leader is not None and all(actor.is_well for actor in self._actors.values())

    async def _keep_alive(self, actor: Actor) -> None:
        """Start a node, and another in its place whenever it has ended."""
        stillborn = 0
        while True:
            await actor.run()
            self._ledger.died(actor.last_pid)
            stillborn = 0 if actor.is_ready else stillborn + 1
            if stillborn == _MOST_STILLBORN:
                self._failure = LockError(f"{actor.name} does not start:\n{actor.last_words()}")
            actor.is_ready = False
            self._wake()
            await asyncio.sleep(_REPLACED_AFTER_S)

    def _heed(self, actor: Actor, pid: int, line: dict[str, Any]) -> None:
        match line:
            case {"says": "claims", "token": int(token), "at": float(at)}:
                self._ledger.began(actor.name, pid, token, at)
                actor.is_ready = True
            case {"says": "worked", "token": int(token), "at": float(at)}:
                self._ledger.worked(pid, token, at)
            case {"says": "ceased", "token": int(token), "at": float(at)}:
                self._ledger.ceased(pid, token, at)
                actor.is_ready = False  # it is queued again when it has been refused
            case {"says": "event", "event": EventKind.ACQUIRE_FAILED.value}:  # refused, and so queued
                actor.is_ready = not actor.is_frozen and not actor.relay.is_cut
            case _:
                pass
        self._raise_alarm()
        self._wake()

    def _raise_alarm(self) -> None:
        for tokens, overlap in self._ledger.overlaps.items():
            if tokens not in self._notified:
                self._notified.add(tokens)
                former, heir = overlap.first.node, overlap.second.node
                text = f"TWO LEADERS AT ONCE: {former} and {heir} both led for {overlap.lasted_s * 1000:.1f} ms"
                self._notify(Said(text, node=heir, from_node=former, is_alarm=True, is_overlap=True))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Let the failure of a background task end the demo, with its cause."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            self._failure = error if isinstance(error, PgLeaderLockError) else LockError(f"the demo failed: {error!r}")
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None) -> None:
        """Return when ``is_so()``; TimeoutError if that takes too long, LockError if the demo has failed."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                if self._failure is not None:
                    raise self._failure
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter


def _failover(action: str, at: float, before: ReportedClaim, after: ReportedClaim | None) -> Failover:
    ended_at = before.seen_at if before.has_ceased and action != "kill" else None
    return Failover(
        action,
        before.node,
        None if after is None else after.node,
        None if after is None else round((after.began_at - at) * 1000, 1),
        None if ended_at is None else round(max(0.0, ended_at - at) * 1000, 1),
    )


def _readable(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= _MS_PER_S else f"{ms:.1f} ms"


async def _registered(reader: RegistryReader, node: str) -> Leader | None:
    """Wait for a while until the registry shows this leader: a request reaches only a leader that listens by then."""
    deadline = clock() + _REGISTERED_S
    while clock() < deadline:
        for status in await reader.status():
            if status.leader is not None and status.leader.node == node:
                return status.leader
        await reader.wait_for_change(_LOOK_AGAIN_S)
    return None
