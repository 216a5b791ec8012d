"""The files of one lock, and the operations on them.

================== =============================================================================================
``epoch.<N>``      the N-th possession of the lock: made once, with link(2), from a claim. The greatest N counts.
``released.<N>``   the N-th possession is over: its holder released it.
``claim|…``        a candidate or the holder. Its time of modification is the heartbeat of its epoch.
================== =============================================================================================

**Acquiring and breaking are one step**: ``link(claim, epoch.<N+1>)``, which succeeds for exactly one client of a file
server. The decision about epoch N stays true however late the step comes: the holder of N sent no heartbeat for its
whole lifetime, or released the lock, and can get it back by the same step only.

**No live file is ever removed.** The greatest epoch is never removed at all, so numbers are never used again. Old ones
are removed, and a candidate that was frozen may make one of those again: so a candidate that has made an epoch lists
the folder again, and withdraws if there is a greater one. That listing shows its own epoch and everything that was
there before: a client's own change of the folder invalidates its cache of it.

**A heartbeat is read by opening the file**: on NFS, open(2) fetches the times from the server, while stat(2) may show
older ones. That is so as long as the holder has the file open for writing, as it has: otherwise the server may give a
reader a delegation, and that reader then sees its own copy, also while it is cut off from the server.

**A folder is read by listing it**, but on NFS version 3 a listing may be outdated: a change in the same tick of the
server's clock as the state that was seen last stays invisible, without limit, until the client changes the folder
itself. So a candidate that has made an epoch sees everything, and a waiting one touches the folder now and then
(:meth:`Folder.refresh`).

**Which file is an epoch.** Below ``_FAR``, the number in its name decides. From there on, where counting never gets, a
file is an epoch only if it begins like a claim, from which every epoch is made. Other files with such numbers, or with
malformed ones, are stray files: all candidates ignore them, and name them in the log. ``_FAR`` is the last number that
0.1.0 can count to: its candidates fail beside such a file, so none of them takes a lock that this rule gives to another
candidate.

Nothing here waits, and nothing decides by a clock. OSError is raised unchanged: the callers decide which ones to retry.
"""

import contextlib
import errno
import functools
import math
import os
import random
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.nfs._claim import Claimant, decode, is_beginning, is_name, is_note
from pgleaderlock.stores.nfs._errors import LockError, MissingFolder

try:
    import fcntl
except ModuleNotFoundError as error:
    raise MissingExtra(
        "locks in a shared folder need fcntl, which this system does not have: choose another store"
    ) from error

