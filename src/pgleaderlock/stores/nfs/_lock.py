"""A lock between hosts that share a file system and nothing else, for blocking code and for coroutines.

Its names and its behaviour are those of flufl.lock, whose users need only change an import. What is unsafe there and
safe here is listed in ``docs/explanation/nfs-locks.md``.
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
from typing import Any, Literal, Self

from pgleaderlock._base.checks import quoted
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock._base.portable import at_fork
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import _host, _texts, _threads
from pgleaderlock.stores.nfs._acquiring import Patience, acquire
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._claim import Claimant, new_name
from pgleaderlock.stores.nfs._errors import AlreadyLockedError, LockError, NotLockedError, TimeOutError
from pgleaderlock.stores.nfs._folder import Folder, Seen
from pgleaderlock.stores.nfs._intervals import Interval, check_lifetime, seconds
from pgleaderlock.stores.nfs._waiting import Turnstile

SEP = "^" if sys.platform == "win32" else "|"
"""The separator of the parts of a claim's name. No part is ever parsed from that name."""

_LIFETIME = timedelta(seconds=15)
_UNDONE_WITHIN_S = 2.0  # one system call, on a healthy disk
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
# The attributes that are not settings, and so not copied: see _begin_anew.
_OF_ONE_OBJECT = frozenset({"_pid", "_claimfile", "_made", "_was_last", "_was_unlocked", "_loss", "_is_acquiring"})
_log = logging.getLogger("pgleaderlock.nfs")
# A lock lasts until it is unlocked, or expires, or the process ends, also when the caller drops the Lock object. These
# references keep its descriptor open: otherwise garbage collection would free what flock(2) locked.
_held: set[Candidate] = set()
at_fork(after_in_child=_held.clear)


class LockState(enum.Enum):
    """The state of a lock as seen from outside. For display: never decide by it."""

    unlocked = 1
    """The lock is free."""
    ours = 2
    """This process holds it."""
    ours_expired = 3
    """This process holds it, but its lifetime is over: the next candidate will break it."""
    stale = 4
    """A process of this host held it and has ended without unlocking."""
    theirs_expired = 5
    """Another process of this host holds it, but its lifetime is over, by that process's clock."""
    unknown = 6
    """Another process holds it, and this host cannot determine more."""


