"""``pgleaderlock doctor``: check by check, whether elections can run on a database with a user.

A terminal gets a table that fits it, and below it the advice, in which no statement is folded: a copy of a folded
statement would have line breaks in it. A pipe gets one line per finding, never folded and without colours, because it
ends in a ticket or in ``grep``; the advice follows on a line of its own.

Names and values in a finding come from the server. They are data: control characters are made visible, since the name
of a database can contain some that repaint a terminal, and nothing in them is read as markup.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli.console import fold, key_fields, print_json, visible
from pgleaderlock.cli.database import CHECK_DSN, UnreachableError
from pgleaderlock.cli.tables import console_for
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres.doctor import Examination, Finding, Verdict, examine
from pgleaderlock.postgres.keys import LockKey

_COLOURS = {Verdict.OK: "green", Verdict.INFO: "blue", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}
_VERDICT_WIDTH = max(map(len, Verdict))


async def show_doctor(dsn: str, key: LockKey | None, lease_s: float, *, as_json: bool, **settings: Any) -> bool:
    """Print the findings, and return whether there was no problem; UnreachableError if no server answers.

    ``settings`` are the candidates' own, as :func:`examine` takes them.
    """
    try:
        examination = await examine(dsn, key, lease_s, **settings)
    except ConnectionError as error:
        raise UnreachableError.from_error(error, CHECK_DSN) from error
    if as_json:
        _print_as_json(examination, key, lease_s)
    else:
        _print_for_people(examination)
    return examination.is_fit


def _print_as_json(examination: Examination, key: LockKey | None, lease_s: float) -> None:
    fields: dict[str, Any] = {} if key is None else key_fields(key)
    findings = [
        {
            "check": finding.check,
            "verdict": finding.verdict.value,
            "found": finding.found,
            "advice": finding.advice or None,
        }
        for finding in examination.findings
    ]
    print_json(
        {"fit": examination.is_fit, "where": examination.where, "lease_s": lease_s, **fields, "findings": findings}
    )


def _print_for_people(examination: Examination) -> None:
    click.echo(visible(examination.where))
    if sys.stdout.isatty():
        _print_table(examination.findings)
    else:
        _print_lines(examination.findings)
    click.echo(_sum_up(examination))


def _print_table(findings: Sequence[Finding]) -> None:
    console = console_for()
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("Check", "Verdict", "Found"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        verdict = Text(finding.verdict, style=_COLOURS[finding.verdict])
        table.add_row(Text(finding.check), verdict, Text(visible(finding.found)))
    console.print(table)
    _print_advice([finding for finding in findings if finding.advice], console.width)


def _print_advice(findings: Sequence[Finding], width: int) -> None:
    if findings:
        click.echo("What to do")
    for finding in findings:
        click.echo(fold(f"{finding.check}: {visible(finding.advice)}", width, "    "))


def _print_lines(findings: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.verdict:<{_VERDICT_WIDTH}}  {finding.check:<{width}}  {visible(finding.found)}")
        if finding.advice:
            click.echo(f"{'':<{_VERDICT_WIDTH}}  {'':<{width}}  -> {visible(finding.advice)}")


def _sum_up(examination: Examination) -> str:
    counted = Counter(finding.verdict for finding in examination.findings)
    problems, warnings = (
        f"{counted[verdict]} {verdict}{'' if counted[verdict] == 1 else 's'}"
        for verdict in (Verdict.PROBLEM, Verdict.WARNING)
    )
    meaning = (
        "elections can run on this database with this user" if examination.is_fit else "do not elect leaders here yet"
    )
    return f"{problems}, {warnings}: {meaning}"
