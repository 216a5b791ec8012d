"""The files of one lock, and the operations on them.

==================== ===========================================================================================
``<path>``           the record: the last write of the newest term's holder. Replaced as a whole; where the disk has
                     no space for that, overwritten in place by the holder, which has it open.
``<path>.live.<N>``  the term N: made once with link(2), complete and locked (flock) from its first moment, and
                     never written again. The kernel frees the lock when the holder dies.
``<path>.tmp.<hex>`` a text that is being written. Left behind only by a process that was killed at that moment.
==================== ===========================================================================================

**Which file is a term.** Up to ``COUNTED_BY_NAME`` the number in its name decides, whatever the text is: a power cut
may have lost the text of a term, and its number must not be used again. Beyond, where counting never gets, a file is a
term only if its text names the same number, as every term's does from its first moment. Any other file with a far or
malformed number is a stray file: all candidates ignore it, and name it in the log. That is safe also beside candidates
of 0.1.0, which count some of these files: to begin a term, they too must find the record unchanged for a lease; and the
term that they begin then has its number in its text, and counts.

Nothing here waits, and nothing decides. OSError is raised as ConnectionError, with advice.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock.errors import ConnectionError, LockError, MissingExtra
from pgleaderlock.stores.file._record import COUNTED_BY_NAME, LARGEST_TOKEN, decode, padded

try:
    import fcntl
except ModuleNotFoundError as error:
    raise MissingExtra("locks in files need flock(2), which this system does not have: choose another store") from error

_LARGEST_TEXT = 65536
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place must not hang us
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_NO_TEXT = (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO)  # of a folder, a pipe, a link, a socket

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or inodes if `df -i` shows that none is left",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the limit on the size of files (ulimit -f) is too low",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "the folder, or the file, was removed meanwhile",
    errno.ELOOP: "it is a symbolic link, which another user could have made to redirect our writes: remove it",
    errno.EISDIR: "a folder is in its place: remove it, or choose another path",
    errno.EMFILE: "this process has too many files open: raise ulimit -n",
    errno.EOPNOTSUPP: "this file system has no hard links or locks: choose another",
}


@dataclass(slots=True)
class Draft:
    """A text in a temporary file that we have locked, to become a term's file or the record."""

    path: Path
    descriptor: Descriptor | None


@dataclass(slots=True)
class Live:
    """A term of our own, held for as long as its descriptor is open."""

    token: int
    descriptor: Descriptor
    record: Descriptor | None = None
    """The record that we published last. Writing here never harms another record that has its name by now."""

    def close(self) -> None:
        """End the term by closing its files: from now on the term's file is not locked."""
        if self.record is not None:
            self.record.close()
        self.descriptor.close()


