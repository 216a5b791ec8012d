"""What all parts of the fault injector share, and the faults of processes, of the network and of single sessions."""

from collections import Counter
from collections.abc import Callable

from pgleaderlock._base.causes import LossCause
from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.fault_profiles import FaultProfile
from pgleaderlock.testing.simulation.kubernetes import ApiServer
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres, ServerSession
from pgleaderlock.testing.simulation.stores import KeepsHistory, Server
from pgleaderlock.testing.simulation.world import ServerThatGoesDown, World

_KILL_PAUSE = 1.15
"""Leases between two session kills of one node, where two at once are outside the promise."""


class BasicFaults:
    """The state of the fault injector, and the faults that others are made of."""

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

    def _then(self, delay_s: float, do: Callable[[], object]) -> None:
        def well_again() -> None:
            if not self._is_over:
                do()
                self._checker.disturb()

        self._world.later(delay_s, well_again)

    def _note(self, node: SimulatedNode, what: str) -> None:
        self._checker.note("fault", f"{node.name} {what}")

    def _server_here(self) -> ModelledPostgres | None:
        server = self._server
        return server if isinstance(server, ModelledPostgres) and server.is_up else None

    def _sessions_of(self, node: SimulatedNode) -> list[ServerSession]:
        server = self._server_here()
        return [] if server is None else server.sessions_of(node.name)

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
        if not isinstance(self._server, ServerThatGoesDown) or not self._server.is_up:
            return False
        self._checker.note("fault", f"the store is down for {lasts_s:.1f} s")
        self._server.go_down(lasts_s)
        return None

    def compact(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Let a server that keeps a history compact it, and end all watches."""
        if not isinstance(self._server, KeepsHistory):
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

    # --- Sessions ----------------------------------------------------------------------------------------------

    def kill_session(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """End one of a node's sessions on the server, unless another was ended less than a lease ago."""
        return self._end_any(node, "has a session killed", LossCause.SESSION_TERMINATED)

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
        return self._end_any(node, "has a connection reset at the server", None)

    def _end_any(self, node: SimulatedNode, what: str, cause: LossCause | None) -> bool | None:
        sessions = self._sessions_of(node)
        if self._was_killed_lately(node) or not sessions:
            return False
        self._note(node, what)
        self._killed_at[node.name] = self._world.now
        self._world.random.choice(sessions).end(cause)
        return None

    def _was_killed_lately(self, node: SimulatedNode) -> bool:
        return self._world.now < self._killed_at.get(node.name, -1e9) + _KILL_PAUSE * self._lease_s

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

    def double_ambush_and_kill(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """The same with a leader; soon afterwards, kill the lock session of the node that waits to succeed it."""
        server = self._server_here()
        if server is None or node is not self._checker.leader:
            return False
        if self.double_ambush(node, max(lasts_s, self._lease_s)) is False:
            return False

        def kill_next() -> None:
            for other in self._nodes:
                if other is not node and len(server.holders_of(other.name)) > 1:
                    self.kill_lock(other)

        self._world.later(0.3 * self._lease_s * self._world.random.random(), kill_next)
        return None
