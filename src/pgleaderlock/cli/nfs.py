"""``pgleaderlock nfs``: show, break or tidy up a lock in a shared folder."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from pgleaderlock.cli.console import print_json, visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.cli.words import WORDS, texts
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import _inspect
from pgleaderlock.stores.nfs._inspect import Inspection

T = TypeVar("T")

_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


@click.group(short_help=WORDS["nfs"].short)
def nfs() -> None:
    """Show a lock in a folder that hosts share, or break it."""


@nfs.command("status", **texts("nfs status"))
@click.argument("path")
@_json_option
def nfs_status(*, path: str, as_json: bool) -> None:
    """Show which process holds the lock PATH, when it last renewed it, and how many candidates wait for it.

    Informational only: it may be outdated by the time you read it, so never decide by it which process leads.
    """
    lockfile = _lockfile(path)
    found = _asked(lockfile, lambda: _inspect.inspect(lockfile))
    if as_json:
        print_json(_fields(lockfile, found))
    else:
        _show(lockfile, found)


@nfs.command("break", **texts("nfs break"))
@click.argument("path")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_json_option
def nfs_break(*, path: str, yes: bool, as_json: bool) -> None:
    """Take the lock PATH from its holder.

    This is not needed for a holder that has died: the next candidate breaks its lock after its lifetime. A live
    holder continues until its next renewal, at the same time as its successor (split brain): make sure that it has
    stopped. The leader of an election competes again at once: stop it first.
    """
    lockfile = _lockfile(path)
    found = _asked(lockfile, lambda: _inspect.inspect(lockfile))
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask for confirmation: to break the lock without it, add --yes")
    if found.is_held and not yes:
        _show(lockfile, found, err=True)
        text = "If its holder is alive, it continues until its next renewal, at the same time as its successor."
        click.echo(text, err=True)
        click.confirm("Break the lock?", abort=True, err=True)
    broken = _asked(lockfile, lambda: _inspect.break_lock(lockfile)) if found.is_held else None
    if as_json:
        print_json({"lockfile": str(lockfile), "broken_epoch": broken})
    elif broken is not None:
        _say(f"{lockfile} is free: epoch {broken} was broken")
    elif found.is_held:
        _say(f"{lockfile} is free: it was released meanwhile")
    else:
        _show(lockfile, found)


@nfs.command("tidy", **texts("nfs tidy"))
@click.argument("path")
@_json_option
def nfs_tidy(*, path: str, as_json: bool) -> None:
    """Remove the files of candidates for the lock PATH that died while they waited."""
    lockfile = _lockfile(path)
    removed = _asked(lockfile, lambda: _inspect.tidy(lockfile))
    if as_json:
        print_json({"lockfile": str(lockfile), "removed": removed})
        return
    for name in removed:
        _say(name)
    there = "" if lockfile.exists() else f" (there is no lock at {lockfile} yet)"
    _say(f"{len(removed)} removed from {lockfile}{there}", err=True)


def _lockfile(path: str) -> Path:
    with wrong_usage():
        return place.path_of(path, scheme="nfs")


def _asked(lockfile: Path, question: Callable[[], T]) -> T:
    try:
        return question()
    except OSError as error:
        raise UnreachableError(str(place.explained(error, lockfile))) from error
    except PgLeaderLockError as error:
        raise UnreachableError(str(error)) from error


def _fields(path: Path, found: Inspection) -> dict[str, Any]:
    who = found.claimant
    return {
        "lockfile": str(path),
        "state": "held" if found.is_held else "free",
        "epoch": found.epoch,
        "holder": None if who is None else {"name": who.name, "host": who.host, "pid": who.pid},
        "holder_alive": found.is_alive,
        "lifetime_s": None if who is None else who.lifetime_s,
        "age_s": found.age_s,
        "expires_in_s": found.expires_in_s,
        "expired": found.is_expired,
        "waiting": found.waiting,
        "left_behind": found.left_behind,
        "strays": list(found.strays),
        "file_system": found.file_system,
    }


# --- For people -------------------------------------------------------------------------------------------------------


def _show(path: Path, found: Inspection, *, err: bool = False) -> None:
    headline, *details = _lines(path, found)
    _say(headline, err=err)
    for detail in details:
        _say(f"  {detail}", err=err)


def _say(line: str, *, err: bool = False) -> None:
    """Print a line; control characters in the names of files, hosts and holders are made visible."""
    click.echo(visible(line), err=err)


def _lines(path: Path, found: Inspection) -> Iterator[str]:
    if not found.exists:
        yield f"there is no lock at {path} yet"
    elif found.is_held:
        yield from _holder_lines(path, found)
    else:
        before = "never held yet" if found.epoch is None else f"epoch {found.epoch} was the last"
        yield f"{path} is free ({before})"
    yield from _others_lines(found)
    if found.file_system is not None:
        yield f"on {found.file_system}"


def _holder_lines(path: Path, found: Inspection) -> Iterator[str]:
    who, age_s, over_s = found.claimant, found.age_s or 0.0, found.over_since_s or 0.0
    if who is None:
        yield f"{path} is held by a process whose claim file cannot be read"
        yield f"epoch {found.epoch}, last sign of life {age_s:.1f} s ago"
    else:
        yield f"{path} is held by pid {who.pid} on {who.host}"
        if who.name != who.claimfile:
            yield f"as {who.name}, of an election"
        yield f"epoch {found.epoch}, lifetime {who.lifetime_s:g} s, last sign of life {age_s:.1f} s ago"
    if found.is_alive is False:
        yield "its process is dead"
    if over_s < 0:
        yield f"expires in {-over_s:.1f} s"
    else:
        yield f"expired {over_s:.0f} s ago: the next candidate that waits for longer than its lifetime gets the lock"


def _others_lines(found: Inspection) -> Iterator[str]:
    if found.waiting:
        yield f"{found.waiting} waiting"
    if found.left_behind:
        when = "" if found.is_local else " after 10 minutes"
        yield f"{found.left_behind} left behind (`nfs tidy` removes them{when})"
    if found.strays:
        yield f"{len(found.strays)} ignored, not epochs (remove them): {', '.join(found.strays)}"
