"""The folder of a demo: private, with a PostgreSQL in it, and removed afterwards.

A torture has such a folder too, with a PostgreSQL or without. A demo that is killed with -9 cannot clean up: its server
goes on, in a folder that is no longer used. The next demo of this user removes both. It recognizes the folders that are
in use by a file lock in them, which the kernel releases when the process that holds it ends.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from pgleaderlock.testing.embedded import Server, shared_folder
from pgleaderlock.testing.embedded.folders import told_plainly

_PREFIX = "pgleaderlock-demo-"
_OWNER = "owner.lock"
_LONGEST_ROOT = 50  # in bytes: sockets in there cannot have longer names
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def own_server(environment: Callable[[Path], Mapping[str, str]] | None = None) -> Iterator[Server]:
    """Start a PostgreSQL that exists within the block only. EmbeddedServerError if it cannot be started.

    ``environment`` is called with the folder and returns variables to add to the environment of the server.
    """
    with own_folder() as folder, contextlib.ExitStack() as stack:
        server = Server(folder / "server", environment=environment(folder) if environment else None)
        stack.callback(_stop, server)
        server.start()
        yield server


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder that exists within the block only, with ``nodes/`` in it, which no other user can enter."""
    with contextlib.ExitStack() as stack:
        root = _root()
        with told_plainly(root):
            with _signals_held():  # a signal between the two would leave the folder behind
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
                stack.callback(_remove, folder)
            if os.geteuid() == 0:  # the account that the server runs as has to get to its data
                folder.chmod(0o755)
            (folder / "nodes").mkdir(mode=0o700)
            stack.enter_context(_owned(folder))
        remove_orphans(root)
        yield folder


def _stop(server: Server) -> None:
    with _undisturbed():
        server.stop("immediate")  # there is nothing to keep


def _remove(folder: Path) -> None:
    with _undisturbed():
        shutil.rmtree(folder, ignore_errors=True)


def remove_orphans(root: Path) -> list[Path]:
    """Stop the servers and remove the folders of this user's demos that were killed. Return the folders."""
    removed = []
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _OWNER).open("rb") as owner:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
            if (folder / "server").exists():
                Server(folder / "server").stop("immediate")
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _root() -> Path:
    """Return the system's temporary folder, or the folder that was chosen for embedded servers."""
    if os.environ.get("PGLEADERLOCK_STATE_DIR"):
        return shared_folder()
    with _signals_held():  # gettempdir() makes and removes a file there
        usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= _LONGEST_ROOT else Path("/tmp")  # noqa: S108 - mkdtemp makes it ours


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Mark the folder as in use. The file gets its name only when it is locked, so it is never found unlocked."""
    new = folder / f"{_OWNER}.new"
    with new.open("wb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        new.rename(folder / _OWNER)
        yield


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals within the block, so that a second Ctrl-C does not interrupt the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def wait(_number: int, _frame: FrameType | None) -> None:
        """Ignore the signal: the clean-up ends soon."""

    for number in _SIGNALS:
        before[number] = signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
