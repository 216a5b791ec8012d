"""``pgleaderlock ticks``: the claimed slots of scheduled jobs, and how their runs ended, the oldest first."""

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.roles import print_record, unreachable
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.cli.times import Since, duration, fields_of, iso
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.work.schedule.reading import RecordedTick, open_ledger

_HEADINGS = ("Slot (UTC)", "Role", "Job", "State", "Attempt", "Late", "Took", "Token", "Holder", "Detail")
_FIELDS = (
    "job", "schedule", "role", "lock", "slot", "attempt", "state", "token", "holder", "claimed_at", "ended_at",
    "late_s", "took_s", "skipped_from", "detail",
)  # fmt: skip
_STYLES = {"failed": "red", "killed": "red", "repeated": "yellow", "skipped": "yellow"}


async def show_ticks(
    dsn: str, place: ShownRoles, *, job: str | None, lock: LockKey | None, since: Since, limit: int, as_json: bool
) -> None:
    """Print the newest runs of one job or of all."""
    named = None if lock is None else str(lock)
    try:
        async with open_ledger(dsn, place.schema, schema_owner=place.owner) as ledger:
            since_at = since.resolve(await ledger.now())
            ticks = await ledger.ticks(job=job, lock=named, since=since_at, limit=limit + 1)
    except ConnectionError as error:
        raise unreachable(error) from error
    is_cut, ticks = len(ticks) > limit, ticks[-limit:]
    if as_json:
        for tick in ticks:
            print_record(_fields(tick))
    elif ticks:
        console = console_for()
        console.print(_table(ticks, console.width))
    if is_cut:
        click.echo(f"Older lines were left out: these are the newest {limit} (--limit).", err=True)
    if not ticks:
        of_them = "".join(f" of {what}" for what in (job and f"job {visible(job)}", named and f"lock {named}") if what)
        since_then = f" since {iso(since_at)}" if since_at else ""
        click.echo(f"The ledger in schema {visible(place.schema)} has nothing{of_them}{since_then}.", err=True)


def _fields(tick: RecordedTick) -> dict[str, Any]:
    took_s = None if tick.took_s is None else round(tick.took_s, 3)
    return fields_of(tick, *_FIELDS) | {"late_s": round(tick.late_s, 3), "took_s": took_s}


def _table(ticks: Sequence[RecordedTick], width: int) -> Table:
    rows = [
        [
            Text((iso(tick.slot) or "").replace("T", " ").removesuffix("Z")),
            Text(visible(tick.role or tick.lock)),  # a lock that is named by numbers has no role
            Text(visible(tick.job)),
            Text(visible(tick.state), style=_STYLES.get(tick.state, "")),
            Text(str(tick.attempt)),
            Text(duration(max(0.0, tick.late_s))),
            Text("" if tick.took_s is None else duration(tick.took_s)),
            Text(str(tick.token)),
            Text(visible(tick.holder)),
            Text(visible(_detail(tick))),
        ]
        for tick in ticks
    ]
    least_first = ("Token", "Holder", "Attempt", "Detail")
    return fitting_table(_HEADINGS, rows, width, prose=("Holder", "Detail"), once=("Role",), least_first=least_first)


def _detail(tick: RecordedTick) -> str:
    if tick.skipped_from is not None:
        return f"and all earlier slots, back to {iso(tick.skipped_from)}"
    return tick.detail or ""
