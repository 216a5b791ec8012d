"""The metrics as families of ``prometheus_client``, and how one election becomes a sample of each."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from prometheus_client import core

from pgleaderlock.ops._measures.definitions import LABELS, LOSSES, MEASURES, RENEWALS, Measure, Measured
from pgleaderlock.ops._measures.tally import BUCKETS_S

_BUCKETS = (*map(str, BUCKETS_S), "+Inf")


class WatchedRegistry(Protocol):
    """The part of a :class:`~pgleaderlock.ops.registry.Registry` that is used here."""

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
        self._numbers = [(each, _family(name, each)) for each in MEASURES]
        losses, meaning = LOSSES
        self._losses = core.CounterMetricFamily(f"{name}_{losses}", meaning, labels=(*LABELS, "cause"))
        renewals, meaning = RENEWALS
        self._renewals = core.HistogramMetricFamily(f"{name}_{renewals}_seconds", meaning, labels=LABELS)
        self._info = core.InfoMetricFamily(name, "Which pgleaderlock this is.", labels=LABELS)
        self._registry_up = core.GaugeMetricFamily(
            f"{prefix}_registry_up",
            "1 if the last thing to be written to the registry was, 0 if not.",
            labels=("node",),
        )
        self._registry_dropped = core.CounterMetricFamily(
            f"{prefix}_registry_dropped_events",
            "Events that the history does not have, because the registry was away for too long.",
            labels=("node",),
        )
        self._overlaps = core.GaugeMetricFamily(
            f"{prefix}_audit_overlaps",
            "Overlaps of two terms in the last day of the history, for roles that this node leads. There must be none.",
            labels=LABELS,
        )

    def __iter__(self) -> Iterator[core.Metric]:
        yield from (family for _, family in self._numbers)
        yield from (self._losses, self._renewals, self._info, self._registry_up, self._registry_dropped, self._overlaps)

    def add_registry(self, registry: "WatchedRegistry") -> None:
        self._registry_up.add_metric((registry.node,), 1.0 if registry.is_up else 0.0)
        self._registry_dropped.add_metric((registry.node,), registry.dropped_events)
        for role, count in registry.overlaps.items():
            self._overlaps.add_metric((role, registry.node), count)

    def add(self, labels: tuple[str, str], now: Measured) -> None:
        for measure, family in self._numbers:
            family.add_metric(labels, measure.value(now))
        for cause, count in now.reading.losses.items():
            self._losses.add_metric((*labels, cause.value), count)
        buckets = list(zip(_BUCKETS, now.reading.renewals, strict=True))
        self._renewals.add_metric(labels, buckets, now.reading.renewing_s)
        self._info.add_metric(labels, {"version": _own_version()})


def _family(name: str, measure: Measure) -> core.GaugeMetricFamily | core.CounterMetricFamily:
    full_name = f"{name}_{measure.name}_seconds" if measure.unit == "s" else f"{name}_{measure.name}"
    kind = core.GaugeMetricFamily if measure.kind == "gauge" else core.CounterMetricFamily
    return kind(full_name, measure.meaning, labels=LABELS)


@cache
def _own_version() -> str:
    try:
        return version("pgleaderlock")
    except PackageNotFoundError:  # the sources alone are on the path
        return "unknown"