class Folder:
    """The files of the lock with this path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        name = re.escape(path.name)
        self._live_name = re.compile(rf"{name}\.live\.(0|[1-9]\d{{0,17}})", re.ASCII)
        self._temporary_name = re.compile(rf"{name}\.tmp\.[0-9a-f]{{16}}", re.ASCII)

    def live_path(self, token: int) -> Path:
        return self._beside(f"live.{token}")

    # --- Looking -----------------------------------------------------------------------------------------------

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file of the lock; None when it does not exist."""
        with self._explained("read", path):
            try:
                number = os.open(path, _READ)
            except FileNotFoundError:
                return None
            try:
                mode = os.fstat(number).st_mode
                if not stat.S_ISREG(mode):
                    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file")
                text = os.read(number, _LARGEST_TEXT + 1)
            finally:
                os.close(number)
        if len(text) > _LARGEST_TEXT:
            raise ConnectionError(f"{path} is not the record of a lock, it is far too large: choose another path")
        return text

    def terms(self) -> list[int]:
        """Return the numbers of all terms that have a file, the newest last."""
        while True:
            matches = map(self._live_name.fullmatch, self._names())
            numbers = sorted(int(match[1]) for match in matches if match is not None)
            is_term = {number: number <= COUNTED_BY_NAME or self._is_far_term(number) for number in numbers}
            if None not in is_term.values():  # else one was removed meanwhile, and a newer one may not be in our list
                return [number for number in numbers if is_term[number]]

    def strays(self) -> list[str]:
        """Return the names of stray files: they look like a term's but are not."""
        prefix, terms = f"{self.path.name}.live.", {self.live_path(term).name for term in self.terms()}
        return sorted(name for name in self._names() if name.startswith(prefix) and name not in terms)

    def is_free(self, token: int) -> bool:
        """Whether no process has this term's file locked. Uses a shared lock, so that many may ask at once."""
        with self._explained("look at", self.live_path(token)):
            number = os.open(self.live_path(token), _READ)
            try:
                fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                os.close(number)
        return True

    def is_in_place(self, live: Live) -> bool:
        """Whether the file of this term is still the one that we hold: it may have been removed by hand."""
        return self._is_at(self.live_path(live.token), live.descriptor)

    # --- Writing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def draft(self, text: bytes) -> Iterator[Draft]:
        """Make a temporary file with this text, locked by us. Its temporary name is removed in the end, in any case.

        A full disk fails here, before any other change.
        """
        if len(text) > _LARGEST_TEXT:  # no candidate would read it, so none could lead after this one
            raise LockError(f"the name of the candidate is too long: a record of {len(text)} bytes")
        path = self._beside(f"tmp.{secrets.token_hex(8)}")
        with self._explained("write", path):
            descriptor = Descriptor(lambda: os.open(path, _CREATE, 0o644))
        draft = Draft(path, descriptor)
        try:
            with self._explained("write", path):
                fcntl.flock(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                while text:
                    text = text[os.write(descriptor.number, text) :]
            yield draft
        finally:
            self._remove(path)
            if draft.descriptor is not None:
                draft.descriptor.close()

    def claim(self, token: int, draft: Draft) -> Live | None:
        """Make the term's file from a draft. Return None when it exists already: another candidate was first."""
        path = self.live_path(token)
        if token > LARGEST_TOKEN:
            raise ConnectionError(
                f"no term can follow that of {self.live_path(token - 1)}, which is the last number there is and was "
                "not reached by counting: stop every candidate, remove that file, and start them again"
            )
        if not self._happened("make", path, lambda: os.link(draft.path, path)):
            if token > COUNTED_BY_NAME and path.name in self.strays():
                raise ConnectionError(f"{path} is not a term of this lock, but has the name of the next: remove it")
            return None
        assert draft.descriptor is not None  # noqa: S101 - a draft is claimed with once
        descriptor, draft.descriptor = draft.descriptor, None
        return Live(token, descriptor)

    def publish(self, draft: Draft, live: Live) -> bool:
        """Make the record from a draft, for this term. Return False when a newer leader removed the draft."""
        assert draft.descriptor is not None  # noqa: S101 - a draft is published once
        fcntl.flock(draft.descriptor.number, fcntl.LOCK_UN)  # so that other programs can lock the record to read it
        if not self._happened("replace", self.path, lambda: os.replace(draft.path, self.path)):  # noqa: PTH105 - returns None
            return False
        former, live.record, draft.descriptor = live.record, draft.descriptor, None
        if former is not None:
            former.close()
        return True

    def overwrite(self, live: Live, text: bytes) -> bytes | None:
        """Overwrite the record that we published in place, which needs no disk space; return its new text.

        Return None when our file is not the record any more, or cannot be overwritten either: a copy-on-write file
        system needs space for it. It is one system call on one page, so a kill -9 cannot interrupt it.
        """
        record = live.record
        if record is None or not record.is_open:
            return None
        with contextlib.suppress(OSError):
            text = padded(text, os.fstat(record.number).st_size)
            if len(text) <= _LARGEST_TEXT and os.pwrite(record.number, text, 0) == len(text):
                return text if self._is_at(self.path, record) else None
        return None

    def remove(self, live: Live) -> None:
        """Remove the file of a term that never counted."""
        with contextlib.suppress(ConnectionError):
            if self.is_in_place(live):
                self._remove(self.live_path(live.token))

    def collect(self, newest: int) -> None:
        """Remove older terms and all temporary files. Candidates that lost against this term then fail to publish."""
        for token in self.terms():
            if token < newest:
                self._remove(self.live_path(token))
        for name in filter(self._temporary_name.fullmatch, self._names()):
            self._remove(self.path.parent / name)

    def keep_evidence(self) -> None:
        """Keep an unreadable record under another name: it may be another program's file, or the trace of a fault."""
        with contextlib.suppress(OSError):
            os.link(self.path, self._beside("unreadable"))

    def make_durable(self, token: int) -> None:
        """Sync the term to disk, so that its number is never used again, even after a power cut. May take a while.

        Opens its own descriptors: the caller may be cancelled meanwhile and close those of the term.
        """
        for path in (self.live_path(token), self.path.parent):
            with self._explained("sync", path):
                number = os.open(path, _READ)
                try:
                    os.fsync(number)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # some file systems cannot sync a folder, and need not
                        raise
                finally:
                    os.close(number)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _names(self) -> list[str]:
        with self._explained("list", self.path.parent):
            return os.listdir(self.path.parent)  # noqa: PTH208 - names are enough

    def _is_far_term(self, number: int) -> bool | None:
        """Whether the text of the file names this number too; None when the file was removed."""
        try:
            text = self.read(self.live_path(number))
        except ConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno not in _NO_TEXT:
                raise  # unknown to us: if we ignored it while other candidates count it, we would follow other rules
            return False
        entry = None if text is None else decode(text)
        return None if text is None else entry is not None and entry.token == number

    def _is_at(self, path: Path, descriptor: Descriptor) -> bool:
        """Whether the file with this path is the one that we have open."""
        if not descriptor.is_open:
            return False
        with self._explained("look at", path):
            try:
                there = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - the same, shorter
            except FileNotFoundError:
                return False
            return os.path.samestat(there, os.fstat(descriptor.number))

    def _happened(self, what: str, path: Path, step: Callable[[], None]) -> bool:
        """Run an atomic step. Return False when it cannot succeed any more, because another candidate was first."""
        with self._explained(what, path):
            try:
                step()
            except (FileExistsError, FileNotFoundError):
                return False
            return True

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(OSError):  # removed already, or another user's
            path.unlink()

    @contextlib.contextmanager
    def _explained(self, what: str, path: Path) -> Iterator[None]:
        """Translate the system's errors into ConnectionError, with advice for the operator."""
        try:
            yield
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, "")
            if error.errno in (errno.EACCES, errno.EPERM):
                hint = (
                    f"this process runs as uid {os.geteuid()}, and every candidate must be able to read, create and "
                    f"replace files in {self.path.parent}. With the sticky bit, as in /tmp, only one user can; without "
                    "hard links, as on FAT, no user can"
                )
            message = f"cannot {what} {path}: {error.strerror or error}"
            raise ConnectionError(f"{message}. {hint[:1].upper()}{hint[1:]}" if hint else message) from error
