"""``pgleaderlock history``: the events of the registry, the oldest first."""

from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.roles import find_role, opened, print_record, registry_problem
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.tables import PIPE_CELLS, console_for, fitting_table
from pgleaderlock.cli.times import Since, fields_of, iso
from pgleaderlock.ops.registry.audit import Line

_HEADINGS = ("Time (UTC)", "Role", "Node", "Event", "Token", "Why")
_FIELDS = (
    "at", "role", "lock", "node", "instance", "event", "cause", "token", "within_s", "missing", "detail"
)  # fmt: skip
_SAYS_NOTHING = ("acquire_succeeded", "release_succeeded")
"""Causes that are not printed, because the event says the same."""


async def show_history(
    dsn: str, place: ShownRoles, named: tuple[str | None, str | None], since: Since, limit: int, *, as_json: bool
) -> None:
    """Print the newest lines of one role or of all."""
    async with opened(dsn, place) as reader:
        known = await find_role(reader, *named)
        since_at = since.resolve(await reader.now())
        which: dict[str, Any] = {"roles": place.roles} if known is None else {"lock": known.lock}
        lines = await reader.history(**which, since=since_at, limit=limit + 1)
        problem = await registry_problem(reader)
    is_cut, lines = len(lines) > limit, lines[-limit:]
    if as_json:
        for line in lines:
            print_record(fields_of(line, *_FIELDS))
    elif lines:
        console = console_for()
        console.print(_table(lines, console.width))
    if is_cut:
        click.echo(f"Older lines were left out: these are the newest {limit} (--limit).", err=True)
    if not lines:
        click.echo(f"The history has no lines{f' since {iso(since_at)}' if since_at else ''}.", err=True)
    if problem:
        click.echo(f"problem: {visible(problem)}", err=as_json)  # with --json, stdout has nothing but JSON lines


def _table(lines: Sequence[Line], width: int) -> Table:
    """Return a row for each line. A narrow terminal gets the day once, a pipe on every line."""
    rows, today = [], ""
    for line in lines:
        day, _, time = (iso(line.at) or "").removesuffix("Z").partition("T")
        if width >= PIPE_CELLS:
            time = f"{day} {time}"
        elif day != today:
            rows.append([Text(day, style="bold"), *(Text() for _ in _HEADINGS[1:])])
            today = day
        rows += _rows_of(line, time)
    return fitting_table(_HEADINGS, rows, width, prose=("Why",), once=("Role", "Node"), least_first=("Token",))


def _rows_of(line: Line, time: str) -> Iterator[list[Text]]:
    who = (Text(visible(line.role)), Text(visible(line.node)))
    if line.missing:
        yield [Text(), *who, Text(), Text(), Text(_gap(line), style="yellow")]
    token = "" if line.token is None else str(line.token)
    yield [Text(time), *who, Text(visible(line.event)), Text(token), Text(visible(_why(line)))]


def _why(line: Line) -> str:
    """Return the cause, unless the event says the same, and the details that the node wrote."""
    cause = "" if line.cause in _SAYS_NOTHING else line.cause or ""
    return ": ".join(filter(None, (cause, line.detail)))


def _gap(line: Line) -> str:
    counted = "1 event" if line.missing == 1 else f"{line.missing} events"
    return f"({counted} of {visible(line.node)} {'is' if line.missing == 1 else 'are'} missing here)"
