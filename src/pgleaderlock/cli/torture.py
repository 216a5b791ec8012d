"""``pgleaderlock torture``: the options, and the checks that refuse wrong usage before anything runs."""

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import need_store
from pgleaderlock.cli.options import check_own_lease, dsn_option, nodes_option, seconds_option, wrong_usage
from pgleaderlock.cli.words import texts

_MOST_MINUTES = 7 * 24 * 60
_SEEDS = 10**6
_LEASES_BETWEEN = 1.5
_KINDS = (
    "kill",
    "freeze",
    "session",
    "witness",
    "both",
    "apart",
    "delay",
    "connect",
    "throttle",
    "cut",
    "drop",
    "reset",
    "restart",
    "standby",
    "step",
    "clock",
)


def find_forbidden(*, can_restart: bool, is_ours: bool) -> dict[str, str]:
    """Return the faults that may not be injected on this server, and why."""
    found = {} if can_restart else {"restart": "your server is restarted only with --restart-command"}
    if not is_ours:
        found["standby"] = "synchronous_standby_names of your server is not changed"
        found["step"] = "the clock of your server is not changed"
    return found


def parse_faults(text: str | None, forbidden: Mapping[str, str]) -> tuple[str, ...]:
    """Return the requested faults, by default all permitted ones. ValueError names one that is unknown or forbidden."""
    if text is None:
        return tuple(kind for kind in _KINDS if kind not in forbidden)
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in _KINDS:
            raise ValueError(f"there is no fault {word!r}; the faults are {', '.join(_KINDS)}")
        if word in forbidden:
            raise ValueError(forbidden[word])
    return tuple(words)


def _check_report(context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a report that cannot be written now, instead of minutes later."""
    if value is None:
        return None
    folder = value.absolute().parent
    if value.is_dir() or not folder.is_dir() or not os.access(value if value.exists() else folder, os.W_OK):
        raise click.UsageError(f"--report: {value} cannot be written.", context)
    return value


@click.command("torture", **texts("torture"))
@dsn_option
@click.option(
    "--minutes",
    type=click.FloatRange(0, _MOST_MINUTES, min_open=True),
    default=1.0,
    show_default=True,
    metavar="N",
    help="How long.",
)
@nodes_option
@seconds_option("--lease", "How long a silent leader keeps the lock.", default=3.0)
@seconds_option("--every", "Average time between two faults. [default: a lease and a half]")
@click.option(
    "--takeover",
    type=click.Choice(["fast", "strict"]),
    default="fast",
    show_default=True,
    help="Strict waits one lease after every leader that did not release; it creates a term table, and drops it.",
)
@click.option(
    "--faults",
    metavar="FAULTS",
    help=f"Only these faults, separated by commas: {', '.join(_KINDS)}. [default: all that are permitted]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Repeat the faults of a run, in the same order. [default: random]",
)
@click.option(
    "--restart-command", metavar="COMMAND", help="Also restart the server, with this command. [default: no restarts]"
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    callback=_check_report,
    metavar="FILE",
    help="Write an HTML page with a timeline of leaders and faults.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the logs of the processes in this folder, which must be new or empty.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, in place of the tables.")
@click.pass_context
def torture(
    context: click.Context,
    *,
    dsn: str | None,
    minutes: float,
    nodes: int,
    lease_s: float,
    every_s: float | None,
    takeover: Literal["fast", "strict"],
    faults: str | None,
    seed: int | None,
    restart_command: str | None,
    report: Path | None,
    logs: Path | None,
    as_json: bool,
) -> None:
    """Run an election on a database while faults are injected, and look for two leaders at once (split brain).

    Real processes are killed and frozen, their sessions terminated, their network disturbed; an independent checker
    reads from when to when each process acted as leader. With --embedded, it runs on its own PostgreSQL, which is
    also restarted and crashed; its clock is stepped, where faketime is installed, and its synchronous standby removed.

    On your database, only sessions of these processes are touched, for a lock with a random name. Ctrl-C ends and
    removes everything.

    Exit code 1 if there were two leaders at once, a token was repeated or decreased, a term ended without a cause, or
    no process ever led.
    """
    check_own_lease(lease_s)
    if restart_command is not None and dsn is None:
        raise click.UsageError("--restart-command needs --dsn: the embedded server is restarted anyway.")
    with wrong_usage(said="--faults: {}."):
        forbidden = find_forbidden(can_restart=dsn is None or restart_command is not None, is_ours=dsn is None)
        kinds = parse_faults(faults, forbidden)
    if logs is not None and logs.exists() and any(logs.iterdir()):
        raise click.UsageError(f"--logs: {logs} is not empty.")
    need_store(dsn)
    from pgleaderlock.cli import torture_show as show  # noqa: PLC0415 - its tables take a while to import
    from pgleaderlock.testing.torture import Options  # noqa: PLC0415

    show_logs("ERROR")
    seed = random.randrange(_SEEDS) if seed is None else seed  # noqa: S311 - not a secret
    options = Options(minutes * 60, nodes, lease_s, takeover, kinds, seed, every_s or _LEASES_BETWEEN * lease_s)
    not_asked_for = {} if faults is not None else forbidden
    request = show.Request(options, dsn, restart_command, report, logs, as_json, not_asked_for)
    context.exit(show.run_torture(request))
