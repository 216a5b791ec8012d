"""The states of the alerts that the page can evaluate itself: for its readers, not a substitute for a pager.

The alerts of a configuration are PromQL and run in Prometheus (:mod:`pgleaderlock.ops.alerts`). If a configuration has
some, they are shown, evaluated with the page's own data (:mod:`._conditions`); otherwise built-in alerts are. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pgleaderlock.ops.alerts.model import Alert
from pgleaderlock.ops.dashboard._conditions import Finding, find, held_since, seconds
from pgleaderlock.ops.dashboard._picture import Json

_NO_LEADER_AFTER_S = 5.0
_FAILOVERS_WITHIN_S = 300.0
_MOST_FAILOVERS = 5


@dataclass(frozen=True, slots=True)
class Watched:
    """The alerts of a configuration, and the prefix of its metrics."""

    alerts: Sequence[Alert] = ()
    prefix: str = "pgleaderlock"


def alert_records(
    roles: Iterable[Json],
    nodes: Iterable[Json],
    *,
    at: float,
    error: str | None = None,
    stale_since: float | None = None,
    watched: Watched | None = None,
) -> list[Json]:
    """Return the records of all alerts: one per finding, or one that says there is none."""
    roles = list(roles)
    stale = _Kind("store_unreachable", "critical", "the page shows current data")
    stale_findings = [] if error is None else [Finding(None, stale_since, error)]
    if watched is not None and watched.alerts:
        own = [record for alert in watched.alerts for record in _configured(alert, roles, at, watched.prefix)]
        return own + (stale.records(stale_findings, at) if stale_findings else [])
    kinds = (
        (_Kind("no_leader", "critical", "every role has a leader", _NO_LEADER_AFTER_S), _no_leader(roles)),
        (_Kind("overlap", "critical", "no two leaders at once in the history"), _overlaps(roles)),
        (_Kind("frequent_failovers", "warning", "leaders stay"), _failovers(roles, at)),
        (_Kind("silent_node", "warning", "every node sends heartbeats"), _silent(nodes)),
        (stale, stale_findings),
    )
    return [record for kind, found in kinds for record in kind.records(list(found), at)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One alert, and how long a finding must last before it fires."""

    name: str
    severity: str
    all_well: str
    for_s: float = 0.0
    condition: str | None = None

    def records(self, findings: Sequence[Finding], at: float) -> list[Json]:
        """Return a record for each finding, or one for none. ``since`` of a firing alert is when it began to fire."""
        if not findings:
            return [self._record(None, "ok", None, self.all_well)]
        return [self._of(each, at) for each in findings]

    def unknown(self) -> Json:
        """Return the record of an alert that only Prometheus can evaluate."""
        return self._record(None, "unknown", None, f"evaluated by Prometheus, not here: {self.condition}")

    def _of(self, each: Finding, at: float) -> Json:
        is_new = each.since is not None and at - each.since < self.for_s
        fired_at = None if each.since is None else each.since + self.for_s
        return self._record(
            each.role, "pending" if is_new else "firing", each.since if is_new else fired_at, each.summary
        )

    def _record(self, role: str | None, state: str, since: float | None, summary: str) -> Json:
        shown = {"name": self.name, "severity": self.severity, "role": role, "state": state, "since": since}
        return {**shown, "summary": summary, "condition": self.condition}


def _configured(alert: Alert, roles: Sequence[Json], at: float, prefix: str) -> list[Json]:
    kind = _Kind(alert.name, alert.severity, f"not the case: {alert.condition}", seconds(alert.for_), alert.condition)
    found = find(alert, [role for role in roles if role["leader"] is not None or _is_missed(role)], at, prefix)
    return [kind.unknown()] if found is None else kind.records(found, at)


def _no_leader(roles: Iterable[Json]) -> Iterator[Finding]:
    for role in roles:
        if role["leader"] is None and _is_missed(role):
            gaps = role["gaps"]
            since = gaps[-1]["began_at"] if gaps and gaps[-1]["ended_at"] is None else None
            yield Finding(role["role"], since, f"{role['role']} has no leader")


def _is_missed(role: Json) -> bool:
    """Return whether a leader is missing: not if all nodes left cleanly, unless configured, or one may still lead."""
    if role["is_closed"]:
        return bool(role["is_expected"])
    return not role["terms"] or role["terms"][-1]["end"] != "unwatched"


def _overlaps(roles: Iterable[Json]) -> Iterator[Finding]:
    for role in roles:
        if role["overlaps"]:
            text = f"{role['overlaps']} overlaps of two terms: pgleaderlock audit shows them"
            yield Finding(role["role"], role["overlap_since"], text)


def _failovers(roles: Iterable[Json], at: float) -> Iterator[Finding]:
    for role in roles:
        began = [term["began_at"] for term in role["terms"]]
        recent = [each for each in began if each >= at - _FAILOVERS_WITHIN_S]
        if len(recent) > _MOST_FAILOVERS:
            text = f"{len(recent)} terms of {role['role']} began within {_FAILOVERS_WITHIN_S / 60:g} minutes"
            yield Finding(role["role"], held_since(began, _MOST_FAILOVERS + 1, _FAILOVERS_WITHIN_S), text)


def _silent(nodes: Iterable[Json]) -> Iterator[Finding]:
    for node in nodes:
        if not node["is_alive"]:
            text = f"no heartbeat from {node['node']} on {node['host']}"
            yield Finding(None, node["seen_at"] if node["silent_at"] is None else node["silent_at"], text)
