"""When to end a command: computed back from the end of validity."""

import math
from dataclasses import dataclass

from pgleaderlock.stores.base import LOST_SHARE, TRUST_SHARE

__all__ = ["SHORTEST_LEASE_S", "KillTimes"]

SHORTEST_LEASE_S = 1.0
"""Killing takes milliseconds; on a busy host, a process may wait a tenth of a second for the processor."""


@dataclass(frozen=True, slots=True)
class KillTimes:
    """The times of a lease for a command: asked to end, killed by its guardian, killed by the wrapper.

    All of them are before ``trusted_until``. Without a lease (``trusted_until`` infinite) they never come.
    """

    lease_s: float

    def __post_init__(self) -> None:
        if self.lease_s < SHORTEST_LEASE_S:
            raise ValueError(
                f"a command needs a lease of at least {SHORTEST_LEASE_S:g} s, got {self.lease_s:g}: in less it could "
                "not be killed in time on a busy host"
            )

    @property
    def margin_s(self) -> float:
        """How long before ``trusted_until`` SIGKILL is sent."""
        return min(1.0, max(0.1, 0.07 * self.lease_s))

    def term_at(self, trusted_until: float) -> float:
        """When the guardian sends SIGTERM without an order: a little after the wrapper would have sent one."""
        lost_at = trusted_until - (TRUST_SHARE - LOST_SHARE) * self.lease_s
        return min(lost_at + 0.02 * self.lease_s, self.kill_at(trusted_until))

    def kill_at(self, trusted_until: float) -> float:
        """When the guardian sends SIGKILL."""
        return trusted_until - self.margin_s

    def kill_at_loss(self, now: float, trusted_until: float, kill_after_s: float | None) -> float:
        """When SIGKILL follows the SIGTERM of a loss: as late as is safe, or earlier by ``kill_after_s``."""
        after_s = math.inf if kill_after_s is None else kill_after_s
        if math.isinf(trusted_until) and math.isinf(after_s):
            after_s = DEFAULT_KILL_AFTER_S
        return min(now + after_s, max(now, self.kill_at(trusted_until)))

    def backstop_s(self) -> float:
        """How long after the guardian's deadline the wrapper waits before it kills the family itself."""
        return self.margin_s / 2


DEFAULT_KILL_AFTER_S = 10.0
"""Between SIGTERM and SIGKILL where no lease sets a limit."""
