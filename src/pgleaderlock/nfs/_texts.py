"""What people are told when a lock is not to be had, or not theirs: who has it, since when, and what to do."""

from pgleaderlock._checks import shown
from pgleaderlock.nfs._contender import Contender
from pgleaderlock.nfs._errors import LockError
from pgleaderlock.nfs._folder import Folder, Seen

__all__ = ["ALREADY_UNLOCKED", "FORKED", "NEVER_LOCKED", "lost", "not_to_be_had"]

NEVER_LOCKED = "it was never locked by this object"
ALREADY_UNLOCKED = "it was already unlocked"
FORKED = "it was locked before a fork, by the parent of this process, and a child has nothing of that"


def not_to_be_had(folder: Folder, waited_s: float, timeout_s: float) -> str:
    """Say who has it; and to whoever waits for less than a lifetime, that this is not enough when its holder is dead.

    Silence is counted by whoever waits, from when it began to: so that is no matter of how often one tries.
    """
    text = f"was not to be had in {waited_s:.1f} s"
    try:
        seen = folder.look()[1]
        if seen is None:
            return f"{text}: others were quicker"
        silent_s = max(0.0, folder.server_now() - seen.changed_at)
    except (OSError, LockError) as error:
        return f"{text}: who has it cannot be told ({error})"
    if seen.claimant is None:
        return f"{text}: somebody whose claim cannot be read has it (epoch {seen.epoch})"
    text += f": {_who(seen)} has it (epoch {seen.epoch})"
    if timeout_s > seen.claimant.lifetime_s:
        return text
    return (
        f"{text}, its holder has been silent for {silent_s:.1f} s: to take over from a dead holder wait longer than "
        f"its lifetime, {seen.claimant.lifetime_s:g} s"
    )


def lost(folder: Folder, contender: Contender, epoch: int) -> str:
    """Say how what we had was lost."""
    silent_s, lifetime_s = contender.silent_s, contender.lifetime_s
    if contender.epoch is not None:
        return f"was lost: the file server took too long to answer, and its lifetime is {lifetime_s:g} s"
    folder.refresh()  # whoever comes late sees an old listing, and would be told of what never was
    try:
        listing = folder.listing()
    except (OSError, LockError) as error:
        return f"was lost: its files cannot be read ({error})"
    if listing.newest <= epoch:  # and if it is that, it is another's
        return (
            f"was lost: somebody removed its files from {folder.path}. Never do that: `pgleaderlock nfs break` takes a "
            "lock from its holder"
        )
    other = f"another {'had' if listing.is_released else 'has'} it (epoch {listing.newest})"
    if contender.was_in_time:
        return f"was lost: it was broken by force, and {other}"
    return (
        f"was lost: {silent_s:.1f} s without refresh(), its lifetime is {lifetime_s:g} s, and {other}: refresh more "
        "often or choose a longer lifetime"
    )


def _who(seen: Seen) -> str:
    return "somebody" if seen.claimant is None else f"pid {seen.claimant.pid} on {shown(seen.claimant.host)}"
