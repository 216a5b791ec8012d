"""What the soak's observer saw, compared with what audit, status, history and page say. Pure but for reading the logs.

Each comparison returns sentences, one for each disagreement. All times are seconds of the epoch.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgleaderlock.testing._claim import read_claims
from pgleaderlock.testing.torture import Claim, find_overlaps

__all__ = [
    "Led", "Process", "compare_audit", "compare_followed", "compare_history", "compare_standing", "compare_terms",
    "leaderless_bounds_s", "overlaps", "read_terms", "written",
]  # fmt: skip

Json = Mapping[str, Any]

SLACK_S = 0.3
"""Between a sample or an event of the observer and a time in the registry: a busy machine delays a thread."""
UNWRITTEN_S = 1.0
"""A term that began so shortly before a kill may be in no registry: it is written after it began."""
_SLACK_PER_TERM_S = 0.02  # of a sum of many times
_BEGINS = ("on_acquired", "recovered")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a node: where it wrote, and when it was killed."""

    node: str
    pid: int
    folder: Path
    killed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Led:
    """One term, as observed in the process that led."""

    role: str
    node: str
    pid: int
    token: int
    began_at: float
    ended_after: float
    """When the token was last seen valid."""
    ended_before: float | None
    """When it was over at the latest; None while it lasts."""
    is_killed: bool = False

    @property
    def which(self) -> tuple[str, str, int]:
        """What names this term in the registry; tokens are unique."""
        return self.role, self.node, self.token

    def earliest_end(self, seen_every_s: float) -> float:
        """When the registry may say at the earliest that it ended: of a killed leader it knows the last renewal."""
        return max(self.began_at, self.ended_after - (seen_every_s if self.is_killed else 0.0))


def read_terms(process: Process, roles: Sequence[str], offset_s: float) -> list[Led]:
    """Return the terms of one process. ``offset_s`` leads from the machine's clock to the epoch."""
    path = process.folder / "events"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        term
        for place, role in enumerate(roles)
        for term in _terms_of_role(process, place, [line for line in lines if line["role"] == role], offset_s)
    ]


def _terms_of_role(process: Process, place: int, lines: Sequence[Json], offset_s: float) -> list[Led]:
    last_seen = {token: seen_at for _, seen_at, token in read_claims(process.folder / str(place))}
    terms = []
    for index, line in enumerate(lines):
        if line["event"] not in _BEGINS:
            continue
        end = next(iter(lines[index + 1 :]), None)
        ended_at = process.killed_at if end is None else min(filter(None, (end["at"], end["until"]))) + offset_s
        seen_at = max(line["at"], last_seen.get(line["token"], 0.0)) + offset_s
        if ended_at is not None:
            seen_at = min(seen_at, ended_at)
        whose = (line["role"], process.node, process.pid, line["token"])
        terms.append(Led(*whose, line["at"] + offset_s, seen_at, ended_at, end is None and ended_at is not None))
    return terms


def overlaps(processes: Iterable[Process], roles: Sequence[str]) -> list[str]:
    """Say which two processes had a valid token at once, by their samples."""
    processes = list(processes)
    found = []
    for place, role in enumerate(roles):
        claims = [
            Claim(each.node, each.pid, token, began_at, seen_at)
            for each in processes
            for began_at, seen_at, token in read_claims(each.folder / str(place))
        ]
        found += [
            f"{role}: {each.first.node} and {each.second.node} led at once for {each.lasted_s * 1e3:.1f} ms"
            for each in find_overlaps(claims)
        ]
    return found


def written(terms: Iterable[Led], history: Iterable[Json]) -> list[Led]:
    """Leave out the terms that the history cannot know: their process was killed just after they began."""
    known = {(line["role"], line["node"], line["token"]) for line in history}

    def may_be_unwritten(term: Led) -> bool:
        is_short = term.ended_before is not None and term.ended_before - term.began_at < UNWRITTEN_S
        return term.is_killed and is_short and term.which not in known

    return [term for term in terms if not may_be_unwritten(term)]


def compare_history(terms: Sequence[Led], history: Sequence[Json]) -> list[str]:
    """Compare the beginnings in the history with those that were observed, one by one."""
    begins = [line for line in history if line["event"] in ("acquired", "recovered")]
    said = Counter((line["role"], line["node"], line["token"]) for line in begins)
    found = [f"history: {count} beginnings of {which}" for which, count in said.items() if count > 1]
    found += _compare_keys("history", {term.which for term in terms}, set(said))
    missing = sum(line["missing"] for line in history)
    return found + ([f"history: {missing} events are missing"] if missing else [])


def _compare_keys(source: str, observed: set[Any], said: set[Any]) -> list[str]:
    only_said = [f"{source}: term {which} was not observed" for which in sorted(said - observed)]
    return only_said + [f"{source}: term {which} was observed and is not there" for which in sorted(observed - said)]