class Lock:
    """A lock named by a path, between any processes on any hosts that see this path.

    A holder that does not call :meth:`refresh` for its ``lifetime`` loses the lock to the next candidate: for work that
    takes longer, call it now and then. One object is for one thread or task at a time, and for one process: threads,
    tasks and processes that compete each need their own Lock. If a program drops the object without unlocking, the lock
    stays held until its lifetime is over or the process ends.
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
        """Reset to a new candidate of this process that holds nothing."""
        self._pid = os.getpid()
        self._claimfile = self._new_claimfile()
        self._made: tuple[Candidate, Turnstile] | None = None
        self._was_last = False
        self._was_unlocked = False
        self._loss: str | None = None
        self._is_acquiring = threading.Lock()  # held by the task or thread that is acquiring through this object

    def __getstate__(self) -> dict[str, object]:
        """Return the settings only: a copy is another candidate, which holds nothing."""
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
        """The path, as the caller gave it. The lock is a folder with this path."""
        return self._lockfile

    @property
    def claimfile(self) -> str:
        """The path of our claim, which exists while we wait for the lock or hold it."""
        return self._claimfile

    @property
    def lifetime(self) -> timedelta:
        """How long the lock lasts without a refresh; a new value applies from the next lock or refresh on."""
        return self._lifetime

    @lifetime.setter
    def lifetime(self, lifetime: Interval) -> None:
        self._lifetime = timedelta(seconds=check_lifetime("lifetime", lifetime))

    @property
    def retry_errnos(self) -> list[int]:
        """The errno values after which acquiring is retried, in addition to ENOENT and ESTALE."""
        return self._retry_errnos[:]

    @retry_errnos.setter
    def retry_errnos(self, errnos: list[int]) -> None:
        self._retry_errnos = list(errnos)

    @retry_errnos.deleter
    def retry_errnos(self) -> None:
        self._retry_errnos = []

    @property
    def details(self) -> tuple[str, int, str]:
        """Host, process id and lock file of the holder; NotLockedError when it is free or its claim is unreadable."""
        seen = self._seen()
        if seen is None or seen.claimant is None:
            raise NotLockedError(f"there are no details of {self._lockfile}: it is free, or its claim cannot be read")
        return seen.claimant.host, seen.claimant.pid, seen.claimant.lockfile

    @property
    def expiration(self) -> datetime:
        """When the lock expires unless its holder refreshes it, by the holder's clock, in local time. For display."""
        seen = self._seen()
        if seen is None:
            raise NotLockedError(f"{self._lockfile} is free: it has no expiration")
        return datetime.fromtimestamp(seen.expires_at)  # noqa: DTZ006 - as users of such locks know it

    @property
    def state(self) -> LockState:
        """The current state. For display: never decide by it who holds the lock."""
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
        """Our fencing token: greater than that of every earlier holder; None when this object holds nothing."""
        return None if self._made is None or self._pid != os.getpid() else self._made[0].epoch

    @property
    def is_locked(self) -> bool:
        """Whether this object holds the lock. Reading this is a refresh: the lifetime starts over."""
        if self._made is None or self._pid != os.getpid():
            return False
        candidate = self._made[0]
        epoch = candidate.epoch
        with self._explained():
            try:
                if epoch is not None:
                    candidate.change_lifetime(self._lifetime.total_seconds())
            finally:  # on a full disk a new lifetime cannot be written, but a heartbeat can be sent
                is_ours = candidate.renew()
        _keep(candidate, is_ours=is_ours)
        if not is_ours and epoch is not None:
            self._loss = _texts.lost(self._folder, candidate, epoch)
        return is_ours

    # --- Having it ---------------------------------------------------------------------------------------------

    def lock(self, timeout: Interval | None = None) -> None:
        """Acquire the lock; TimeOutError after ``timeout``, AlreadyLockedError if this object holds it already."""
        patience = self._retry_policy(timeout)
        self._begin_acquiring()
        try:
            with self._explained():
                self._acquire(patience)
        finally:
            self._is_acquiring.release()

    def unlock(self, *, unconditionally: bool = False) -> None:
        """Release the lock; NotLockedError if this object does not hold it, or lost it, unless ``unconditionally``."""
        self._was_last = self._made is not None and self._pid == os.getpid() and self._release(self._made[0])
        if self._was_last:
            _log.debug("unlocked: %s", self._lockfile)
        elif not unconditionally:
            raise self._not_locked("unlock")

    def refresh(self, lifetime: Interval | None = None, *, unconditionally: bool = False) -> None:
        """Restart the lifetime, or a new one; NotLockedError if the lock is not held, unless ``unconditionally``."""
        if lifetime is not None:
            self.lifetime = lifetime
        if not self.is_locked and not unconditionally:
            raise self._not_locked("refresh")

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(self, _type: object, exc: BaseException | None, *_: object) -> Literal[False]:
        try:
            self.unlock()
        except LockError as error:
            self._raise_unless(exc, error)
        return False

    # --- For coroutines ----------------------------------------------------------------------------------------

    async def lock_async(self, timeout: Interval | None = None) -> None:
        """Do as :meth:`lock`, in a thread: a file server that does not answer does not block the event loop.

        When cancelled, it leaves neither lock nor claim behind, unless the file server does not answer for 2 s: then
        its thread removes them later, and until then no task can lock through this object.
        """
        patience, is_cancelled = self._retry_policy(timeout), threading.Event()
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
        """Do as :meth:`unlock`, in a thread. When this is cancelled, the thread goes on."""
        await _threads.run(functools.partial(self.unlock, unconditionally=unconditionally))

    async def refresh_async(self, lifetime: Interval | None = None, *, unconditionally: bool = False) -> None:
        """Do as :meth:`refresh`, in a thread. When this is cancelled, the thread goes on."""
        await _threads.run(functools.partial(self.refresh, lifetime, unconditionally=unconditionally))

    async def __aenter__(self) -> Self:
        await self.lock_async()
        return self

    async def __aexit__(self, _type: object, exc: BaseException | None, *_: object) -> Literal[False]:
        try:
            await self.unlock_async()
        except LockError as error:
            self._raise_unless(exc, error)
        return False

    def _retry_policy(self, timeout: Interval | None) -> Patience:
        timeout_s = self._default_timeout_s if timeout is None else _timeout_s("timeout", timeout)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return Patience(deadline, frozenset(self._retry_errnos))

    def _begin_acquiring(self) -> None:
        """Refuse to acquire while another task or thread does: one claim cannot serve two candidates."""
        if self._pid != os.getpid():  # after a fork: the lock, the claim and the attempts are our parent's
            self._begin_anew()
        if not self._is_acquiring.acquire(blocking=False):
            raise AlreadyLockedError(
                f"{self._lockfile} is being acquired by another task or thread through the same Lock object: "
                "give each its own Lock"
            )

    def _acquire(self, patience: Patience) -> bool:
        candidate, turnstile = self._ready()
        try:  # an interruption at any point up to the end: then the lock must not stay held
            try:
                is_ours = acquire(candidate, turnstile, patience, steps_back=self._was_last)
            finally:
                turnstile.close()
            _log.debug("%s: %s, epoch %s", "locked" if is_ours else "gave up", self._lockfile, candidate.epoch)
        except BaseException as error:
            candidate.abandon()
            if isinstance(error, OSError):
                _log.error("cannot lock %s: %s", self._lockfile, place.explained(error, self._path))
            raise
        if not is_ours:
            if not patience.is_over:
                candidate.leave_note()
            candidate.abandon()
            raise TimeOutError(f"{self._lockfile} {self._why_not(patience)}")
        self._loss = None
        _keep(candidate, is_ours=True)
        return True

    def _why_not(self, patience: Patience) -> str:
        if patience.deadline is None or patience.is_over:
            return "was not acquired: the caller was cancelled"
        return _texts.not_acquired(self._folder, patience.waited_s, patience.deadline - patience.began_at)

    def _ready(self) -> tuple[Candidate, Turnstile]:
        """Return this process's candidate and its turnstile, holding nothing."""
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
            candidate = Candidate(self._folder, self._claimfile, claimant, suspend_aware_clock, is_local=is_local)
            self._made = candidate, Turnstile(self._path, is_local=is_local)
        candidate = self._made[0]
        if candidate.is_newest:
            raise AlreadyLockedError(f"{self._lockfile} is locked by this Lock object already")
        if candidate.epoch is not None:
            candidate.withdraw()
        candidate.change_lifetime(self._lifetime.total_seconds())
        return self._made

    def _release(self, candidate: Candidate) -> bool:
        epoch = candidate.epoch
        with self._explained():
            is_released = candidate.release()
        _keep(candidate, is_ours=False)
        if is_released:
            self._was_unlocked = True
        elif epoch is not None:
            self._loss = _texts.lost(self._folder, candidate, epoch)
        return is_released

    def _not_locked(self, deed: str) -> NotLockedError:
        if self._pid != os.getpid():
            why = _texts.FORKED
        elif self._loss is not None:
            return NotLockedError(f"{self._lockfile} {self._loss}")
        else:
            why = _texts.ALREADY_UNLOCKED if self._was_unlocked else _texts.NEVER_LOCKED
        return NotLockedError(f"cannot {deed} {self._lockfile}: {why}")

    @staticmethod
    def _raise_unless(under_way: BaseException | None, error: LockError) -> None:
        """Raise the error of unlocking, or log it while the body's own exception is propagating, which comes first."""
        if under_way is None:
            raise error
        _log.error("%s", error)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add advice to the text of an OSError. Its type and errno do not change."""
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
        raise ValueError(f"separator must consist of characters that a file name may have, got {quoted(separator)}")
    return separator


def _keep(candidate: Candidate, *, is_ours: bool) -> None:
    """Keep a reference to a candidate while it holds a lock, and to no other."""
    _held.difference_update([each for each in list(_held) if not each.is_trusted])
    if is_ours:
        _held.add(candidate)
    else:
        _held.discard(candidate)


def _timeout_s(name: str, timeout: Interval | None) -> float | None:
    """Return the seconds; a negative time-out means one try, as 0 does."""
    if timeout is None:
        return None
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    try:
        is_over = -math.inf < given < 0
    except TypeError:  # not a number: the check below raises the better error
        is_over = False
    return 0.0 if is_over else seconds(name, timeout, zero_ok=True)
