"""The files of one lock, and the few things that are ever done to them.

================== =============================================================================================
``epoch.<N>``      somebody's N-th possession of the lock: made once, with link(2), of a claim. The greatest counts.
``released.<N>``   the N-th possession is over: its holder said so.
``claim|…``        who wants the lock, or has it. Its time of modification is the heartbeat of its epoch.
================== =============================================================================================

**To acquire and to break is one step**: ``link(claim, epoch.<N+1>)``, which a file server lets exactly one client do.
What was decided about epoch N stays true however late the step comes: whoever held N was silent for its whole lifetime,
or said that it was done, and gets the lock back by the same step only.

**Nothing live is ever removed.** The greatest epoch is never removed at all, so numbers never come again. Old ones are,
and a late waker may be able to make one of those anew: so whoever made an epoch lists the folder again, and gives way
to a greater one. What a client made itself it also sees, together with everything that was there before: its own change
of the folder makes its cache of it invalid.

**A heartbeat is seen by opening**: on NFS, whoever opens a file is shown its times as they are on the server, while
stat(2) may show older ones. That holds as long as its holder has it open for writing, as it has: otherwise the server
may lend the file to a reader, who then looks at what it was lent, also when it is cut off from the server.

**A folder is seen by listing it**, but on NFS version 3 not always: a change in the same tick of the server's clock as
the state that was seen last stays invisible, without limit. A change of one's own cures that. So whoever made an epoch
sees everything, and whoever waits touches the folder now and then (:meth:`Folder.refresh`).

**Which file is an epoch.** Below ``_FAR``, the number in its name decides. From there on, where no epoch comes by
itself, a file is an epoch only if it begins as a claim does, of which every epoch is made. Other files with such
numbers, or with odd ones, are stray files: they are ignored, by all candidates alike, and named in the log. ``_FAR`` is
where 0.1.0 can count no further: its candidates fail beside such a file, so none takes what this rule gives to another.

Nothing here waits, and nothing decides by a clock. OSError leaves as it is: which of them are tried again is not
decided here.
"""

import contextlib
import errno
import fcntl
import functools
import math
import os
import random
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._files.descriptor import Descriptor
from pgleaderlock._logging import get_logger
from pgleaderlock.nfs._claim import Claimant, decode, is_beginning, is_name, is_note
from pgleaderlock.nfs._errors import LockError, MissingFolder

