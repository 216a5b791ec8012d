"""What is reckoned from what was timed; pure, so that it is tested without a clock."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["median", "overlap_ms", "percentile", "ratio", "worst"]

_STILL_ACTING_S = 0.25
"""A leader that acted this shortly before we stopped looking would have gone on."""


def overlap_ms(stamps: Sequence[float], *, successor_at: float, thawed_at: float, watched_until: float) -> float:
    """Return for how long after its thaw the old leader acted beside its successor; 0 if it did not act at all.

    Stamps from before the successor led are no overlap: they are the old leader's own time. Infinite if it was still
    acting when we stopped looking.
    """
    beside = [stamp for stamp in stamps if stamp > successor_at]
    if not beside:
        return 0.0
    last = max(beside)
    if last >= watched_until - _STILL_ACTING_S:
        return math.inf
    return max(0.0, last - thawed_at) * 1e3


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not less than this share of all; no value is invented between two."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float | None:
    """Return the middle; None where nothing was measured. Infinite values are those that never came."""
    return statistics.median_low(values) if values else None


def worst(values: Sequence[float]) -> float | None:
    return max(values) if values else None


def ratio(ours: float | None, limit: float | None) -> float | None:
    """Return how many times the physical limit; None where that says nothing."""
    if ours is None or limit is None or not math.isfinite(ours) or limit <= 0:
        return None
    return ours / limit
