"""Faults of the server's wall clock: it is set forward or back, also right after a restart.

A step has two effects, which are separate faults. The server's *age* is a wall-clock difference, so a step makes it
wrong: the protocol has to cope with that. And idle sessions *end* by the wall clock: a step forward ends them early, a
step back late. No client can prevent the second; ``takeover="strict"`` prevents the split brain that it makes possible.

A candidate can detect a wrong server clock only if it was in touch with the server shortly before the restart. So the
restart behind a leader's back is injected only while all other nodes are, and have been for a lease.
"""

from collections.abc import Callable

from pgleaderlock.testing.simulation._basic_faults import BasicFaults
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres

_STEP_S = 120.0
_STEP = 20.0
"""Seconds, or leases if that is more, by which a clock is set at most: longer than any wait."""
_DOWN = 0.05
"""Leases that a restart takes."""


class ClockFaults(BasicFaults):
    """The part of the fault injector for the server's wall clock."""

    def step_clock(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Set the server's wall clock forward or back."""
        server = self._server_here()
        if server is None:
            return False
        self._step(server, self._draw_step_s())
        return None

    def reset_statistics(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Let the server look as if it had just recovered from a crash."""
        server = self._server_here()
        if server is None:
            return False
        self._checker.note("fault", "the server's statistics are reset")
        server.reset_statistics()
        return None

    def restart_and_step(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Restart the server, or let it crash, and set its wall clock when it is back."""
        server = self._server_here()
        if server is None:
            return False
        how: Callable[[float], None] = self._world.random.choice((server.restart, server.crash))
        down_s, by_s = _DOWN * self._lease_s, self._draw_step_s()
        self._checker.note("fault", f"the server: {how.__name__}, for {down_s:.1f} s")
        how(down_s)
        self._then(down_s * self._world.random.uniform(1.0, 3.0), lambda: self._step(server, by_s))
        return None

    def cut_and_restart_and_step(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a leader off, restart the server behind its back, and set the server's wall clock."""
        others = [each for each in self._nodes if each is not node]
        if not all(self._is_in_touch(each) for each in others) or self._server_here() is None:
            return False
        if self.cut(node, lasts_s) is False:
            return False
        return self.restart_and_step(node)

    def early_time_outs(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Cut a leader off, and set the wall clock forward, which ends silent sessions early."""
        server = self._server_here()
        if server is None or self.cut(node, lasts_s) is False:
            return False
        by_s = self._lease_s * self._world.random.uniform(0.5, 2.0)
        self._then(self._lease_s * self._world.random.uniform(0.05, 0.8), lambda: self._step(server, by_s, ends=True))
        return None

    def late_time_outs(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Set the wall clock back, which ends silent sessions late."""
        server = self._server_here()
        if server is None:
            return False
        self._step(server, -2 * self._lease_s * self._world.random.random(), ends=True)
        return None

    def _draw_step_s(self) -> float:
        return max(_STEP_S, _STEP * self._lease_s) * self._world.random.uniform(-1.0, 1.0)

    def _step(self, server: ModelledPostgres, by_s: float, *, ends: bool = False) -> None:
        self._checker.note("fault", f"the server's wall clock is set by {by_s:+.1f} s")
        server.step_clock(by_s, moves_time_outs=ends)
        if ends:
            for node in self._nodes:  # both its sessions may have ended, and nothing keeps a successor waiting
                node.cable.troubled_at = node.pair_ended_at = self._world.now

    def _is_in_touch(self, node: SimulatedNode) -> bool:
        """Whether the node is not frozen and has received data from the server for a lease."""
        trouble_at = max(node.booted_at, node.thawed_at, node.cable.troubled_at)
        return (
            node.is_alive
            and not node.is_frozen
            and not node.cable.is_out
            and trouble_at < self._world.now - self._lease_s
        )
