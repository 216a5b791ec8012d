"""The judge of a torture: compares the logs of all nodes on one clock. Pure: no I/O, and no code of the engine.

It imports no election code, so it cannot share a mistake with it. It asks four questions:

1. **Was there a split brain?** That is, intervals of two processes that overlap, by however little. There must be none.
2. **Do tokens grow?** Each term has a greater token than all that began before it, and no two processes share one.
3. **Why did each term end?** For the reason in the node's own event log (``session_terminated``, ...), or because the
   node was killed. A term that ended for neither reason is a defect of the product, or an event on this machine.
4. **How long was there no leader, and after which fault?** The time between two terms is attributed to the last fault
   that hit the former leader, or the server, and that could have ended the term. If another fault was active before the
   next term began, the cause is ``several at once``: then the figure is not about one kind.

Not promised: that the fault which is found was the cause. The clock shows only what came before what.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pgleaderlock._base import overlaps
from pgleaderlock._base.overlaps import Overlap
from pgleaderlock.testing.torture._logs import Claim, Fault, Logs, Told

SEVERAL = "several at once"
"""The kind of a failover that had more than one cause."""
BEGINNING, END, UNKNOWN = "the beginning", "the end", "nothing that was done"
ENDED_BY_TORTURE = "killed"
_ENDINGS = frozenset({"on_lost", "on_released", "on_stopped", "recovered"})
_SLACK_S = 0.05
_LEASES_UNTIL_LOSS = 1.5
"""How long after a fault a term may end because of it: a renewal sent before the fault is valid for nearly a lease."""


@dataclass(slots=True)
class ObservedTerm:
    """All intervals in which one process claimed to lead under one token, and why the term ended."""

    node: str
    process: int
    token: int
    spans: list[tuple[float, float]] = field(default_factory=list)
    ended_by: str | None = None
    """The reason in the node's event log, ``killed``, or None if the logs hold no reason."""

    @property
    def began_at(self) -> float:
        """When the node was first seen to lead in this term."""
        return self.spans[0][0]

    @property
    def seen_at(self) -> float:
        """When the node was last seen to lead in this term."""
        return self.spans[-1][1]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a leader, and the fault before it."""

    began_at: float
    ended_at: float
    cause: str
    failover_s: float | None = None
    """From the fault to the next leader; None where no fault is known, or the same leader went on."""

    @property
    def lasted_s(self) -> float:
        """How long there was no leader."""
        return self.ended_at - self.began_at


@dataclass(slots=True)
class Verdict:
    """The result of a torture."""

    logs: Logs
    overlaps: list[Overlap[Claim]] = field(default_factory=list)
    repeated_tokens: list[int] = field(default_factory=list)
    backward_tokens: list[int] = field(default_factory=list)
    terms: list[ObservedTerm] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def unexplained(self) -> list[ObservedTerm]:
        """The terms for whose end the logs hold no reason."""
        return [term for term in self.terms if term.ended_by is None]

    @property
    def unwatched(self) -> list[str]:
        """The processes that logged a term of which they have no samples: about those nothing can be concluded."""
        seen = {(claim.node, claim.process) for claim in self.logs.claims}
        led = {(told.node, told.process) for told in self.logs.told if told.event == "on_acquired"}
        killed = {(fault.node, fault.process) for fault in self.logs.faults if fault.kind in ("kill", "freeze")}
        return [f"{node} (process {process})" for node, process in sorted(led - seen - killed)]

    def problems(self) -> list[str]:
        """Return every violation that was found, one line each; an empty list if the promise was kept."""
        found = [
            f"TWO LEADERS AT ONCE: {each.first.node} and {each.second.node} both led for "
            f"{each.lasted_s * 1000:.2f} ms, {each.began_at - self.logs.began_at:.3f} s after the beginning"
            for each in self.overlaps
        ]
        found += [f"TOKEN REPEATED: two processes led with {token}" for token in self.repeated_tokens]
        found += [f"TOKEN WENT BACK: {token} came after a greater one" for token in self.backward_tokens]
        found += [
            f"NO CAUSE: the term of {term.node} with token {term.token} ended, and the logs hold no reason"
            for term in self.unexplained
        ]
        found += [f"NOT WATCHED: {who} led, and there are no samples of it" for who in self.unwatched]
        return found if self.terms else [*found, "NO LEADER EVER: no node led in the whole run, so nothing was tested"]

    @property
    def is_good(self) -> bool:
        """Whether a node led, never two at once, tokens grew, and every term ended for a known reason."""
        return not self.problems()

    def failovers_s(self) -> dict[str, list[float]]:
        """How long each failover took, by what caused it, the quickest first."""
        found = defaultdict(list)
        for gap in self.gaps:
            if gap.failover_s is not None:
                found[gap.cause].append(gap.failover_s)
        return {cause: sorted(times) for cause, times in sorted(found.items())}

    def leaderless_s(self) -> dict[str, float]:
        """How long there was no leader, by cause, the longest first."""
        found: dict[str, float] = defaultdict(float)
        for gap in self.gaps:
            found[gap.cause] += gap.lasted_s
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def not_sampled_s(self) -> float:
        """How long a leader that was not frozen was not sampled: the machine was busy, and nothing was seen."""
        faults = self.logs.faults
        pauses = [(term, left, came) for term in self.terms for left, came in _pauses(term)]
        return sum(came - left for term, left, came in pauses if not _is_frozen(term, left, came, faults))

    def endings(self) -> dict[str, int]:
        """How often terms ended for which reason."""
        found: dict[str, int] = defaultdict(int)
        for term in self.terms:
            found[term.ended_by or "unexplained"] += 1
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the measured value that ``percent`` % of the values do not exceed: none is interpolated."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def judge(logs: Logs) -> Verdict:
    """Compare the logs, and return what happened."""
    terms = _terms(logs.claims)
    for term in terms:
        term.ended_by = _ending(term, logs)
    within = [term for term in terms if term.began_at <= logs.ended_at]  # not the terms that began during the shutdown
    verdict = Verdict(logs, find_overlaps(logs.claims), terms=terms, gaps=_gaps(within, logs))
    seen: dict[int, tuple[str, int]] = {}
    highest = -1
    for term in terms:
        if seen.setdefault(term.token, (term.node, term.process)) != (term.node, term.process):
            verdict.repeated_tokens.append(term.token)
        elif term.token < highest:
            verdict.backward_tokens.append(term.token)
        highest = max(highest, term.token)
    return verdict


def find_overlaps(claims: Iterable[Claim]) -> list[Overlap[Claim]]:
    """Return every split brain: two processes that claimed to lead at the same time."""
    found = overlaps.find_overlaps(claims, lambda claim: claim.seen_at)
    return [each for each in found if (each.first.node, each.first.process) != (each.second.node, each.second.process)]


def _terms(claims: Iterable[Claim]) -> list[ObservedTerm]:
    found: dict[tuple[str, int, int], ObservedTerm] = {}
    for claim in sorted(claims, key=lambda each: each.began_at):
        whose = (claim.node, claim.process, claim.token)
        found.setdefault(whose, ObservedTerm(*whose)).spans.append((claim.began_at, claim.seen_at))
    return list(found.values())


def _ending(term: ObservedTerm, logs: Logs) -> str | None:
    mine = (term.node, term.process)
    words = [told for told in logs.told if (told.node, told.process) == mine and _is_ending(told, term)]
    if words:
        first = min(words, key=lambda told: told.at)
        return first.cause or first.event.removeprefix("on_")
    kills = [fault for fault in logs.faults if fault.kind == "kill" and (fault.node, fault.process) == mine]
    if any(fault.at >= term.seen_at - _SLACK_S for fault in kills):
        return ENDED_BY_TORTURE
    return END if term.seen_at >= logs.ended_at - _SLACK_S else None


def _is_ending(told: Told, term: ObservedTerm) -> bool:
    """Whether this event is the end of this term: it has the term's token, or none and comes at the right time."""
    if told.event not in _ENDINGS or told.at < term.began_at:
        return False
    return told.token == term.token or told.event == "recovered" or told.at >= term.seen_at - _SLACK_S


