"""One contender for a lock in a shared folder: the decisions, each of them a few system calls. Nothing here waits.

**Expiry is judged on our own clock**: an epoch is over when *we* have not seen its heartbeat change for as long as its
own claim says. No clock of another host is compared with anything, and no time of day. The look that shows it must have
begun after that time: what is decided by an older one may have been true when it was seen, and is so no longer.

**Trust counts from before the step.** Whoever sent a heartbeat, or made an epoch, at *s* is believed in by others until
*s* + lifetime at least, and believes in itself until *s* + 0.9 lifetimes.

**An expired possession is not refreshed.** Somebody may be breaking it at this moment. It is taken anew, by the step
that all others take too, under a new number. And a heartbeat counts only if it was *answered* before the trust of the
one before had ended: one that was longer on its way may have arrived after somebody looked for it in vain.

**A possession whose file is not ours is lost**, whatever its number: somebody removed the folder, and others began
again from zero. Nothing there is touched.

On a local disk a possession is also over when its holder has died: its claim was locked with flock(2), and the kernel
says so at once. On a network's file system that is not asked for: there a lock may be silently local to one host.
"""

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pgleaderlock._files import place
from pgleaderlock._files.descriptor import Descriptor
from pgleaderlock._logging import get_logger
from pgleaderlock._sighting import Record, Sighting
from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.nfs import _notes
from pgleaderlock.nfs._claim import Claimant, encode, encode_lifetime
from pgleaderlock.nfs._errors import LockError
from pgleaderlock.nfs._folder import VANISHED, Folder, Listing, Seen, heartbeat_of, remove, write

__all__ = ["Contender", "as_record"]

_TRUSTED = 0.9
_NS = 1_000_000_000
_TIDY_EVERY_S = 10.0
_TIDIED_AT_ONCE = 32
_TIDIED_FOR = 0.1  # of a lifetime, which it is part of
_REFRESH_EVERY_S = 0.25
_UNKNOWN = "(unreadable)"
_BOTH_NAMES = 2  # the claim's and the epoch's


@dataclass(frozen=True, slots=True)
class _Possession:
    epoch: int
    trusted_until: float


def as_record(listing: Listing, seen: Seen | None, lifetime_s: float) -> Record | None:
    """Return what the folder shows, as a record. ``lifetime_s`` is for one that cannot be read."""
    if listing.newest < 0:
        return None
    if seen is None:
        return Record("", listing.newest, lifetime_s, (listing.newest, "released"))
    holder, lasts_s = _UNKNOWN, lifetime_s
    if seen.claimant is not None:
        holder, lasts_s = seen.claimant.name, seen.claimant.lifetime_s
    return Record(holder, seen.epoch, lasts_s, (seen.epoch, seen.heartbeat))


