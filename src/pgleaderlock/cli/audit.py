"""``pgleaderlock audit``: what the history proves of each role, and what the table of leaders adds to it.

The history alone does not know two things. A leader that died and has no successor yet wrote no end, and nobody wrote
one for it: its row in the table of leaders fell silent, and its term is taken to have ended then. And a leader of long
standing may have begun before the oldest line that is kept: its row says when.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.place import Place
from pgleaderlock.cli.roles import find_role, opened, print_record
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.cli.times import Since, duration, iso
from pgleaderlock.registry.audit import Line, Overlap, RoleAudit, Term, audit
from pgleaderlock.registry.reading import RegistryReader, RoleStatus

__all__ = ["judge", "show_audit"]

_BEGINS = ("acquired", "recovered")
_HEADINGS = ("Role", "Since (UTC)", "Availability", "Leaderless", "Terms", "Failovers", "Missing", "Overlaps")
_EVERYTHING = 10_000_000


async def show_audit(dsn: str, place: Place, role: str | None, lock: str | None, since: Since, *, as_json: bool) -> int:
    """Print what was found, and return the exit code: 1 if two terms ever overlapped."""
    async with opened(dsn, place) as reader:
        known = await find_role(reader, role, lock)
        which: dict[str, Any] = {"roles": place.roles} if known is None else {"lock": known.lock}
        audits = await _audit(reader, which, since)
    if as_json:
        for each in audits:
            print_record(_audit_fields(each))
    else:
        _print_for_people(audits)
    return exit_codes.OVERLAP if any(each.overlaps for each in audits) else exit_codes.CLEAN


async def _audit(reader: RegistryReader, which: dict[str, Any], since: Since) -> list[RoleAudit]:
    """Judge each lock from when it was first heard of, if that is later than what was asked for."""
    until = await reader.now()
    since_at = since.resolve(until)
    lines = await reader.open_before(**which, since=since_at)
    lines += await reader.history(**which, since=since_at, limit=_EVERYTHING)
    roles = await reader.status(**which)
    lines += _from_leaders(lines, roles)
    by_lock: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_lock[line.lock].append(line)
    first_at: dict[str, float] = {}
    for each in await reader.roles():
        first_at[each.lock] = min(each.first_at, first_at.get(each.lock, each.first_at))
    begins = {name: max(since_at, at) for name, at in first_at.items()}
    stood_for = {role.lock for role in roles}
    audits = [
        judge(
            its_lines, since=begins.get(name, since_at), until=_left_at(its_lines, until, is_over=name not in stood_for)
        )
        for name, its_lines in by_lock.items()
    ]
    audits += [_leaderless(role, begins.get(role.lock, since_at), until) for role in roles if role.lock not in by_lock]
    return sorted(audits, key=lambda each: (each.role, each.lock))


def _left_at(lines: Sequence[Line], now: float, *, is_over: bool) -> float:
    """When the last one left, if nobody stands for it any more and that one left in order: nobody misses a leader."""
    last = max(lines, key=lambda line: line.at)
    return last.at if is_over and last.event in ("released", "stopped", "unwatched") else now


def _leaderless(role: RoleStatus, since: float, until: float) -> RoleAudit:
    """Somebody stands for it, and nothing has happened: nobody led."""
    return RoleAudit(role.lock, role.role, since, until, leaderless_s=max(0.0, until - since))


def _from_leaders(lines: Sequence[Line], roles: Sequence[RoleStatus]) -> list[Line]:
    """Return the lines that the history lacks: that the leader of now began, and that it fell silent."""
    begun = {(line.lock, line.instance, line.token) for line in lines if line.event in _BEGINS}
    more = []
    for role in roles:
        leader = role.leader
        if leader is None:
            continue
        line = Line(
            role.lock, role.role, leader.node, leader.instance, "acquired", None, leader.token, leader.acquired_at
        )
        if (line.lock, line.instance, line.token) not in begun:
            more.append(line)
        if not leader.is_alive:
            more.append(replace(line, event="vanished", at=leader.renewed_at))
    return more


def judge(lines: Sequence[Line], *, since: float, until: float) -> RoleAudit:
    """Return what the lines of one lock say. Time before its first term counts, where the history was there already."""
    (found,) = audit(lines, since=since, until=until)
    if found.terms:
        found.leaderless_s += max(0.0, found.terms[0].began_at - since)
    return found


# --- For programs ---


def _audit_fields(each: RoleAudit) -> dict[str, Any]:
    return {
        "role": each.role,
        "lock": each.lock,
        "since": iso(each.since),
        "until": iso(each.until),
        "availability": round(each.availability, 9),
        "leaderless_s": round(each.leaderless_s, 3),
        "is_at_most": _is_at_most(each),
        "unknown_s": round(each.unknown_s, 3),
        "terms": len(each.terms),
        "failovers": each.failovers,
        "missing": each.missing,
        "overlaps": [_overlap_fields(overlap) for overlap in each.overlaps],
    }


def _overlap_fields(overlap: Overlap) -> dict[str, Any]:
    return {
        "seconds": round(overlap.seconds, 6),
        "first": _term_fields(overlap.first),
        "second": _term_fields(overlap.second),
    }


def _term_fields(term: Term) -> dict[str, Any]:
    return {
        "node": term.node,
        "instance": term.instance,
        "token": term.token,
        "began_at": iso(term.began_at),
        "ended_at": iso(term.ended_at),
        "end": term.end,
        "cause": term.cause,
        "within_s": term.within_s,
    }


def _is_at_most(each: RoleAudit) -> bool:
    """A leader that died may have led for longer than it was seen."""
    return any(term.end == "vanished" for term in each.terms)


# --- For people ---


def _print_for_people(audits: Sequence[RoleAudit]) -> None:
    if not audits:
        click.echo("There is nothing to judge: nobody led in this time, and nobody stands for anything.", err=True)
        return
    console = console_for()
    console.print(_table(audits, console.width))
    for each in audits:
        for overlap in each.overlaps:
            click.echo(_sentence(each, overlap))
    found = sum(len(each.overlaps) for each in audits)
    click.echo(f"{found} overlap{'' if found == 1 else 's'} of two terms" if found else "no two terms overlap")


def _table(audits: Sequence[RoleAudit], width: int) -> Table:
    rows = []
    for each in audits:
        at_most = "at most " if _is_at_most(each) else ""
        unknown = f", {duration(each.unknown_s)} unknown" if each.unknown_s > 0 else ""
        failovers = ", ".join(f"{visible(how)} {count}" for how, count in sorted(each.failovers.items()))
        cells = (
            visible(each.role),
            _clock_time(each.since).partition(".")[0],
            f"{math.floor(each.availability * 1e5) / 1e3:.3f} %",  # rounded down: 100 % is a promise
            f"{at_most}{duration(each.leaderless_s)}{unknown}",
            str(len(each.terms)),
            failovers or "-",
            str(each.missing),
        )
        overlaps = Text(str(len(each.overlaps)), style="bold red" if each.overlaps else "")
        rows.append([*map(Text, cells), overlaps])
    return fitting_table(
        _HEADINGS, rows, width, prose=("Leaderless", "Failovers"), least_first=("Since (UTC)", "Terms", "Missing")
    )


def _sentence(each: RoleAudit, overlap: Overlap) -> str:
    return (
        f"OVERLAP in {visible(each.role)} ({visible(each.lock)}), for at least {duration(overlap.seconds)}: "
        f"{_describe(overlap.first)} and {_describe(overlap.second)}"
    )


def _describe(term: Term) -> str:
    ended = "now" if term.ended_at is None else f"{_clock_time(term.ended_at)}, {visible(term.end or 'ended')}"
    return f"{visible(term.node)} (token {term.token}, {_clock_time(term.began_at)} to {ended})"


def _clock_time(at: float) -> str:
    return (iso(at) or "").replace("T", " ").removesuffix("Z")
