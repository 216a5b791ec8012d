"""Steps of the server's wall clock: while it runs, right after a restart, and after a restart the leader cannot see.

PostgreSQL measures two things with its wall clock: its own *age*, which decides how long the quiet period after a start
lasts; and the timeout that *ends* idle sessions: early after a step forward, late after a step back. So a step back is
shorter on a running server: a half-open session would keep the lock for as long as the clock was set back.

The clock is wrong for a while and is then set right: that is the step, and a clock that is wrong when the server starts
happens in production. It has to end right: while a backend waits, libfaketime lets its signal handlers see the true
time, so under a clock that stays behind every session would end too early, and under one that stays ahead too late.

With ``takeover="fast"`` a step is made only where its effects are within the promise: every candidate has met the
server before, all are running, and their networks are without faults; the conductor waits for that. And no other fault
is injected until every timer that was set before the step has fired: a step forward may end both sessions of a leader.
"""

from dataclasses import dataclass

from pgleaderlock.testing.torture._plan import Deed

CALM_LEASES = 1.5
"""How long after a step no other fault is injected in ``fast``: timers of idle sessions are set for one lease."""
TOUCH_LEASES = 3.0
"""How long a step in ``fast`` waits for earlier faults to end; they last less than two leases."""
_LEAST, _MOST, _MOST_BACK_RUNNING = 1.2, 20.0, 4.0
_MOST_WAIT_S = 0.3
_LEAST_WRONG = 0.3
_LONGEST = 1.6
"""How many leases a fault lasts at most."""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """One step of the server's clock."""

    by_s: float
    """Forward, or back if it is negative; before it, the clock is wrong by as much."""
    restarts: bool
    """Whether the server is restarted before it, and starts with the wrong clock."""
    crashes: bool
    cuts_leader: bool
    """Whether the leader is cut off before the restart, so that it does not notice the restart."""
    cuts_others: bool
    """Whether the followers are cut off until the step: they reach the new server only when its clock is right."""
    wait_s: float
    """For how long the server runs with the wrong clock."""

    def describe(self) -> str:
        """Return the step in words, for the report."""
        way = "after a crash" if self.crashes else "after a restart"
        where = way + (" behind the leader's back" if self.cuts_leader else "") if self.restarts else "as it ran"
        return f"{self.by_s:+.1f} s, {where}"


def plan_step(deed: Deed, lease_s: float) -> ClockStep:
    """Return the step that the planned fault stands for: always by more than a lease."""
    restarts = deed.strength >= 1 / 3
    is_forward = deed.jump_s > 0
    most = _MOST if restarts or is_forward else _MOST_BACK_RUNNING
    size = min(1.0, deed.lasts_s / (_LONGEST * lease_s))
    part = deed.strength * 10 % 1
    by_s = (_LEAST + (most - _LEAST) * size) * lease_s
    return ClockStep(
        by_s=by_s if is_forward else -by_s,
        restarts=restarts,
        crashes=restarts and deed.node % 2 == 1,
        cuts_leader=deed.strength >= 2 / 3,
        cuts_others=restarts and part < 1 / 2,
        wait_s=_MOST_WAIT_S * part if restarts else (_LEAST_WRONG + (1 - _LEAST_WRONG) * part) * lease_s,
    )
