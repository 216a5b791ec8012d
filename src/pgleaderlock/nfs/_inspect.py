"""Looking at a lock from outside, and the two things that people may do to it: break it, and tidy up.

For people. Nothing here is used to decide who has a lock.
"""

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._files import place
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.nfs._claim import Claimant
from pgleaderlock.nfs._contender import Contender
from pgleaderlock.nfs._folder import Folder

__all__ = ["Inspection", "break_lock", "inspect", "tidy"]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the folder of a lock shows."""

    epoch: int | None
    """Of whoever has the lock, or had it last; None when nobody ever had."""
    is_held: bool
    claimant: Claimant | None
    """Who has it; None when nobody has, or it cannot be read."""
    age_s: float | None
    """Since its last sign of life, by the clock of the file server."""
    expires_in_s: float | None
    """By the clock of its holder: negative when that is over, unless the clocks differ."""
    waiting: int
    """How many more have a claim, those of the dead among them."""


def inspect(path: Path) -> Inspection:
    """Return what can be seen."""
    folder = Folder(path)
    listing, seen = folder.look()
    epoch = listing.newest if listing.newest >= 0 else None
    if seen is None:
        return Inspection(
            epoch, is_held=False, claimant=None, age_s=None, expires_in_s=None, waiting=len(listing.claims)
        )
    claimed = 0 if seen.claimant is None else os.path.basename(seen.claimant.claimfile) in listing.claims  # noqa: PTH119
    return Inspection(
        epoch,
        is_held=True,
        claimant=seen.claimant,
        age_s=max(0.0, folder.server_now() - seen.changed_at),
        expires_in_s=seen.expires_at - time.time(),
        waiting=len(listing.claims) - claimed,
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
        name = f"{path}/claim|{path.name[:80]}|{socket.gethostname()[:80]}|{os.getpid()}|{secrets.randbelow(2**63)}"
        claimant = Claimant("(broken by force)", socket.gethostname(), os.getpid(), str(path), 15.0, claimfile=name)
        breaker = Contender(folder, name, claimant, suspend_aware_clock, is_local=False)
        if breaker.take(listing.newest + 1):
            breaker.release()
            return listing.newest
        breaker.withdraw()


def tidy(path: Path) -> list[str]:
    """Remove what dead contenders left behind, and return the names."""
    return Folder(path).tidy(is_local=place.is_local(path.parent))
