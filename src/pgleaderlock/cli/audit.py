"""``pgleaderlock audit``: availability and terms of each role, and whether two terms ever overlapped."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgleaderlock._base.overlaps import Overlap
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.roles import find_role, opened, print_record, registry_problem
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.cli.times import Since, duration, fields_of, iso
from pgleaderlock.ops.registry.audit import Line, PastTerm, RoleAudit
from pgleaderlock.ops.registry.judging import judge
from pgleaderlock.ops.registry.reading import RegistryReader, RoleStatus

_HEADINGS = ("Role", "Since (UTC)", "Availability", "Leaderless", "Terms", "Failovers", "Missing", "Overlaps")
_TERM = ("node", "instance", "token", "began_at", "ended_at", "end", "cause", "within_s")


async def show_audit(
    dsn: str, place: ShownRoles, role: str | None, lock: str | None, since: Since, *, as_json: bool
) -> int:
    """Print the findings, and return the exit code: 1 if two terms ever overlapped."""
    async with opened(dsn, place) as reader:
        known = await find_role(reader, role, lock)
        which: dict[str, Any] = {"roles": place.roles} if known is None else {"lock": known.lock}
        audits = await _audit(reader, which, since)
        problem = await registry_problem(reader)
    if as_json:
        for each in audits:
            print_record(_audit_fields(each) | ({"note": problem} if problem else {}))
    else:
        _print_for_people(audits)
    if problem and not (as_json and audits):
        click.echo(f"problem: {visible(problem)}", err=as_json)
    return exit_codes.OVERLAP if any(each.overlaps for each in audits) else exit_codes.CLEAN


async def _audit(reader: RegistryReader, which: dict[str, Any], since: Since) -> list[RoleAudit]:
    """Audit each role that has candidates, and each that has lines in this time."""
    until = await reader.now()
    since_at = since.resolve(until)
    past = await reader.past(**which, since=since_at)
    by_lock: dict[str, list[Line]] = defaultdict(list)
    for line in past.lines:
        by_lock[line.lock].append(line)
    return [
        judge(role, by_lock.get(role.lock, ()), since=since_at, until=until, orderly=past.orderly.get(role.lock))
        for role in await reader.status(**which)
        if role.lock in by_lock or _is_due(role, since_at)
    ]


def _is_due(role: RoleStatus, since: float) -> bool:
    """Return whether a role without a line about its terms should have had a leader in this time."""
    is_known = role.leader or role.last_leader or role.candidates or (role.last_at or 0.0) >= since
    return bool(is_known) and not role.is_closed


# --- For programs ---


def _audit_fields(each: RoleAudit) -> dict[str, Any]:
    return {
        **fields_of(each, "role", "lock", "since", "until"),
        "availability": round(each.availability, 9),
        "leaderless_s": round(each.leaderless_s, 3),
        "is_at_most": _is_at_most(each),
        "unknown_s": round(each.unknown_s, 3),
        "terms": len(each.terms) + each.summed_up,
        "failovers": each.failovers,
        "missing": each.missing,
        "overlaps": [_overlap_fields(overlap) for overlap in each.overlaps],
    }


def _overlap_fields(overlap: Overlap[PastTerm]) -> dict[str, Any]:
    first, second = fields_of(overlap.first, *_TERM), fields_of(overlap.second, *_TERM)
    return {"seconds": round(overlap.lasted_s, 6), "first": first, "second": second}


def _is_at_most(each: RoleAudit) -> bool:
    """Return whether the leaderless time is an upper bound: a dead leader may have led longer than it was seen."""
    return any(term.end == "vanished" for term in each.terms)


# --- For people ---


def _print_for_people(audits: Sequence[RoleAudit]) -> None:
    if not audits:
        click.echo("There is nothing to audit: no role had a leader in this time, and none has candidates.", err=True)
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
            f"{math.floor(each.availability * 1e5) / 1e3:.3f} %",  # rounded down: 100 % must not be a rounding error
            f"{at_most}{duration(each.leaderless_s)}{unknown}",
            str(len(each.terms) + each.summed_up),
            failovers or "-",
            str(each.missing),
        )
        overlaps = Text(str(len(each.overlaps)), style="bold red" if each.overlaps else "")
        rows.append([*map(Text, cells), overlaps])
    return fitting_table(
        _HEADINGS, rows, width, prose=("Leaderless", "Failovers"), least_first=("Since (UTC)", "Terms", "Missing")
    )


def _sentence(each: RoleAudit, overlap: Overlap[PastTerm]) -> str:
    return (
        f"OVERLAP in {visible(each.role)} ({visible(each.lock)}), for at least {duration(overlap.lasted_s)}: "
        f"{_describe(overlap.first)} and {_describe(overlap.second)}"
    )


def _describe(term: PastTerm) -> str:
    ended = "now" if term.ended_at is None else f"{_clock_time(term.ended_at)}, {visible(term.end or 'ended')}"
    return f"{visible(term.node)} (token {term.token}, {_clock_time(term.began_at)} to {ended})"


def _clock_time(at: float) -> str:
    return (iso(at) or "").replace("T", " ").removesuffix("Z")
