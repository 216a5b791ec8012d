"""What the history proves: which node led when, how long none did, and whether two ever did at once. Pure.

A **term** begins with ``acquired`` or ``recovered`` and ends with the first of ``released``, ``lost``,
``reconnecting`` and ``stopped`` that has its token and its instance. A leader that died wrote no end: its successor
recorded when it was seen for the last time, as ``vanished``. So such a term ended then or later, and the time between
it and the next one is leaderless at most. An end that it records later takes the place of that line.

A node whose registry was closed before its term ended records until when it knew: the term is ``unwatched`` from then
on, unless a later line of that node says how it ended. The time after that is neither led nor leaderless: **unknown**.

**Two terms overlap** only if they do so beyond what the clocks leave open (``within_s`` of each time). A term whose end
is not known counts as ended when it was last seen: the history has no evidence of a later time.

Not promised: that a history without an overlap never had one. It has what nodes said, in events; for proof, fence.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pgleaderlock._base.overlaps import Overlap, find_overlaps

__all__ = [
    "BEGINS",
    "ENDS",
    "TELLS",
    "Line",
    "Orderly",
    "PastTerm",
    "RoleAudit",
    "audit",
    "failover",
    "terms_of",
    "without_replaced",
]

BEGINS = ("acquired", "recovered")
"""The events with which a term begins."""
ENDS = ("released", "lost", "reconnecting", "stopped")
"""The events with which one ends."""
_VANISHED = "vanished"
_UNWATCHED = "unwatched"
TELLS = (*BEGINS, *ENDS, _VANISHED, _UNWATCHED)
"""The events that say something about a term."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the history, its time in seconds of the epoch by the database's clock."""

    lock: str
    role: str
    node: str
    instance: str
    event: str
    cause: str | None
    token: int | None
    at: float
    within_s: float = 0.0
    missing: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class PastTerm:
    """One node's leadership, from its beginning to its end."""

    lock: str
    role: str
    node: str
    instance: str
    token: int | None
    began_at: float
    ended_at: float | None
    """None while it lasts."""
    end: str | None = None
    """How it ended: an event, or ``vanished``; or ``unwatched``, where only that is known until when it lasted."""
    cause: str | None = None
    within_s: float = 0.0
    """How exactly both times are known."""


@dataclass(slots=True)
class Orderly:
    """Terms of one lock that followed each other in order, summed up: no other term reached into them."""

    terms: int = 0
    leaderless_s: float = 0.0
    """Between each of them and the next."""
    failovers: dict[str, int] = field(default_factory=dict)
    missing: int = 0


@dataclass(slots=True)
class RoleAudit:
    """The audit of one lock: its terms, overlaps and failovers in the history."""

    lock: str
    role: str
    since: float
    until: float
    terms: list[PastTerm] = field(default_factory=list)
    overlaps: list[Overlap[PastTerm]] = field(default_factory=list)
    leaderless_s: float = 0.0
    """At most: a leader that died is taken to have ended when it was last seen."""
    unknown_s: float = 0.0
    """The time of which no line says whether there was a leader."""
    failovers: dict[str, int] = field(default_factory=dict)
    """How often leadership went on to a new term, by how the one before had ended."""
    missing: int = 0
    """Events that the history does not have."""
    summed_up: int = 0
    """How many terms are counted and not among ``terms``."""

    @property
    def availability(self) -> float:
        """The led share of the time that is known; 1 if no time is known."""
        span_s = self.until - self.since - self.unknown_s
        return 1.0 if span_s <= 0 else max(0.0, 1 - self.leaderless_s / span_s)


def without_replaced(lines: Iterable[Line]) -> list[Line]:
    """Return these lines without each ``vanished`` of a term whose end is among them: the table has dropped it by then.

    For those who keep lines that they have read. Without tokens, terms of one instance differ in their times only.
    """
    lines, ended = list(lines), dict[tuple[str, str, int | None], float]()
    for line in lines:
        if line.event in ENDS:
            which = _which(line)
            ended[which] = max(line.at + line.within_s, ended.get(which, -math.inf))
    return [line for line in lines if line.event != _VANISHED or line.at > ended.get(_which(line), -math.inf)]


def _which(line: Line) -> tuple[str, str, int | None]:
    """Return which term a line is about."""
    return line.lock, line.instance, line.token


