"""Faults of one direction of the network: late answers on some connections of one node, together with another fault.

A network that is slow for all (:attr:`FaultProfile.slow_share`) is slow for the successor too, which then leads too
late to be seen beside a leader that counts its validity wrongly. Here the leader alone has late answers.
"""

from collections.abc import Callable, Iterable
from functools import partial

from pgleaderlock._base.causes import LossCause
from pgleaderlock.testing.simulation._pair_faults import PairFaults
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation.node import Connection, SimulatedNode

_LATE = 0.33
"""Leases by which answers are late, at most: later ones would not renew anything."""
_LATE_SHARE = 0.5
"""How many of the connections of a node have late answers."""
_OVERTAKEN = 0.02
"""Leases by which the heir's try for the witness lock is late, at most: a fresh session replaces it, or not yet."""
_STRIKE = (0.3, 0.9)
"""Leases from the first late answer until the other fault: at least one renewal has come late."""


class LateFaults(PairFaults):
    """The part of the fault injector for late answers."""

    def late_answers(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Let answers come late for a while, on about half of the connections that a node has."""
        return self._delay_answers(node, lasts_s, _LATE_SHARE)

    def late_answers_and_freeze(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Freeze a node that was renewed by late answers."""
        if self._delay_answers(node, self._lease_s, _LATE_SHARE) is False:
            return False
        self._strike_later(lambda: self.freeze(node, lasts_s))
        return None

    def late_answers_and_kill(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """End one session of a node whose answers are late, as is the notice of that end; it connects slowly, too."""
        if self._delay_answers(node, self._lease_s, 1.0) is False:
            return False
        self.slow_connects(node, lasts_s)
        self._strike_later(lambda: self.kill_session(node))
        return None

    def overtake_heir(self, node: SimulatedNode, lasts_s: float) -> bool | None:
        """Crash a leader; end the lock session of its heir before the heir's try for the witness lock arrives.

        The notice of that end is late. So the next heir leads first; it is asked to step down soon, while the heir,
        which has yet to learn of its end, still tries for the witness lock.
        """
        server = self._server_here()
        heir = next((each for each in self._nodes if each.is_alive and each.lock.place == "heir"), None)
        if server is None or heir is None or heir.is_frozen or node is not self._checker.leader:
            return False
        here = [each for each in heir.sessions if isinstance(each, SimulatedSession) and not each.closed]
        there = server.sessions_of(heir.name)
        if len(here) != len(there) or len(here) == 1 or self._was_killed_lately(heir):
            return False
        random = self._world.random
        self._note(heir, "will be overtaken")
        late_s = here[-1].to_server.late_s = _OVERTAKEN * self._lease_s * random.uniform(0.25, 1)
        self.crash(node, lasts_s)

        def end_lock() -> None:
            here[0].to_client.late_s = _LATE * self._lease_s
            self._killed_at[heir.name] = self._world.now
            there[0].end(LossCause.SESSION_TERMINATED)

        self._world.later(heir.cable.latency_s * random.uniform(2, 12), end_lock)
        self._world.later(late_s * random.uniform(0.3, 2), self._ask_leader_to_step_down)
        return None

    def _ask_leader_to_step_down(self) -> None:
        leader = self._checker.leader
        if leader is not None and not leader.is_frozen and not self._is_clear:
            self._note(leader, "is asked to step down")
            leader.loop.create_task(leader.lock.step_down())

    def _delay_answers(self, node: SimulatedNode, lasts_s: float, share: float) -> bool | None:
        random = self._world.random
        sessions = [session for session in node.sessions if isinstance(session, SimulatedSession)]
        late = [session for session in sessions if not session.closed and random.random() < share]
        if not node.is_alive or not late:
            return False
        for session in late:
            session.to_client.late_s = _LATE * self._lease_s * random.random()
        delays = ", ".join(f"{session.to_client.late_s:.1f} s" for session in late)
        self._note(node, f"has answers that are late for {lasts_s:.1f} s, by {delays}")
        self._world.later(lasts_s, partial(self._be_punctual, late))
        return None

    def _strike_later(self, strike: Callable[[], object]) -> None:
        def unless_clear() -> None:
            if not self._is_clear:
                strike()

        self._world.later(self._world.random.uniform(*_STRIKE) * self._lease_s, unless_clear)

    @staticmethod
    def _be_punctual(sessions: Iterable[Connection]) -> None:
        for session in sessions:
            if isinstance(session, SimulatedSession):
                session.to_client.late_s = 0.0