class Contender:
    """One claim, and what became of it. Not for two threads at once, and not for two processes."""

    def __init__(self, folder: Folder, claimfile: str, claimant: Claimant, clock: Clock, *, is_local: bool) -> None:
        self._folder = folder
        self._claimfile = claimfile
        self._claim_name = claimfile.rpartition("/")[2]
        # Only of a claim that is locked can the kernel tell whether its owner lives: see _is_abandoned.
        self._claimant = replace(claimant, boot_id=place.boot_id() if is_local else None)
        self._clock = clock
        self._is_local = is_local
        self._text = encode(self._claimant)
        self._least_s = claimant.lifetime_s  # of all that others may take for our lifetime
        self._is_torn = False
        self._claim: Descriptor | None = None
        self._is_laid = False  # set before that: whatever interrupts us, a file of this name is ours
        self._possession: _Possession | None = None
        self._sighting = Sighting(claimant.lifetime_s)
        self._seen: Seen | None = None  # what was looked at last
        # On this host the kernel knows who is dead. A clock of somebody's own is not that of other processes.
        self._keeps_notes = not is_local and clock is suspend_aware_clock
        self._had_notes = False
        self._beat_ns = 0
        self._ahead_ns: int | None = None
        self._tidied_at = self._refreshed_at = -math.inf
        self._sent_at = -math.inf
        self.others = 0
        """How many more had a claim when we looked last."""
        self._logger = get_logger().bind(lockfile=str(folder.path))

    @property
    def epoch(self) -> int | None:
        """The number of our possession; None without one."""
        return None if self._possession is None else self._possession.epoch

    @property
    def is_trusted(self) -> bool:
        """Whether the lock is ours, and nobody can have broken it yet."""
        held = self._possession
        return held is not None and self._has_claim and self._clock() < held.trusted_until

    @property
    def lifetime_s(self) -> float:
        """How long silence lasts, as others know it."""
        return self._claimant.lifetime_s

    @property
    def silent_s(self) -> float:
        """How long ago the last sign of life that counted was sent."""
        return self._clock() - self._sent_at

    @property
    def was_in_time(self) -> bool:
        """Whether nobody could have broken it yet, except by force."""
        return self.silent_s < _TRUSTED * self.lifetime_s

    @property
    def heartbeat(self) -> tuple[int, int, int]:
        """What others see change with every sign of life of ours."""
        assert self._claim is not None  # noqa: S101 - whoever asks has one
        return heartbeat_of(os.fstat(self._claim.number))

    @property
    def is_newest(self) -> bool:
        """Whether nobody came after us, however long ago our possession expired."""
        if self._possession is None or not self._has_claim:
            return False
        if not self._is_local:
            self._folder.refresh()
        return self._folder.listing().newest == self.epoch and self._is_our_file(self._possession.epoch)

    @property
    def watched(self) -> str | None:
        """The file of whoever has the lock, as we saw it last."""
        current = self._sighting.current
        return None if current is None else self._folder.epoch_path(current.token)

    @property
    def over_in_s(self) -> float:
        """In how much time whoever has the lock is over, unless there is a sign of life."""
        return max(0.0, self._sighting.over_at - self._clock())

    @property
    def _has_claim(self) -> bool:
        """False in a child that was forked since: what its parent has is not its own."""
        return self._claim is not None and self._claim.is_open

    # --- Acquiring ---------------------------------------------------------------------------------------------

    def lay_claim(self) -> None:
        """Make the claim, unless it is there."""
        if not self._has_claim:
            if self._is_laid and self._claim is None:  # by an attempt that was interrupted, or is let go of
                remove(self._claimfile)
            self._is_laid = True
            self._least_s, self._is_torn = self._claimant.lifetime_s, False
            self._beat_ns, self._ahead_ns = 0, None
            self._claim = self._folder.lay_claim(self._claimfile, self._text, is_local=self._is_local)

    def withdraw(self) -> None:
        """Remove the claim. What was ours is so no longer."""
        claim, self._claim, self._possession = self._claim, None, None
        if claim is not None:
            claim.close()  # first: what is open is not removed by a client of NFS, but renamed until then
        if self._is_laid:
            remove(self._claimfile)
            self._is_laid = False

    def abandon(self) -> None:
        """Withdraw, also from an epoch that we never came to know of: interrupted just after it was made, say."""
        with contextlib.suppress(OSError, LockError):  # whoever comes next waits for our lifetime
            if self._possession is None and self._has_claim and self._links > 1:
                self._possession = _Possession(self._folder.listing().newest, trusted_until=-math.inf)
            self.release()  # which sees whether that epoch is ours
        self.withdraw()

    def let_go(self) -> None:
        """Forget the claim without a word to the file server, which may not answer. It will be tidied up by others."""
        claim, self._claim, self._possession = self._claim, None, None
        if claim is not None:
            claim.close()

    def leave_note(self) -> None:
        """Having waited in vain, leave what we know of the holder's silence for the next process of this host."""
        if self._keeps_notes and self._seen is not None:
            _notes.leave(self._folder.path, self._seen, self._sighting.seen_at)

    def may_take(self) -> bool:
        """Look whether nobody has the lock, or nobody can believe any more that it has."""
        if not self._is_local and self._clock() >= self._refreshed_at + _REFRESH_EVERY_S:
            self._refreshed_at = self._clock()
            self._folder.refresh()
        looked_at = self._clock()  # not later: we may be frozen between looking and deciding, while the holder is not
        listing, seen = self._folder.look()
        self._folder.name_strays(listing)
        self._had_notes = bool(listing.notes)
        self.others = len(listing.claims) - (self._has_claim and self._claim_name in listing.claims)
        is_first, self._seen = self._sighting.current is None, seen
        self._sighting.note(as_record(listing, seen, self._claimant.lifetime_s), self._clock())
        if is_first and seen is not None and self._keeps_notes:
            since = _notes.read(self._folder.path, seen, self._clock())
            self._sighting.know_since(self._clock() if since is None else since)
        return self._sighting.is_free(looked_at) or (seen is not None and self._is_abandoned(seen))

    def try_take(self) -> bool:
        """Take the lock if that may be done now. False when another has it, or was quicker."""
        self.lay_claim()
        return self.may_take() and self.take_next()

    def take_next(self) -> bool:
        """Take the lock, which may be done now. False when another was quicker."""
        return self.take(self._sighting.highest + 1)

    def take(self, epoch: int) -> bool:
        """Take the lock under this number. False when another was quicker."""
        self.lay_claim()
        if not self._begin(epoch):
            return False
        self._check_links(epoch)
        if self.is_trusted:
            return True
        self.release()  # it took too long: nobody shall wait for what nobody believes in, least of all ourselves
        return False

    def _begin(self, epoch: int) -> bool:
        """Make the epoch, and note that it is ours. False when another was quicker."""
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
        """Leave nothing behind of what went wrong: no claim, and no epoch that nobody knows to be its own."""
        with contextlib.suppress(OSError, LockError):
            if self._folder.is_made_of(epoch, self._claimfile):
                self._folder.release(epoch, self._claimfile)
        self.withdraw()

    def _note_possession(self, epoch: int, sent: float) -> None:
        self._sighting.highest = max(self._sighting.highest, epoch)
        self._sent_at = sent
        self._possession = _Possession(epoch, sent + _TRUSTED * self._least_s)

    def _is_abandoned(self, seen: Seen) -> bool:
        """Whether it was held by a process of this very kernel, and that has died."""
        if not self._is_local or seen.claimant is None or seen.claimant.boot_id is None:
            return False
        return seen.claimant.boot_id == place.boot_id() and self._folder.is_alone(seen.epoch)

    def _check_links(self, epoch: int) -> None:
        """Two names, the claim's and the epoch's. Another was given by somebody who plays with our files."""
        if (links := self._links) != _BOTH_NAMES:
            self._logger.error("weird_link_count", claim=self._claimfile, epoch=epoch, links=links)

    @property
    def _links(self) -> int:
        assert self._claim is not None  # noqa: S101 - whoever asks has one
        return os.fstat(self._claim.number).st_nlink

    def _is_our_file(self, epoch: int) -> bool:
        """Whether the file of this epoch is our claim's, which may have lost its other name to somebody tidy.

        A file without any name says so itself. On NFS its times and names may be remembered by the client, so whatever
        has the epoch's name now is opened and compared.
        """
        assert self._claim is not None  # noqa: S101 - whoever asks has one
        try:
            ours = os.fstat(self._claim.number)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return False  # the server has no such file any more
        if self._is_local and ours.st_nlink == _BOTH_NAMES:  # which a local disk tells as it is
            return True
        return ours.st_nlink > 0 and self._folder.is_epoch(epoch, ours)

    def settle(self) -> bool:
        """Tidy up, now that we have the lock. False when it was over meanwhile: then it is let go of."""
        self.tidy()
        if self._keeps_notes and self.epoch is not None and self._had_notes:
            _notes.remove_all(self._folder.path, self.epoch)
        if self.is_trusted:
            return True
        self.release()
        return False

    def tidy(self) -> None:
        """Now and then, remove some of what dead contenders left behind."""
        if self.others and self._clock() >= self._tidied_at + _TIDY_EVERY_S:
            self._tidied_at = began = self._clock()
            with contextlib.suppress(OSError):  # a courtesy, for which nobody loses a lock
                self._folder.tidy(
                    is_local=self._is_local,
                    at_most=_TIDIED_AT_ONCE,
                    is_enough=lambda: self._clock() > began + _TIDIED_FOR * self._least_s,
                )

    # --- Holding -----------------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Show a sign of life, or take anew what has expired. False when it is lost, and then it is so for good."""
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
            if error.errno not in VANISHED:  # somebody took us for dead, and tidied up
                raise
        self.withdraw()
        return False

    def renew_in_time(self) -> bool:
        """Show a sign of life. False when it came too late, or the lock was broken by force."""
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
        """Show a sign of life, and see that nobody came after us, and that this epoch is ours still."""
        if not self._is_still_there(self._beat):
            return False
        return self._folder.listing().newest == epoch and self._is_our_file(epoch)

    def change_lifetime(self, lifetime_s: float) -> None:
        """From now on, silence lasts so long. Others know before we believe in it.

        Heartbeats begin anew too, or a shorter lifetime would be shown with the old one's end for as long as that. They
        need only differ from every earlier one of the same epoch that somebody may have seen. The file's size is part
        of a heartbeat, and has just grown: so those to come differ from all before that. Beside them nothing has this
        size but what the writing itself left, on the server's clock: so they begin after that. Without a claim there is
        no epoch: the next one has another number.
        """
        if lifetime_s == self._claimant.lifetime_s and not self._is_torn:
            return
        self._least_s = min(self._least_s, lifetime_s)
        if self._possession is not None:  # others may count by the new one from the moment that it is written
            trusted_until = min(self._possession.trusted_until, self._clock() + _TRUSTED * lifetime_s)
            self._possession = replace(self._possession, trusted_until=trusted_until)
        if not self._has_claim or not self._is_still_there(lambda: self._announce(encode_lifetime(lifetime_s))):
            self._beat_ns = 0
        self._ahead_ns = None
        self._least_s = lifetime_s
        self._claimant = replace(self._claimant, lifetime_s=lifetime_s)
        self._text = encode(self._claimant)

    def _announce(self, line: bytes) -> None:
        """Append a line to the claim. What an attempt before may have left of one is ended first: it does not count."""
        assert self._claim is not None  # noqa: S101 - it is there
        number = self._claim.number
        os.lseek(number, 0, os.SEEK_END)
        text, self._is_torn = (b"\n" + line if self._is_torn else line), True
        write(number, text)
        os.fsync(number)
        self._beat_ns, self._is_torn = os.fstat(number).st_mtime_ns, False

    def release(self) -> bool:
        """Let go. False when there was nothing left to let go of."""
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
        """Whether the mark would end our own epoch. After one that is trusted nobody can have come, but by force."""
        if not self.is_trusted:
            return self.is_newest
        return not self._was_broken(held.epoch) and self._is_our_file(held.epoch)

    def _was_broken(self, epoch: int) -> bool:
        """Whether somebody came after a possession that is still trusted, which only force can do."""
        if self._is_local:  # it makes the next number, and here names are seen as they are
            return os.path.lexists(self._folder.epoch_path(epoch + 1))
        with contextlib.suppress(LockError):  # somebody put other things there, for which nobody shall wait for us
            return self._folder.listing().newest != epoch
        return False

    def stay(self) -> None:
        """Show, while waiting, that our claim is not a leftover.

        Unless it has become an epoch without our knowledge: that would never end.
        """
        if self._has_claim and self._claim is not None:
            with contextlib.suppress(OSError):
                if os.fstat(self._claim.number).st_nlink == 1:
                    os.utime(self._claim.number)

    def _is_still_there(self, step: Callable[[], None]) -> bool:
        """Do something to our claim. False when all its names are gone: then the lock was lost, and long ago."""
        try:
            step()
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            self.withdraw()
            return False
        return True

    def _beat(self) -> None:
        """Change the time of the claim: to when we shall have expired, by our clock, for people to see.

        Some file systems keep whole seconds, some no time after 2038. A heartbeat that looks like one before it is not
        one: so each is later than the last, and where none can be, they begin anew with the time that it is now.
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
        raise OSError(errno.ERANGE, f"the file system of {self._folder.path} keeps no time that shows a sign of life")

    def _shows(self, at_ns: int) -> bool:
        """Whether the claim is seen to have changed."""
        assert self._claim is not None  # noqa: S101 - it is there
        try:
            os.utime(self._claim.number, ns=(at_ns, at_ns))
        except (OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
                raise
            return False  # too late a time
        shown_ns = os.fstat(self._claim.number).st_mtime_ns
        if shown_ns <= self._beat_ns:
            return False
        self._beat_ns = shown_ns
        return True