def _gaps(terms: Sequence[ObservedTerm], logs: Logs) -> list[Gap]:
    if not terms:
        return [Gap(logs.began_at, logs.ended_at, BEGINNING)]
    found = [Gap(logs.began_at, terms[0].began_at, BEGINNING)] if terms[0].began_at > logs.began_at else []
    for term in terms:
        found += [
            Gap(left, came, "freeze") for left, came in _pauses(term) if _is_frozen(term, left, came, logs.faults)
        ]
    for former, heir in pairwise(terms):
        found.append(_handover(former, heir, logs))
    if terms[-1].seen_at < logs.ended_at:
        fault = _culprit(terms[-1], logs)
        found.append(Gap(terms[-1].seen_at, logs.ended_at, END if fault is None else fault.kind))
    return found


def _pauses(term: ObservedTerm) -> Iterator[tuple[float, float]]:
    """Yield the times in which the leader was not sampled, and after which it still led."""
    for (_, left), (came, _) in pairwise(term.spans):
        yield left, came


def _is_frozen(term: ObservedTerm, left: float, came: float, faults: Iterable[Fault]) -> bool:
    mine = [each for each in faults if each.kind == "freeze" and each.node == term.node]
    return any(each.at <= came and each.until >= left for each in mine)


def _handover(former: ObservedTerm, heir: ObservedTerm, logs: Logs) -> Gap:
    ended_at = max(heir.began_at, former.seen_at)
    fault = _culprit(former, logs)
    if fault is None:
        return Gap(former.seen_at, ended_at, UNKNOWN)
    others = [each for each in logs.faults if each is not fault and each.at < heir.began_at and each.until > fault.at]
    relevant = [each for each in others if each.kind != "clock"]
    return Gap(former.seen_at, ended_at, SEVERAL if relevant else fault.kind, heir.began_at - fault.at)


def _culprit(term: ObservedTerm, logs: Logs) -> Fault | None:
    """Return the last fault that hit the leader, or the server, at a time at which it could have ended the term."""
    reach_s = _LEASES_UNTIL_LOSS * logs.lease_s
    possible = [
        fault
        for fault in logs.faults
        if fault.kind != "clock"
        and fault.hits(term.node)
        and fault.at <= term.seen_at + _SLACK_S
        and fault.until >= term.seen_at - reach_s
        and fault.until >= term.began_at - _SLACK_S  # the lock is granted shortly before the term begins
    ]
    return max(possible, key=lambda fault: fault.at, default=None)