def terms_of(lines: Iterable[Line]) -> list[PastTerm]:
    """Return the terms of these lines, the earliest first."""
    terms = []
    begun: dict[tuple[str, str, int | None], Line] = {}
    seen_last: dict[tuple[str, str, int | None], Line] = {}
    for line in sorted(lines, key=lambda line: line.at):
        which = _which(line)
        if line.event in BEGINS:
            begun[which] = line
        elif line.event in ENDS and which in begun:
            terms.append(_term(begun.pop(which), line))
        elif line.event == _UNWATCHED or (line.event == _VANISHED and not _is_unwatched(seen_last.get(which))):
            seen_last[which] = line
    terms += [_term(line, seen_last.get(which)) for which, line in begun.items()]
    return sorted(terms, key=lambda term: term.began_at)


def _is_unwatched(line: Line | None) -> bool:
    """Return whether the node recorded that it stops watching: it has not vanished, whatever its successor recorded."""
    return line is not None and line.event == _UNWATCHED


def _term(begin: Line, end: Line | None) -> PastTerm:
    return PastTerm(
        begin.lock,
        begin.role,
        begin.node,
        begin.instance,
        begin.token,
        begin.at,
        None if end is None else max(begin.at, end.at),
        None if end is None else end.event,
        None if end is None else end.cause,
        max(begin.within_s, 0.0 if end is None else end.within_s),
    )


def audit(
    lines: Iterable[Line], *, since: float, until: float, orderly: Mapping[str, Orderly] | None = None
) -> list[RoleAudit]:
    """Return what these lines say of each lock between two times. ``orderly`` is by lock, and not among the lines."""
    lines = list(lines)
    audits: dict[str, RoleAudit] = {}
    for line in lines:
        each = audits.setdefault(line.lock, RoleAudit(line.lock, line.role, since, until))
        each.missing += line.missing if line.at >= since else 0
    for term in terms_of(lines):
        if (term.ended_at is None or term.ended_at >= since) and term.began_at <= until:
            audits[term.lock].terms.append(term)
    for each in audits.values():
        _judge(each)
        if orderly and each.lock in orderly:
            _add(each, orderly[each.lock])
    return sorted(audits.values(), key=lambda each: each.role)


def _judge(each: RoleAudit) -> None:
    each.overlaps = _overlaps(each.terms)
    each.leaderless_s, each.unknown_s = _not_led_s(each)
    for before, after in pairwise(each.terms):
        if before.end == "reconnecting" and after.instance == before.instance:
            continue  # it came back to itself within the grace period
        how = failover(before.end or "unknown", before.cause)
        each.failovers[how] = each.failovers.get(how, 0) + 1


def failover(end: str, cause: str | None) -> str:
    """Return what a hand-over after such an end is counted as."""
    return f"{end}:{cause}" if end == "lost" and cause else end


def _add(each: RoleAudit, orderly: Orderly) -> None:
    each.summed_up += orderly.terms
    each.leaderless_s += orderly.leaderless_s
    each.missing += orderly.missing
    for how, count in orderly.failovers.items():
        each.failovers[how] = each.failovers.get(how, 0) + count


def _overlaps(terms: list[PastTerm]) -> list[Overlap[PastTerm]]:
    """Return the overlaps that are longer than the uncertainty of their times, each shortened by it."""
    found = find_overlaps(
        terms,
        lambda term: -math.inf if term.ended_at is None else term.ended_at,
        lambda term: math.inf if term.ended_at is None else term.ended_at,
    )
    certain = [replace(each, lasted_s=each.lasted_s - each.first.within_s - each.second.within_s) for each in found]
    return [each for each in certain if each.lasted_s > 0 and each.first.instance != each.second.instance]


def _not_led_s(each: RoleAudit) -> tuple[float, float]:
    """Return for how long no node led, and for how long that is unknown.

    Counted from the first term on: the history has nothing about the time before it.
    """
    if not each.terms:
        return max(0.0, each.until - each.since), 0.0
    led_until, leaderless_s, unknown_s = max(each.since, each.terms[0].began_at), 0.0, 0.0
    is_known = True
    for term in each.terms:
        gap_s = max(0.0, term.began_at - led_until)
        leaderless_s, unknown_s = (leaderless_s + gap_s, unknown_s) if is_known else (leaderless_s, unknown_s + gap_s)
        ended_at = each.until if term.ended_at is None else term.ended_at
        if ended_at >= led_until:
            led_until, is_known = ended_at, term.end != _UNWATCHED
    gap_s = max(0.0, each.until - led_until)
    return (leaderless_s + gap_s, unknown_s) if is_known else (leaderless_s, unknown_s + gap_s)