__all__ = ["VANISHED", "ClaimSeen", "Folder", "Listing", "Seen", "heartbeat_of", "remove", "write"]

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
_TAIL = 4096  # many times what it takes to say how long a lifetime is
_KEPT_EPOCHS = 4  # so many old ones stay: a late waker must be that late, and a listing that torn, to be misled
_COLLECTED_FROM = 2 * _KEPT_EPOCHS
_LEFTOVER_S = 600.0
_YEAR_S = 365 * 86400.0
_YOUNG_S = 5.0  # a claim is made a moment before it is locked
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
VANISHED = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in the folder."""

    newest: int
    """The greatest epoch; -1 when there is none yet."""
    is_released: bool
    """Whether the greatest epoch is over."""
    epochs: tuple[int, ...]
    marks: tuple[int, ...]
    """Which epochs are marked as over; one that was marked late may be gone."""
    claims: tuple[str, ...]
    strays: tuple[str, ...] = ()
    """Files that are called like an epoch or a mark, and are none."""
    notes: tuple[str, ...] = ()
    """What processes that gave up have left for the next ones of their host."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The greatest epoch, as its file shows it now."""

    epoch: int
    claimant: Claimant | None
    """None when its text cannot be read."""
    heartbeat: tuple[int, int, int]
    """Changes with every sign of life."""
    expires_at: float
    """By the clock of its holder. For people."""
    changed_at: float
    """When the last sign of life came, by the clock of the file server. For people."""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim, as its file shows it now. For people."""

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
        """Return the path of an epoch."""
        return f"{self.path}/epoch.{epoch}"

    def released_path(self, epoch: int) -> str:
        """Return the path of the mark that ends an epoch."""
        return f"{self.path}/released.{epoch}"

    # --- Looking -----------------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        """Return what is there. A folder that is something else's is refused."""
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
            if is_epoch is None:  # a later one has begun, which our list may not have
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
        """Name each stray file in the log, once."""
        for name in set(listing.strays) - self._named:
            self._named.add(name)
            self._logger.warning("stray_file_ignored", stray=name, advice="it is no part of this lock: remove it")

    def look(self) -> tuple[Listing, Seen | None]:
        """Return what is there, and the greatest epoch as it is now; None when nobody has it."""
        while True:
            listing = self.listing()
            if listing.newest < 0 or listing.is_released:
                return listing, None
            seen = self.see(listing.newest)
            if seen is not None:
                return listing, seen
            self.refresh()  # we may have listed an old state of the folder, and would again and again

    def see(self, epoch: int) -> Seen | None:
        """Return what this epoch's file shows; None when it is gone, and so a later one has begun."""
        try:
            with _opened(self.epoch_path(epoch)) as number:
                found = os.fstat(number)
                text = _text_of(number, found.st_size)
        except OSError as error:
            if error.errno in VANISHED:
                return None
            raise
        claimant = decode(text)
        return Seen(epoch, claimant, heartbeat_of(found), _expires_at(found, claimant), found.st_ctime)

    def see_claim(self, name: str) -> ClaimSeen | None:
        """Return what a claim's file shows; None when it is gone."""
        try:
            with _opened(f"{self.path}/{name}") as number:
                found = os.fstat(number)
                text = _text_of(number, found.st_size)
        except OSError as error:
            if error.errno in VANISHED:
                return None
            raise
        return ClaimSeen(name, decode(text), found.st_ino, found.st_nlink, found.st_ctime)

    def is_claim_alone(self, name: str) -> bool:
        """Whether nobody has this claim locked. Not to be asked of a young one, whose owner is about to."""
        return _is_unlocked(f"{self.path}/{name}")

    def is_epoch(self, epoch: int, found: os.stat_result) -> bool:
        """Whether this is the file of the epoch. Not so when somebody removed that, and perhaps another made it."""
        try:
            with _opened(self.epoch_path(epoch)) as number:
                return os.path.samestat(found, os.fstat(number))
        except OSError as error:
            if error.errno in VANISHED:
                return False
            raise

    def is_made_of(self, epoch: int, claim: str) -> bool:
        """Whether both names are of one file: the answer to a request may be lost, and its repetition refused.

        The number of its names alone does not tell: somebody else may have given it one.
        """
        try:
            with _opened(claim) as number:
                ours = os.fstat(number)
            if ours.st_nlink == 1:
                return False
            self.refresh()
            self.listing()  # a name that was not there a moment ago may be remembered as such
            return self.is_epoch(epoch, ours)
        except OSError:
            return False

    def is_alone(self, epoch: int) -> bool:
        """Whether nobody has this epoch's file locked. Only this kernel's own processes can be told of."""
        return _is_unlocked(self.epoch_path(epoch))

    def refresh(self) -> None:
        """Change the folder, so that the next listing is the server's."""
        with contextlib.suppress(OSError):  # it is not there yet, or may not be written: whoever needs it will say so
            os.utime(self.path)

    def server_now(self) -> float:
        """Return the time by the clock of the file server, as near as touching the folder shows it."""
        self.refresh()
        return os.stat(self.path).st_ctime  # noqa: PTH116 - the same, shorter

    # --- The steps ---------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the folder, unless it is there."""
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
        except PermissionError as error:  # it is that folder's permissions which matter, not those of what is missing
            raise PermissionError(error.errno, error.strerror, str(parent)) from error

    def lay_claim(self, path: str, text: bytes, *, is_local: bool) -> Descriptor:
        """Make a claim, complete before anything is done with it. It is closed in a child, and at our death."""
        if len(text) > _LARGEST_TEXT:  # nobody would read it to its end, and so know how long to wait
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
            if not is_local:  # where a full disk is reported later: what cannot be read is believed in for less long
                os.fsync(claim.number)
        except BaseException:
            claim.close()
            remove(path)
            raise
        return claim

    def begin(self, epoch: int, claim: str) -> bool:
        """Make the epoch of a claim. False when another was quicker. An answer that was lost is asked for again."""
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
        """Make the epoch of a claim, and see that it is the greatest. False when another has the lock."""
        if not self.begin(epoch, claim):
            return False
        listing = self.listing()
        if listing.newest > epoch:  # we come late: that number was used, and collected
            remove(self.epoch_path(epoch))
            return False
        self.collect(listing)
        return True

    def make_durable(self) -> None:
        """See that the epochs outlive a power cut, so that no number is given out twice. May take a while."""
        number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems cannot sync a folder, and need not
                raise
        finally:
            os.close(number)

    def release(self, epoch: int, claim: str) -> None:
        """Mark the epoch as over, by renaming its claim: one step, which leaves nothing else behind."""
        mark = self.released_path(epoch)
        try:
            os.rename(claim, mark)  # noqa: PTH104 - a str is enough
        except FileNotFoundError:  # somebody tidied up, or the answer to the same request was lost
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
        """Remove the claims of the dead, and return their names; when there are many, look at some by chance.

        On this host the kernel knows. Elsewhere, those that nobody has touched for a long time by the clock of the file
        server, which alone sets a file's time of change: whoever waits touches its claim now and then. A claim that is
        removed by mistake is made again by its owner.
        """
        now = self.server_now()  # not later: were we frozen after looking, the living would seem old
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

    # --- Helpers -----------------------------------------------------------------------------------------------

    def _is_far_epoch(self, epoch: int) -> bool | None:
        """Whether the file begins as a claim does; None when it is gone."""
        try:
            with _opened(self.epoch_path(epoch)) as number:
                text = os.read(number, _TAIL).strip(b"\0")
        except OSError as error:
            if error.errno in _NO_TEXT:
                return False
            if error.errno in VANISHED:
                return None
            raise  # it cannot be told, by us: to ignore what others may count would be another rule than theirs
        return bool(text) and is_beginning(text)

    def _check_link(self) -> None:
        """Refuse a link to nothing: it is there, and yet nothing can be made in it, however often that is tried."""
        try:
            target = os.readlink(self.path)  # noqa: PTH115 - as it is written there
        except OSError:
            return  # it is no link
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
            f"{self.path} cannot be used as a lock: a file is in its place, perhaps of flufl.lock. Contenders that "
            "lock in different ways would not see each other: choose another path; or, if it is of flufl.lock's, stop "
            "all programs that use it and remove that file"
        )


