"""Rules for Prometheus, and two common mistakes in conditions, which are corrected.

**A sum over no series is not 0, it is empty.** ``sum(x) == 0`` is meant as "no leader", but does not fire when every
node is gone, which is when it is needed most. An alert that fires for 0 must also fire for no series, so ``absent`` is
added. It is added inside the same aggregation, so that both halves have the same labels: an alert whose labels change
is a new one to Prometheus, and its ``for`` starts again, as it would when the last follower dies some time after the
leader.

**A rate is per second.** ``rate(failovers[5m]) > 5`` waits for fifteen hundred failovers in five minutes. Where our own
counters of rare events are compared with 1 or more, their increase is meant. Prometheus extrapolates an increase to the
edges of its window, and makes 5.3 out of five: whole events are counted, with ``floor``. Attempts
(``elections_total``) are not rare: every follower makes one at each of its retries, and a rate of them makes sense.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pgleaderlock.ops.alerts.model import Alert
from pgleaderlock.ops.alerts.promql import Aggregation, Comparison, Piece, aggregation, comparisons, read, words

__all__ = ["METRICS", "Remark", "check_prefix", "prometheus_rules"]

METRICS = (
    "leader_is_leader",
    "leader_is_heir",
    "leader_elections_total",
    "leader_tenure_seconds",
    "leader_failovers_total",
    "leader_time_left_seconds",
    "leader_renew_seconds",
    "leader_losses_total",
    "leader_leaderless_seconds_total",
    "leader_callback_errors_total",
    "leader_work_failures_total",
    "leader_work_overruns_total",
    "registry_up",
    "registry_dropped_events_total",
    "audit_overlaps",
)
"""The names of the metrics, without their prefix."""

_OURS = re.compile(rf"(?P<prefix>[A-Za-z_]\w*)_(?:{'|'.join(METRICS)})(?:_bucket|_sum|_count)?")
_RARE = re.compile(r"\w+_leader_(failovers|losses)_total")
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_WHOLE = 1  # a threshold of at least one event; below it, a rate per second is a sensible thing to ask for


@dataclass(frozen=True, slots=True)
class Remark:
    """A correction of an alert, or an advised one, with its cause: a sentence for people, a word for programs."""

    alert: str
    kind: Literal["absent", "not-absent", "increase", "prefix", "no_receiver"]
    text: str


def check_prefix(prefix: str) -> str:
    """Return the prefix if a metric's name can begin with it; ValueError otherwise."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError("the prefix of the metrics must be made of letters, digits and _, and begin with a letter")
    return prefix


def prometheus_rules(alerts: Iterable[Alert], prefix: str = "pgleaderlock") -> tuple[dict[str, Any], list[Remark]]:
    """Return the document of ``rules.yml``, and remarks about corrections."""
    check_prefix(prefix)
    rules, remarks = [], []
    for alert in alerts:
        condition, found = _mended(alert)
        rules.append(_rule(alert, condition, found))
        remarks += found + _other_prefixes(alert, prefix)
    return {"groups": [{"name": "pgleaderlock", "rules": rules}]}, remarks


def _rule(alert: Alert, condition: str, remarks: Sequence[Remark]) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": condition}
    if alert.for_ is not None:
        rule["for"] = alert.for_
    rule["labels"] = {"severity": alert.severity}
    if alert.role is not None:
        rule["labels"]["role"] = _no_template(alert.role)
    annotations = {"summary": alert.summary} if alert.summary else {}
    if remarks:
        annotations["exported_as"] = _no_template(" ".join(remark.text for remark in remarks))
    if annotations:
        rule["annotations"] = annotations
    return rule


def _no_template(text: str) -> str:
    """Escape double braces, which Prometheus would otherwise run as a template."""
    return text.replace("{{", '{{ "{{" }}')


def _mended(alert: Alert) -> tuple[str, list[Remark]]:
    """Return the condition to export. It is changed from its end backwards, so that earlier positions stay valid."""
    if alert.as_written:
        return alert.condition, []
    nodes = read(alert.condition)
    knows_absence = any(word.text in {"absent", "absent_over_time"} for word in words(nodes))
    condition, remarks = alert.condition, list[Remark]()
    for comparison in reversed(list(comparisons(nodes))):
        if rate := _rate_of_rare(comparison):
            condition, remark = _count_whole(alert, condition, comparison, rate)
            remarks.append(remark)
        elif (summed := aggregation(comparison.left)) and comparison.holds_for(0) and not knows_absence:
            condition, remark = _mind_absence(alert, condition, comparison, summed)
            remarks.append(remark)
    return condition, remarks[::-1]


def _mind_absence(alert: Alert, text: str, found: Comparison, summed: Aggregation) -> tuple[str, Remark]:
    inside = text[summed.argument.start + 1 : summed.argument.end - 1]
    before = text[found.left[0].start : summed.argument.start]
    after = text[summed.argument.end : found.left[-1].end]
    addition = f" or {before}(absent({inside})){after}"
    why = f"a {summed.name} over no series is empty and not 0, so it would not fire when no node is left to report"
    if not found.stands_alone:
        remark = f'not changed, but {why}: join "{addition.strip()}" to it, or set as_written = true.'
        return text, Remark(alert.name, "not-absent", remark)
    return (
        text[: found.end] + addition + text[found.end :],
        Remark(alert.name, "absent", f'"{addition.strip()}" was added: {why}.'),
    )


def _rate_of_rare(comparison: Comparison) -> Piece | None:
    """Return the word ``rate``, if the rate of one of our rare events is compared with 1 or more."""
    if comparison.operator not in {">", ">="} or comparison.threshold < _WHOLE:
        return None
    summed = aggregation(comparison.left)
    match summed.argument.inside if summed else comparison.left:
        case [Piece(kind="word", text="rate") as rate, Piece(kind="(", inside=[Piece(kind="word") as metric, *_])]:
            return rate if _RARE.fullmatch(metric.text) else None
    return None


def _count_whole(alert: Alert, text: str, found: Comparison, rate: Piece) -> tuple[str, Remark]:
    start, end = found.left[0].start, found.left[-1].end
    counted = f"floor({text[start : rate.start]}increase{text[rate.end : end]})"
    why = "a rate is per second, and these events are too rare for that threshold"
    remark = f'"{text[start:end]}" became "{counted}": {why} (floor, because Prometheus extrapolates).'
    return text[:start] + counted + text[end:], Remark(alert.name, "increase", remark)


def _other_prefixes(alert: Alert, prefix: str) -> list[Remark]:
    """Return a remark for each prefix in a condition that is not the prefix of the exported metrics."""
    found = dict.fromkeys(
        match["prefix"] for word in words(read(alert.condition)) if (match := _OURS.fullmatch(word.text))
    )
    return [
        Remark(
            alert.name, "prefix", f'it asks for metrics that begin with "{other}_", but this export is for "{prefix}_".'
        )
        for other in found
        if other != prefix
    ]
