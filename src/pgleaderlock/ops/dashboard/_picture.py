"""The content of the page from one look at the store, as plain JSON values. Pure: no I/O, no clock.

A :class:`Look` is what was read; a role's record is made of it once and compared with the previous one, so that
browsers receive only what changed. Heartbeats alone are no change of a role: with fifty nodes, most messages would be
heartbeats. They are in the list of nodes, once for each node.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgleaderlock.ops.registry.audit import Line, PastTerm
from pgleaderlock.ops.registry.judging import judge
from pgleaderlock.ops.registry.reading import Candidate, Leader, RoleStatus

Json = dict[str, Any]

_LEADER = (
    "node", "instance", "token", "acquired_at", "renewed_at", "lease_until", "renewal_due_at", "is_overdue", "host",
    "process_id", "version", "is_alive", "about",
)  # fmt: skip
_CANDIDATE = ("node", "instance", "state", "place", "since", "host", "process_id", "version", "is_alive")
_TERM = ("node", "instance", "token", "began_at", "ended_at", "end", "cause")
_NODE = ("node", "instance", "host", "process_id", "version", "is_alive", "silent_at", "about")
_EVENT = ("at", "lock", "role", "node", "event", "cause", "token", "detail")
_MOST_TERMS = 300
_MOST_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the store returned, with the store's own time of day."""

    at: float
    since: float
    """The beginning of the window of terms and figures."""
    roles: Sequence[RoleStatus]
    lines: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """The history of each lock within the window, and the beginnings of terms that extend into it."""
    known_since: float = 0.0
    """The time from which all lines are included, if the window has more lines than could be read."""

    @property
    def counted_since(self) -> float:
        """The time from which the figures are complete."""
        return max(self.since, self.known_since)


def standing_record(role: RoleStatus) -> Json:
    """Return the current state of a role: leader and candidates."""
    return {
        "lock": role.lock,
        "role": role.role,
        "leader": None if role.leader is None else _fields(role.leader, _LEADER),
        "last_leader": None if role.last_leader is None else _fields(role.last_leader, _LEADER),
        "is_closed": role.is_closed,
        "is_expected": role.is_expected,
        "candidates": [_fields(each, _CANDIDATE) for each in role.current_candidates],
    }


def past_record(role: RoleStatus, lines: Sequence[Line], *, since: float, at: float) -> Json:
    """Return the history of a role: terms, gaps and figures. It is expensive: call it only when something changed."""
    judged = judge(role, lines, since=since, until=at)
    return {
        "judged_at": at,
        "counted_since": judged.since,
        "counted_until": judged.until if role.is_closed else None,
        "terms": [_fields(term, _TERM) for term in judged.terms[-_MOST_TERMS:]],
        "gaps": _gaps(judged.terms[-_MOST_TERMS:], is_led=role.leader is not None or role.is_closed),
        "leaderless_s": round(judged.leaderless_s, 3),
        "availability": round(judged.availability, 6),
        "failovers": dict(sorted(judged.failovers.items())),
        "overlaps": len(judged.overlaps),
        "overlap_since": min((each.second.began_at for each in judged.overlaps), default=None),
    }


def _fields(record: object, names: Iterable[str]) -> Json:
    return {name: getattr(record, name) for name in names}


def _gaps(terms: Sequence[PastTerm], *, is_led: bool) -> list[Json]:
    """Return the gaps without a leader, from the first term on. The last gap is open while there is no leader."""
    gaps: list[Json] = []
    last: PastTerm | None = None
    for term in terms:
        if last is not None and last.ended_at is not None and term.began_at > last.ended_at:
            gaps.append(_gap(last, term.began_at))
        if last is None or last.ended_at is not None:
            reaches_on = last is None or term.ended_at is None or term.ended_at > (last.ended_at or 0.0)
            last = term if reaches_on else last
    if last is not None and last.ended_at is not None and not is_led:
        gaps.append(_gap(last, None))
    return gaps


def _gap(before: PastTerm, ended_at: float | None) -> Json:
    """Return a gap. A leader that died wrote no end and may have led after its last renewal: an upper bound."""
    return {
        "began_at": before.ended_at,
        "ended_at": ended_at,
        "cause": before.cause or before.end,
        "at_most": before.end == "vanished",
    }


def node_records(roles: Iterable[RoleStatus]) -> list[Json]:
    """Return each node that takes part, once, with the number of roles that it leads."""
    nodes: dict[str, Json] = {}
    stands: dict[str, int] = defaultdict(int)
    leads: dict[str, int] = defaultdict(int)
    for role in roles:
        leader = role.leader or role.last_leader
        if leader is not None:
            leads[leader.instance] += role.leader is not None
            nodes.setdefault(leader.instance, _node(leader, leader.renewed_at))
        for each in role.candidates:
            stands[each.instance] += 1
            nodes[each.instance] = _node(each, each.seen_at)
    for instance, node in nodes.items():
        node["leads"], node["stands_for"] = leads[instance], stands[instance]
    return sorted(_without_former(nodes.values()), key=lambda node: (node["node"], node["instance"]))


def _without_former(nodes: Collection[Json]) -> list[Json]:
    """Leave out processes that died and were restarted: of a node without heartbeats, keep only the last process."""
    shown: dict[str, Json] = {}
    for node in sorted(nodes, key=lambda node: (node["is_alive"], node["seen_at"])):
        shown[node["instance"] if node["is_alive"] else node["node"]] = node
    alive = {node["node"] for node in nodes if node["is_alive"]}
    return [node for node in shown.values() if node["is_alive"] or node["node"] not in alive]


def _node(each: Candidate | Leader, seen_at: float) -> Json:
    return {**_fields(each, _NODE), "seen_at": seen_at}


def event_record(line: Line) -> Json:
    """Return the record of one line of the history."""
    return _fields(line, _EVENT)


def shown_events(lines: Iterable[Line]) -> list[Json]:
    """Return the newest lines, the newest first; of two at the same time, the one that was written later first."""
    ordered = sorted(lines, key=lambda line: line.at)
    return [event_record(line) for line in reversed(ordered[-_MOST_EVENTS:])]


def newest_lines(look: Look) -> Iterator[Line]:
    """Yield the lines of the window that may be among the newest. The lines of a lock are in the order of time."""
    for role in look.roles:
        yield from (line for line in look.lines.get(role.lock, ())[-_MOST_EVENTS:] if line.at >= look.since)
