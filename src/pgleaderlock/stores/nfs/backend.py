"""A lease in a folder that several hosts share, over NFS or any file system that has hard links.

The folder is that of :mod:`pgleaderlock.stores.nfs`: a term is an epoch, its number the token; a renewal is a
heartbeat, which other candidates see by opening the epoch's file. The election rules are those of :mod:`.record`, as
for every lease store, with one addition. A heartbeat is no compare-and-swap: it succeeds also while another candidate
is taking over. So it counts only if it was answered before the validity of the previous one ended, because until then
no other candidate can take over.

**Followers look at the folder** every 0.8 s (``poll_s``), and at once when a process of the same host has released the
lock: a file system does not notify of changes by other hosts. That is less than two wake-ups a second, without those in
which the thread waits for the file server.

**Every call runs in a thread of its own.** A file server that does not answer blocks that thread for any time, but
never the event loop. The effect of a call that was cancelled is undone by its thread.

A :class:`pgleaderlock.stores.nfs.Lock` with the same path competes with these elections: they exclude each other.

Not supported: file systems whose link(2) is not atomic between hosts, or that show an opened file's times late (NFS
mounted with ``nocto``, which is refused where the system reports it; FUSE mounts with caches, such as sshfs); files
that are removed or edited by hand.
"""

import asyncio
import contextlib
import math
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError, LeadershipLost, PgLeaderLockError
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import _threads
from pgleaderlock.stores.nfs._candidate import Candidate, as_record
from pgleaderlock.stores.nfs._claim import Claimant, new_name
from pgleaderlock.stores.nfs._folder import Folder
from pgleaderlock.stores.nfs._intervals import check_lifetime
from pgleaderlock.stores.nfs._watcher import FolderWatcher
from pgleaderlock.stores.record import Claim, Record, RecordBackend, RecordStore, check_identity, default_identity
from pgleaderlock.stores.times import USUAL_LEASE_S

__all__ = ["NfsStore", "open_nfs"]

T = TypeVar("T")

_POLL_S = 0.8  # a follower that is idle wakes up less than twice a second
_REFRESH_EVERY_S = 0.5
_MOST_THREADS = 8  # that a file server may block by not answering


def open_nfs(
    url_or_path: str | os.PathLike[str],
    *,
    lease_s: float = USUAL_LEASE_S,
    identity: str | None = None,
    clock: Clock = suspend_aware_clock,
    poll_s: float = _POLL_S,
    address: str | None = None,
) -> RecordBackend:
    """Return a candidate for the lock in the folder with this path. Nothing is opened yet."""
    identity = default_identity() if identity is None else identity
    store = NfsStore(url_or_path, lease_s=lease_s, identity=identity, clock=clock, poll_s=poll_s)
    return RecordBackend(store, identity=identity, lease_s=lease_s, clock=clock, address=address)


