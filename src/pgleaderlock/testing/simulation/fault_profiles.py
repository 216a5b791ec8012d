"""Fault profiles: which faults a simulation injects, how often and for how long.

All times are in leases, so that a profile is as bad for a lease of a second as for one of a minute. The faults of a
profile decide whether the promise covers it: :data:`STORM` has all faults inside the promise, and the profiles outside
are named after the fault that they add.
"""

from dataclasses import dataclass, field, replace

__all__ = ["CALM", "FAULT_PROFILES", "INSIDE", "STORM", "FaultProfile"]


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """The faults of a simulation, and their frequency."""

    name: str
    faults: dict[str, float] = field(default_factory=dict)
    """The relative weight of each fault."""
    insists: frozenset[str] = frozenset()
    """The faults that are injected even where the store's promise does not cover them."""
    every: float = 2.0
    """Leases from one fault to the next, on average."""
    lasts: float = 1.2
    """Leases that a temporary fault lasts, on average."""
    slow_share: float = 0.02
    """The share of the messages that are slow."""
    slowness: float = 1.5
    """Leases that a slow message is on its way, at most."""
    clock_spread: float = 0.05
    """By how much a clock may run fast or slow. Twice this is 10 %, the difference that the promise covers."""
    race_share: float = 0.02
    """The share of the grants to queued sessions that race with the time-out of their wait slice."""

    def but(self, name: str, **changes: object) -> "FaultProfile":
        """Return a copy of this profile with another name and these changes."""
        return replace(self, name=name, **changes)  # type: ignore[arg-type]


_INSIDE = {
    "crash": 3.0,
    "host_crash": 1.0,
    "freeze": 3.0,
    "cut": 3.0,
    "forget": 1.0,
    "kill_session": 3.0,
    "reset": 1.0,
    "ambush": 3.0,
    "cut_and_restart": 1.0,
    "cut_and_crash": 1.0,
    "restart": 0.5,
    "server_crash": 0.5,
    "power": 0.5,
    "promote": 0.5,
    "down": 1.0,
    "compact": 1.0,
    "step_down": 1.0,
    "shutdown": 1.0,
}

_PAIRS = {
    "end_apart": 6.0,
    "end_both": 3.0,
    "frozen_end_both": 2.0,
    "flood_and_end_both": 2.0,
    "end_newcomer": 2.0,
    "end_newcomers_witness": 2.0,
    "slow_connects": 1.0,
    "late_answers": 1.0,
    "late_answers_and_freeze": 2.0,
    "late_answers_and_kill": 2.0,
    "overtake_heir": 2.0,
    "busy": 1.0,
}

_CLOCKS = {
    "step_clock": 2.0,
    "restart_and_step": 2.0,
    "cut_and_restart_and_step": 4.0,
    "reset_statistics": 1.0,
    "restart": 1.0,
    "server_crash": 1.0,
    "kill_session": 2.0,
    "step_down": 1.0,
}

_MOVES = {"cut_and_replace": 3.0, "cut_and_switch": 3.0, "restart": 1.0, "step_down": 1.0, "kill_session": 1.0}

_STANDBY = {"lose_standby": 4.0, "crash": 3.0, "step_down": 3.0, "kill_session": 2.0, "freeze": 1.0, "cut": 1.0}

_HASTE = {"hasty_step_down": 4.0, "stop_and_start": 4.0, "step_down": 1.0, "shutdown": 1.0, "crash": 1.0, "cut": 1.0}

CALM = FaultProfile("calm", every=1e9, slow_share=0.0, race_share=0.0)
"""No faults."""
STORM = FaultProfile("storm", _INSIDE)
"""All faults that the promise covers."""

FAULT_PROFILES = {
    profile.name: profile
    for profile in (
        CALM,
        STORM,
        STORM.but("squalls", every=0.7, lasts=0.4),
        STORM.but("fog", slow_share=0.3, every=6.0),
        STORM.but("doldrums", every=8.0, lasts=6.0),
        STORM.but("ended-pairs", faults={**_INSIDE, **_PAIRS}),
        # Only a cut-off leader is away for long here: a node that was away has only the server's clock to go by.
        STORM.but("stepped-clocks", faults=_CLOCKS, slow_share=0.0, every=3.0),
        # The same: a node that was away cannot distinguish a prepared server from the old one.
        STORM.but("moved-servers", faults=_MOVES, slow_share=0.0, every=4.0),
        STORM.but("absent-standby", faults=_STANDBY, every=4.0),
        STORM.but("haste", faults=_HASTE),
        # Outside the promise.
        STORM.but("time-outs", insists=frozenset({"early_time_outs"}), faults={**_INSIDE, "early_time_outs": 6.0}),
        STORM.but("double-kills", insists=frozenset({"double_ambush"}), faults={**_INSIDE, "double_ambush": 6.0}),
        STORM.but("drift", clock_spread=0.4, faults={"cut": 1.0, "freeze": 1.0}),
        STORM.but("promotions", insists=frozenset({"cut_and_promote"}), faults={**_INSIDE, "cut_and_promote": 4.0}),
    )
}
"""The profiles by name. ``time-outs``, ``double-kills``, ``drift`` and ``promotions`` are outside the promise."""

INSIDE = (
    "storm", "squalls", "fog", "doldrums", "ended-pairs", "stepped-clocks", "moved-servers", "absent-standby", "haste"
)  # fmt: skip
"""The profiles under which every invariant must hold."""
