"""A lock between hosts that share nothing but a file system, for blocking code and for coroutines.

Its names and its behaviour are those of flufl.lock, whose users need change nothing but an import. What was unsafe
there and is safe here is listed in ``docs/explanation/nfs-locks.md``.
"""

import contextlib
import enum
import functools
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from pgleaderlock._checks import quoted
from pgleaderlock._files import place
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.nfs import _host, _texts, _threads
from pgleaderlock.nfs._acquiring import Patience, acquire
from pgleaderlock.nfs._claim import Claimant, new_name
from pgleaderlock.nfs._contender import Contender
from pgleaderlock.nfs._errors import AlreadyLockedError, LockError, NotLockedError, TimeOutError
from pgleaderlock.nfs._folder import Folder, Seen
from pgleaderlock.nfs._intervals import Interval, check_lifetime, seconds
from pgleaderlock.nfs._waiting import Turnstile

__all__ = ["SEP", "Lock", "LockState"]

SEP = "^" if sys.platform == "win32" else "|"
"""What stands between the parts of a claim's name. Nothing is ever read from that name."""

_LIFETIME = timedelta(seconds=15)
_UNDONE_WITHIN_S = 2.0  # one system call, on a healthy disk
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
# What is not a setting, and so not copied: see _begin_anew.
_OF_ONE_OBJECT = frozenset({"_pid", "_claimfile", "_made", "_was_last", "_was_unlocked", "_loss", "_is_acquiring"})
_log = logging.getLogger("pgleaderlock.nfs")
# A lock lasts until it is unlocked, or expires, or the process ends: also when nobody has the object any more, with
# whose end the kernel would free what flock(2) locked.
_held: set[Contender] = set()
os.register_at_fork(after_in_child=_held.clear)


class LockState(enum.Enum):
    """What can be told about a lock from outside. For people: nothing is decided by it."""

    unlocked = 1
    """Nobody has it."""
    ours = 2
    """This process has it."""
    ours_expired = 3
    """This process has had it for longer than its lifetime: the next who asks will break it."""
    stale = 4
    """A process of this host had it that is no more."""
    theirs_expired = 5
    """Another process of this host has had it for longer than its lifetime, by its own clock."""
    unknown = 6
    """Another has it, about whom nothing more can be told from here."""