def compare_terms(source: str, terms: Sequence[Led], shown: Sequence[Json], seen_every_s: float) -> list[str]:
    """Compare terms with their holders, their beginnings and their ends. ``shown`` have times of the epoch."""
    by_key = {(each["role"], each["node"], each["token"]): each for each in shown}
    found = _compare_keys(source, {term.which for term in terms}, set(by_key))
    for term in terms:
        each = by_key.get(term.which)
        if each is None:
            continue
        if abs(each["began_at"] - term.began_at) > SLACK_S:
            found.append(
                f"{source}: {term.which} began {each['began_at'] - term.began_at:+.3f} s from what was observed"
            )
        found += _compare_end(source, term, each["ended_at"], seen_every_s)
    return found


def _compare_end(source: str, term: Led, ended_at: float | None, seen_every_s: float) -> list[str]:
    if term.ended_before is None or ended_at is None:
        is_same = term.ended_before is None and ended_at is None
        return [] if is_same else [f"{source}: {term.which} ended at {ended_at}, observed {term.ended_before}"]
    if term.earliest_end(seen_every_s) - SLACK_S <= ended_at <= term.ended_before + SLACK_S:
        return []
    return [f"{source}: {term.which} ended {ended_at - term.ended_before:+.3f} s from what was observed"]


def leaderless_bounds_s(terms: Iterable[Led], since: float, until: float, seen_every_s: float) -> tuple[float, float]:
    """Return how long no process led one role between two times: at least, and at most."""
    terms = sorted(terms, key=lambda each: each.began_at)
    slack_s = SLACK_S + _SLACK_PER_TERM_S * len(terms)
    latest = [until if term.ended_before is None else term.ended_before for term in terms]
    earliest = [until if term.ended_before is None else term.earliest_end(seen_every_s) for term in terms]
    return _gaps_s(terms, latest, since, until) - slack_s, _gaps_s(terms, earliest, since, until) + slack_s


def _gaps_s(terms: Sequence[Led], ends: Sequence[float], since: float, until: float) -> float:
    led_until, leaderless_s = since, 0.0
    for term, ended_at in zip(terms, ends, strict=True):
        leaderless_s += max(0.0, term.began_at - led_until)
        led_until = max(led_until, ended_at)
    return leaderless_s + max(0.0, until - led_until)


def compare_audit(
    source: str, terms: Sequence[Led], audits: Sequence[Json], roles: Sequence[str], seen_every_s: float
) -> list[str]:
    """Compare number of terms, overlaps and leaderless time of each role. An audit has ``since`` and ``until``."""
    found = [f"{source}: role {role} is not there" for role in sorted({*roles} - {each["role"] for each in audits})]
    for each in audits:
        mine = [term for term in terms if term.role == each["role"]]
        if each["terms"] != len(mine):
            found.append(f"{source}: {each['role']} has {each['terms']} terms, observed {len(mine)}")
        if each["overlaps"]:
            found.append(f"{source}: {each['role']} has overlaps: {each['overlaps']}")
        least, most = leaderless_bounds_s(mine, each["since"], each["until"], seen_every_s)
        if not least <= each["leaderless_s"] <= most:
            text = f"observed {least:.2f} to {most:.2f} s"
            found.append(f"{source}: {each['role']} was leaderless for {each['leaderless_s']:.2f} s, {text}")
    return found


def compare_standing(source: str, terms: Iterable[Led], shown: Sequence[Json], alive: Mapping[str, bool]) -> list[str]:
    """Compare who leads now, and which nodes are alive and dead; ``alive`` is by node, as it was left."""
    leads = {term.role: (term.node, term.token) for term in terms if term.ended_before is None}
    found = []
    for each in shown:
        leader = each["leader"] and (each["leader"]["node"], each["leader"]["token"])
        if leader != leads.get(each["role"]):
            found.append(f"{source}: {each['role']} is led by {leader}, observed {leads.get(each['role'])}")
        stands = sorted((one["node"], one["is_alive"]) for one in each["candidates"])
        if stands != sorted(alive.items()):
            found.append(f"{source}: candidates for {each['role']} are {stands}, observed {sorted(alive.items())}")
    return found


_PASSING = ("leaderless_s", "availability", "counted_since", "judged_at")


def compare_followed(followed: Mapping[str, Json], fresh: Mapping[str, Json]) -> list[str]:
    """Compare a page that was brought up to date change by change with one that was opened just now."""
    found = _compare_keys("open page", set(fresh), set(followed))
    for lock in fresh.keys() & followed.keys():
        different = [
            name for name, value in fresh[lock].items()
            if name not in _PASSING and _lasting(followed[lock].get(name)) != _lasting(value)
        ]  # fmt: skip
        if different:
            found.append(f"open page: {', '.join(different)} of {fresh[lock]['role']} differ from a fresh page's")
    return found


def _lasting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if name not in ("renewed_at", "lease_until", "renewal_due_at")}
    return value
