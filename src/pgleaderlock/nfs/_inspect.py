"""Looking at a lock from outside, and the two things that people may do to it: break it, and tidy up.

For people. Nothing here is used to decide who has a lock.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._files import place
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.nfs._claim import Claimant, new_name
from pgleaderlock.nfs._contender import Contender
from pgleaderlock.nfs._errors import LockError
from pgleaderlock.nfs._folder import ClaimSeen, Folder, Listing, Seen
from pgleaderlock.nfs._host import hostname, is_running

__all__ = ["Inspection", "break_lock", "inspect", "tidy"]

_ALIVE_S = 60.0  # whoever waits touches its claim three times as often
_YOUNG_S = 5.0  # a claim is made a moment before it is locked


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the folder of a lock shows."""

    exists: bool
    """Whether there is a folder at all."""
    file_system: str | None
    is_local: bool
    epoch: int | None = None
    """Of whoever has the lock, or had it last; None when nobody ever had."""
    is_held: bool = False
    claimant: Claimant | None = None
    """Who has it; None when nobody has, or it cannot be read."""
    is_alive: bool | None = None
    """Whether its process lives; None when this host cannot tell."""
    age_s: float | None = None
    """Since its last sign of life, by the clock of the file server."""
    expires_in_s: float | None = None
    """By the clock of its holder: negative when that is over, unless the clocks differ."""
    waiting: int | None = 0
    """How many more show that they want it; None for an election, whose followers do not."""
    left_behind: int = 0
    """How many claims are of the dead, as far as can be told."""
    strays: tuple[str, ...] = ()
    """Files that are called like an epoch or a mark, and are none: they are ignored."""

    @property
    def over_since_s(self) -> float | None:
        """For how long it has been over, by the clock of the file server; negative until then, None when not held."""
        if self.age_s is None:
            return None
        if self.claimant is None:
            return -(self.expires_in_s or 0.0)
        return self.age_s - self.claimant.lifetime_s

    @property
    def is_expired(self) -> bool | None:
        """Whether whoever has it was silent for its whole lifetime; None when nobody has it."""
        return None if self.over_since_s is None else self.over_since_s >= 0


def inspect(path: Path) -> Inspection:
    """Return what can be seen."""
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
    """Take the lock from whoever has it, and let it go; return the epoch that was ended, None when nobody had it.

    The holder learns of it at its next sign of life, and believes in its lock until then: that is what is unsafe here.
    """
    folder = Folder(path)
    while True:
        listing, seen = folder.look()
        if seen is None:
            return None
        name = f"{path}/{new_name(path.name, socket.gethostname())}"
        claimant = Claimant("(broken by force)", socket.gethostname(), os.getpid(), str(path), 15.0, claimfile=name)
        breaker = Contender(folder, name, claimant, suspend_aware_clock, is_local=False)
        if breaker.take(listing.newest + 1):
            breaker.release()
            return listing.newest
        breaker.withdraw()


def tidy(path: Path) -> list[str]:
    """Remove what dead contenders left behind, and return the names."""
    _check_parent(path)
    folder = Folder(path)
    folder.listing()  # which refuses what is no lock's
    return folder.tidy(is_local=place.is_local(path)) if path.exists() else []


def _check_parent(path: Path) -> None:
    if not path.parent.exists():
        raise LockError(f"the folder {path.parent} does not exist: is the share mounted?")


def _count(folder: Folder, listing: Listing, held: Seen | None, now: float, *, is_local: bool) -> tuple[int, int]:
    """Return how many wait, and how many claims were left behind. Who has the lock, or had it and lives, is neither."""
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
    """On a local disk a claim is locked by its process, unless that comes from another host, or is an election's."""
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
    # A process with its number may be another one, and the same name another host's: only its absence tells something.
    return False if is_here and not is_running(who.pid) else None


def _is_election(claimant: Claimant) -> bool:
    """A Lock is called after its claim, an election's contender by its identity."""
    return claimant.name != claimant.claimfile
