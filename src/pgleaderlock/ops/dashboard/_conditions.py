"""Evaluate the alerts of a configuration with the page's own data: a small part of PromQL. Pure.

A condition on whether a role has a leader, how often its leader changed, or overlaps can be evaluated here, per role
or for all roles together. All others are left to Prometheus, and the page says so, instead of a partial evaluation.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgleaderlock.ops.alerts.model import Alert
from pgleaderlock.ops.alerts.promql import Comparison, Piece, comparisons, read, words
from pgleaderlock.ops.dashboard._picture import Json

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_FIGURE = re.compile(r"(\d+)(ms|[smhdwy])")
_GROUPING = {"by", "role"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of an alert, for a role or for all of them; and since when, if that is known."""

    role: str | None
    since: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """The value that Prometheus would have for one role."""

    value: float
    since: float | None
    text: str


_Measure = Callable[[Json, Comparison, float], _Sample]


def seconds(duration: str | None) -> float:
    """Return the seconds of a duration in Prometheus' form."""
    return sum(int(figure) * _UNITS_S[unit] for figure, unit in _FIGURE.findall(duration or ""))


def find(alert: Alert, roles: Sequence[Json], at: float, prefix: str) -> list[Finding] | None:
    """Return the findings of this alert; None if the page cannot evaluate it."""
    found = list(comparisons(read(alert.condition)))
    if len(found) != 1 or not found[0].stands_alone:
        return None
    comparison = found[0]
    measure, chosen = _measure(comparison, prefix), _chosen_role(comparison.left)
    if measure is None or chosen is None:
        return None
    matching = [role for role in roles if chosen in ("", role["role"])]
    samples = {role["role"]: measure(role, comparison, at) for role in matching}
    if "by" in {word.keyword for word in words(comparison.left)}:
        return [Finding(role, each.since, each.text) for role, each in samples.items() if _is_wrong(comparison, each)]
    return _together(comparison, samples)


def _is_wrong(comparison: Comparison, sample: _Sample) -> bool:
    return comparison.holds_for(sample.value)


def _together(comparison: Comparison, samples: Mapping[str, _Sample]) -> list[Finding]:
    """Evaluate the sum over all roles. The finding holds since the latest ``since`` of them."""
    if not samples or not comparison.holds_for(sum(each.value for each in samples.values())):
        return []
    times = [each.since for each in samples.values() if each.since is not None]
    return [Finding(None, max(times, default=None), "; ".join(each.text for each in samples.values()))]


def _measure(comparison: Comparison, prefix: str) -> _Measure | None:
    """Return the function that measures a role, if the condition uses only one metric that the page has."""
    names = [word.text for word in words(_outside_braces(comparison.left))]
    metrics = [name for name in names if name.startswith(f"{prefix}_")]
    rest = {name for name in names if name not in metrics} - _GROUPING
    if len(metrics) != 1:
        return None
    match metrics[0].removeprefix(f"{prefix}_"):
        case "leader_is_leader" if rest in ({"sum"}, {"max"}):
            return _leads
        case "leader_failovers_total" if rest - {"floor", "sum"} in ({"increase"}, {"rate"}):
            return _failovers
        case "audit_overlaps" if rest in ({"sum"}, {"max"}):
            return _overlaps
    return None


def _leads(role: Json, _comparison: Comparison, _at: float) -> _Sample:
    leader, name = role["leader"], role["role"]
    if leader is not None:
        return _Sample(1.0, leader["acquired_at"], f"{leader['node']} leads {name}")
    gaps = role["gaps"]
    since = gaps[-1]["began_at"] if gaps and gaps[-1]["ended_at"] is None else role["counted_since"]
    return _Sample(0.0, since, f"{name} has no leader")


def _failovers(role: Json, comparison: Comparison, at: float) -> _Sample:
    span_s = next((seconds(node.text) for node in _all(comparison.left) if node.kind == "["), 0.0)
    is_rate = any(word.text == "rate" for word in words(comparison.left)) and comparison.threshold < 1
    unit_s = span_s if is_rate else 1.0
    began = [term["began_at"] for term in role["terms"][1:]]
    recent = [each for each in began if each >= at - span_s]
    least = next((count for count in range(1, len(recent) + 1) if comparison.holds_for(count / unit_s)), None)
    since = None if least is None else held_since(began, least, span_s)
    text = f"{len(recent)} new leaders of {role['role']} within {span_s:g} s"
    return _Sample(len(recent) / unit_s, since, text)


def held_since(times: Sequence[float], count: int, span_s: float) -> float | None:
    """Return since when at least ``count`` of these times were within a span, without a break until the last one."""
    since, until = None, float("-inf")
    for first, last in zip(times, times[count - 1 :], strict=False):
        if last - first <= span_s:
            since = last if last > until else since
            until = first + span_s
    return since


def _overlaps(role: Json, _comparison: Comparison, _at: float) -> _Sample:
    text = f"{role['overlaps']} overlaps of two terms of {role['role']}: pgleaderlock audit shows them"
    return _Sample(float(role["overlaps"]), role["overlap_since"], text)


def _chosen_role(nodes: Sequence[Piece]) -> str | None:
    """Return the role that a label selects, "" for all roles; None if the condition selects by anything else."""
    braces = [node for node in _all(nodes) if node.kind == "{" and node.inside]
    if not braces:
        return ""
    match [braces[0].inside, len(braces)]:
        case [(Piece(text="role"), Piece(text="="), Piece(kind="text") as name), 1]:
            return name.text[1:-1]
    return None


def _all(nodes: Sequence[Piece]) -> Iterator[Piece]:
    for node in nodes:
        yield node
        yield from _all(node.inside)


def _outside_braces(nodes: Sequence[Piece]) -> list[Piece]:
    """Return the pieces outside of selectors and time windows, whose words are not functions."""
    kept = [node for node in nodes if node.kind not in ("{", "[")]
    return [Piece(n.kind, n.text, n.start, n.end, tuple(_outside_braces(n.inside))) for n in kept]
