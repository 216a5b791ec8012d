"""Inspection of a lock from outside, and the two operations for operators: break it, and tidy up.

For display. No candidate decides by it who holds a lock.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._claim import Claimant, new_name
from pgleaderlock.stores.nfs._errors import LockError
from pgleaderlock.stores.nfs._folder import ClaimSeen, Folder, Listing, Seen
from pgleaderlock.stores.nfs._host import hostname, is_running

_ALIVE_S = 60.0  # a waiting candidate touches its claim three times as often
_YOUNG_S = 5.0  # a claim is made a moment before it is locked


@dataclass(frozen=True, slots=True)
class Inspection:
    """The state of a lock, as its folder shows it."""

    exists: bool
    """Whether the folder exists."""
    file_system: str | None
    is_local: bool
    epoch: int | None = None
    """Of the current holder, or of the last one; None when the lock was never held."""
    is_held: bool = False
    claimant: Claimant | None = None
    """The holder; None when the lock is free, or its claim cannot be read."""
    is_alive: bool | None = None
    """Whether the holder's process lives; None when this host cannot determine that."""
    age_s: float | None = None
    """Seconds since the last heartbeat, by the clock of the file server."""
    expires_in_s: float | None = None
    """By the clock of the holder: negative when it has expired, unless the clocks differ."""
    waiting: int | None = 0
    """The number of waiting candidates; None for an election, whose followers make no claims."""
    left_behind: int = 0
    """The number of claims of dead candidates, as far as this host can determine."""
    strays: tuple[str, ...] = ()
    """Files that are named like an epoch or a mark but are not: they are ignored."""

    @property
    def over_since_s(self) -> float | None:
        """Seconds since it expired, by the clock of the file server; negative until then, None when not held."""
        if self.age_s is None:
            return None
        if self.claimant is None:
            return -(self.expires_in_s or 0.0)
        return self.age_s - self.claimant.lifetime_s

    @property
    def is_expired(self) -> bool | None:
        """Whether the holder sent no heartbeat for its whole lifetime; None when the lock is free."""
        return None if self.over_since_s is None else self.over_since_s >= 0


def inspect(path: Path) -> Inspection:
    """Return the state of the lock with this path."""
    _check_parent(path)
    folder, is_local = Folder(path), place.is_local(path)
    listing, seen = folder.look()
    if not path.exists():
        return Inspection(exists=False, file_system=place.describe(path.parent), is_local=is_local)
    now = folder.server_now()
    waiting, left_behind = _count(folder, listing, seen, now, is_local=is_local)
    claimant = None if seen is None else seen.claimant
    return Inspection(
        exists=True,
        file_system=place.describe(path),
        is_local=is_local,
        epoch=listing.newest if listing.newest >= 0 else None,
        is_held=seen is not None,
        claimant=claimant,
        is_alive=None if seen is None else _is_alive(folder, seen),
        age_s=None if seen is None else max(0.0, now - seen.changed_at),
        expires_in_s=None if seen is None else seen.expires_at - time.time(),
        waiting=None if claimant is not None and _is_election(claimant) else waiting,
        left_behind=left_behind,
        strays=listing.strays,
    )


def break_lock(path: Path) -> int | None:
    """Take the lock from its holder and release it; return the epoch that was ended, None when the lock was free.

    This is unsafe: the holder notices it at its next heartbeat only, and acts as the holder until then.
    """
    folder = Folder(path)
    while True:
        listing, seen = folder.look()
        if seen is None:
            return None
        name = f"{path}/{new_name(path.name, socket.gethostname())}"
        claimant = Claimant("(broken by force)", socket.gethostname(), os.getpid(), str(path), 15.0, claimfile=name)
        breaker = Candidate(folder, name, claimant, suspend_aware_clock, is_local=False)
        if breaker.take(listing.newest + 1):
            breaker.release()
            return listing.newest
        breaker.withdraw()


def tidy(path: Path) -> list[str]:
    """Remove the claims of dead candidates, and return their names."""
    _check_parent(path)
    folder = Folder(path)
    folder.listing()  # which refuses a folder that is not a lock's
    return folder.tidy(is_local=place.is_local(path)) if path.exists() else []


def _check_parent(path: Path) -> None:
    if not path.parent.exists():
        raise LockError(f"the folder {path.parent} does not exist: is the share mounted?")


def _count(folder: Folder, listing: Listing, held: Seen | None, now: float, *, is_local: bool) -> tuple[int, int]:
    """Return the number of waiting candidates, and of claims left behind. A live present or past holder is neither."""
    waiting = left_behind = 0
    for name in listing.claims:
        claim = folder.see_claim(name)
        if claim is None or (held is not None and claim.inode == held.heartbeat[-1]):
            continue
        if not _shows_life(folder, claim, now, is_local=is_local):
            left_behind += 1
        elif claim.links == 1:
            waiting += 1
    return waiting, left_behind


def _shows_life(folder: Folder, claim: ClaimSeen, now: float, *, is_local: bool) -> bool:
    """Whether the owner of a claim lives: its lock tells on a local disk, else how long ago it was touched.

    Claims of other hosts and of elections are not locked.
    """
    age_s = now - claim.touched_at
    if is_local and (claim.claimant is None or claim.claimant.boot_id is not None):
        return age_s < _YOUNG_S or not folder.is_claim_alone(claim.name)
    return age_s < _ALIVE_S


def _is_alive(folder: Folder, seen: Seen) -> bool | None:
    who = seen.claimant
    if who is None:
        return None
    if who.boot_id is not None and who.boot_id == place.boot_id():
        return not folder.is_alone(seen.epoch)
    is_here = who.host in (hostname(), socket.gethostname())
    # The same process id may be another process, and the same name another host: only its absence is certain.
    return False if is_here and not is_running(who.pid) else None


def _is_election(claimant: Claimant) -> bool:
    """Whether an election's candidate made this claim: its name is its identity, while a Lock's is its claim file."""
    return claimant.name != claimant.claimfile
