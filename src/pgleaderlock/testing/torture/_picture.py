"""The picture of a torture: which node led when, the faults, and the times without a leader. One SVG per time strip."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from pgleaderlock._base.overlaps import Overlap
from pgleaderlock.testing.torture._checker import Gap, ObservedTerm, Verdict
from pgleaderlock.testing.torture._logs import Claim, Fault

_WIDTH = 1180
_LABELS = 78
_LANE = 36
_TOP = 8
_AXIS = 20
_MOST_STRIPS = 60
_SHORTEST_STRIP_S = 30.0
_LEASES_PER_STRIP = 20
_TICKS_PER_STRIP = 12
_NICE_S = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600)
_VISIBLE_GAP_S = 0.02
_LETTER = 5.2
_LONGEST_LABEL = 40
_KINDS = {
    "process": ("kill", "freeze"),
    "session": ("session", "witness", "both", "apart"),
    "network": ("reset", "delay", "connect", "throttle", "cut", "drop"),
    "server": ("restart", "standby", "step"),
    "clock": ("clock",),
}
_GROUPS = {kind: group for group, kinds in _KINDS.items() for kind in kinds}


def strips(verdict: Verdict) -> Iterator[str]:
    """Yield the timeline in strips that fit on a page, each an SVG with a text for screen readers."""
    logs = verdict.logs
    total_s = max(logs.ended_at - logs.began_at, 0.001)
    about_s = max(_SHORTEST_STRIP_S, _LEASES_PER_STRIP * logs.lease_s, total_s / _MOST_STRIPS)
    number = max(1, round(total_s / about_s))  # all of one length, or the last would be a stump
    for place in range(number):
        start, end = (logs.began_at + total_s * each / number for each in (place, place + 1))
        yield _Strip(verdict, start, end).draw()


def legend() -> str:
    """Return the legend of the shapes as HTML."""
    items = (
        '<span class="key"><i class="k-term"></i>leads</span>',
        '<span class="key"><i class="k-term pale"></i>leads, but was not sampled</span>',
        '<span class="key"><i class="k-gap"></i>no leader</span>',
        *(
            f'<span class="key"><i class="k-{group}"></i>{words}</span>'
            for group, words in (
                ("process", "killed, frozen"),
                ("session", "session ended by the server"),
                ("network", "bad network"),
                ("server", "server restarted, its clock stepped, its standby away"),
                ("clock", "a node's wall clock jumped"),
            )
        ),
        '<span class="key"><i class="k-overlap"></i>split brain</span>',
    )
    return f'<p class="legend">{"".join(items)}</p>'


@dataclass(frozen=True, slots=True)
class _Strip:
    verdict: Verdict
    start: float
    end: float

    def draw(self) -> str:
        logs = self.verdict.logs
        height = _TOP + _LANE * len(logs.nodes) + _AXIS
        since, until = (_clock(each - logs.began_at) for each in (self.start, self.end))
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Who led from {since} to {until}">',
            *self._gaps(),
            *self._lanes(),
            *self._axis(),
            *(self._term(term) for term in self.verdict.terms),
            *self._faults(),
            *(self._overlap(overlap) for overlap in self.verdict.overlaps),
            "</svg>",
        ]
        return "".join(parts)

    # --- Where things are ---

    def _x(self, at: float) -> float:
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return round(_LABELS + share * (_WIDTH - _LABELS), 1)

    def _y(self, node: str | None) -> int:
        nodes = self.verdict.logs.nodes
        return _TOP + _LANE * (nodes.index(node) if node in nodes else 0)

    def _shows(self, began_at: float, ended_at: float) -> bool:
        return ended_at >= self.start and began_at < self.end

    def _width(self, began_at: float, ended_at: float, least: float) -> float:
        return round(max(least, self._x(ended_at) - self._x(began_at)), 1)

    # --- What there is ---

    def _lanes(self) -> Iterator[str]:
        for node in self.verdict.logs.nodes:
            middle = self._y(node) + 19
            yield f'<text class="node" x="0" y="{middle + 4}">{escape(node)}</text>'
            yield f'<line class="lane" x1="{_LABELS}" x2="{self._x(self.end)}" y1="{middle}" y2="{middle}"/>'

    def _axis(self) -> Iterator[str]:
        began_at = self.verdict.logs.began_at
        wanted = (self.end - self.start) / _TICKS_PER_STRIP
        step = next((each for each in _NICE_S if each >= wanted), _NICE_S[-1])
        bottom = _TOP + _LANE * len(self.verdict.logs.nodes)
        second = -(-(self.start - began_at) // step) * step
        while began_at + second <= self.end:
            x = self._x(began_at + second)
            yield f'<line class="tick" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>'
            anchor = ' text-anchor="end"' if x > _WIDTH - _LONGEST_LABEL / 2 else ""
            yield f'<text class="time"{anchor} x="{x}" y="{bottom + 14}">{_clock(second)}</text>'
            second += step

    def _gaps(self) -> Iterator[str]:
        height = _LANE * len(self.verdict.logs.nodes)
        for gap in self.verdict.gaps:
            if gap.lasted_s >= _VISIBLE_GAP_S and self._shows(gap.began_at, gap.ended_at):
                width = self._width(gap.began_at, gap.ended_at, 1.5)
                box = f'x="{self._x(gap.began_at)}" y="{_TOP}" width="{width}" height="{height}"'
                yield f'<rect class="gap" {box}><title>{escape(_gap_words(gap))}</title></rect>'

    def _term(self, term: ObservedTerm) -> str:
        """Draw the whole term, pale, and on top of it the intervals that were sampled."""
        if not self._shows(term.began_at, term.seen_at):
            return ""
        y = self._y(term.node) + 12
        shown = [("term pale", term.began_at, term.seen_at)]
        shown += [("term", began, seen) for began, seen in term.spans if self._shows(began, seen)]
        boxes = "".join(
            f'<rect class="{look}" x="{self._x(began)}" y="{y}" width="{self._width(began, seen, 1.0)}" height="14"/>'
            for look, began, seen in shown
        )
        return f"<g>{boxes}<title>{escape(_term_words(term))}</title></g>"

    def _faults(self) -> Iterator[str]:
        """Draw each fault with its name; where another name is in the way, as a mark with the name as its tooltip."""
        free_from: dict[str | None, float] = {}
        for fault in sorted(self.verdict.logs.faults, key=lambda each: each.at):
            if self._shows(fault.at, fault.until):
                x, length = self._x(fault.at), len(fault.kind) * _LETTER
                has_room = fault.at >= self.start and x >= free_from.get(fault.node, 0.0)
                if has_room:
                    free_from[fault.node] = x + length
                yield self._fault(fault, fault.kind if has_room else "")

    def _fault(self, fault: Fault, name: str) -> str:
        group, title = _GROUPS.get(fault.kind, "process"), escape(_fault_words(fault))
        x, y = self._x(fault.at), self._y(fault.node)
        anchor = ' text-anchor="end"' if x > _WIDTH - _LONGEST_LABEL else ""
        above = y - 1 if fault.node is None else y + 9  # a name in a band of its own colour cannot be read
        label = f'<text class="what f-{group}"{anchor} x="{x}" y="{above}">{escape(name)}</text>'
        if fault.node is None:
            height = _LANE * len(self.verdict.logs.nodes)
            width = self._width(fault.at, fault.until, 2.0)
            box = f'<rect class="f-{group} band" x="{x}" y="{_TOP}" width="{width}" height="{height}"/>'
        else:
            width = self._width(fault.at, fault.until, 3.0)
            box = f'<rect class="f-{group}" x="{x}" y="{y + 28}" width="{width}" height="4" rx="1"/>'
            box += f'<line class="f-{group} stem" x1="{x}" x2="{x}" y1="{y + 11}" y2="{y + 32}"/>'
        return f"<g>{box}{label}<title>{title}</title></g>"

    def _overlap(self, overlap: Overlap[Claim]) -> str:
        if not self._shows(overlap.began_at, overlap.began_at + overlap.lasted_s):
            return ""
        height = _LANE * len(self.verdict.logs.nodes)
        width = self._width(overlap.began_at, overlap.began_at + overlap.lasted_s, 4.0)
        title = escape(f"{overlap.first.node} and {overlap.second.node} for {overlap.lasted_s * 1000:.2f} ms")
        box = f'x="{self._x(overlap.began_at)}" y="0" width="{width}" height="{_TOP + height}"'
        return f'<rect class="overlap" {box}><title>TWO LEADERS: {title}</title></rect>'


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _gap_words(gap: Gap) -> str:
    return f"no leader for {gap.lasted_s:.3f} s, after: {gap.cause}"


def _term_words(term: ObservedTerm) -> str:
    lasted_s = term.seen_at - term.began_at
    return f"{term.node} led for {lasted_s:.3f} s with token {term.token}; ended by: {term.ended_by or 'unknown'}"


def _fault_words(fault: Fault) -> str:
    lasted = f" for {fault.until - fault.at:.2f} s" if fault.until > fault.at else ""
    detail = f" ({fault.detail})" if fault.detail else ""
    return f"{fault.kind}: {fault.node or 'the server'}{lasted}{detail}"
