"""Elections as Prometheus metrics: who leads here, since when, how often that changed, and what a renewal costs.

Needs ``pip install "pgleaderlock[metrics]"``. A :class:`Metrics` is one collector in a registry of
``prometheus_client`` and may watch any number of elections; each has its own ``role`` and ``node`` label.

**What may change without an event is asked at the scrape.** Leadership ends by a comparison with a clock, also while
the event loop stands still and no listener can be notified. So ``is_leader``, ``time_left_seconds`` and
``tenure_seconds`` are no gauges that code has to set in time: they are read from the election at each scrape. **What
happened is counted from the event stream**, by a listener like any other, and a cheap one: additions under a lock.

A node sees its own attempts and their answers, and nothing else. What follows from that:

- A failover is counted where leadership *arrives*, so that the sum over all nodes counts each once. The first leader
  of all is none. A node that acquires at its first attempt cannot know whether it is that, and does not count it: the
  sum is a lower bound.
- Leaderless time is the time in which *this node knew of no leader*. A follower that is queued behind a leader that
  died does not know it before it is granted the lock.

Counters begin at zero with the process. Nothing here decides anything.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops._measures.definitions import measure
from pgleaderlock.ops._measures.tally import Tally

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric

    from pgleaderlock.ops.metrics._families import Families, WatchedRegistry
    from pgleaderlock.ops.metrics._server import MetricsServer, serve_metrics
except ModuleNotFoundError as error:
    raise MissingExtra(f'metrics need the package {error.name}: pip install "pgleaderlock[metrics]"') from error

__all__ = ["Metrics", "MetricsServer", "WatchedGroup", "WatchedRegistry", "serve_metrics"]

_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # without the colon, which is for recording rules


@dataclass(frozen=True, slots=True)
class _Watched:
    election: Election
    clock: Clock
    tally: Tally


class WatchedGroup(Protocol):
    """The part of a :class:`~pgleaderlock.LeaderGroup` that is used here."""

    def items(self) -> Iterable[tuple[str, Election]]:
        """Return its roles, each with its name."""
        ...

    def on_renewed(self, fn: Callable[[float], object]) -> object:
        """Call ``fn(took_s)`` after each renewal."""
        ...


class Metrics:
    """A collector with the metrics of the elections that it watches.

    ``prefix`` begins every name: ``forge`` gives ``forge_leader_is_leader``. One registry takes one collector per
    prefix; a second is refused by the registry with a ``ValueError``. ``registry.unregister(metrics)`` takes it out.
    """

    def __init__(self, prefix: str = "pgleaderlock", registry: CollectorRegistry | None = None) -> None:
        if not _PREFIX.fullmatch(_check_text("prefix", prefix)):
            raise ValueError(f"prefix must be letters, digits and underscores, and begin with no digit: {prefix!r}")
        self._prefix = prefix
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._registries: list[WatchedRegistry] = []
        self._guard = threading.Lock()  # a scrape comes from a thread of its own
        (REGISTRY if registry is None else registry).register(self)

    def watch(self, election: Election, *, role: str, node: str, clock: Clock = suspend_aware_clock) -> None:
        """Measure this election from now on. Best before its start: what happened earlier is not counted.

        Of an election that leads already, the tenure counts from here. ``clock`` is the election's own: give the same
        one here if it is not the default.
        """
        if not isinstance(election, Election):
            raise TypeError(
                f"election must be an Election, not {type(election).__name__}: for a group there is watch_group"
            )
        labels = _check_text("role", role), _check_text("node", node)
        watched = _Watched(election, clock, Tally(election.state, clock()))
        with self._guard:
            if labels in self._watched:
                raise ValueError(f"role {role!r} of node {node!r} is watched already: unwatch() it first")
            self._watched[labels] = watched
        election.subscribe(watched.tally.hear)

    def watch_group(self, group: WatchedGroup, *, node: str, clock: Clock = suspend_aware_clock) -> None:
        """Measure every role of a group. One renewal is that of each role which is led here."""
        for name, election in group.items():
            self.watch(election, role=name, node=node, clock=clock)
        mine = [self._watched[name, node] for name, _ in group.items()]

        def renewed(took_s: float) -> None:
            for each in mine:
                if each.election.is_leader:
                    each.tally.renewed(took_s)

        group.on_renewed(renewed)

    def unwatch(self, *, role: str, node: str) -> None:
        """Stop measuring this election: another one may take its labels, with counters that begin at zero."""
        with self._guard:
            if self._watched.pop((role, node), None) is None:
                raise ValueError(f"role {role!r} of node {node!r} is not watched")

    def watch_registry(self, registry: WatchedRegistry) -> None:
        """Measure this registry: whether it can write, the events it dropped, and the overlaps in its history."""
        with self._guard:
            self._registries.append(registry)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without their samples: the registry refuses a name that is given twice."""
        return iter(Families(self._prefix))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their samples. Prometheus's client calls this at each scrape, on any thread."""
        families = Families(self._prefix)
        with self._guard:
            watched, registries = list(self._watched.items()), list(self._registries)
        for labels, each in watched:
            families.add(labels, measure(each.election, each.clock, each.tally))
        for registry in registries:
            families.add_registry(registry)
        return iter(families)


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    return value