class Lock:
    """A lock named by a path, between any processes on any hosts that see this path.

    Whoever holds it and falls silent for its ``lifetime`` loses it to the next who asks: for work that takes longer,
    call :meth:`refresh` now and then. One object is for one thread or task at a time, and for one process: whoever
    competes with another has a Lock of its own. Whoever drops it without a word has the lock for as long as it would
    have otherwise, or until the process ends.
    """

    def __init__(
        self,
        lockfile: str | os.PathLike[str],
        lifetime: Interval | None = None,
        separator: str = SEP,
        default_timeout: Interval | None = None,
    ) -> None:
        self._lockfile = _checked_lockfile(lockfile)
        self._path = place.path_of(self._lockfile, scheme="nfs", takes_url=False)
        self._separator = _checked_separator(separator)
        self._lifetime = timedelta(seconds=check_lifetime("lifetime", _LIFETIME if lifetime is None else lifetime))
        self._default_timeout_s = _timeout_s("default_timeout", default_timeout)
        self._folder = Folder(self._path)
        self._retry_errnos: list[int] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Be a contender of this process that has nothing in hand."""
        self._pid = os.getpid()
        self._claimfile = self._new_claimfile()
        self._made: tuple[Contender, Turnstile] | None = None
        self._was_last = False
        self._was_unlocked = False
        self._loss: str | None = None
        self._is_acquiring = threading.Lock()  # held by whoever is about to get the lock through this object

    def __getstate__(self) -> dict[str, object]:
        """Only the settings: a copy is another contender, which holds nothing."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_ONE_OBJECT}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._retry_errnos = self._retry_errnos[:]
        self._begin_anew()

    def __repr__(self) -> str:
        is_locked = self._made is not None and self._made[0].is_trusted
        state = "locked" if is_locked else "unlocked"
        return (
            f"<{type(self).__name__} {self._lockfile} [{state}: {self._lifetime}] pid={os.getpid()} at {id(self):#x}>"
        )

    # --- What is known of it -----------------------------------------------------------------------------------

    @property
    def hostname(self) -> str:
        """The name of this host, as in :attr:`details`."""
        return _host.hostname()

    @property
    def lockfile(self) -> str:
        """The path, as it was given. A folder will be there."""
        return self._lockfile

    @property
    def claimfile(self) -> str:
        """The path of our claim, which is there while we want the lock or have it."""
        return self._claimfile

    @property
    def lifetime(self) -> timedelta:
        """How long silence lasts before the lock is lost; another is in force from the next lock or refresh on."""
        return self._lifetime

    @lifetime.setter
    def lifetime(self, lifetime: Interval) -> None:
        self._lifetime = timedelta(seconds=check_lifetime("lifetime", lifetime))

    @property
    def retry_errnos(self) -> list[int]:
        """Which errors of the system are tried again, beside ENOENT and ESTALE."""
        return self._retry_errnos[:]

    @retry_errnos.setter
    def retry_errnos(self, errnos: list[int]) -> None:
        self._retry_errnos = list(errnos)

    @retry_errnos.deleter
    def retry_errnos(self) -> None:
        self._retry_errnos = []

    @property
    def details(self) -> tuple[str, int, str]:
        """Host, process id and lock file of whoever has the lock; NotLockedError when that cannot be told."""
        seen = self._seen()
        if seen is None or seen.claimant is None:
            raise NotLockedError(f"there are no details of {self._lockfile}: nobody has it, or it cannot be read")
        return seen.claimant.host, seen.claimant.pid, seen.claimant.lockfile

    @property
    def expiration(self) -> datetime:
        """When whoever has the lock loses it unless it is refreshed, by its own clock, in local time. For people."""
        seen = self._seen()
        if seen is None:
            raise NotLockedError(f"nobody has {self._lockfile}")
        return datetime.fromtimestamp(seen.expires_at)  # noqa: DTZ006 - as users of such locks know it

    @property
    def state(self) -> LockState:
        """What can be told about it now. For people: never decide by it who has the lock."""
        seen = self._seen()
        if seen is None:
            return LockState.unlocked
        if seen.claimant is None or seen.claimant.host != self.hostname:
            return LockState.unknown
        is_expired = seen.expires_at < time.time()
        if seen.claimant.pid == os.getpid():
            return LockState.ours_expired if is_expired else LockState.ours
        if _host.is_running(seen.claimant.pid):
            return LockState.theirs_expired if is_expired else LockState.unknown
        return LockState.stale

    @property
    def token(self) -> int | None:
        """The number of our possession, for fencing: greater than that of everybody before us; None without one."""
        return None if self._made is None or self._pid != os.getpid() else self._made[0].epoch

    @property
    def is_locked(self) -> bool:
        """Whether we have the lock. Asking is a sign of life, and begins its lifetime anew."""
        if self._made is None or self._pid != os.getpid():
            return False
        contender = self._made[0]
        epoch = contender.epoch
        with self._explained():
            try:
                if epoch is not None:
                    contender.change_lifetime(self._lifetime.total_seconds())
            finally:  # a full disk keeps a new lifetime from being written, and nobody from a sign of life
                is_ours = contender.renew()
        _keep(contender, is_ours=is_ours)
        if not is_ours and epoch is not None:
            self._loss = _texts.lost(self._folder, contender, epoch)
        return is_ours

    # --- Having it ---------------------------------------------------------------------------------------------

    def lock(self, timeout: Interval | None = None) -> None:
        """Acquire the lock; TimeOutError if that takes longer than ``timeout``, AlreadyLockedError if it is ours."""
        patience = self._patience(timeout)
        self._begin_acquiring()
        try:
            with self._explained():
                self._acquire(patience)
        finally:
            self._is_acquiring.release()

    def unlock(self, *, unconditionally: bool = False) -> None:
        """Release the lock; NotLockedError when it is not ours, or no longer, unless ``unconditionally``."""
        self._was_last = self._made is not None and self._pid == os.getpid() and self._release(self._made[0])
        if self._was_last:
            _log.debug("unlocked: %s", self._lockfile)
        elif not unconditionally:
            raise self._not_locked("unlock")

    def refresh(self, lifetime: Interval | None = None, *, unconditionally: bool = False) -> None:
        """Begin the lifetime anew, or another one; NotLockedError when it is not ours, unless ``unconditionally``."""
        if lifetime is not None:
            self.lifetime = lifetime
        if not self.is_locked and not unconditionally:
            raise self._not_locked("refresh")

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        try:
            self.unlock()
        except LockError as error:
            self._raise_unless(exc, error)
        return False

    # --- For coroutines ----------------------------------------------------------------------------------------

    async def lock_async(self, timeout: Interval | None = None) -> None:
        """Do as :meth:`lock`, in a thread: a file server that does not answer keeps nobody else waiting.

        When cancelled, it leaves neither lock nor claim behind, unless the file server does not answer for 2 s: then
        its thread does so later, and until then nobody else can lock through this object.
        """
        patience, is_cancelled = self._patience(timeout), threading.Event()
        patience.is_cancelled = is_cancelled
        self._begin_acquiring()
        work = _threads.Undoable(
            lambda: self._acquire(patience),
            functools.partial(self.unlock, unconditionally=True),
            is_cancelled,
            at_end=self._is_acquiring.release,
            undone_within_s=_UNDONE_WITHIN_S,
        )
        with self._explained():
            await work.run()

    async def unlock_async(self, *, unconditionally: bool = False) -> None:
        """Do as :meth:`unlock`, in a thread. When cancelled, it goes on there."""
        await _threads.run(functools.partial(self.unlock, unconditionally=unconditionally))

    async def refresh_async(self, lifetime: Interval | None = None, *, unconditionally: bool = False) -> None:
        """Do as :meth:`refresh`, in a thread. When cancelled, it goes on there."""
        await _threads.run(functools.partial(self.refresh, lifetime, unconditionally=unconditionally))

    async def __aenter__(self) -> Self:
        await self.lock_async()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        try:
            await self.unlock_async()
        except LockError as error:
            self._raise_unless(exc, error)
        return False

    # --- How ---------------------------------------------------------------------------------------------------

    def _patience(self, timeout: Interval | None) -> Patience:
        timeout_s = self._default_timeout_s if timeout is None else _timeout_s("timeout", timeout)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return Patience(deadline, frozenset(self._retry_errnos))

    def _begin_acquiring(self) -> None:
        """Refuse to begin what another is at: one claim cannot be two contenders'."""
        if self._pid != os.getpid():  # what our parent has is not ours, nor is its name, nor what its threads are at
            self._begin_anew()
        if not self._is_acquiring.acquire(blocking=False):
            raise AlreadyLockedError(
                f"{self._lockfile} is being acquired by another task or thread through this very object: "
                "give each its own Lock"
            )

    def _acquire(self, patience: Patience) -> bool:
        contender, turnstile = self._ready()
        try:  # whatever interrupts us, until the end: what we have then is nobody's
            try:
                is_ours = acquire(contender, turnstile, patience, steps_back=self._was_last)
            finally:
                turnstile.close()
            _log.debug("%s: %s, epoch %s", "locked" if is_ours else "gave up", self._lockfile, contender.epoch)
        except BaseException as error:
            contender.abandon()
            if isinstance(error, OSError):
                _log.error("cannot lock %s: %s", self._lockfile, place.explained(error, self._path))
            raise
        if not is_ours:
            if not patience.is_over:
                contender.leave_note()
            contender.abandon()
            raise TimeOutError(f"{self._lockfile} {self._why_not(patience)}")
        self._loss = None
        _keep(contender, is_ours=True)
        return True

    def _why_not(self, patience: Patience) -> str:
        if patience.deadline is None or patience.is_over:
            return "is not wanted any more"
        return _texts.not_to_be_had(self._folder, patience.waited_s, patience.deadline - patience.began_at)

    def _ready(self) -> tuple[Contender, Turnstile]:
        """Return who we are in this process, with nothing in hand."""
        if self._made is None:
            is_local = place.is_local(self._path)
            claimant = Claimant(
                name=self._claimfile,
                host=self.hostname,
                pid=self._pid,
                lockfile=str(self._path),
                lifetime_s=self._lifetime.total_seconds(),
                claimfile=self._claimfile,
            )
            contender = Contender(self._folder, self._claimfile, claimant, suspend_aware_clock, is_local=is_local)
            self._made = contender, Turnstile(self._path, is_local=is_local)
        contender = self._made[0]
        if contender.is_newest:
            raise AlreadyLockedError(f"{self._lockfile} is locked by this very object")
        if contender.epoch is not None:
            contender.withdraw()
        contender.change_lifetime(self._lifetime.total_seconds())
        return self._made

    def _release(self, contender: Contender) -> bool:
        epoch = contender.epoch
        with self._explained():
            is_released = contender.release()
        _keep(contender, is_ours=False)
        if is_released:
            self._was_unlocked = True
        elif epoch is not None:
            self._loss = _texts.lost(self._folder, contender, epoch)
        return is_released

    def _not_locked(self, deed: str) -> NotLockedError:
        if self._pid != os.getpid():
            why = _texts.FORKED
        elif self._loss is not None:
            return NotLockedError(f"{self._lockfile} {self._loss}")
        else:
            why = _texts.ALREADY_UNLOCKED if self._was_unlocked else _texts.NEVER_LOCKED
        return NotLockedError(f"{self._lockfile} is not ours to {deed}: {why}")

    @staticmethod
    def _raise_unless(under_way: BaseException | None, error: LockError) -> None:
        """Raise what unlocking raised; but an exception under way is what its user has to hear of first."""
        if under_way is None:
            raise error
        _log.error("%s", error)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add what to do to an error of the system. It stays what it is."""
        try:
            yield
        except OSError as error:
            explained = place.explained(error, self._path)
            if explained is error:
                raise
            raise explained from error

    def _new_claimfile(self) -> str:
        return f"{self._path}/{new_name(self._path.name, _host.hostname(), self._separator)}"

    def _seen(self) -> Seen | None:
        with self._explained():
            return self._folder.look()[1]


def _checked_lockfile(lockfile: Any) -> str:
    text = os.fspath(lockfile) if isinstance(lockfile, os.PathLike) else lockfile
    if not isinstance(text, str):
        raise TypeError(f"lockfile must be a str or a Path, not {type(lockfile).__name__}")
    if _URL.match(text):
        raise ValueError(f"{quoted(text)} cannot be locked: this is a URL: Lock takes a path")
    return text


def _checked_separator(separator: Any) -> str:
    if not isinstance(separator, str):
        raise TypeError(f"separator must be a str, not {type(separator).__name__}")
    if not separator or set(separator) & set("/\0"):
        raise ValueError(f"separator must be something that the name of a file can have, got {quoted(separator)}")
    return separator


def _keep(contender: Contender, *, is_ours: bool) -> None:
    """Keep what is held, and nothing that is over."""
    _held.difference_update([each for each in list(_held) if not each.is_trusted])
    if is_ours:
        _held.add(contender)
    else:
        _held.discard(contender)


def _timeout_s(name: str, timeout: Interval | None) -> float | None:
    """Return the seconds; one that is over before it begins is for one try, as 0 is."""
    if timeout is None:
        return None
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    try:
        is_over = -math.inf < given < 0
    except TypeError:  # no number, of which the check has more to say
        is_over = False
    return 0.0 if is_over else seconds(name, timeout, zero_ok=True)
