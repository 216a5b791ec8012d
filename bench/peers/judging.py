"""Where a peer is better than ours, or as good: pure, because the page must not leave out such a row.

A peer is compared with that store of ours which its user would take instead, with the same setting. Times that hang on
a lease are even by luck: a leader silent just before its next renewal loses it after two thirds of the lease, just
after it, after the whole. So with one lease, figures within a third of each other are a tie; others within a tenth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peers.arithmetic import median, worst
from peers.entries import Entry
from peers.measuring import Figures

__all__ = ["METRICS", "Metric", "Verdict", "unexplained", "verdicts"]


@dataclass(frozen=True)
class Metric:
    """One column, in which less is better."""

    key: str
    title: str
    of: Callable[[Figures], float | None]
    tie_within: float = 0.1


METRICS: Sequence[Metric] = (
    Metric("graceful", "graceful", lambda figures: median(figures.graceful_ms)),
    Metric("crash", "kill -9", lambda figures: median(figures.crash_ms), 0.35),
    Metric("freeze", "freeze", lambda figures: median(figures.freeze_ms), 0.35),
    Metric("overlap", "overlap after it", lambda figures: worst(figures.overlap_ms)),
    Metric("requests", "requests/s", lambda figures: figures.requests_per_s),
    Metric("wakeups", "wake-ups/s", lambda figures: figures.wakeups_per_s),
    Metric("leader", "connections of the leader", lambda figures: figures.leader_connections),
    Metric("follower", "connections of a follower", lambda figures: figures.follower_connections),
    Metric("memory", "memory", lambda figures: figures.rss_mib),
)


@dataclass(frozen=True)
class Verdict:
    """That a peer is better in one column, or as good."""

    metric: str
    is_tie: bool


def verdicts(peer: Figures, ours: Figures) -> list[Verdict]:
    """Return the columns in which ours is not alone in front."""
    found = []
    for metric in METRICS:
        theirs, mine = metric.of(peer), metric.of(ours)
        if theirs is None or mine is None or not math.isfinite(theirs):
            continue
        if theirs < mine * (1 - metric.tie_within):
            found.append(Verdict(metric.key, is_tie=False))
        elif theirs <= mine * (1 + metric.tie_within):
            found.append(Verdict(metric.key, is_tie=True))
    return found


def unexplained(
    entries: Sequence[Entry], figures: Mapping[str, Figures], why: Callable[[str, str], str | None]
) -> list[str]:
    """Return the rows and columns that a reader should be warned of, and is not."""
    missing = []
    for entry in entries:
        ours = figures.get(f"{entry.compared_with} ({entry.setting})")
        if entry.ours or entry.row not in figures or ours is None:
            continue
        missing += [
            f"{entry.row}: {verdict.metric}"
            for verdict in verdicts(figures[entry.row], ours)
            if not why(entry.name, verdict.metric)
        ]
    return missing
