"""``pgleaderlock torture``: the words, and the checks that refuse what cannot be meant before anything runs."""

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import need_store
from pgleaderlock.cli.options import dsn_option, seconds_option
from pgleaderlock.cli.words import texts

__all__ = ["find_forbidden", "parse_faults", "torture"]

_SHORTEST_LEASE_S = 0.5
_MOST_NODES = 26  # one for each letter
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
    """Return the faults that may not be done to this server, and why."""
    found = {} if can_restart else {"restart": "a server that is not ours is restarted only with --restart-command"}
    if not is_ours:
        found["standby"] = "a server that is not ours keeps its synchronous_standby_names"
        found["step"] = "a server that is not ours keeps its clock"
    return found


def parse_faults(text: str | None, forbidden: Mapping[str, str]) -> tuple[str, ...]:
    """Return the faults that were asked for; by default all that may be done. ValueError says what may not."""
    if text is None:
        return tuple(kind for kind in _KINDS if kind not in forbidden)
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in _KINDS:
            raise ValueError(f"{word!r} is nothing that can be done here: {', '.join(_KINDS)}")
        if word in forbidden:
            raise ValueError(forbidden[word])
    return tuple(words)


def _check_report(context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    """Refuse now what could not be written after minutes."""
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
@click.option(
    "--nodes",
    type=click.IntRange(2, _MOST_NODES),
    default=3,
    show_default=True,
    metavar="N",
    help="How many processes stand for the role.",
)
@seconds_option("--lease", "How long a silent leader keeps the lock.", default=3.0)
@seconds_option("--every", "About how long after a fault the next one comes. [default: a lease and a half]")
@click.option(
    "--takeover",
    type=click.Choice(["fast", "strict"]),
    default="fast",
    show_default=True,
    help="Strict waits a lease after every leader that did not release; it makes a term table, and drops it.",
)
@click.option(
    "--faults",
    metavar="FAULTS",
    help=f"Only these, with commas between them: {', '.join(_KINDS)}. [default: all that are permitted]",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Do the same in the same order. [default: any]")
@click.option(
    "--restart-command", metavar="COMMAND", help="Restart the server with this, now and then. [default: not at all]"
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    callback=_check_report,
    metavar="FILE",
    help="Write a page with a picture of who led when.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the processes' own logs there; it must be new or empty.",
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
    """Elect a leader on a database while everything goes wrong, and look for two leaders at once.

    Real processes are killed and frozen, their sessions ended, their network made bad; an independent checker reads
    what each of them believed. With --embedded on a PostgreSQL of its own, which is restarted and crashed, too; its
    clock is stepped, where faketime is installed, and its synchronous standby is taken away.

    On yours, only sessions of these processes are touched, for a lock with a random name. Ctrl-C ends and removes
    everything.

    Exit code 1 if two led at once, a token came twice or went back, a term ended without a cause, or nobody ever led.
    """
    if lease_s < _SHORTEST_LEASE_S:
        raise click.UsageError(f"--lease must be at least {_SHORTEST_LEASE_S:g} seconds: a busy machine needs them.")
    if restart_command is not None and dsn is None:
        raise click.UsageError("--restart-command goes with --dsn: the server of its own is restarted anyway.")
    try:
        forbidden = find_forbidden(can_restart=dsn is None or restart_command is not None, is_ours=dsn is None)
        kinds = parse_faults(faults, forbidden)
    except ValueError as error:
        raise click.UsageError(f"--faults: {error}.") from error
    if logs is not None and logs.exists() and any(logs.iterdir()):
        raise click.UsageError(f"--logs: {logs} is not empty.")
    need_store(dsn)
    from pgleaderlock.cli import torture_show as show  # noqa: PLC0415 - its tables take a while to import
    from pgleaderlock.torture import Options  # noqa: PLC0415

    show_logs("ERROR")
    seed = random.randrange(_SEEDS) if seed is None else seed  # noqa: S311 - not a secret
    options = Options(minutes * 60, nodes, lease_s, takeover, kinds, seed, every_s or _LEASES_BETWEEN * lease_s)
    not_asked_for = {} if faults is not None else forbidden
    request = show.Request(options, dsn, restart_command, report, logs, as_json, not_asked_for)
    context.exit(show.run_torture(request))
