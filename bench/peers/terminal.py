"""The table on the terminal, and how one figure is written; the page writes them the same way."""

import math
from collections.abc import Sequence

from peers.arithmetic import median, ratio, worst
from peers.entries import LIMIT, Entry
from peers.measuring import Figures
from peers.results import Run

__all__ = ["cells", "print_table"]

HEADINGS = (
    "graceful", "kill -9", "freeze", "overlap after it", "requests/s", "wake-ups/s", "connections, leader / follower",
    "memory",
)  # fmt: skip
_WATCHED_S = 3


def print_table(entries: Sequence[Entry], run: Run) -> None:
    print(f"{run.machine}; {', '.join(f'{name} {number}' for name, number in run.versions.items())}")
    limit = run.figures.get(f"{LIMIT} (default)")
    rows = [(entry.row, *_line(entry, run.figures[entry.row], limit)) for entry in entries]
    head = ("", "graceful", "kill -9", "freeze", "overlap", "requests/s", "wake-ups/s", "conn.", "memory")
    widths = [max(len(row[column]) for row in [head, *rows] if len(row) == len(head)) for column in range(len(head))]
    for row in [head, *rows]:
        if len(row) < len(head):
            print(f"{row[0]:<{widths[0]}}  not measured: {row[1]}")
        else:
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)), flush=True)


def _line(entry: Entry, figures: Figures, limit: Figures | None) -> tuple[str, ...]:
    return (figures.missing,) if figures.missing else cells(entry, figures, limit)


def cells(entry: Entry, figures: Figures, limit: Figures | None) -> tuple[str, ...]:
    """Return one row's figures for people; the ratio is to the physical limit, where milliseconds matter."""
    return (
        _time(figures.graceful_ms, limit.graceful_ms if limit else [], entry.patience_s),
        _time(figures.crash_ms, limit.crash_ms if limit else [], entry.patience_s),
        _time(figures.freeze_ms, [], entry.patience_s),
        _overlap(figures),
        _number(figures.requests_per_s),
        _number(figures.wakeups_per_s),
        _connections(figures),
        "-" if figures.rss_mib is None else f"{figures.rss_mib:.0f} MiB",
    )


def _time(values: Sequence[float], limit: Sequence[float], patience_s: float) -> str:
    middle = median(values)
    if middle is None:
        return "-"
    if not math.isfinite(middle):
        return f"not in {patience_s:.0f} s"
    times = ratio(middle, median(limit))
    beside = f" ({times:.1f}×)" if times is not None and middle < 1000 else ""
    return f"{_duration(middle)}{beside}"


def _duration(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def _overlap(figures: Figures) -> str:
    longest = worst(figures.overlap_ms)
    if longest is None:
        return "no successor" if figures.freeze_ms else "-"
    if not math.isfinite(longest):
        return f"> {_WATCHED_S} s"
    return "none" if longest == 0 else _duration(longest)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _connections(figures: Figures) -> str:
    if figures.leader_connections is None or figures.follower_connections is None:
        return "-"
    return f"{figures.leader_connections:g} / {figures.follower_connections:g}"
