"""One candidate for a lock in a shared folder: the decisions, each of them a few system calls. Nothing here waits.

**Expiry is judged on the candidate's own clock**: an epoch has expired when *this candidate* has not seen its heartbeat
change for the lifetime that its claim states. No clock of another host is compared with anything, and no time of day.
The look that shows the unchanged heartbeat must have begun after that time: the result of an earlier one may be
outdated.

**Validity counts from before the step.** If a holder sends a heartbeat, or makes an epoch, at *s*, no other candidate
breaks the lock before *s* + lifetime, and the holder itself regards it as valid until *s* + 0.9 lifetimes.

**An expired possession is not refreshed.** Another candidate may be breaking it at this moment. The holder acquires it
again, with a new number, by the same step as every other candidate. And a heartbeat counts only if it was *answered*
before the validity of the previous one ended: one that took longer may have arrived after another candidate looked for
it and did not find it.

**A possession whose file is not ours is lost**, whatever its number: the folder was removed, and other candidates began
again from zero. This candidate then changes nothing there.

On a local disk a possession is also over when its holder has died: its claim was locked with flock(2), and the kernel
reports that at once. On a network file system flock(2) is not used: there a lock may be silently local to one host.
"""

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock._logging import get_logger
from pgleaderlock.stores import place
from pgleaderlock.stores.base import TRUST_SHARE
from pgleaderlock.stores.lease_observation import LeaseObservation, Record
from pgleaderlock.stores.nfs import _notes
from pgleaderlock.stores.nfs._claim import Claimant, encode, encode_lifetime
from pgleaderlock.stores.nfs._errors import LockError
from pgleaderlock.stores.nfs._folder import VANISHED, Folder, Listing, Seen, heartbeat_of, remove, write

_NS = 1_000_000_000
_TIDY_EVERY_S = 10.0
_TIDIED_AT_ONCE = 32
_TIDIED_FOR = 0.1  # of the lifetime, which goes on meanwhile
_REFRESH_EVERY_S = 0.25
_UNKNOWN = "(unreadable)"
_BOTH_NAMES = 2  # the claim's and the epoch's


@dataclass(frozen=True, slots=True)
class _Possession:
    epoch: int
    trusted_until: float


def as_record(listing: Listing, seen: Seen | None, lifetime_s: float) -> Record | None:
    """Return the state of the folder as a record. ``lifetime_s`` is used for a claim that cannot be read."""
    if listing.newest < 0:
        return None
    if seen is None:
        return Record("", listing.newest, lifetime_s, (listing.newest, "released"))
    version, claimant = (seen.epoch, seen.heartbeat), seen.claimant
    if claimant is None:
        return Record(_UNKNOWN, seen.epoch, lifetime_s, version)
    return Record(claimant.name, seen.epoch, claimant.lifetime_s, version, address=claimant.address)


