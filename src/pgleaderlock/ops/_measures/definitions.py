"""The measures of an election: name, kind, unit, meaning, and where the value comes from.

Prometheus calls a measure ``pgleaderlock_leader_time_left_seconds``, OpenTelemetry ``pgleaderlock.leader.time_left``
with the unit ``s``; an OpenTelemetry collector that exports to Prometheus makes the first of the second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pgleaderlock._base.clock import Clock
from pgleaderlock.engine.election import Election
from pgleaderlock.ops._measures.tally import Reading, Tally
from pgleaderlock.postgres.lease import Place

LABELS = ("role", "node")


@dataclass(frozen=True, slots=True)
class Measured:
    """One election at one moment."""

    time_left_s: float
    is_heir: bool
    reading: Reading

    @property
    def leads(self) -> bool:
        return self.time_left_s > 0


def measure(election: Election, clock: Clock, tally: Tally) -> Measured:
    """Read the election once for all values that depend on the clock: none shows a leader with no time left."""
    time_left_s = election.time_left_s
    leads = time_left_s > 0
    reading = tally.read(clock(), leads=leads)
    return Measured(time_left_s, not leads and election.place == Place.HEIR.value, reading)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number that is measured of each election."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    value: Callable[[Measured], float]
    unit: Literal["", "s"] = ""


IS_LEADER = Measure(
    "is_leader",
    "gauge",
    "1 if this node may act as the leader at this moment, 0 otherwise.",
    lambda now: 1.0 if now.leads else 0.0,
)
MEASURES = (
    IS_LEADER,
    Measure(
        "is_heir",
        "gauge",
        "1 if this node is the heir, the follower that is ready to lead next, 0 otherwise. Only elections on "
        "PostgreSQL sessions have one.",
        lambda now: 1.0 if now.is_heir else 0.0,
    ),
    Measure(
        "time_left",
        "gauge",
        "How long this node may still act as the leader if no renewal succeeds; 0 when it does not lead, "
        "+Inf where nothing enforces a lease.",
        lambda now: now.time_left_s,
        unit="s",
    ),
    Measure(
        "tenure",
        "gauge",
        "How long this node has been the leader; 0 when it does not lead.",
        lambda now: now.reading.tenure_s,
        unit="s",
    ),
    Measure(
        "elections",
        "counter",
        "Attempts of this node at becoming the leader. One attempt is one entry into ACQUIRING: one question to "
        "the store, or the end of one round of queueing.",
        lambda now: now.reading.elections,
    ),
    Measure(
        "failovers",
        "counter",
        "How often leadership came to this node after a leader that this node knew of, itself included. "
        "A recovery within the grace period is none.",
        lambda now: now.reading.failovers,
    ),
    Measure(
        "leaderless",
        "counter",
        "Seconds in which this node took part and knew of no leader: it did not lead, and had not found the lock "
        "held by another since its start, the end of its term, or its last failed attempt.",
        lambda now: now.reading.leaderless_s,
        unit="s",
    ),
    Measure(
        "callback_errors",
        "counter",
        "Exceptions raised by callbacks and listeners of the election.",
        lambda now: now.reading.callback_errors,
    ),
    Measure(
        "work_failures",
        "counter",
        "Exceptions raised by work that runs while this node leads.",
        lambda now: now.reading.work_failures,
    ),
    Measure(
        "work_overruns",
        "counter",
        "How often such work still ran when leadership could no longer be trusted. There must be none.",
        lambda now: now.reading.work_overruns,
    ),
)
"""All that are one number for each election."""

LOSSES = "losses", "Terms of this node that ended without being asked to, by cause."
"""A counter with one number for each cause, in the further label ``cause``."""
RENEWALS = "renew", "How long the store took to confirm the leadership once more."
"""A histogram, in seconds, with the buckets of :data:`~pgleaderlock.ops._measures.tally.BUCKETS_S`."""
