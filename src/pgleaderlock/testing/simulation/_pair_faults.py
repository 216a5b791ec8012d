"""Faults that end both sessions of a leader: one after the other, or both in one statement.

The notice of each end arrives at the leader's host in the usual time. Therefore the promise covers these faults: the
kernel of the host knows of the end, so ``is_leader`` can know. ``takeover="fast"`` does not cover a second end whose
notice the network delays (a pulled cable, a slow message), and such a fault is left out.
"""

from collections.abc import Callable

from pgleaderlock._base.causes import LossCause
from pgleaderlock.testing.simulation._basic_faults import BasicFaults
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ServerSession

_APART = (0.0, 0.004, 0.17)
"""Leases between the two ends, at most: at once, while the first is being read, while a session is replaced."""
_PAIR = 2
_SLOW_SHARE, _BUSY_SHARE = 0.7, 0.5
"""How often the two ends come with slow connects, or with a busy event loop."""
_SLOW_CONNECT = 0.7
"""Leases that a new connection takes, at most."""
_BUSY_TURN = 0.01
"""Leases that one turn of a busy event loop takes, at most."""
_BUSY = 0.4
"""Leases for which it is busy, at most."""
_FLOOD_BYTES = 12_000_000
"""More than the kernel keeps for a connection that is not read."""
_NOTICED = 0.1
"""Leases within which a leader that is not frozen has left LEADER, after both its sessions have ended."""
_NEWCOMER_LATENCIES = 10
"""Within so many latencies of the network a node that has both locks comes to lead."""
_WITNESS_LATENCIES = 1.5
"""Within so many latencies the grant of the witness lock arrives."""


class PairFaults(BasicFaults):
    """The part of the fault injector for session pairs."""

    def slow_connects(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Let new connections take long, up to a part of a lease, while those that exist are quick."""
        if not node.is_alive or node.cable.connect_s:
            return False
        node.cable.connect_s = _SLOW_CONNECT * self._lease_s * self._world.random.random()
        self._note(node, f"needs up to {node.cable.connect_s:.3f} s for a new connection")

        def be_quick_again() -> None:
            node.cable.connect_s = 0.0

        self._world.later(lasts_s, be_quick_again)
        return None

    def busy(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Let other work keep a node's event loop busy for a while."""
        if not node.is_alive or node.is_busy:
            return False
        random = self._world.random
        turn_s = _BUSY_TURN * self._lease_s * random.random()
        self._note(node, f"has an event loop that takes up to {turn_s:.3f} s for a turn")
        node.keep_busy(turn_s, _BUSY * self._lease_s * random.random())
        return None

    def end_apart(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """End one session of a leader, either, and shortly afterwards the other, while the first is being replaced."""
        pair = self._pair_of(node)
        if pair is None:
            return False
        random = self._world.random
        random.shuffle(pair)
        if random.random() < _SLOW_SHARE:
            self.slow_connects(node, lasts_s)
        first, second = pair
        self._end(node, first)

        def end_second() -> None:
            if second.is_quickly_reached:
                self._end(node, second)
                self._expect_to_leave(node)

        self._world.later(random.choice(_APART) * self._lease_s * random.random(), end_second)
        return None

    def end_both(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """End both sessions of a leader in one statement; its event loop may be busy meanwhile."""
        pair = self._pair_of(node)
        if pair is None:
            return False
        if self._world.random.random() < _BUSY_SHARE:
            self.busy(node)
        for session in pair:
            self._end(node, session)
        self._expect_to_leave(node)
        return None

    def frozen_end_both(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Freeze a leader, and then end both its sessions in one statement."""
        if self._pair_of(node) is None or self.freeze(node, lasts_s) is False:
            return False
        return self.end_both(node)

    def flood_and_end_both(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Flood the channel on which candidates are woken, and then end both sessions of a leader that cannot read it.

        Its process is frozen, or its event loop is busy. Any user of the database may send notifications, so the
        promise covers this like any other end of both sessions: they must not hide the end of the lock session.
        """
        server, pair = self._server_here(), self._pair_of(node)
        if server is None or pair is None or not server.has_listeners:
            return False
        if self._world.random.random() < _BUSY_SHARE:
            self.busy(node)
        elif self.freeze(node, lasts_s) is False:
            return False
        self._note(node, f"is flooded with {_FLOOD_BYTES} bytes of notifications, as all listeners are")
        server.flood(_FLOOD_BYTES)
        return self.end_both(node)

    def end_newcomer(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Freeze the next node that has both locks before it leads, or just after, and end both its sessions then.

        Its last answers have arrived by then, and will be read when it goes on.
        """
        return self._strike_newcomer(_NEWCOMER_LATENCIES, self.frozen_end_both)

    def end_newcomers_witness(self, _: SimulatedNode, __: float = 0.0) -> bool | None:
        """Freeze the next node that was granted its witness lock, and end the session of that lock.

        It may find the grant and the end at once when it goes on, in one turn of its event loop.
        """
        return self._strike_newcomer(_WITNESS_LATENCIES, self._frozen_end_witness)

    def _frozen_end_witness(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        pair = self._pair_of(node)
        if pair is None or self.freeze(node, lasts_s) is False:
            return False
        self._note(node, "has its witness session killed")
        pair[-1].end(LossCause.SESSION_TERMINATED, quickly=True)
        return None

    def _strike_newcomer(self, latencies: float, strike: Callable[[SimulatedNode, float], object]) -> bool | None:
        """Inject a fault into the next node that has both locks, within so many latencies of the network."""
        server = self._server_here()
        if server is None or server.on_grant is not None:
            return False
        nodes = {node.name: node for node in self._nodes}

        def look(owner: str) -> None:
            if len(server.holders_of(owner)) == _PAIR:
                server.on_grant = None
                after_s = latencies * nodes[owner].cable.latency_s * self._world.random.random()
                lasts_s = 0.5 * self._lease_s * self._world.random.random()
                self._world.later(after_s, lambda: strike(nodes[owner], lasts_s))

        server.on_grant = look
        return None

    def _pair_of(self, node: SimulatedNode) -> list[ServerSession] | None:
        """Return both sessions of a leader, if the notice of their end would reach its host in the usual time."""
        server = self._server_here()
        if server is None or not node.is_alive or self._was_killed_lately(node):
            return None
        holders = server.holders_of(node.name)
        if len(holders) != _PAIR or not all(session.is_quickly_reached for session in holders):
            return None
        return holders

    def _end(self, node: SimulatedNode, session: ServerSession) -> None:
        self._note(node, f"has session {session.pid} killed")
        self._killed_at[node.name] = self._world.now
        node.cable.troubled_at = node.pair_ended_at = self._world.now  # nothing keeps a successor waiting any more
        session.end(LossCause.SESSION_TERMINATED, quickly=True)

    def _expect_to_leave(self, node: SimulatedNode) -> None:
        """Look again a little later, unless the node has won its lock back on a new session already."""
        server = self._server_here()
        if server is None or server.holders_of(node.name):
            return
        boots = node.boots
        tokens = [(seat, seat.token) for seat in node.seats if seat.leads]

        def look() -> None:
            if node.is_alive and node.boots == boots and node.thawed_at < ended_at and node.busy_until < ended_at:
                self._checker.check_left(node, tokens)

        ended_at = self._world.now
        self._world.later(_NOTICED * self._lease_s, look)
