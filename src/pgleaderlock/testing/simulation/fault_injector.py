"""Injects the faults of a profile: one after the other, each for a while, most of them into the leader."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pgleaderlock._base.causes import LossCause
from pgleaderlock.testing.simulation._clock_faults import ClockFaults
from pgleaderlock.testing.simulation._late_faults import LateFaults
from pgleaderlock.testing.simulation._lifecycle_faults import LifecycleFaults
from pgleaderlock.testing.simulation._pair_faults import PairFaults
from pgleaderlock.testing.simulation._standby_faults import StandbyFaults
from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.fault_profiles import FaultProfile
from pgleaderlock.testing.simulation.kubernetes import ApiServer
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres, ServerSession
from pgleaderlock.testing.simulation.stores import Server
from pgleaderlock.testing.simulation.world import World

__all__ = ["FaultInjector"]

_LEADER_SHARE = 0.6
_KILL_PAUSE = 1.15
"""Leases between two session kills of one node, where two at once are outside the promise."""
_NO_FAULTS = frozenset({"begin", "strike", "clear", "end"})


@runtime_checkable
class _CanGoDown(Protocol):
    is_up: bool

    def go_down(self, down_s: float) -> None: ...

    def come_back(self) -> None: ...


class FaultInjector(PairFaults, LateFaults, LifecycleFaults, ClockFaults, StandbyFaults):
    """The faults, as methods. A script can also call each, with a node and a duration."""

    def __init__(self, world: World, profile: FaultProfile, server: Server, checker: Checker) -> None:
        self._world = world
        self._profile = profile
        self._lease_s = checker.lease_s
        self._nodes = checker.nodes
        self._server = server
        self._checker = checker
        self._is_clear = self._is_over = False
        self._killed_at: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    # --- The course of the profile -----------------------------------------------------------------------------

    def begin(self, allowed: frozenset[str]) -> None:
        """Begin, with those faults of the profile that are ``allowed``: inside the store's promise, or insisted on.

        The others are left out; ValueError if that leaves none, or there is no such fault: a simulation without faults
        would look like one that withstands them.
        """
        faults = self._profile.faults
        for name in faults:
            if name.startswith("_") or name in _NO_FAULTS or not callable(getattr(self, name, None)):
                raise ValueError(f"there is no fault {name!r}")
        likely = {name: weight for name, weight in faults.items() if name in allowed}
        if faults and not likely:
            raise ValueError(
                f"none of the faults of {self._profile.name!r} is inside what this store promises: {', '.join(faults)}"
            )
        if likely:
            self._arrange_next(list(likely), list(likely.values()))

    def _arrange_next(self, names: list[str], weights: list[float]) -> None:
        pause_s = self._world.random.expovariate(1 / (self._profile.every * self._lease_s))

        def strike() -> None:
            if not self._is_clear:
                name = self._world.random.choices(names, weights)[0]
                self.strike(name, self._draw_node(), self._draw_s())
                self._arrange_next(names, weights)

        self._world.later(pause_s, strike)

    def strike(self, name: str, node: SimulatedNode, lasts_s: float) -> None:
        """Inject one fault."""
        done = getattr(self, name)(node, lasts_s)
        if done is not False:
            self.counts[name] += 1
            self._checker.note_strike()
            self._checker.disturb()

    def clear(self) -> None:
        """End all faults: no node is frozen, cut off or gone any more, and no new fault is injected."""
        self._is_clear = True
        if isinstance(self._server, _CanGoDown):
            self._server.come_back()
        if isinstance(self._server, ModelledPostgres):
            self._server.find_standby()
        for node in self._nodes:
            node.cable.slow_share = node.cable.connect_s = 0.0
            self._be_punctual(node.sessions)
            if not node.is_alive:
                node.boot()
            self._plug_in(node)
            if node.is_frozen:
                self._thaw(node, node.boots)
        self._checker.disturb()

    def end(self) -> None:
        """Stop injecting and repairing faults."""
        self._is_clear = self._is_over = True

    def _draw_node(self) -> SimulatedNode:
        leader = self._checker.leader
        if leader is not None and self._world.random.random() < _LEADER_SHARE:
            return leader
        return self._world.random.choice(self._nodes)

    def _draw_s(self) -> float:
        return self._world.random.expovariate(1 / (self._profile.lasts * self._lease_s))

    def _then(self, delay_s: float, do: Callable[[], object]) -> None:
        def well_again() -> None:
            if not self._is_over:
                do()
                self._checker.disturb()

        self._world.later(delay_s, well_again)

    def _note(self, node: SimulatedNode, what: str) -> None:
        self._checker.note("fault", f"{node.name} {what}")

    # --- Processes ---------------------------------------------------------------------------------------------

    def crash(self, node: SimulatedNode, lasts_s: float, *, with_host: bool = False) -> bool | None:
        """End a process, and start it again later."""
        if not node.is_alive:
            return False
        self._note(node, "crashes with its host" if with_host else "crashes")
        node.crash(with_host=with_host)

        def come_back() -> None:
            if not node.is_alive:
                node.boot()

        self._then(lasts_s, come_back)
        return None

    def host_crash(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """The same, and no kernel is left to close the connections."""
        return self.crash(node, lasts_s, with_host=True)

    def freeze(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Freeze a process."""
        if not node.is_alive or node.is_frozen:
            return False
        self._note(node, f"freezes for {lasts_s:.1f} s")
        node.freeze()
        boots = node.boots
        self._then(lasts_s, lambda: self._thaw(node, boots))
        return None

    def _thaw(self, node: SimulatedNode, boots: int) -> None:
        if node.is_frozen and node.boots == boots:
            self._note(node, "thaws")
            node.thaw()

    def step_down(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Ask a leader to hand over."""
        if not node.is_alive or node.is_frozen:
            return False
        self._note(node, "is asked to step down")
        seat = node if len(node.seats) == 1 else self._world.random.choice(node.seats)
        node.loop.create_task(seat.lock.step_down(self._world.random.choice([None, self._lease_s / 3])))
        return None

    def shutdown(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Ask a node to leave in order, and to come back."""
        if not node.is_alive or node.is_frozen:
            return False
        self._note(node, "is asked to shut down")
        node.loop.create_task(node.service.shutdown(self._world.random.choice([None, self._lease_s])))
        boots = node.boots

        def come_back() -> None:
            if node.is_alive and node.boots == boots:
                node.loop.create_task(node.service.start())

        self._then(lasts_s, come_back)
        return None

    # --- The network -------------------------------------------------------------------------------------------

    def cut(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Pull a node's cable."""
        if node.cable.is_out:
            return False
        self._note(node, f"is cut off for {lasts_s:.1f} s")
        node.cable.pull()
        self._then(lasts_s, lambda: self._plug_in(node))
        return None

    def _plug_in(self, node: SimulatedNode) -> None:
        if node.cable.is_out:
            self._note(node, "is connected again")
            node.cable.plug_in()

    def forget(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Let a firewall drop one of a node's connections: both ends still consider it open."""
        open_ones = [session for session in node.sessions if not session.closed]
        if not node.is_alive or not open_ones:
            return False
        self._note(node, "has a connection that is forgotten on the way")
        self._world.random.choice(open_ones).vanish()
        return None

    def down(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        """Let the store refuse connections for a while."""
        if not isinstance(self._server, _CanGoDown) or not self._server.is_up:
            return False
        self._checker.note("fault", f"the store is down for {lasts_s:.1f} s")
        self._server.go_down(lasts_s)
        return None

    def compact(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Let an API server compact its history, and end all watches."""
        if not isinstance(self._server, ApiServer):
            return False
        self._checker.note("fault", "the history is compacted")
        self._server.compact()
        return None

    def empty_holder(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Let an operator empty the holder of a Lease. Outside the promise: two may lead until the leader sees it."""
        if not isinstance(self._server, ApiServer) or not self._server.is_up:
            return False
        self._checker.note("fault", "the holder is emptied by hand")
        self._server.empty_holder()
        return None

    # --- The server --------------------------------------------------------------------------------------------

    def kill_session(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """End one of a node's sessions on the server, unless another was ended less than a lease ago."""
        if self._world.now < self._killed_at.get(node.name, -1e9) + _KILL_PAUSE * self._lease_s:
            return False
        sessions = self._sessions_of(node)
        if not sessions:
            return False
        self._note(node, "has a session killed")
        self._killed_at[node.name] = self._world.now
        self._world.random.choice(sessions).end(LossCause.SESSION_TERMINATED)
        return None

    def kill_lock(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """End the session that was opened first: a leader's lock session."""
        return self._kill(node, 0)

    def kill_witness(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """End the session that was opened last: a leader's witness session."""
        return self._kill(node, -1)

    def _kill(self, node: SimulatedNode, place: int) -> bool | None:
        sessions = self._sessions_of(node)
        if not sessions:
            return False
        self._note(node, "has the session of its lock killed" if place == 0 else "has its witness killed")
        sessions[place].end(LossCause.SESSION_TERMINATED)
        return None

    def reset(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Reset a connection at the server's side only."""
        if self._world.now < self._killed_at.get(node.name, -1e9) + _KILL_PAUSE * self._lease_s:
            return False
        sessions = self._sessions_of(node)
        if not sessions:
            return False
        self._note(node, "has a connection reset at the server")
        self._killed_at[node.name] = self._world.now
        self._world.random.choice(sessions).end(None)
        return None

    def ambush(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Freeze a node and kill one of its sessions meanwhile."""
        if self.freeze(node, lasts_s) is False:
            return False
        return self.kill_session(node)

    def double_ambush(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Freeze a node and kill all of its sessions meanwhile."""
        sessions = self._sessions_of(node)
        if not sessions or self.freeze(node, lasts_s) is False:
            return False
        self._note(node, "has all its sessions killed")
        for session in sessions:
            session.end(LossCause.SESSION_TERMINATED)
        return None

    def restart(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        """Restart the server in order."""
        return self._stop_server("restart", lasts_s)

    def server_crash(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        """Let the server crash and recover."""
        return self._stop_server("crash", lasts_s)

    def power(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        """Let the server's host lose power."""
        return self._stop_server("lose_power", lasts_s)

    def promote(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        """Let a standby take the server's place."""
        return self._stop_server("promote", lasts_s)

    def cut_and_restart(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a node off, and restart the server behind its back."""
        return self._behind_the_back_of(node, "restart", lasts_s)

    def cut_and_crash(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a node off, and let the server crash behind its back."""
        return self._behind_the_back_of(node, "crash", lasts_s)

    def cut_and_promote(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a node off, and promote the standby behind its back."""
        return self._behind_the_back_of(node, "promote", lasts_s)

    def cut_and_replace(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a node off, and let a new, empty server take the place of the old one; all other nodes start anew."""
        if self._behind_the_back_of(node, "replace", lasts_s) is False:
            return False
        for other in self._nodes:
            if other is not node:
                self.crash(other, 0.05 * self._lease_s)
        return None

    def cut_and_switch(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a node off, and let a server take over that was prepared: up for long, with a term table that is empty.

        Only a candidate that knew the old server can know that this is another. So the fault is injected only while all
        other nodes are in touch with the server, and have been for a lease.
        """
        if not all(self._is_in_touch(each) for each in self._nodes if each is not node):
            return False
        return self._behind_the_back_of(node, "switch", lasts_s)

    def _behind_the_back_of(self, node: SimulatedNode, how: str, lasts_s: float) -> bool | None:
        return False if self.cut(node, lasts_s) is False else self._stop_server(how, 0.05 * self._lease_s)

    def _stop_server(self, how: str, lasts_s: float) -> bool | None:
        server = self._server
        if not isinstance(server, ModelledPostgres) or not server.is_up:
            return False
        down_s = min(lasts_s, self._lease_s)
        self._checker.note("fault", f"the server: {how.replace('_', ' ')}, for {down_s:.1f} s")
        getattr(server, how)(down_s)
        self._then(down_s, lambda: None)
        return None

    def _server_here(self) -> ModelledPostgres | None:
        server = self._server
        return server if isinstance(server, ModelledPostgres) and server.is_up else None

    def _sessions_of(self, node: SimulatedNode) -> list[ServerSession]:
        server = self._server_here()
        return [] if server is None else server.sessions_of(node.name)
