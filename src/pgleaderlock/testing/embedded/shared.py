"""The server that all processes of a user share: the first starts it, and the last stops it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pgleaderlock._base.portable import at_fork
from pgleaderlock.errors import EmbeddedServerError, MissingExtra
from pgleaderlock.testing.embedded.folders import make_folder, shared_folder, told_plainly
from pgleaderlock.testing.embedded.programs import find_binaries, major_version, poll
from pgleaderlock.testing.embedded.server import Server

try:
    import fcntl
except ModuleNotFoundError as error:
    raise MissingExtra(
        "the embedded PostgreSQL needs flock(2), which this system does not have: pass the DSN of a server"
    ) from error

__all__ = ["shared_server"]

_LOCK_TIMEOUT_S = 150.0  # more than a slow start takes: its own error says more than ours about the lock


class _FileLock:
    """A file lock that the kernel releases when its process ends, however that happens.

    Children do not inherit it: exec closes it, and so does fork; otherwise a worker would keep the server in use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _open_locks.add(self)

    @property
    def is_ours(self) -> bool:
        """False in a forked child."""
        return self._fd >= 0

    def close(self) -> None:
        _open_locks.discard(self)
        if self.is_ours:
            os.close(self._fd)
            self._fd = -1

    def take(self, operation: int) -> bool:
        """Take the lock, or convert it, if that is possible at once; return whether it was."""
        try:
            fcntl.flock(self._fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self, operation: int) -> None:
        """Wait for the lock, but not for ever: its holder may be suspended."""
        if not poll(lambda: self.take(operation), _LOCK_TIMEOUT_S):
            raise EmbeddedServerError(
                f"Another process held {self._path} for {_LOCK_TIMEOUT_S:g} s: it is starting or stopping "
                f"the embedded PostgreSQL. To see which: fuser -v {self._path} - let it finish, or end it."
            )


_open_locks: set[_FileLock] = set()


def _close_locks_in_forked_child() -> None:
    for lock in list(_open_locks):
        lock.close()


at_fork(after_in_child=_close_locks_in_forked_child)


@contextlib.contextmanager
def shared_server(folder: Path | None = None) -> Iterator[Server]:
    """Yield the server that all processes of this user share. It runs while any of them is in this block.

    In `folder` (by default `shared_folder`), each major version has a folder of its own: newer programs begin
    with an empty server instead of one that they cannot read.

    A server that was started when no other process was in this block lets its candidates skip the quiet period after a
    server start. That is safe also for a process that uses the server without this block: it is on this machine, its
    connection ended with the former run of the server, and ``is_leader`` checks that.
    """
    binaries = find_binaries()
    server = Server((folder or shared_folder()) / f"pg{major_version(binaries)}", binaries=binaries)
    with contextlib.ExitStack() as stack:
        with told_plainly(server.folder):
            make_folder(server.folder)
            users = stack.enter_context(contextlib.closing(_FileLock(server.folder / "users.lock")))
        with _start_lock(server):
            # A process that has left, or is dead, is no leader. After a crash of a used server there may be one.
            is_unused = users.take(fcntl.LOCK_EX)
            users.wait(fcntl.LOCK_SH)  # at once: a process that takes it exclusively also holds the start lock
            server.start(no_former_leader=is_unused)
        try:
            yield server
        finally:
            if users.is_ours:
                with _start_lock(server):
                    if users.take(fcntl.LOCK_EX):  # no other process uses it: we are the last
                        server.stop("fast")


@contextlib.contextmanager
def _start_lock(server: Server) -> Iterator[None]:
    """Hold the lock under which one process at a time starts or stops the server, or decides whether to."""
    with told_plainly(server.folder):
        lock = _FileLock(server.folder / "start.lock")
    with contextlib.closing(lock):
        lock.wait(fcntl.LOCK_EX)
        yield
