"""The states of the alerts that can be judged by looking: for whoever has the page open, and no substitute for a pager.

The alerts of a configuration are PromQL and live in Prometheus (:mod:`pgleaderlock.alerts`); these are their plain
relatives, worked out from what the page shows. Pure.
"""

from collections.abc import Iterable, Mapping

from pgleaderlock.dashboard._picture import Json

__all__ = ["alert_records"]

_NO_LEADER_AFTER_S = 5.0
_FAILOVERS_WITHIN_S = 300.0
_MOST_FAILOVERS = 5


def alert_records(
    roles: Iterable[Json],
    nodes: Iterable[Json],
    *,
    at: float,
    error: str | None = None,
    stale_since: float | None = None,
) -> list[Json]:
    """Return every kind of alert: what is wrong in detail, or once that it is not."""
    roles = list(roles)
    kinds: Mapping[str, tuple[str, str, list[Json]]] = {
        "no_leader": ("critical", "every role has a leader", _no_leader(roles, at)),
        "overlap": ("critical", "no two leaders at once in the history", _overlaps(roles)),
        "frequent_failovers": ("warning", "leaders stay", _failovers(roles, at)),
        "silent_node": ("warning", "every node is heard of", _silent(nodes)),
        "store_unreachable": ("critical", "what you see is fresh", _stale(error, stale_since)),
    }
    alerts: list[Json] = []
    for name, (severity, all_well, wrong) in kinds.items():
        fine = {"role": None, "state": "ok", "since": None, "summary": all_well}
        alerts += [{"name": name, "severity": severity, **each} for each in wrong or [fine]]
    return alerts


def _alert(role: str | None, state: str, since: float | None, summary: str) -> Json:
    return {"role": role, "state": state, "since": since, "summary": summary}


def _no_leader(roles: Iterable[Json], at: float) -> list[Json]:
    found = []
    for role in roles:
        if role["leader"] is not None or not _is_missed(role):
            continue
        gaps = role["gaps"]
        since = gaps[-1]["began_at"] if gaps and gaps[-1]["ended_at"] is None else None
        is_new = since is not None and at - since < _NO_LEADER_AFTER_S
        found.append(_alert(role["role"], "pending" if is_new else "firing", since, f"nobody leads {role['role']}"))
    return found


def _is_missed(role: Json) -> bool:
    """Not where all have left in order, unless a configuration names it; nor where the last one may lead unseen."""
    if role["is_closed"]:
        return bool(role["is_expected"])
    return not role["terms"] or role["terms"][-1]["end"] != "unwatched"


def _overlaps(roles: Iterable[Json]) -> list[Json]:
    return [
        _alert(role["role"], "firing", None, f"{role['overlaps']} overlaps of two terms: pgleaderlock audit shows them")
        for role in roles
        if role["overlaps"]
    ]


def _failovers(roles: Iterable[Json], at: float) -> list[Json]:
    found = []
    for role in roles:
        recent = [term for term in role["terms"] if term["began_at"] >= at - _FAILOVERS_WITHIN_S]
        if len(recent) > _MOST_FAILOVERS:
            text = f"{len(recent)} terms of {role['role']} began within {_FAILOVERS_WITHIN_S / 60:g} minutes"
            found.append(_alert(role["role"], "firing", recent[0]["began_at"], text))
    return found


def _silent(nodes: Iterable[Json]) -> list[Json]:
    return [
        _alert(None, "firing", node["seen_at"], f"{node['node']} on {node['host']} is not heard of any more")
        for node in nodes
        if not node["is_alive"]
    ]


def _stale(error: str | None, stale_since: float | None) -> list[Json]:
    return [] if error is None else [_alert(None, "firing", stale_since, error)]