class Candidate:
    """One claim and its possession of the lock. Not for two threads at once, and not for two processes."""

    def __init__(self, folder: Folder, claimfile: str, claimant: Claimant, clock: Clock, *, is_local: bool) -> None:
        self._folder = folder
        self._claimfile = claimfile
        self._claim_name = claimfile.rpartition("/")[2]
        # The kernel knows whether the owner of a claim lives only if the claim is locked: see _is_abandoned.
        self._claimant = replace(claimant, boot_id=place.boot_id() if is_local else None)
        self._clock = clock
        self._is_local = is_local
        self._text = encode(self._claimant)
        self._least_s = claimant.lifetime_s  # the shortest lifetime of ours that other candidates may have read
        self._is_torn = False
        self._claim: Descriptor | None = None
        self._is_laid = False  # set before the claim is made: after an interruption, a file of this name is ours
        self._possession: _Possession | None = None
        self._observation = LeaseObservation(claimant.lifetime_s)
        self._seen: Seen | None = None  # what was looked at last
        # On a local disk the kernel knows of dead holders. A clock that the caller passed is not shared by processes.
        self._keeps_notes = not is_local and clock is suspend_aware_clock
        self._had_notes = False
        self._beat_ns = 0
        self._ahead_ns: int | None = None
        self._tidied_at = self._refreshed_at = -math.inf
        self._sent_at = -math.inf
        self.others = 0
        """The number of other claims at our last look."""
        self._logger = get_logger().bind(lockfile=str(folder.path))

    @property
    def epoch(self) -> int | None:
        """The number of our possession; None without one."""
        return None if self._possession is None else self._possession.epoch

    @property
    def is_trusted(self) -> bool:
        """Whether we hold the lock and it is valid: no other candidate can have broken it yet, except by force."""
        held = self._possession
        return held is not None and self._has_claim and self._clock() < held.trusted_until

    @property
    def lifetime_s(self) -> float:
        """Seconds without a heartbeat after which other candidates may break the lock."""
        return self._claimant.lifetime_s

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat that counted was sent."""
        return self._clock() - self._sent_at

    @property
    def was_in_time(self) -> bool:
        """Whether the last heartbeat is so recent that the lock can have been broken by force only."""
        return self.silent_s < TRUST_SHARE * self.lifetime_s

    @property
    def heartbeat(self) -> tuple[int, int, int]:
        """The value that changes with every heartbeat of ours, as other candidates see it."""
        assert self._claim is not None  # noqa: S101 - the caller has a claim
        return heartbeat_of(os.fstat(self._claim.number))

    @property
    def is_newest(self) -> bool:
        """Whether no later epoch follows ours, however long ago our possession expired."""
        if self._possession is None or not self._has_claim:
            return False
        if not self._is_local:
            self._folder.refresh()
        return self._folder.listing().newest == self.epoch and self._is_our_file(self._possession.epoch)

    @property
    def watched(self) -> str | None:
        """The epoch file of the current holder, as we saw it last; None when there was none."""
        current = self._observation.current
        return None if current is None else self._folder.epoch_path(current.token)

    @property
    def over_in_s(self) -> float:
        """Seconds until the current holder's possession expires, unless its heartbeat changes."""
        return max(0.0, self._observation.over_at - self._clock())

    @property
    def _has_claim(self) -> bool:
        """Whether our claim is open. False in a forked child: the claim is its parent's."""
        return self._claim is not None and self._claim.is_open

    # --- Acquiring ---------------------------------------------------------------------------------------------

    def lay_claim(self) -> None:
        """Make the claim file, unless it exists."""
        if not self._has_claim:
            if self._is_laid and self._claim is None:  # by an attempt that was interrupted or dropped
                remove(self._claimfile)
            self._is_laid = True
            self._least_s, self._is_torn = self._claimant.lifetime_s, False
            self._beat_ns, self._ahead_ns = 0, None
            self._claim = self._folder.lay_claim(self._claimfile, self._text, is_local=self._is_local)

    def withdraw(self) -> None:
        """Remove the claim, and end our possession in this object."""
        claim, self._claim, self._possession = self._claim, None, None
        if claim is not None:
            claim.close()  # first: an NFS client does not remove an open file, but renames it until it is closed
        if self._is_laid:
            remove(self._claimfile)
            self._is_laid = False

    def abandon(self) -> None:
        """Release and withdraw, also an epoch that was made just before an interruption and not noted here."""
        with contextlib.suppress(OSError, LockError):  # then the next candidate waits for our lifetime
            if self._possession is None and self._has_claim and self._links > 1:
                self._possession = _Possession(self._folder.listing().newest, trusted_until=-math.inf)
            self.release()  # which checks whether that epoch is ours
        self.withdraw()

    def drop(self) -> None:
        """Close the claim without removing it: the file server may not answer. Other candidates remove it later."""
        claim, self._claim, self._possession = self._claim, None, None
        if claim is not None:
            claim.close()

    def leave_note(self) -> None:
        """After a time-out, store what we know of the holder's silence for the next process of this host."""
        if self._keeps_notes and self._seen is not None:
            _notes.leave(self._folder.path, self._seen, self._observation.seen_at)

    def may_take(self) -> bool:
        """Look whether the lock is free, or its holder's possession has expired."""
        if not self._is_local and self._clock() >= self._refreshed_at + _REFRESH_EVERY_S:
            self._refreshed_at = self._clock()
            self._folder.refresh()
        looked_at = self._clock()  # before looking: we may be frozen between the look and the decision
        listing, seen = self._folder.look()
        self._folder.name_strays(listing)
        self._had_notes = bool(listing.notes)
        self.others = len(listing.claims) - (self._has_claim and self._claim_name in listing.claims)
        is_first, self._seen = self._observation.current is None, seen
        self._observation.note(as_record(listing, seen, self._claimant.lifetime_s), self._clock())
        if is_first and seen is not None and self._keeps_notes:
            since = _notes.read(self._folder.path, seen, self._clock())
            self._observation.know_since(self._clock() if since is None else since)
        return self._observation.is_free(looked_at) or (seen is not None and self._is_abandoned(seen))

    def try_take(self) -> bool:
        """Acquire the lock if it is free now. Return False when another candidate holds it or was first."""
        self.lay_claim()
        return self.may_take() and self.take_next()

    def take_next(self) -> bool:
        """Acquire the lock, which :meth:`may_take` found free. Return False when another candidate was first."""
        return self.take(self._observation.highest + 1)

    def take(self, epoch: int) -> bool:
        """Acquire the lock with this number. Return False when another candidate was first."""
        self.lay_claim()
        if not self._begin(epoch):
            return False
        self._check_links(epoch)
        if self.is_trusted:
            return True
        self.release()  # it took too long: other candidates and we ourselves would wait for an epoch that is not valid
        return False

    def _begin(self, epoch: int) -> bool:
        """Make the epoch, and note that it is ours. Return False when another candidate was first."""
        sent = self._clock()
        try:
            self._beat()
            if not self._folder.take(epoch, self._claimfile):
                return False
            self._note_possession(epoch, sent)
        except BaseException:
            self._give_back(epoch)
            raise
        return True

    def _give_back(self, epoch: int) -> None:
        """Undo a failed attempt: release the epoch if it was made, and remove the claim."""
        with contextlib.suppress(OSError, LockError):
            if self._folder.is_made_of(epoch, self._claimfile):
                self._folder.release(epoch, self._claimfile)
        self.withdraw()

    def _note_possession(self, epoch: int, sent: float) -> None:
        self._observation.highest = max(self._observation.highest, epoch)
        self._sent_at = sent
        self._possession = _Possession(epoch, sent + TRUST_SHARE * self._least_s)

    def _is_abandoned(self, seen: Seen) -> bool:
        """Whether the holder was a process of this host, in this boot, and has died."""
        if not self._is_local or seen.claimant is None or seen.claimant.boot_id is None:
            return False
        return seen.claimant.boot_id == place.boot_id() and self._folder.is_alone(seen.epoch)

    def _check_links(self, epoch: int) -> None:
        """Log an error unless the file has two names, the claim's and the epoch's: another program made a third."""
        if (links := self._links) != _BOTH_NAMES:
            self._logger.error("weird_link_count", claim=self._claimfile, epoch=epoch, links=links)

    @property
    def _links(self) -> int:
        assert self._claim is not None  # noqa: S101 - the caller has a claim
        return os.fstat(self._claim.number).st_nlink

    def _is_our_file(self, epoch: int) -> bool:
        """Whether the file of this epoch is our claim, whose other name another candidate may have removed.

        A link count of 0 shows that the file has no name left. On NFS the client may have cached its times and names,
        so the file that has the epoch's name now is opened and compared.
        """
        assert self._claim is not None  # noqa: S101 - the caller has a claim
        try:
            ours = os.fstat(self._claim.number)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return False  # the server has no such file any more
        if self._is_local and ours.st_nlink == _BOTH_NAMES:  # a local disk does not cache the count
            return True
        return ours.st_nlink > 0 and self._folder.is_epoch(epoch, ours)

    def settle(self) -> bool:
        """Tidy up after acquiring the lock. Return False when it expired meanwhile: then it is released."""
        self.tidy()
        if self._keeps_notes and self.epoch is not None and self._had_notes:
            _notes.remove_all(self._folder.path, self.epoch)
        if self.is_trusted:
            return True
        self.release()
        return False

    def tidy(self) -> None:
        """Remove some leftovers of dead candidates, every 10 s at most."""
        if self.others and self._clock() >= self._tidied_at + _TIDY_EVERY_S:
            self._tidied_at = began = self._clock()
            with contextlib.suppress(OSError):  # optional work: an error in it must not cost the lock
                self._folder.tidy(
                    is_local=self._is_local,
                    at_most=_TIDIED_AT_ONCE,
                    is_enough=lambda: self._clock() > began + _TIDIED_FOR * self._least_s,
                )

    # --- Holding -----------------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Send a heartbeat, or acquire an expired possession again. Return False when the lock is lost for good."""
        if self.renew_in_time():
            return True
        held = self._possession
        if held is None or not self._has_claim:
            return False
        try:
            is_last = self._folder.listing().newest == held.epoch and self._is_our_file(held.epoch)
            if is_last and self._begin(held.epoch + 1):
                return self.is_trusted
        except OSError as error:
            if error.errno not in VANISHED:  # otherwise another candidate took us for dead and removed our claim
                raise
        self.withdraw()
        return False

    def renew_in_time(self) -> bool:
        """Send a heartbeat. Return False when it came too late, or the lock was broken by force."""
        held, sent = self._possession, self._clock()
        if held is None or not self.is_trusted:
            return False
        if not self._beats_as(held.epoch):
            self.withdraw()
            return False
        if self._clock() >= held.trusted_until:  # the answer took too long
            return False
        self._note_possession(held.epoch, sent)
        return True

    def _beats_as(self, epoch: int) -> bool:
        """Send a heartbeat, and return whether no later epoch exists and this one is still our file."""
        if not self._is_still_there(self._beat):
            return False
        return self._folder.listing().newest == epoch and self._is_our_file(epoch)

    def change_lifetime(self, lifetime_s: float) -> None:
        """Change the lifetime. It is written to the claim, for the other candidates, before we use a longer one.

        The heartbeats start over too; otherwise a shorter lifetime would be displayed with the end of the old one for
        as long as that lasts. A heartbeat need only differ from every earlier one of the same epoch that another
        candidate may have seen. The file's size is part of a heartbeat and has just grown, so all later heartbeats
        differ from all earlier ones. The only other value with this size is the modification time that the write itself
        set, on the server's clock: so the heartbeats start after that. Without a claim there is no epoch: the next one
        has another number.
        """
        if lifetime_s == self._claimant.lifetime_s and not self._is_torn:
            return
        self._least_s = min(self._least_s, lifetime_s)
        if self._possession is not None:  # other candidates may use the new lifetime as soon as it is written
            trusted_until = min(self._possession.trusted_until, self._clock() + TRUST_SHARE * lifetime_s)
            self._possession = replace(self._possession, trusted_until=trusted_until)
        if not self._has_claim or not self._is_still_there(lambda: self._announce(encode_lifetime(lifetime_s))):
            self._beat_ns = 0
        self._ahead_ns = None
        self._least_s = lifetime_s
        self._claimant = replace(self._claimant, lifetime_s=lifetime_s)
        self._text = encode(self._claimant)

    def _announce(self, line: bytes) -> None:
        """Append a line to the claim, after ending an incomplete line of an earlier attempt, which does not count."""
        assert self._claim is not None  # noqa: S101 - it is there
        number = self._claim.number
        os.lseek(number, 0, os.SEEK_END)
        text, self._is_torn = (b"\n" + line if self._is_torn else line), True
        write(number, text)
        os.fsync(number)
        self._beat_ns, self._is_torn = os.fstat(number).st_mtime_ns, False

    def release(self) -> bool:
        """Release the lock. Return False when we did not hold it any more."""
        held = self._possession
        if held is None or not self._has_claim or not self._may_release(held):
            self.withdraw()
            return False
        self._folder.release(held.epoch, self._claimfile)
        claim, self._claim, self._possession, self._is_laid = self._claim, None, None, False
        if claim is not None:
            claim.close()
        return True

    def _may_release(self, held: _Possession) -> bool:
        """Whether the mark would end our own epoch: a later epoch can follow a valid one by force only."""
        if not self.is_trusted:
            return self.is_newest
        return not self._was_broken(held.epoch) and self._is_our_file(held.epoch)

    def _was_broken(self, epoch: int) -> bool:
        """Whether a later epoch follows a possession that is still valid: then it was broken by force."""
        if self._is_local:  # breaking makes the next number, and a local disk does not cache names
            return os.path.lexists(self._folder.epoch_path(epoch + 1))
        with contextlib.suppress(LockError):  # foreign files are in the folder: release it, or others wait for us
            return self._folder.listing().newest != epoch
        return False

    def stay(self) -> None:
        """Touch our claim while waiting, so that other candidates do not remove it as a leftover.

        Not if it has become an epoch without our knowledge: touched, that epoch would never expire.
        """
        if self._has_claim and self._claim is not None:
            with contextlib.suppress(OSError):
                if os.fstat(self._claim.number).st_nlink == 1:
                    os.utime(self._claim.number)

    def _is_still_there(self, step: Callable[[], None]) -> bool:
        """Run a step on our claim. Return False when all its names are gone: then the lock was lost long ago."""
        try:
            step()
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            self.withdraw()
            return False
        return True

    def _beat(self) -> None:
        """Send a heartbeat: set the claim's modification time to when we expire, by our clock, for display.

        Some file systems store whole seconds, some no time after 2038. A heartbeat must differ from all before it: so
        each is later than the last, and where the file system stores no later time, they start over with the current
        time.
        """
        now_ns = time.time_ns()
        if self._ahead_ns is None:
            self._ahead_ns = round(self._claimant.lifetime_s * _NS)
        if self._shows(max(now_ns + self._ahead_ns, self._beat_ns + 1)) or self._shows(self._beat_ns + 2 * _NS):
            return
        last_ns = self._beat_ns
        if self._ahead_ns and now_ns < last_ns:
            self._ahead_ns = self._beat_ns = 0
            if self._shows(now_ns) and self._beat_ns < last_ns:
                return
        raise OSError(errno.ERANGE, f"the file system of {self._folder.path} stores no time that shows a heartbeat")

    def _shows(self, at_ns: int) -> bool:
        """Set the claim's modification time, and return whether it is later than that of the last heartbeat."""
        assert self._claim is not None  # noqa: S101 - it is there
        try:
            os.utime(self._claim.number, ns=(at_ns, at_ns))
        except (OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
                raise
            return False  # the file system cannot store so late a time
        shown_ns = os.fstat(self._claim.number).st_mtime_ns
        if shown_ns <= self._beat_ns:
            return False
        self._beat_ns = shown_ns
        return True