class NfsStore(RecordStore):
    """The newest epoch of a folder, as a record."""

    carries_address = True

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        *,
        lease_s: float = USUAL_LEASE_S,
        identity: str | None = None,
        clock: Clock = suspend_aware_clock,
        poll_s: float = _POLL_S,
    ) -> None:
        self._path = place.path_of(url_or_path, scheme="nfs")
        self._identity = None if identity is None else check_identity(identity)
        self._lease_s = check_lifetime("lease_s", lease_s)
        self._poll_s = check_seconds("poll_s", poll_s)
        self._clock = clock
        self._folder = Folder(self._path)
        self._term: Candidate | None = None
        self._guard = threading.Lock()  # the thread of a cancelled call may still be using the term
        self._claimfile = ""  # of our last attempt, successful or not
        self._refreshed_at = -math.inf
        self._threads = _threads.Threads()
        self._places = threading.Semaphore(_MOST_THREADS)
        self._watcher = FolderWatcher(self._path, self._look, self._poll_s)
        self._is_warned = False
        self._logger = get_logger().bind(nfs=str(self._path))

    @property
    def labels(self) -> Mapping[str, object]:
        """The path of the folder."""
        return {"nfs": str(self._path)}

    async def open(self) -> None:
        """Check that the folder is on a file system that supports these locks."""
        await self._run(self._check)

    def _check(self) -> None:
        place.check_shared_folder(self._path)
        if not self._is_warned and place.is_local(self._path):
            self._is_warned = True
            self._logger.warning("nfs_on_local_disk", file_system=place.describe(self._path))

    async def close(self) -> None:
        """Close the term's claim. The term was released before, or its lease will expire."""
        self._watcher.stop()
        term, self._term = self._term, None
        if term is not None and self._guard.acquire(blocking=False):
            try:
                term.drop()
            finally:
                self._guard.release()

    async def read(self) -> Record | None:
        """List the folder, and open the newest epoch."""
        return await self._run(self._look)

    def _look(self) -> Record | None:
        if self._term is None and self._clock() >= self._refreshed_at + _REFRESH_EVERY_S:
            self._refreshed_at = self._clock()
            self._folder.refresh()
        listing, seen = self._folder.look()
        self._folder.name_strays(listing)
        record = as_record(listing, seen, self._lease_s)
        if record is None or seen is None or seen.claimant is None or seen.claimant.name != self._identity:
            return record
        if seen.claimant.claimfile == self._claimfile:
            return record
        # Another process uses our identity: the term is not ours.
        shown = f"{record.holder} (pid {seen.claimant.pid} on {seen.claimant.host})"
        return replace(record, holder=shown)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Begin an epoch, send a heartbeat, or mark the epoch as released."""
        if claim.is_new_term:
            return await self._begin(claim, replacing)
        term = self._term
        if term is None or term.epoch != claim.token:
            return None
        return await self._run(lambda: self._write_again(term, claim))

    async def _begin(self, claim: Claim, replacing: Record | None) -> Record | None:
        self._identity = claim.holder
        self._claimfile = f"{self._path}/{new_name(self._path.name, socket.gethostname())}"
        claimant = Claimant(
            name=claim.holder,
            host=socket.gethostname(),
            pid=os.getpid(),
            lockfile=str(self._path),
            lifetime_s=claim.lease_s,
            claimfile=self._claimfile,
            address=claim.address,
        )
        term = Candidate(self._folder, self._claimfile, claimant, self._clock, is_local=False)
        is_cancelled = threading.Event()

        def take() -> bool:
            try:
                if not is_cancelled.is_set() and self._is_unchanged(replacing) and term.take(claim.token):
                    self._folder.make_durable()
                    return True
            except BaseException:
                term.abandon()
                raise
            term.withdraw()
            return False

        work = _threads.Undoable(self._counted(take), term.release, is_cancelled, threads=self._threads)
        if not await self._explained(work.run()):
            return None
        self._term = term
        return Record(claim.holder, claim.token, claim.lease_s, (claim.token, term.heartbeat))

    def _is_unchanged(self, seen: Record | None) -> bool:
        """Look again whether the epoch that was found expired has sent no heartbeat since.

        It may have been read long ago, if the event loop was blocked since, and a heartbeat may have come meanwhile. A
        heartbeat that comes after this look is too late, and its sender knows that by its own deadline.
        """
        now = self._look()
        return (None if now is None else now.version) == (None if seen is None else seen.version)

    def _write_again(self, term: Candidate, claim: Claim) -> Record | None:
        with self._guard:
            if not claim.holder:
                is_done = term.release()
                return Record("", claim.token, claim.lease_s, (claim.token, "released")) if is_done else None
            if term.renew_in_time():
                return Record(claim.holder, claim.token, claim.lease_s, (claim.token, term.heartbeat))
            was_broken = term.epoch is None
            term.withdraw()
        if was_broken:
            return None  # the caller's next read shows the new holder
        raise LeadershipLost(
            f"the file server of {self._path} did not receive our heartbeat, or answered too late: another candidate "
            "may be taking over",
            cause=LossCause.RENEW_TIMEOUT,
        )

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Return the record once it differs from ``seen``; None after ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._explained(self._watcher.changed(seen))
        return None

    # --- Threads and errors ------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._explained(_threads.run(self._counted(work), self._threads))

    def _counted(self, work: Callable[[], T]) -> Callable[[], T]:
        """Refuse to start another call while as many threads as are allowed wait for the file server."""
        if not self._places.acquire(blocking=False):
            raise ConnectionError(
                f"the file server of {self._path} has answered none of the last {_MOST_THREADS} calls: is it up, and "
                "its network?",
                cause=LossCause.RENEW_TIMEOUT,
            )

        def counted() -> T:
            try:
                return work()
            finally:
                self._places.release()

        return counted

    async def _explained(self, answer: Awaitable[T]) -> T:
        """Translate the system's errors into ConnectionError, with advice for the operator."""
        try:
            return await answer
        except PgLeaderLockError:
            raise
        except OSError as error:
            hint = place.hint_for(error, self._path)
            raise ConnectionError(
                f"the lock in {self._path} cannot be used: {error.strerror or error}{hint}"
            ) from error
