"""Injects the faults of a profile: one after the other, each for a while, most of them into the leader."""

from pgleaderlock.testing.simulation._clock_faults import ClockFaults
from pgleaderlock.testing.simulation._lifecycle_faults import LifecycleFaults
from pgleaderlock.testing.simulation._standby_faults import StandbyFaults
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.world import ServerThatGoesDown

__all__ = ["FaultInjector"]

_LEADER_SHARE = 0.6
_NO_FAULTS = frozenset({"begin", "strike", "clear", "end"})


class FaultInjector(LifecycleFaults, ClockFaults, StandbyFaults):
    """The faults, as methods. A script can also call each, with a node and a duration."""

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
                name, node = self._world.random.choices(names, weights)[0], self._draw_node()
                lasts_s = self._world.random.expovariate(1 / (self._profile.lasts * self._lease_s))
                self.strike(name, node, lasts_s)
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
        if isinstance(self._server, ServerThatGoesDown):
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

    # --- The server --------------------------------------------------------------------------------------------

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
        server = self._server_here()
        if server is None:
            return False
        down_s = min(lasts_s, self._lease_s)
        self._checker.note("fault", f"the server: {how.replace('_', ' ')}, for {down_s:.1f} s")
        getattr(server, how)(down_s)
        self._then(down_s, lambda: None)
        return None
