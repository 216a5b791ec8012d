"""Faults of the caller: it is in a hurry, and makes a second request before the first is done."""

from collections.abc import Callable, Coroutine
from typing import Any

from pgleaderlock.testing.simulation._late_faults import LateFaults
from pgleaderlock.testing.simulation.node import SimulatedNode

_HASTE = 0.05
"""Leases after which a hurried caller gives up waiting, at most."""
_AGAIN = 0.3
"""Leases after which it asks again, at most: while the first is under way."""
_LATE = 0.5
"""Leases for which the answers to a hurried caller's node are late."""
_ALL = 1.0


class LifecycleFaults(LateFaults):
    """The part of the fault injector for hurried callers."""

    def hasty_step_down(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Ask a leader to step down, twice and with short time-outs, while its answers are late."""
        leading = [seat for seat in node.seats if seat.leads]
        if not node.is_alive or node.is_frozen or not leading:
            return False
        lock = self._world.random.choice(leading).lock
        self._delay_answers(node, _LATE * self._lease_s, _ALL)
        self._note(node, "is asked to step down, hastily")
        self._ask(node, lock.step_down(_HASTE * self._lease_s * self._world.random.random()))
        self._ask_again(node, lambda: lock.step_down(_HASTE * self._lease_s))
        return None

    def stop_and_start(self, node: SimulatedNode, _: float = 0.0) -> bool | None:
        """Ask a node to stop, and to start again while it stops, or still notifies its listeners."""
        if not node.is_alive or node.is_frozen:
            return False
        self._note(node, "is asked to stop and to start again")
        service = node.service
        self._ask(node, service.shutdown(self._world.random.choice([None, _HASTE * self._lease_s])))
        self._ask_again(node, service.start)
        return None

    def _ask(self, node: SimulatedNode, asked: Coroutine[Any, Any, None]) -> None:
        node.loop.create_task(asked)

    def _ask_again(self, node: SimulatedNode, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        boots = node.boots

        def ask_if_there() -> None:
            if node.is_alive and node.boots == boots:
                self._ask(node, ask())

        self._world.later(_AGAIN * self._lease_s * self._world.random.random(), ask_if_there)
