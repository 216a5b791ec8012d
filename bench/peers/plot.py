"""The picture: times to fail over on a logarithmic scale, drawn by hand as SVG, readable on light and on dark."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from peers.arithmetic import median
from peers.entries import Entry
from peers.measuring import Figures
from peers.results import Run

__all__ = ["plot"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 880, 250, 96, 20, 74
_FROM_MS, _TO_MS = 1.0, 100_000.0
_TICKS = ((1, "1 ms"), (10, "10 ms"), (100, "0.1 s"), (1000, "1 s"), (10_000, "10 s"), (100_000, "100 s"))
_MARKS = (("graceful", "circle"), ("kill -9", "square"), ("freeze", "triangle"))

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .ours { font-weight: 600 }
  .grid { stroke: #8888; stroke-width: 1 }
  .never { fill: #888; font-size: 10px }
  .circle { fill: #2a9d55 } .square { fill: #d1495b } .triangle { fill: #2e7dd1 }
  .band { fill: #8882 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .never { fill: #aaa }
    .circle { fill: #52c77e } .square { fill: #f0788a } .triangle { fill: #6ab0ff }
  }
"""


def x_of(ms: float) -> float:
    """Return the place of a time on the scale; what never came is beyond its end."""
    inner = _WIDTH - _LEFT - _RIGHT
    if not math.isfinite(ms):
        return _LEFT + inner + 56
    share = math.log10(max(ms, _FROM_MS) / _FROM_MS) / math.log10(_TO_MS / _FROM_MS)
    return _LEFT + inner * min(share, 1.0)


def plot(entries: Sequence[Entry], run: Run) -> str:
    """Return the picture as text."""
    rows = [entry for entry in entries if not run.figures[entry.row].missing]
    height = _TOP + _ROW * len(rows) + 16
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Times to fail over, logarithmic">',
        f"<style>{_STYLE}</style>",
        *_legend(),
        *_grid(height),
    ]
    for number, entry in enumerate(rows):
        parts += _row(entry, run.figures[entry.row], _TOP + _ROW * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts = []
    for number, (title, shape) in enumerate(_MARKS):
        x = _LEFT + 130 * number
        parts += [_mark(shape, x, 18), f'<text x="{x + 12}" y="22">{title}</text>']
    return parts


def _grid(height: int) -> list[str]:
    parts = []
    for ms, title in _TICKS:
        x = x_of(ms)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 14}" y2="{height - 12}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 20}" text-anchor="middle">{title}</text>')
    return [*parts, f'<text class="never" x="{x_of(math.inf):.1f}" y="{_TOP - 20}" text-anchor="middle">never</text>']


def _row(entry: Entry, figures: Figures, y: int) -> list[str]:
    middle = y + _ROW / 2
    style = ' class="ours"' if entry.ours else ""
    text = f'<text{style} x="{_LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{escape(entry.row)}</text>'
    parts = [text]
    if entry.ours:
        parts.insert(0, f'<rect class="band" x="0" y="{y}" width="{_WIDTH}" height="{_ROW}"/>')
    times = (figures.graceful_ms, figures.crash_ms, figures.freeze_ms)
    known = [
        (shape, value) for (_, shape), each in zip(_MARKS, times, strict=True) if (value := median(each)) is not None
    ]
    never = [shape for shape, value in known if not math.isfinite(value)]
    parts += [_mark(shape, x_of(value), middle) for shape, value in known if math.isfinite(value)]
    start = x_of(math.inf) - 6 * (len(never) - 1)
    return parts + [_mark(shape, start + 12 * number, middle) for number, shape in enumerate(never)]


def _mark(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f'<circle class="circle" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    if shape == "square":
        return f'<rect class="square" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<path class="triangle" d="M{x:.1f} {y - 5:.1f} l5 9 h-10 z"/>'
