"""A synchronous standby that is absent: commits that write wait for it, with all the locks of their session."""

from pgleaderlock.testing.simulation._basic_faults import BasicFaults
from pgleaderlock.testing.simulation.node import SimulatedNode

_LASTS = 4.0
"""How many times as long as other faults it lasts: a lock that a dead process keeps is detected only after leases."""


class StandbyFaults(BasicFaults):
    """The part of the fault injector for the standby."""

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