@functools.lru_cache(maxsize=1024)
def _read_name(name: str) -> tuple[str, int]:
    """Return what a file is by its name, and its number. A folder is listed often, and mostly has the same names."""
    kind, _, number = name.partition(".")
    if kind in ("epoch", "released") and _NUMBER.fullmatch(number):
        return (kind, int(number)) if int(number) <= _LARGEST else ("stray", 0)
    if kind in ("epoch", "released") and _ODD_NUMBER.fullmatch(number):
        return "odd", 0
    if is_name(name):
        return ("note" if is_note(name) else "claim"), 0
    return ("file server's" if _FILE_SERVERS_OWN.fullmatch(name) else "foreign"), 0


def heartbeat_of(found: os.stat_result) -> tuple[int, int, int]:
    """Return what changes with every sign of life."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def _expires_at(found: os.stat_result, claimant: Claimant | None) -> float:
    """Return what the heartbeat says; where the file system keeps no time so late, what its claim does. For people."""
    lifetime_s = 0.0 if claimant is None else claimant.lifetime_s
    if lifetime_s < _YEAR_S or found.st_mtime > found.st_ctime + lifetime_s / 2:
        return found.st_mtime
    return found.st_ctime + lifetime_s


def write(number: int, text: bytes) -> None:
    """Write all of it, or say that there is no space: a full disk takes a part, and complains the next time only."""
    if os.write(number, text) < len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove(path: str) -> None:
    """Remove a file of ours, if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - a str is enough


def _age_s(claim: str, now: float, held: Seen | None) -> float:
    """Return for how long the server has not seen this claim touched; that of whoever has the lock is not old."""
    try:
        with _opened(claim) as number:
            found = os.fstat(number)
    except OSError:
        return -math.inf  # it is gone
    if held is not None and found.st_ino == held.heartbeat[-1]:
        return -math.inf
    return now - found.st_ctime


def _is_claim(path: str) -> bool:
    """Whether it was written by one of us: nothing else is ever removed, whatever it is called."""
    try:
        with _opened(path) as number:
            return is_beginning(os.read(number, _TAIL))
    except OSError:
        return False


def _is_a_group_s(folder: Path) -> bool:
    """Whether a folder is one in which the users of a group work together."""
    mode = os.stat(folder).st_mode  # noqa: PTH116 - the same, shorter
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def _open_to_group(file: Path | int) -> None:
    """Let the group do all that we may, whatever our umask: it is one lock for all of them, whoever comes first."""
    with contextlib.suppress(OSError):  # not all file systems can
        mode = stat.S_IMODE(os.stat(file).st_mode)  # noqa: PTH116 - also of a descriptor
        os.chmod(file, mode | (mode & stat.S_IRWXU) >> 3)  # noqa: PTH101


def _text_of(number: int, size: int) -> bytes:
    """Return what a claim says; of a long one, its first line and its last ones: the last complete line counts.

    What was written since its size was told is no harm: with it, the heartbeat will be seen to have changed.
    """
    text = os.read(number, _LARGEST_TEXT)
    if size <= _LARGEST_TEXT:
        return text
    first, end, _ = text.partition(b"\n")
    last = os.pread(number, 2 * _TAIL, size - _TAIL).partition(b"\n")[2]
    return first + end + last


def _is_unlocked(path: str) -> bool:
    try:
        with _opened(path) as number:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _created(path: str, *, is_local: bool) -> Descriptor:
    """Make a file. A file server that does not answer keeps nobody else in this process from opening, or forking."""
    if is_local:
        return Descriptor(lambda: os.open(path, _CREATE, 0o664))
    number = os.open(path, _CREATE, 0o664)
    return Descriptor(lambda: number)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    number = os.open(path, _READ)
    try:
        yield number
    finally:
        os.close(number)
