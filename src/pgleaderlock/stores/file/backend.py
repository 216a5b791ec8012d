"""A lease in a file: for the processes of one host, including containers that share a folder. Needs no server.

**The files** are those of :mod:`~pgleaderlock.stores.file._folder`: the record ``<path>``, and one file for each
term, ``<path>.live.<N>``. No mutex protects reading and writing: a process that is frozen, at any instruction and for
any length of time, delays the other candidates for its lease at most. Two rules replace the mutex:

- *To begin term N + 1, a candidate makes its file with link(2)*, which succeeds for one candidate and fails for all
  others. It then checks that the record is still the one that it decided by, and removes its term's file if not.
- *To renew term N, the leader changes the record, and then checks* that no later term has a file. If one has, the
  renewal does not count, and the term is over.

Both write first and check afterwards. So if a renewal and a take-over run at the same time, at least one detects the
other: a renewal that counts had changed the record before the next term's file was made, and a take-over that counts
found the record unchanged since its lease expired. No two texts of the record are equal, so none is mistaken for
another. If a process that was frozen overwrites a newer term's record too late, its number shows that: the newest term
that has a file counts. That file names the holder and the lease, until the record describes this term again.

**A dead leader is detected at once.** The file of a term is locked with flock(2) from before it is visible until the
term ends, and the kernel frees it when the holder dies. A term whose file is not locked is over, if its holder ran in
this boot of this host: the kernel knows no locks of another, and then only the lease counts. There is one file for each
term, because a frozen leader's lock must not be taken for its successor's.

**A full disk ends no term.** A renewal or a release replaces the record by a new file, so that readers see a complete
one. Where a new file cannot be made (no space or inodes left, a quota), the leader overwrites the record in place:
fields of the same width, in the file that it published and has open. Candidates, also of 0.1.0, see that text change
like any other, but inotify does not notify them: so they look every third of a lease. Beginning a term needs space for
two small files, and fails without it, before any other change.

**Event loop or thread?** The steps are a few system calls on small files, tens of microseconds together, and run in the
event loop: so their outcome is known, also when the call is cancelled. The one step that waits for the disk, once per
term, syncs the new number, so that it survives a power cut; it runs in a thread, on its own descriptors, and goes on
there if the call is cancelled.

**A record that cannot be read counts as held** by an unknown process: a candidate waits for one whole lease, keeps the
record as ``<path>.unreadable``, and replaces it.

Not supported:

- a local disk that hangs: it blocks the event loop. ``is_leader`` is False in time all the same, and ``hard_fence``
  ends the process; but callbacks come late;
- files removed or edited by hand during a term. The leader notices at its next renewal, and repairs a record that was
  damaged or removed. A ``holder`` that was emptied by hand frees the lock at once: until that renewal there may be two
  leaders;
- a folder of tens of thousands of files: each look lists it. Give locks a folder of their own;
- a full disk with a copy-on-write file system (btrfs, ZFS): there overwriting needs space too, and the term is lost;
- a program that reads ``renewTime`` while the record is overwritten in place, on a full disk: it may see a time of
  which the first digits are one renewal's and the last another's. Every other field is always complete;
- two containers that do not share the folder itself, but have copies of it (layers of an image): each has its own lock;
- a disk that is shared by several hosts: safe if its file system is (link, rename), but followers notice the releases
  of other hosts only by looking when the lease is over.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - asyncio imports it for its first thread: during the first hand-over
import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import replace

from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.files.watch import Watch
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores import place
from pgleaderlock.stores.file._folder import Draft, Folder, Live
from pgleaderlock.stores.file._record import Entry, digest_of, encode, now_text
from pgleaderlock.stores.file._view import Version, View, record_of
from pgleaderlock.stores.record import Claim, Record, RecordBackend, RecordStore, check_identity, default_identity
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, USUAL_LEASE_S

__all__ = ["FileStore", "open_file"]

_POLL_S = 0.6  # where the system has no inotify
_LOOK_AGAIN_S = (0.0003, 0.002, 0.02)  # the kernel reports a holder's end a moment before it frees the lock


def open_file(
    url_or_path: str | os.PathLike[str],
    *,
    lease_s: float = USUAL_LEASE_S,
    identity: str | None = None,
    clock: Clock = suspend_aware_clock,
    address: str | None = None,
) -> RecordBackend:
    """Return a candidate for the lock in this file. A relative path is made absolute now. Nothing is opened yet."""
    identity = default_identity() if identity is None else identity
    store = FileStore(url_or_path, lease_s=lease_s, identity=identity)
    return RecordBackend(store, identity=identity, lease_s=lease_s, clock=clock, address=address)


class FileStore(RecordStore):
    """A record in a file.

    ``lease_s`` is the lease duration of a record that cannot be read, ``identity`` the name of our candidate.
    """

    carries_address = True

    def __init__(
        self, url_or_path: str | os.PathLike[str], *, lease_s: float = USUAL_LEASE_S, identity: str | None = None
    ) -> None:
        self._path = place.path_of(url_or_path)
        self._identity = None if identity is None else check_identity(identity)
        self._folder = Folder(self._path)
        self._view = View(self._folder, check_seconds("lease_s", lease_s))
        self._watch = Watch(self._path.parent, os.fsencode(self._path.name).__eq__)
        self._named: set[str] = set()
        self._live: Live | None = None
        self._entry: Entry | None = None  # of our term
        self._is_open = self._polls = self._has_room = self._only_reads = False
        self._told: object = None  # of the record that was reported as free to a process that only reads
        self._look_every_s = lease_s / RENEWALS_PER_LEASE
        self._logger = get_logger().bind(**self.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """The path of the record."""
        return {"file": str(self._path)}

    def only_read(self) -> None:
        """Report that a record is free once: a candidate would take it, and this process waits on."""
        self._only_reads = True

    async def open(self) -> None:
        """Check that the folder supports a lock, and that the record is not another program's file."""
        if not self._is_open:
            place.check_folder(self._path)
            self._view.published()
            self._name_strays()
            self._is_open = True

    def _name_strays(self) -> None:
        for name in self._folder.strays():
            if name not in self._named:
                self._named.add(name)
                self._logger.warning(
                    "stray_file_ignored", stray=name, advice="it is not a term of this lock: remove it"
                )

    async def close(self) -> None:
        """Close the term, whose file is then not locked any more, and unsubscribe from changes."""
        self._is_open = False
        self._close_term()
        self._watch.close()

    async def read(self) -> Record | None:
        """Return the newest term as a record."""
        return self._view.look(self._live, self._identity)

    def is_abandoned(self, record: Record) -> bool:
        """Whether the holder ran in this boot of this host, and has died."""
        return self._view.is_abandoned(record)

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptor of the term's file: a flock(2) lock lasts until the last copy of it is closed."""
        return () if self._live is None or not self._live.descriptor.is_open else (self._live.descriptor.number,)

    # --- Writing -----------------------------------------------------------------------------------------------

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Begin a term, renew ours, or end it."""
        if claim.is_new_term:
            return await self._begin(claim, replacing)
        live, entry = self._live, self._entry
        if live is None or entry is None or live.token != claim.token:
            return None
        entry = replace(entry, holder=claim.holder, lease_s=claim.lease_s)
        try:
            return self._renew(live, entry)
        finally:
            if not claim.holder:
                self._close_term()  # also when the record cannot be replaced: on this host that alone frees the lock

    async def _begin(self, claim: Claim, replacing: Record | None) -> Record | None:
        self._identity = claim.holder
        if claim.token in self._folder.terms():
            return None  # saves disk writes: of many candidates that wake at once, only the first few make files
        entry = Entry(
            claim.holder,
            claim.token,
            claim.lease_s,
            acquire_time=now_text(),
            boot_id=place.boot_id(),
            pid=os.getpid(),
            host=socket.gethostname(),
            address=claim.address,
        )
        text = encode(entry)
        # Both texts are written before the first step: a full disk makes this fail before any other change.
        with self._folder.draft(encode(entry)) as live_draft, self._folder.draft(text) as record_draft:
            live = self._folder.claim(claim.token, live_draft)
            if live is None or not self._counts(live, record_draft, replacing):
                return None
        return await self._settle(live, entry, text)

    def _counts(self, live: Live, record_draft: Draft, replacing: Record | None) -> bool:
        """Check, publish, and check again. Close a term that does not count, and remove its file if unpublished."""
        is_published = counts = False
        try:
            is_published = (
                self._is_still(replacing) and self._view.is_newest(live) and self._folder.publish(record_draft, live)
            )
            counts = is_published and self._view.is_newest(live)
        finally:
            if not is_published:
                self._folder.remove(live)
            if not counts:
                live.close()
        return counts

    def _is_still(self, decided_by: Record | None) -> bool:
        """Whether the record is still the one that we decided by. Keep a copy of one that cannot be read."""
        text, published = self._view.published()
        if text is not None and published is None:
            self._folder.keep_evidence()
        seen = None if decided_by is None else decided_by.version
        return (None if text is None else digest_of(text)) == (seen.digest if isinstance(seen, Version) else None)

    async def _settle(self, live: Live, entry: Entry, text: bytes) -> Record:
        """Remove the files of earlier terms, and sync ours, so that its number is never used again."""
        self._close_term()  # a former one, if we had one
        self._live, self._entry, self._has_room = live, entry, True
        try:
            self._folder.collect(live.token)
            self._name_strays()
            await asyncio.to_thread(self._folder.make_durable, live.token)
        except BaseException:
            self._close_term()
            raise
        return record_of(entry, text)

    def _renew(self, live: Live, entry: Entry) -> Record | None:
        if not self._view.is_newest(live):  # do not overwrite a later term's record; safety does not depend on this
            return None
        text = self._rewritten(live, encode(entry))
        # A release is complete with its record: a follower may have begun the next term since.
        if text is None or (entry.holder and not self._view.is_newest(live)):
            return None
        return record_of(entry, text)

    def _rewritten(self, live: Live, text: bytes) -> bytes | None:
        """Write the record, in place if the disk is full, and return its text; None when there is a newer leader."""
        try:
            with self._folder.draft(text) as draft:
                is_there, self._has_room = self._folder.publish(draft, live), True
                return text if is_there else None
        except ConnectionError as error:
            written = self._folder.overwrite(live, text)
            if written is None:
                raise
            if self._has_room:  # log it once, not at each renewal
                self._has_room = False
                self._logger.warning("record_written_in_place", error=error)
            return written

    def _close_term(self) -> None:
        live, self._live, self._entry = self._live, None, None
        if live is not None:
            live.close()

    # --- Waiting -----------------------------------------------------------------------------------------------

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Return the record once it changes or its holder dies; None after ``timeout_s``, or when there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._watch.start(map(self._folder.live_path, self._folder.terms()[-2:])):
                    return await self._listen(seen)
                return await self._poll(seen)
        return None

    async def _listen(self, seen: Record | None) -> Record | None:
        with self._watch.changes() as news:
            while True:
                news.clear()
                record = self._view.look(self._live, self._identity)
                if _is_news(record, seen) or (await self._has_ended(record, news) and self._tells(record)):
                    return record
                if not news.is_set():
                    await _is_set_within(news, self._look_every_s)  # an overwrite in place is not notified

    async def _has_ended(self, record: Record | None, news: asyncio.Event) -> bool:
        """Whether an unchanged record is free. Look again in a moment if its holder may have died; stop at news."""
        pauses_s = iter(_LOOK_AGAIN_S)
        while record is not None and not self._is_free(record):
            if not self._watch.may_have_ended:
                return False
            pause_s = next(pauses_s, None)
            if pause_s is None:
                self._watch.may_have_ended = False
            elif await _is_set_within(news, pause_s):
                return False
        return record is not None

    async def _poll(self, seen: Record | None) -> Record | None:
        if not self._polls:
            self._polls = True
            self._logger.info("polls", every_s=_POLL_S, reason="no inotify, or no more of it")
        while True:
            record = self._view.look(self._live, self._identity)
            if _is_news(record, seen) or (record is not None and self._is_free(record) and self._tells(record)):
                return record
            await asyncio.sleep(_POLL_S)

    def _is_free(self, record: Record) -> bool:
        return not record.holder or self._view.is_abandoned(record)

    def _tells(self, record: Record | None) -> bool:
        """Whether to report this record, which is free and no news: to a process that only reads, once."""
        if record is None or (self._only_reads and record.version == self._told):
            return False
        self._told = record.version
        return True


def _is_news(record: Record | None, seen: Record | None) -> bool:
    return record is not seen if record is None or seen is None else record.version != seen.version


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
