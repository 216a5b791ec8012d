"""A synchronous standby that is absent: commits that write wait for it, with all the locks of their session."""

from collections.abc import Callable

from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.world import World

_LASTS = 4.0
"""How many times as long as other faults it lasts: a lock that a dead process keeps is detected only after leases."""


class StandbyFaults:
    """The part of the fault injector for the standby."""

    _world: World
    _checker: Checker

    def _server_here(self) -> ModelledPostgres | None:
        raise NotImplementedError

    def _then(self, delay_s: float, do: Callable[[], object]) -> None:
        raise NotImplementedError

    def lose_standby(self, _: SimulatedNode, lasts_s: float) -> bool | None:
        server = self._server_here()
        if server is None or server.waits_for_standby:
            return False
        self._checker.note("fault", f"the standby is away for {_LASTS * lasts_s:.1f} s")
        server.lose_standby()

        def come_back() -> None:
            self._checker.note("fault", "the standby is back")
            server.find_standby()

        self._then(_LASTS * lasts_s, come_back)
        return None
