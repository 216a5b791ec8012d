"""The conductor: starts the nodes, injects the planned faults, repairs them, and stops all nodes.

It takes no part in the election and judges nothing: it logs each fault and its time, and reads the nodes' logs only to
find the leader.

In ``takeover="fast"`` it ends one session of a leader per lease, or both where the end of the connections reaches the
leader's host at once. A leader that lost both behind a slow or broken network is the case that fast take-over does not
promise, and that ``strict`` does. A step of the server's clock is subject to the same rule (``_clock_step.py``).
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.errors import EmbeddedServerError, LockError
from pgleaderlock.testing.torture._clock_step import CALM_LEASES, TOUCH_LEASES, plan_step
from pgleaderlock.testing.torture._faulty_relay import Allowance, FaultyRelay
from pgleaderlock.testing.torture._ground import Ground
from pgleaderlock.testing.torture._logs import FAULT_LOG, RUN_LOG, Fault, write_line
from pgleaderlock.testing.torture._member import TorturedNode
from pgleaderlock.testing.torture._options import CONNECTIONS_PER_NODE, MESSAGES_PER_NODE, Options
from pgleaderlock.testing.torture._plan import Deed, draw
from pgleaderlock.testing.torture._wall_clock import WallClock

_READY_S = 60.0
_LOOK_EVERY_S = 0.02
_REPLACED_AFTER_S = 0.2
_MOST_STILLBORN = 2
_LEAVE_S = 4.0
_SESSION_KINDS = frozenset({"session", "witness", "both", "apart", "reset"})
_NETWORK_KINDS = frozenset({"delay", "connect", "throttle", "cut", "drop"})
_APART_S = 0.5
_CONNECT_S = 2.0
_CONNECT_LEASES = 0.7


class Conductor:
    """One torture, from its first process to its last."""

    def __init__(self, ground: Ground, folder: Path, logs: Path, options: Options) -> None:
        self._ground = ground
        self._folder = folder
        self._logs = logs
        self._options = options
        self.allowance = Allowance(options.nodes * CONNECTIONS_PER_NODE, options.nodes * MESSAGES_PER_NODE, clock)
        self._members: list[TorturedNode] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: Exception | None = None
        self._session_ended_at = -1e9
        self._calm_until = -1e9
        self._is_without_standby = False
        self._began_at = 0.0
        self.done: dict[str, int] = {}
        """How often each kind of fault was injected."""
        self.left_out = 0
        """How many planned faults were not possible when their turn came."""

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run until the time is over, or ``stop`` is set. LockError if a node neither leads nor is queued in time."""
        self._began_at = clock()
        self._write_run(self._began_at + self._options.seconds)
        try:
            await self._start(stop)
            on_ready()
            ends_at = clock() + self._options.seconds
            self._write_run(ends_at)
            await self._harm_until(ends_at, stop)
        finally:
            self._write_run(clock())
            await self._end()

    def _write_run(self, ended_at: float) -> None:
        names = [_name(number) for number in range(self._options.nodes)]
        run = {"began_at": self._began_at, "ended_at": ended_at, "lease_s": self._options.lease_s, "nodes": names}
        new = self._logs / f"{RUN_LOG}.new"
        new.write_text(json.dumps(run), encoding="utf-8")
        new.replace(self._logs / RUN_LOG)

    # --- The nodes ---

    async def _start(self, stop: asyncio.Event) -> None:
        for number in range(self._options.nodes):
            member = await self._make(_name(number))
            self._members.append(member)
            self._spawn(self._keep_alive(member))
        deadline = clock() + _READY_S + 2 * self._options.lease_s
        while not (all(member.is_ready for member in self._members) or stop.is_set()):
            self._raise_failure()
            if clock() > deadline:
                late = [member for member in self._members if not member.is_ready]
                words = "".join(f"\n{member.last_words()}" for member in late).rstrip()
                names = ", ".join(member.name for member in late)
                raise LockError(f"{names} neither led nor was queued within {_READY_S:g} s{words}")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _make(self, name: str) -> TorturedNode:
        options = self._options
        relay = FaultyRelay(self._folder / name, self._ground.target, self.allowance)
        await relay.start()
        settings = {
            "role": self._ground.role,
            "lease_s": options.lease_s,
            "takeover": options.takeover,
            "term_table": options.takeover == "strict",
            "schema": self._ground.schema,
        }
        wall_clock = WallClock(self._folder / f"{name}.clock") if "clock" in options.faults else None
        return TorturedNode(
            name,
            relay,
            self._logs,
            settings,
            environment=self._ground.environment(),
            dsn=self._ground.dsn_by(relay),
            wall_clock=wall_clock,
        )

    async def _keep_alive(self, member: TorturedNode) -> None:
        stillborn = 0
        while True:
            await member.run()
            stillborn = 0 if member.is_ready or member.was_killed else stillborn + 1
            if stillborn == _MOST_STILLBORN:
                raise LockError(f"{member.name} does not start:\n{member.last_words()}")
            await asyncio.sleep(_REPLACED_AFTER_S)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._is_without_standby:
            await self._find_standby()
        for member in self._members:
            member.was_killed = False
            member.ask_to_end()
        await asyncio.gather(*(member.stop(_LEAVE_S) for member in self._members))
        for member in self._members:
            if member.was_killed:  # on a very busy machine: it had no time to log why its term ended
                self._note("kill", member, clock(), detail="it did not end in time")
            await member.relay.close()

    def _leader(self) -> TorturedNode | None:
        return next((member for member in self._members if member.leads()), None)

    # --- Harm ---

    async def _harm_until(self, ends_at: float, stop: asyncio.Event) -> None:
        options = self._options
        times = {"lease_s": options.lease_s, "every_s": options.every_s}
        for deed in draw(options.seed, options.faults, options.nodes, **times):
            await _sleep_unless(stop, min(deed.wait_s, ends_at - clock()))
            self._raise_failure()
            if stop.is_set() or clock() >= ends_at:
                return
            if await self._do(deed):
                self.done[deed.kind] = self.done.get(deed.kind, 0) + 1
            else:
                self.left_out += 1

    async def _do(self, deed: Deed) -> bool:
        """Inject the fault; return False if it is not possible now."""
        if clock() < self._calm_until:
            return False
        member = (self._leader() if deed.to_leader else None) or self._members[deed.node]
        if deed.kind in _SESSION_KINDS and self._spares_sessions():
            return False
        if deed.kind in _NETWORK_KINDS:
            return self._change_network(deed, member)
        doing: dict[str, Callable[[Deed, TorturedNode], Coroutine[Any, Any, bool]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "reset": self._reset,
            "restart": self._restart,
            "standby": self._lose_standby,
            "both": self._end_pair,
            "apart": self._end_pair,
            "step": self._step_clock,
            "clock": self._jump,
        }
        return await doing.get(deed.kind, self._end_session)(deed, member)

    def _spares_sessions(self) -> bool:
        return self._options.takeover == "fast" and clock() - self._session_ended_at < 1.2 * self._options.lease_s

    def _note(self, kind: str, member: TorturedNode | None, at: float, lasts_s: float = 0.0, detail: str = "") -> None:
        name, process = (None, 0) if member is None else (member.name, member.incarnation)
        write_line(self._logs / FAULT_LOG, Fault(kind, at, at + lasts_s, name, process, detail))

    async def _kill(self, _deed: Deed, member: TorturedNode) -> bool:
        if member.pid is None:
            return False
        self._note("kill", member, clock())
        member.kill()
        return True

    async def _freeze(self, deed: Deed, member: TorturedNode) -> bool:
        if member.is_frozen or member.pid is None:
            return False
        self._note("freeze", member, clock(), deed.lasts_s)
        member.freeze()
        self._spawn(_later(deed.lasts_s, member.thaw))
        return True

    def _change_network(self, deed: Deed, member: TorturedNode) -> bool:
        relay = member.network
        if not relay.is_fair:
            return False
        detail = ""
        if deed.kind == "delay":
            relay.delay_s = deed.strength * self._options.lease_s / 2
            detail = f"{relay.delay_s * 1000:.0f} ms each way"
        elif deed.kind == "connect":
            detail = self._slow_connects(relay, deed)
        elif deed.kind == "throttle":
            relay.bytes_per_s = 200 + 4000 * deed.strength
            detail = f"{relay.bytes_per_s:.0f} bytes/s"
        # Connections that fell silent stay so after the fault: the server needs a lease to find out.
        aftermath_s = self._options.lease_s if deed.kind == "drop" else 0.0
        self._note(deed.kind, member, clock(), deed.lasts_s + aftermath_s, detail)
        if deed.kind == "cut":
            relay.cut()
        elif deed.kind == "drop":
            relay.drop()
        self._spawn(_later(deed.lasts_s, relay.heal))
        return True

    def _slow_connects(self, relay: FaultyRelay, deed: Deed) -> str:
        relay.connect_delay_s = deed.strength * min(_CONNECT_S, _CONNECT_LEASES * self._options.lease_s)
        return f"{relay.connect_delay_s * 1000:.0f} ms for a new connection"

    async def _end_pair(self, deed: Deed, _member: TorturedNode) -> bool:
        """End both sessions of the leader, at once or one a little after the other, in either order."""
        pair = await self._ground.find_pair()
        owner = next((each for each in self._members if pair and f":{each.pid}" in pair[0][0]), None)
        if owner is None or not (self._options.takeover == "strict" or owner.network.is_quick):
            return False
        at, detail = clock(), ""
        if deed.kind == "apart" and owner.network.is_fair and deed.jump_s > 0:  # at half of the times
            detail = self._slow_connects(owner.network, deed)
            self._spawn(_later(deed.lasts_s, owner.network.heal))
        apart_s = 0.0 if deed.kind == "both" else _APART_S * deed.lasts_s / (1.6 * self._options.lease_s)
        for place, (name, pid) in enumerate(pair if deed.strength < 1 / 2 else reversed(pair)):
            if place and apart_s:
                await asyncio.sleep(apart_s)
                if not (self._options.takeover == "strict" or owner.network.is_quick):
                    break
            await self._ground.end_backend(name, pid)
        self._session_ended_at = clock()
        self._note(deed.kind, owner, at, clock() - at, detail)
        return True

    async def _lose_standby(self, deed: Deed, _member: TorturedNode) -> bool:
        if not self._ground.is_ours or self._is_without_standby:
            return False
        self._is_without_standby = True
        self._note("standby", None, clock(), deed.lasts_s)
        await self._ground.set_standby(is_absent=True)
        self._spawn(self._find_standby(deed.lasts_s))
        return True

    async def _find_standby(self, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        await self._ground.set_standby(is_absent=False)
        self._is_without_standby = False

    async def _reset(self, deed: Deed, member: TorturedNode) -> bool:
        at = clock()
        number = None if self._options.takeover == "strict" else (0 if deed.strength < 1 / 2 else -1)
        broken = member.network.reset(number)
        if not broken:
            return False
        self._session_ended_at = at
        self._note("reset", member, at, detail=f"{broken} connection{'s' * (broken > 1)}")
        return True

    async def _end_session(self, deed: Deed, member: TorturedNode) -> bool:
        at = clock()
        names = await self._ground.end_session(deed.kind)
        if not names:
            return False
        self._session_ended_at = clock()
        owner = next((each for each in self._members if any(f":{each.pid}" in name for name in names)), member)
        self._note(deed.kind, owner, at)
        return True

    async def _restart(self, deed: Deed, _member: TorturedNode) -> bool:
        at = clock()
        crash = self._ground.is_ours and deed.strength < 1 / 2
        await self._restart_server(crash=crash)
        self._note("restart", None, at, clock() - at, "a crash" if crash else "")
        return True

    async def _restart_server(self, *, crash: bool) -> None:
        try:
            await self._ground.restart(crash=crash)
        except EmbeddedServerError as error:
            raise LockError(f"the server did not come back: {error}") from error

    async def _step_clock(self, deed: Deed, _member: TorturedNode) -> bool:
        is_fast = self._options.takeover == "fast"
        wall_clock = self._ground.wall_clock
        if wall_clock is None or (is_fast and not await self._are_in_touch(TOUCH_LEASES * self._options.lease_s)):
            return False
        at, leader, step = clock(), self._leader(), plan_step(deed, self._options.lease_s)
        if step.cuts_leader and (leader is None or not leader.network.is_fair):
            return False
        others = [each for each in self._members if step.cuts_others and each is not leader and each.network.is_fair]
        for member in [*others, *([leader] if leader and step.cuts_leader else [])]:
            member.network.cut()
        wall_clock.jump(-step.by_s)
        if step.restarts:
            await self._restart_server(crash=step.crashes)
        await asyncio.sleep(step.wait_s)
        wall_clock.jump(0)
        for member in others:
            member.network.heal()
        if leader and step.cuts_leader:
            self._spawn(_later(deed.lasts_s, leader.network.heal))
        if is_fast:
            self._calm_until = clock() + CALM_LEASES * self._options.lease_s
        self._note("step", None, at, clock() - at, step.describe())
        return True

    async def _are_in_touch(self, within_s: float) -> bool:
        """Wait until all earlier faults of the nodes are over; return False if they are not in time."""
        deadline = clock() + within_s
        while not all(member.is_in_touch() for member in self._members):
            if clock() > deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True

    async def _jump(self, deed: Deed, member: TorturedNode) -> bool:
        if member.wall_clock is None:
            return False
        self._note("clock", member, clock(), detail=f"{deed.jump_s:+d} s")
        member.wall_clock.jump(deed.jump_s)
        return True

    # --- Tasks beside it ---

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _name(number: int) -> str:
    return f"node-{chr(ord('a') + number)}"


async def _later(seconds: float, act: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    act()


async def _sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
