"""The names of all metrics, what they mean, and how one election becomes a sample of each."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from prometheus_client import core

from pgleaderlock.ops.metrics._tally import BUCKETS_S, Reading

_LABELS = ("role", "node")
_BUCKETS = (*map(str, BUCKETS_S), "+Inf")


class WatchedRegistry(Protocol):
    """What is asked of a :class:`~pgleaderlock.ops.registry.Registry`."""

    @property
    def node(self) -> str:
        """The name of its node."""

    @property
    def is_up(self) -> bool:
        """Whether its last write succeeded."""

    @property
    def dropped_events(self) -> int:
        """How many events were dropped because the outbox was full."""

    @property
    def overlaps(self) -> Mapping[str, int]:
        """How many overlaps of two terms its history shows, by role."""


class Families:
    """What one scrape returns. ``prometheus_client`` adds ``_total`` to counters and ``_info`` to the last."""

    def __init__(self, prefix: str) -> None:
        name = f"{prefix}_leader"
        self.is_leader = core.GaugeMetricFamily(
            f"{name}_is_leader", "1 if this node may act as the leader at this moment, 0 otherwise.", labels=_LABELS
        )
        self.is_heir = core.GaugeMetricFamily(
            f"{name}_is_heir",
            "1 if this node is the heir, the follower that is ready to lead next, 0 otherwise. Only elections on "
            "PostgreSQL sessions have one.",
            labels=_LABELS,
        )
        self.time_left = core.GaugeMetricFamily(
            f"{name}_time_left_seconds",
            "How long this node may still act as the leader if no renewal succeeds; 0 when it does not lead, "
            "+Inf where nothing enforces a lease.",
            labels=_LABELS,
        )
        self.tenure = core.GaugeMetricFamily(
            f"{name}_tenure_seconds", "How long this node has been the leader; 0 when it does not lead.", labels=_LABELS
        )
        self.elections = core.CounterMetricFamily(
            f"{name}_elections",
            "Attempts of this node at becoming the leader. One attempt is one entry into ACQUIRING: one question to "
            "the store, or the end of one round of queueing.",
            labels=_LABELS,
        )
        self.failovers = core.CounterMetricFamily(
            f"{name}_failovers",
            "How often leadership came to this node after a leader that this node knew of, itself included. "
            "A recovery within the grace period is none.",
            labels=_LABELS,
        )
        self.losses = core.CounterMetricFamily(
            f"{name}_losses",
            "Terms of this node that ended without being asked to, by cause.",
            labels=(*_LABELS, "cause"),
        )
        self.leaderless = core.CounterMetricFamily(
            f"{name}_leaderless_seconds",
            "Seconds in which this node took part and knew of no leader: it did not lead, and had not found the lock "
            "held by another since its start, the end of its term, or its last failed attempt.",
            labels=_LABELS,
        )
        self.renewals = core.HistogramMetricFamily(
            f"{name}_renew_seconds", "How long the store took to confirm the leadership once more.", labels=_LABELS
        )
        self.callback_errors = core.CounterMetricFamily(
            f"{name}_callback_errors", "Exceptions raised by callbacks and listeners of the election.", labels=_LABELS
        )
        self.work_failures = core.CounterMetricFamily(
            f"{name}_work_failures", "Exceptions raised by work that runs while this node leads.", labels=_LABELS
        )
        self.work_overruns = core.CounterMetricFamily(
            f"{name}_work_overruns",
            "How often such work still ran when leadership could no longer be trusted. There must be none.",
            labels=_LABELS,
        )
        self.info = core.InfoMetricFamily(name, "Which pgleaderlock this is.", labels=_LABELS)
        self.registry_up = core.GaugeMetricFamily(
            f"{prefix}_registry_up",
            "1 if the last thing to be written to the registry was, 0 if not.",
            labels=("node",),
        )
        self.registry_dropped = core.CounterMetricFamily(
            f"{prefix}_registry_dropped_events",
            "Events that the history does not have, because the registry was away for too long.",
            labels=("node",),
        )
        self.overlaps = core.GaugeMetricFamily(
            f"{prefix}_audit_overlaps",
            "Overlaps of two terms in the last day of the history, for roles that this node leads. There must be none.",
            labels=_LABELS,
        )

    def __iter__(self) -> Iterator[core.Metric]:
        return iter(vars(self).values())

    def add_registry(self, registry: "WatchedRegistry") -> None:
        self.registry_up.add_metric((registry.node,), 1.0 if registry.is_up else 0.0)
        self.registry_dropped.add_metric((registry.node,), registry.dropped_events)
        for role, count in registry.overlaps.items():
            self.overlaps.add_metric((role, registry.node), count)

    def add(self, labels: tuple[str, str], time_left_s: float, reading: Reading, *, is_heir: bool) -> None:
        self.is_leader.add_metric(labels, 1.0 if time_left_s > 0 else 0.0)
        self.is_heir.add_metric(labels, 1.0 if is_heir else 0.0)
        self.time_left.add_metric(labels, time_left_s)
        self.tenure.add_metric(labels, reading.tenure_s)
        self.elections.add_metric(labels, reading.elections)
        self.failovers.add_metric(labels, reading.failovers)
        for cause, count in reading.losses.items():
            self.losses.add_metric((*labels, cause.value), count)
        self.leaderless.add_metric(labels, reading.leaderless_s)
        self.renewals.add_metric(labels, list(zip(_BUCKETS, reading.renewals, strict=True)), reading.renewing_s)
        self.callback_errors.add_metric(labels, reading.callback_errors)
        self.work_failures.add_metric(labels, reading.work_failures)
        self.work_overruns.add_metric(labels, reading.work_overruns)
        self.info.add_metric(labels, {"version": _own_version()})


@cache
def _own_version() -> str:
    try:
        return version("pgleaderlock")
    except PackageNotFoundError:  # the sources alone are on the path
        return "unknown"
