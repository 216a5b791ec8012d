"""The account that the server runs as, and its folders."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pgleaderlock.errors import EmbeddedServerError, MissingExtra
from pgleaderlock.testing.embedded.programs import Account, run_program

try:
    import pwd
except ModuleNotFoundError as error:
    raise MissingExtra("the embedded PostgreSQL needs a POSIX system: pass the DSN of a server") from error

__all__ = [
    "ELSEWHERE",
    "can_enter",
    "make_folder",
    "make_private_folder",
    "shared_folder",
    "told_plainly",
    "unprivileged_account",
]

_ROOT_STATE_FOLDER = Path("/var/lib/pgleaderlock")
ELSEWHERE = "set PGLEADERLOCK_STATE_DIR to another folder, or pass --dsn."
"""The remedy that always applies to a folder that cannot be used."""
_REMEDIES = {
    errno.EACCES: f"Make it writable, or {ELSEWHERE}",
    errno.ENOSPC: f"Free some space (an empty server takes 40 MB), or {ELSEWHERE}",
    errno.EDQUOT: f"Free some of your quota (an empty server takes 40 MB), or {ELSEWHERE}",
    errno.ENOTEMPTY: f"It holds something that is not PostgreSQL's: move that away, or {ELSEWHERE}",
}


def unprivileged_account() -> Account | None:
    """Return the account to run the programs as; None, the current user, unless that is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        "PostgreSQL refuses to run as root, and there is no account 'postgres' or 'nobody' to run it as. "
        "Run this as another user, or pass --dsn."
    )


def can_enter(folder: Path, account: Account) -> bool:
    """Whether the account can enter the folder. The kernel is asked: mode bits say nothing about ACLs."""
    return run_program("/bin/sh", "-c", 'test -x "$1"', "sh", folder, account=account)[0] == 0


def make_folder(folder: Path) -> None:
    """Make the folder and its missing parents: mode 700, or 755 for root, so that the server's account can pass."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    mode = 0o700 if os.geteuid() else 0o755
    with contextlib.suppress(FileExistsError):  # another process was faster
        folder.mkdir(mode)
        folder.chmod(mode)  # whatever the umask


def make_private_folder(folder: Path, account: Account | None) -> None:
    """Make a folder that only the server's account can enter, or verify that it is one.

    In /tmp, another user may have put a folder or a link of that name there before us.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        trusted = {os.geteuid(), account.uid} if account else {os.geteuid()}
        if found.st_uid not in trusted or found.st_mode & 0o077:
            raise EmbeddedServerError(
                f"Others could reach the server: its socket's folder {folder} is of user id {found.st_uid}, "
                f"mode {found.st_mode & 0o777:o}. It must be ours, mode 700. Remove it and try again."
            )
        if account:
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


@contextlib.contextmanager
def told_plainly(folder: Path) -> Iterator[None]:
    """Turn the system's errors into ours: what happened, where, what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"Fix that, or {ELSEWHERE}")
        raise EmbeddedServerError(f"No embedded PostgreSQL in {folder}: {error}. {remedy}") from error


def shared_folder() -> Path:
    """Return the folder of this user's shared server; make it if it is missing.

    ``$PGLEADERLOCK_STATE_DIR``, else ``$XDG_STATE_HOME/pgleaderlock``, else ``~/.local/state/pgleaderlock``.
    For root it is ``/var/lib/pgleaderlock`` if the account that the server runs as cannot get there, as is
    usual in root's home. One that was asked for by name is kept: the start will say what is wrong with it.
    """
    explicit = os.environ.get("PGLEADERLOCK_STATE_DIR")
    folder = Path(explicit).absolute() if explicit else _state_home() / "pgleaderlock"
    account = unprivileged_account()
    if account and not explicit:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        folder = folder if can_enter(nearest, account) else _ROOT_STATE_FOLDER
    with told_plainly(folder):
        make_folder(folder)
    return folder


def _state_home() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if home.is_absolute():  # the XDG specification wants others ignored
        return home
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise EmbeddedServerError(f"{error} So {ELSEWHERE}") from error
