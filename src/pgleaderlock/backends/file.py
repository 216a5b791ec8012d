"""A lease in a file: for the processes of one host, containers that share a folder included. Nothing else is needed.

**The files** are those of :mod:`~pgleaderlock.backends._file_folder`: the record ``<path>``, and one file for each
term, ``<path>.live.<N>``. There is no guard around reading and writing: a process that is frozen, at any instruction
and for any length of time, keeps nobody waiting for longer than its lease. What takes the guard's place:

- *To begin term N + 1 is to make its file with link(2)*, which succeeds for one and fails for all others. Whoever made
  it looks whether the record is still the one it decided by, and takes its term back if not.
- *To renew term N is to change the record, and then to look* that no later term has a file. If one has, the renewal
  does not count, and the term is over.

Both write first and look afterwards. So of a renewal and a take-over that cross, at least one sees the other: a renewal
that counts had changed the record before the next term's file was made, and a take-over that counts found no record
but the one it had waited out. No two texts of the record are alike, so none is mistaken for another. A record that a
thawed process writes too late, over a newer one's, is known by its number: the newest term that has a file is the one
that stands. Its own file says who holds it and for how long, until the record speaks of it again.

**A dead leader is seen at once.** The file of a term is locked with flock(2) before it can be seen, for as long as the
term lasts, and the kernel frees it at the holder's death. A term whose file is free is over, if its holder ran on this
very boot of this host: of another's locks this kernel knows nothing, and then only the lease counts. There is one file
for each term, because a frozen leader's lock says nothing about its successor.

**A full disk ends no term.** A renewal or a release replaces the record by a new file, so readers see a whole one.
Where there is no room for a new file (space, inodes, a quota), the leader writes over the record in place: fields of
the same width, in the file that it published and has open. Candidates, also of 0.1.0, see that text change as any
other, but without news of it: so they look every third of a lease. To begin a term takes room for two small files, and
fails without, before anything has happened.

**In line or in a thread?** The steps are a handful of system calls on small files, tens of microseconds together, and
are made in line: cancelled or not, what was done is known. The one that waits for the disk, once per term, makes the
new number outlive a power cut; it runs in a thread, on descriptors of its own, and may be left behind.

**Whatever cannot be read is unknown**, and unknown is held by somebody: it is waited out for one whole lease, kept as
``<path>.unreadable``, and replaced.

Not promised:

- a local disk that hangs: it blocks the event loop. ``is_leader`` is False in time all the same, and ``hard_fence``
  ends the process; but callbacks come late;
- files removed or edited by hand while a leader leads. It notices at its next renewal, and repairs a record that was
  damaged or removed. A ``holder`` that was emptied by hand frees the lock at once: until that renewal two lead;
- a folder of tens of thousands of files: each look lists it. Give locks a folder of their own;
- a full disk whose file system copies on write (btrfs, ZFS): there overwriting takes room too, and the term is lost;
- a reader of ``renewTime`` that looks while the record is written over in place, on a full disk: it may see a time of
  which the first digits are one renewal's and the last another's. Every other field is always whole;
- two containers that do not share the folder itself, but copies of it (layers of an image): each has a lock of its own;
- a disk that is shared by several hosts: safe if its file system is (link, rename), but followers learn of other hosts'
  releases only by looking when the lease is over.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import replace

from pgleaderlock._checks import check_seconds
from pgleaderlock._files import place
from pgleaderlock._files.watch import Watch
from pgleaderlock._logging import get_logger
from pgleaderlock.backends._file_folder import Draft, Folder, Live
from pgleaderlock.backends._file_record import Entry, digest_of, encode, now_text
from pgleaderlock.backends._file_view import Version, View, record_of
from pgleaderlock.backends.record import Claim, Record, RecordBackend, RecordStore, check_identity, default_identity
from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import ConnectionError

__all__ = ["FileStore", "open_file"]

_POLL_S = 0.1  # where the system brings no news
_LOOK_AGAIN_S = (0.0003, 0.002, 0.02)  # the kernel reports a holder's end a moment before it frees the lock


def open_file(
    url_or_path: str | os.PathLike[str],
    *,
    lease_s: float = 15.0,
    identity: str | None = None,
    clock: Clock = suspend_aware_clock,
) -> RecordBackend:
    """Return a contender for the lock in this file. A relative path is made absolute now. Nothing is opened yet."""
    identity = default_identity() if identity is None else identity
    store = FileStore(url_or_path, lease_s=lease_s, identity=identity)
    return RecordBackend(store, identity=identity, lease_s=lease_s, clock=clock)


class FileStore(RecordStore):
    """A record in a file.

    ``lease_s`` is how long an unreadable record is waited out, ``identity`` under which name we shall write.
    """

    def __init__(
        self, url_or_path: str | os.PathLike[str], *, lease_s: float = 15.0, identity: str | None = None
    ) -> None:
        self._path = place.path_of(url_or_path)
        self._identity = None if identity is None else check_identity(identity)
        self._folder = Folder(self._path)
        self._view = View(self._folder, check_seconds("lease_s", lease_s))
        self._watch = Watch(self._path.parent, os.fsencode(self._path.name).__eq__)
        self._named: set[str] = set()
        self._live: Live | None = None
        self._entry: Entry | None = None  # of our term
        self._is_open = self._polls = self._has_room = False
        self._look_every_s = lease_s / 3
        self._logger = get_logger().bind(**self.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """The record's path."""
        return {"file": str(self._path)}

    async def open(self) -> None:
        """See that this place can keep a lock."""
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
        """Let go of the term, whose file is then free, and of the news."""
        self._is_open = False
        self._let_go()
        self._watch.close()

    async def read(self) -> Record | None:
        """Return what the newest term is."""
        return self._view.look(self._live, self._identity)

    def is_abandoned(self, record: Record) -> bool:
        """Whether its holder ran on this boot of this host, and is gone."""
        return self._view.is_abandoned(record)

    def lifeline(self) -> tuple[int, ...]:
        """Return the term's file: a lock of flock(2) lasts until the last copy of its descriptor is closed."""
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
                self._let_go()  # also when the record cannot be replaced: on this host it is free by this alone

    async def _begin(self, claim: Claim, replacing: Record | None) -> Record | None:
        self._identity = claim.holder
        if claim.token in self._folder.terms():
            return None  # a courtesy to the disk: of many who wake at once, only the first few make files
        entry = Entry(
            claim.holder, claim.token, claim.lease_s, now_text(), place.boot_id(), os.getpid(), socket.gethostname()
        )
        text = encode(entry)
        # Both texts are on the disk before the first step: a disk that is full now fails us now, with nothing done.
        with self._folder.draft(encode(entry)) as live_draft, self._folder.draft(text) as record_draft:
            live = self._folder.claim(claim.token, live_draft)
            if live is None or not self._counts(live, record_draft, replacing):
                return None
        return await self._settle(live, entry, text)

    def _counts(self, live: Live, record_draft: Draft, replacing: Record | None) -> bool:
        """Look, write, and look again. A term that does not count is let go of, and taken back if nobody knows it."""
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
        """Whether the record is the one that we decided by. One that cannot be read is kept, before it is replaced."""
        text, published = self._view.published()
        if text is not None and published is None:
            self._folder.keep_evidence()
        seen = None if decided_by is None else decided_by.version
        return (None if text is None else digest_of(text)) == (seen.digest if isinstance(seen, Version) else None)

    async def _settle(self, live: Live, entry: Entry, text: bytes) -> Record:
        """Tidy up after our predecessors, and make sure that our number is never given out again."""
        self._let_go()  # of a former term, if we had one
        self._live, self._entry, self._has_room = live, entry, True
        try:
            self._folder.collect(live.token)
            self._name_strays()
            await asyncio.to_thread(self._folder.make_durable, live.token)
        except BaseException:
            self._let_go()
            raise
        return record_of(entry, text)

    def _renew(self, live: Live, entry: Entry) -> Record | None:
        if not self._view.is_newest(live):  # a courtesy: the record of a later term is not to be replaced by ours
            return None
        text = self._rewritten(live, encode(entry))
        return None if text is None or not self._view.is_newest(live) else record_of(entry, text)

    def _rewritten(self, live: Live, text: bytes) -> bytes | None:
        """Return the record's new text; None when a newer leader's is there."""
        try:
            with self._folder.draft(text) as draft:
                is_there, self._has_room = self._folder.publish(draft, live), True
                return text if is_there else None
        except ConnectionError as error:
            written = self._folder.overwrite(live, text)
            if written is None:
                raise
            if self._has_room:  # to be told once, and not at each renewal
                self._has_room = False
                self._logger.warning("record_written_in_place", error=error)
            return written

    def _let_go(self) -> None:
        live, self._live, self._entry = self._live, None, None
        if live is not None:
            live.close()

    # --- Waiting -----------------------------------------------------------------------------------------------

    async def changed(self, seen: Record | None, timeout_s: float) -> None:
        """Wait for another record, or for the end of whoever holds this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._watch.start(map(self._folder.live_path, self._folder.terms()[-2:])):
                    await self._listen(seen)
                else:
                    await self._poll(seen)

    async def _listen(self, seen: Record | None) -> None:
        with self._watch.heard() as news:
            while True:
                news.clear()
                for pause_s in (*_LOOK_AGAIN_S, self._look_every_s):  # of what is written in place there is no news
                    if self._is_news(seen):
                        return
                    if await _is_set_within(news, pause_s):
                        break

    async def _poll(self, seen: Record | None) -> None:
        if not self._polls:
            self._polls = True
            self._logger.info("polls", every_s=_POLL_S, reason="no inotify, or no more of it")
        while not self._is_news(seen):
            await _is_set_within(asyncio.Event(), _POLL_S)

    def _is_news(self, seen: Record | None) -> bool:
        try:
            record = self._view.look(self._live, self._identity)
        except ConnectionError:
            return True  # whoever looks next will say what is wrong
        if record is None or seen is None:
            return record is not seen
        return record.version != seen.version or not record.holder or self._view.is_abandoned(record)


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
