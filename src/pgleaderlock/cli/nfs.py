"""``pgleaderlock nfs``: a lock in a shared folder, looked at, broken, and tidied up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pgleaderlock._files import place
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import print_json
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.nfs import _inspect
from pgleaderlock.nfs._inspect import Inspection

__all__ = ["nfs"]

T = TypeVar("T")


@click.group()
def nfs() -> None:
    """A lock in a folder that hosts share: who has it, and what to do when nobody should."""


@nfs.command("status", epilog=exit_codes.EXIT_CODES_HELP)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def nfs_status(*, path: str, as_json: bool) -> None:
    """Show who has the lock PATH, since when nothing was heard of it, and how many more want it.

    Informational only: it may be history by the time you read it, so never decide by it.
    """
    lockfile = _lockfile(path)
    found = _asked(lambda: _inspect.inspect(lockfile))
    if as_json:
        print_json(_fields(lockfile, found))
    else:
        click.echo(_sentence(lockfile, found))


@nfs.command("break", epilog=exit_codes.EXIT_CODES_HELP)
@click.argument("path")
@click.option("--yes", is_flag=True, help="Do not ask.")
def nfs_break(*, path: str, yes: bool) -> None:
    """Take the lock PATH from whoever has it.

    It is not needed for a holder that has died: its lock is broken by the next who asks, after its lifetime. A holder
    that lives goes on until its next refresh, beside the next one: make sure that it has stopped.
    """
    lockfile = _lockfile(path)
    found = _asked(lambda: _inspect.inspect(lockfile))
    if not found.is_held:
        click.echo(_sentence(lockfile, found))
        return
    if not yes:
        click.echo(_sentence(lockfile, found), err=True)
        click.echo("If its holder lives, it will go on until its next refresh, beside whoever comes next.", err=True)
        click.confirm("Break the lock?", abort=True, err=True)
    broken = _asked(lambda: _inspect.break_lock(lockfile))
    click.echo(
        f"{lockfile} is free: " + ("it was released meanwhile" if broken is None else f"epoch {broken} was broken")
    )


@nfs.command("tidy", epilog=exit_codes.EXIT_CODES_HELP)
@click.argument("path")
def nfs_tidy(*, path: str) -> None:
    """Remove what contenders for the lock PATH left behind that died while they waited."""
    lockfile = _lockfile(path)
    removed = _asked(lambda: _inspect.tidy(lockfile))
    for name in removed:
        click.echo(name)
    click.echo(f"{len(removed)} removed from {lockfile}", err=True)


def _lockfile(path: str) -> Path:
    try:
        return place.path_of(path, scheme="nfs")
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _asked(question: Callable[[], T]) -> T:
    try:
        return question()
    except (OSError, PgLeaderLockError) as error:
        raise UnreachableError(str(error)) from error


def _fields(path: Path, found: Inspection) -> dict[str, Any]:
    who = found.claimant
    return {
        "lockfile": str(path),
        "state": "held" if found.is_held else "free",
        "epoch": found.epoch,
        "holder": None if who is None else {"name": who.name, "host": who.host, "pid": who.pid},
        "lifetime_s": None if who is None else who.lifetime_s,
        "age_s": found.age_s,
        "expires_in_s": found.expires_in_s,
        "waiting": found.waiting,
    }


def _sentence(path: Path, found: Inspection) -> str:
    waiting = f"; {found.waiting} waiting" if found.waiting else ""
    if not found.is_held:
        before = "nobody has had it yet" if found.epoch is None else f"epoch {found.epoch} was the last"
        return f"{path} is free ({before}){waiting}"
    who = "somebody whose claim cannot be read"
    if found.claimant is not None:
        who = f"pid {found.claimant.pid} on {found.claimant.host} ({found.claimant.name})"
    lifetime = "" if found.claimant is None else f", lifetime {found.claimant.lifetime_s:g} s"
    left_s = found.expires_in_s or 0.0
    expiry = f"expires in {left_s:.1f} s" if left_s > 0 else f"expired {-left_s:.1f} s ago"
    return (
        f"{path} is held by {who}: epoch {found.epoch}{lifetime}, last sign of life {found.age_s or 0.0:.1f} s ago, "
        f"{expiry} by its own clock{waiting}"
    )