_NUMBER = re.compile("0|[1-9][0-9]*")
_ODD_NUMBER = re.compile(r"[+-]?\d+")  # of any script
_FAR = 10**18 - 1
_LARGEST = 2**63 - 1  # as a token it must fit into a bigint
_NO_TEXT = (errno.EISDIR, errno.ELOOP, errno.ENXIO)  # of a folder, a link, a socket
# Files that are open and were removed, as clients of NFS, FUSE and SMB call them; and what a Mac leaves where it looks.
_FILE_SERVERS_OWN = re.compile(r"\.nfs[0-9a-f]+|\.fuse_hidden[0-9a-f]+|\.smbdelete.*|\.DS_Store", re.DOTALL)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_LARGEST_TEXT = 65536
_TAIL = 4096  # many times the length of a line with a lifetime
_KEPT_EPOCHS = 4  # so many old ones stay: only a candidate frozen for longer, with a torn listing, would be misled
_COLLECTED_FROM = 2 * _KEPT_EPOCHS
_LEFTOVER_S = 600.0
_YEAR_S = 365 * 86400.0
_YOUNG_S = 5.0  # a claim is made a moment before it is locked
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
VANISHED = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files in the folder, by kind."""

    newest: int
    """The greatest epoch; -1 when there is none yet."""
    is_released: bool
    """Whether the greatest epoch is over."""
    epochs: tuple[int, ...]
    marks: tuple[int, ...]
    """The epochs that are marked as over; the file of one that was marked late may be removed already."""
    claims: tuple[str, ...]
    strays: tuple[str, ...] = ()
    """Files that are named like an epoch or a mark but are not."""
    notes: tuple[str, ...] = ()
    """The notes of processes that timed out, for later processes of their host."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The greatest epoch, as its file is now."""

    epoch: int
    claimant: Claimant | None
    """None when its text cannot be read."""
    heartbeat: tuple[int, int, int]
    """Changes with every heartbeat."""
    expires_at: float
    """By the clock of its holder. For display."""
    changed_at: float
    """The time of the last heartbeat, by the clock of the file server. For display."""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim, as its file is now. For display."""

    name: str
    claimant: Claimant | None
    inode: int
    links: int
    touched_at: float
    """By the clock of the file server."""


class Folder:
    """The folder of the lock with this path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_a_group_s: bool | None = None
        self._named: set[str] = set()
        self._logger = get_logger().bind(lockfile=str(path))

    def epoch_path(self, epoch: int) -> str:
        return f"{self.path}/epoch.{epoch}"

    def released_path(self, epoch: int) -> str:
        """Return the path of the mark that ends an epoch."""
        return f"{self.path}/released.{epoch}"

    # --- Looking -----------------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        """Return the files of the lock. LockError for a folder that holds other files."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are enough
        except FileNotFoundError:
            self._check_link()
            return Listing(-1, is_released=False, epochs=(), marks=(), claims=())
        except NotADirectoryError:
            raise self._not_a_folder() from None
        found: dict[str, list[tuple[int, str]]] = {}
        for name in names:
            kind, number = _read_name(name)
            found.setdefault(kind, []).append((number, name))
        epochs, strays = [], [name for _, name in found.get("stray", [])]
        for number, name in found.get("epoch", []):
            is_epoch = number < _FAR or self._is_far_epoch(number)
            if is_epoch is None:  # removed, so a later one exists, which our listing may not show
                self.refresh()
                return self.listing()
            epochs.append(number) if is_epoch else strays.append(name)
        others = found.get("foreign", []) + ([] if epochs else found.get("odd", []))
        if others:
            raise LockError(
                f"{self.path} cannot be used as a lock: it holds other things ({others[0][1]!r}): name a path in it, "
                f"such as {self.path}/name.lock"
            )
        newest = max(epochs, default=-1)
        marks = tuple(number for number, _ in found.get("released", []))
        claims = tuple(name for _, name in found.get("claim", []))
        notes = tuple(name for _, name in found.get("note", []))
        strays += [name for _, name in found.get("odd", [])]
        return Listing(newest, newest in marks, tuple(epochs), marks, claims, tuple(sorted(strays)), notes)

    def name_strays(self, listing: Listing) -> None:
        """Log each stray file, once."""
        for name in set(listing.strays) - self._named:
            self._named.add(name)
            self._logger.warning("stray_file_ignored", stray=name, advice="it is no part of this lock: remove it")

    def look(self) -> tuple[Listing, Seen | None]:
        """Return the listing, and the greatest epoch as it is now; None for it when the lock is free."""
        while True:
            listing = self.listing()
            if listing.newest < 0 or listing.is_released:
                return listing, None
            seen = self.see(listing.newest)
            if seen is not None:
                return listing, seen
            self.refresh()  # the listing was outdated, and the next one might be too

    def see(self, epoch: int) -> Seen | None:
        """Return the state of this epoch's file; None when it was removed, which means that a later one exists."""
        read = _read_claim(self.epoch_path(epoch))
        if read is None:
            return None
        found, claimant = read
        return Seen(epoch, claimant, heartbeat_of(found), _expires_at(found, claimant), found.st_ctime)

    def see_claim(self, name: str) -> ClaimSeen | None:
        """Return the state of a claim's file; None when it was removed."""
        read = _read_claim(f"{self.path}/{name}")
        if read is None:
            return None
        found, claimant = read
        return ClaimSeen(name, claimant, found.st_ino, found.st_nlink, found.st_ctime)

    def is_claim_alone(self, name: str) -> bool:
        """Whether no process has this claim locked. Do not ask for a new claim, whose owner is about to lock it."""
        return _is_unlocked(f"{self.path}/{name}")

    def is_epoch(self, epoch: int, found: os.stat_result) -> bool:
        """Whether this is the file of the epoch. False when that was removed, also if a new one has its name."""
        try:
            with opened(self.epoch_path(epoch)) as number:
                return os.path.samestat(found, os.fstat(number))
        except OSError as error:
            if error.errno in VANISHED:
                return False
            raise

    def is_made_of(self, epoch: int, claim: str) -> bool:
        """Whether the epoch and the claim are one file: the answer to link(2) may be lost, and its repetition refused.

        The link count alone does not prove it: another program may have linked the claim.
        """
        try:
            with opened(claim) as number:
                ours = os.fstat(number)
            if ours.st_nlink == 1:
                return False
            self.refresh()
            self.listing()  # the client may have cached that the name does not exist
            return self.is_epoch(epoch, ours)
        except OSError:
            return False

    def is_alone(self, epoch: int) -> bool:
        """Whether no process has this epoch's file locked. Only processes of this host are known to its kernel."""
        return _is_unlocked(self.epoch_path(epoch))

    def refresh(self) -> None:
        """Touch the folder, so that the next listing comes from the server and not from a cache."""
        with contextlib.suppress(OSError):  # it does not exist yet, or is not writable: the next step raises that
            os.utime(self.path)

    def server_now(self) -> float:
        """Touch the folder, and return its time of change: the current time by the clock of the file server."""
        self.refresh()
        return os.stat(self.path).st_ctime  # noqa: PTH116 - the same, shorter

    # --- The steps ---------------------------------------------------------------------------------------------

    def make(self) -> None:
        parent = self.path.parent
        try:
            self.path.mkdir()
            if _is_a_group_s(self.path.parent):
                _open_to_group(self.path)
        except FileExistsError:
            self._check_link()
        except FileNotFoundError:
            raise MissingFolder(f"the folder {parent} does not exist: create it, for {self.path}") from None
        except NotADirectoryError:
            raise self._not_a_folder() from None
        except PermissionError as error:  # the parent's permissions matter: the folder itself does not exist
            raise PermissionError(error.errno, error.strerror, str(parent)) from error

    def lay_claim(self, path: str, text: bytes, *, is_local: bool) -> Descriptor:
        """Make a claim file with this text, and return it open. It is closed in a forked child, and when we die."""
        if len(text) > _LARGEST_TEXT:  # other candidates would not read it to its end, and so not know its lifetime
            raise LockError(f"the path and the names of a claim on {self.path} are too long: {len(text)} bytes in all")
        try:
            claim = _created(path, is_local=is_local)
        except FileNotFoundError:
            self.make()
            claim = _created(path, is_local=is_local)
        except NotADirectoryError:
            raise self._not_a_folder() from None
        try:
            if is_local:
                fcntl.flock(claim.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write(claim.number, text)
            if self._is_a_group_s is None:
                self._is_a_group_s = _is_a_group_s(self.path)
            if self._is_a_group_s:
                _open_to_group(claim.number)
            if not is_local:  # a full disk is reported late, and an unreadable claim gets its reader's lifetime
                os.fsync(claim.number)
        except BaseException:
            claim.close()
            remove(path)
            raise
        return claim

    def begin(self, epoch: int, claim: str) -> bool:
        """Make the epoch from a claim. Return False when another candidate made it. Detects a lost answer."""
        if epoch > _LARGEST:
            raise LockError(
                f"no epoch can follow epoch.{epoch - 1} in {self.path}, which is the last number there is and was not "
                "reached by counting: stop every program that uses this lock, remove that file, and start them again"
            )
        try:
            os.link(claim, self.epoch_path(epoch))
        except OSError as error:
            if self.is_made_of(epoch, claim):
                return True
            if error.errno == errno.EEXIST:
                if epoch >= _FAR and f"epoch.{epoch}" in self.listing().strays:
                    stray = self.epoch_path(epoch)
                    raise LockError(
                        f"{stray} is not an epoch of this lock, but has the name of the next: remove it"
                    ) from error
                return False
            if error.errno in _NO_LINKS:
                raise LockError(
                    f"the file system of {self.path} has no hard links ({error.strerror}), and such a lock is made of "
                    "them: choose a path on one that has, such as NFS, ext4 or XFS, and not FAT"
                ) from error
            raise
        return True

    def take(self, epoch: int, claim: str) -> bool:
        """Make the epoch from a claim, and check that it is the greatest. Return False when another has the lock."""
        if not self.begin(epoch, claim):
            return False
        listing = self.listing()
        if listing.newest > epoch:  # we are too late: that number was used before, and its file removed
            remove(self.epoch_path(epoch))
            return False
        self.collect(listing)
        return True

    def make_durable(self) -> None:
        """Sync the folder, so that the epochs survive a power cut and no number is used twice. May take a while."""
        number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems cannot sync a folder, and need not
                raise
        finally:
            os.close(number)

    def release(self, epoch: int, claim: str) -> None:
        """Mark the epoch as released, by renaming its claim: one step, which also removes the claim."""
        mark = self.released_path(epoch)
        try:
            os.rename(claim, mark)  # noqa: PTH104 - a str is enough
        except FileNotFoundError:  # another candidate removed the claim, or the answer to the first rename was lost
            with contextlib.suppress(FileExistsError):
                os.close(os.open(mark, _CREATE, 0o664))

    def collect(self, listing: Listing) -> None:
        """Remove epochs that are long over, and their marks."""
        if len(listing.epochs) < _COLLECTED_FROM:
            return
        for epoch in {*listing.epochs, *listing.marks}:
            if epoch < listing.newest - _KEPT_EPOCHS:
                remove(self.released_path(epoch))
                remove(self.epoch_path(epoch))

    def tidy(
        self, *, is_local: bool, at_most: int | None = None, is_enough: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Remove the claims of dead candidates, and return their names; of more than ``at_most``, check a sample.

        On a local disk the kernel knows which are dead. Elsewhere it is those that were not touched for 600 s by the
        clock of the file server, which alone sets a file's time of change: a waiting candidate touches its claim every
        20 s. A claim that is removed by mistake is made again by its owner.
        """
        now = self.server_now()  # before looking: if we were frozen after it, live claims would seem old
        listing, seen = self.look()
        claims, leftovers = listing.claims, []
        if at_most is not None and len(claims) > at_most:
            claims = tuple(random.sample(claims, at_most))
        for name in claims:
            path = f"{self.path}/{name}"
            age_s = _age_s(path, now, seen)
            is_old = age_s > _LEFTOVER_S or (is_local and age_s > _YOUNG_S and _is_unlocked(path))
            if is_old and _is_claim(path):
                remove(path)
                leftovers.append(name)
            if is_enough():
                break
        return leftovers

    def _is_far_epoch(self, epoch: int) -> bool | None:
        """Whether the file begins like a claim; None when it was removed."""
        try:
            with opened(self.epoch_path(epoch)) as number:
                text = os.read(number, _TAIL).strip(b"\0")
        except OSError as error:
            if error.errno in _NO_TEXT:
                return False
            if error.errno in VANISHED:
                return None
            raise  # unknown to us: if we ignored it while other candidates count it, we would follow different rules
        return bool(text) and is_beginning(text)

    def _check_link(self) -> None:
        """Refuse a dangling symbolic link: it exists, so mkdir fails, and yet no file can be made in it."""
        try:
            target = os.readlink(self.path)  # noqa: PTH115 - as it is written there
        except OSError:
            return  # it is not a link
        if not self.path.exists():
            raise LockError(
                f"{self.path} cannot be used as a lock: it is a link to {target}, which does not exist. Make that "
                "folder, mount what it is on, or remove the link"
            )

    def _not_a_folder(self) -> LockError:
        above = next((each for each in self.path.parents if each.exists() and not each.is_dir()), None)
        if above is not None:
            return LockError(f"{self.path} cannot be used as a lock: {above} is a file, not a folder")
        return LockError(
            f"{self.path} cannot be used as a lock: a file is in its place, perhaps of flufl.lock. Candidates that "
            "lock in different ways would not see each other: choose another path; or, if it is of flufl.lock's, stop "
            "all programs that use it and remove that file"
        )


@functools.lru_cache(maxsize=1024)
def _read_name(name: str) -> tuple[str, int]:
    """Return the kind and number of a file by its name. Cached, because each listing has mostly the same names."""
    kind, _, number = name.partition(".")
    if kind in ("epoch", "released") and _NUMBER.fullmatch(number):
        return (kind, int(number)) if int(number) <= _LARGEST else ("stray", 0)
    if kind in ("epoch", "released") and _ODD_NUMBER.fullmatch(number):
        return "odd", 0
    if is_name(name):
        return ("note" if is_note(name) else "claim"), 0
    return ("file server's" if _FILE_SERVERS_OWN.fullmatch(name) else "foreign"), 0


def heartbeat_of(found: os.stat_result) -> tuple[int, int, int]:
    """Return the values of which one changes with every heartbeat."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def _expires_at(found: os.stat_result, claimant: Claimant | None) -> float:
    """Return when the epoch expires: by its heartbeat, or by its claim where the file system stores no time so late."""
    lifetime_s = 0.0 if claimant is None else claimant.lifetime_s
    if lifetime_s < _YEAR_S or found.st_mtime > found.st_ctime + lifetime_s / 2:
        return found.st_mtime
    return found.st_ctime + lifetime_s


def write(number: int, text: bytes) -> None:
    """Write all of it, or raise ENOSPC: a full disk accepts a part, and reports an error at the next write only."""
    if os.write(number, text) < len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove(path: str) -> None:
    """Remove a file of the lock, if it exists and we are permitted to."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - a str is enough


def _age_s(claim: str, now: float, held: Seen | None) -> float:
    """Return the seconds since this claim was touched, by the server's clock; -inf if it is the holder's or removed."""
    try:
        with opened(claim) as number:
            found = os.fstat(number)
    except OSError:
        return -math.inf  # it was removed
    if held is not None and found.st_ino == held.heartbeat[-1]:
        return -math.inf
    return now - found.st_ctime


def _is_claim(path: str) -> bool:
    """Whether a candidate wrote this file: no other file is ever removed, whatever its name."""
    try:
        with opened(path) as number:
            return is_beginning(os.read(number, _TAIL))
    except OSError:
        return False


def _is_a_group_s(folder: Path) -> bool:
    """Whether the users of a group share this folder: it is setgid and writable by the group."""
    mode = os.stat(folder).st_mode  # noqa: PTH116 - the same, shorter
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def _open_to_group(file: Path | int) -> None:
    """Give the group our own permissions, whatever our umask: all its users share the lock, whichever made the file."""
    with contextlib.suppress(OSError):  # not all file systems can
        mode = stat.S_IMODE(os.stat(file).st_mode)  # noqa: PTH116 - also of a descriptor
        os.chmod(file, mode | (mode & stat.S_IRWXU) >> 3)  # noqa: PTH101


def _read_claim(path: str) -> tuple[os.stat_result, Claimant | None] | None:
    """Return the state and the content of a claim, or of the epoch that it became; None when it was removed."""
    try:
        with opened(path) as number:
            found = os.fstat(number)
            return found, decode(_text_of(number, found.st_size))
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise


def _text_of(number: int, size: int) -> bytes:
    """Return the text of a claim; of a long one, its first line and its last ones: the last complete line counts.

    Text that was written after ``size`` was read does no harm: the next look shows a changed heartbeat.
    """
    text = os.read(number, _LARGEST_TEXT)
    if size <= _LARGEST_TEXT:
        return text
    first, end, _ = text.partition(b"\n")
    last = os.pread(number, 2 * _TAIL, size - _TAIL).partition(b"\n")[2]
    return first + end + last


def _is_unlocked(path: str) -> bool:
    try:
        with opened(path) as number:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _created(path: str, *, is_local: bool) -> Descriptor:
    """Make a file. On a file server it is opened outside the Descriptor's lock, which blocks other opens and forks."""
    if is_local:
        return Descriptor(lambda: os.open(path, _CREATE, 0o664))
    number = os.open(path, _CREATE, 0o664)
    return Descriptor(lambda: number)


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file to read it, within the block."""
    number = os.open(path, _READ)
    try:
        yield number
    finally:
        os.close(number)
