"""Error texts for a lock that was not acquired or was lost: who holds it, since when, and what to do."""

from pgleaderlock._base.checks import shown
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._errors import LockError
from pgleaderlock.stores.nfs._folder import Folder, Seen

NEVER_LOCKED = "it was never locked by this object"
ALREADY_UNLOCKED = "it was already unlocked"
FORKED = "it was locked before a fork, by the parent of this process, and a child does not inherit it"


def not_acquired(folder: Folder, waited_s: float, timeout_s: float) -> str:
    """Return who holds the lock, and whether the time-out is too short to take over from a dead holder.

    Each waiting process counts the holder's silence from when it began to wait. So a time-out shorter than the lifetime
    never takes over, however often the caller tries.
    """
    text = f"was not acquired within {waited_s:.1f} s"
    try:
        seen = folder.look()[1]
        if seen is None:
            return f"{text}: other candidates acquired it first"
        silent_s = max(0.0, folder.server_now() - seen.changed_at)
    except (OSError, LockError) as error:
        return f"{text}: its holder cannot be determined ({error})"
    if seen.claimant is None:
        return f"{text}: it is held (epoch {seen.epoch}), and its holder's claim cannot be read"
    text += f": {_who(seen)} holds it (epoch {seen.epoch})"
    if timeout_s > seen.claimant.lifetime_s:
        return text
    return (
        f"{text}, the last heartbeat was {silent_s:.1f} s ago: to take over from a dead holder, wait longer than its "
        f"lifetime, {seen.claimant.lifetime_s:g} s"
    )


def lost(folder: Folder, candidate: Candidate, epoch: int) -> str:
    """Return how this process lost the lock that it held with this epoch."""
    silent_s, lifetime_s = candidate.silent_s, candidate.lifetime_s
    if candidate.epoch is not None:
        return f"was lost: the file server took too long to answer, and its lifetime is {lifetime_s:g} s"
    folder.refresh()  # a cached listing would give a wrong reason
    try:
        listing = folder.listing()
    except (OSError, LockError) as error:
        return f"was lost: its files cannot be read ({error})"
    if listing.newest <= epoch:  # the same number is another candidate's, which began again from zero
        return (
            f"was lost: its files were removed from {folder.path}. Never do that: `pgleaderlock nfs break` takes a "
            "lock from its holder"
        )
    other = f"another process {'held' if listing.is_released else 'holds'} it (epoch {listing.newest})"
    if candidate.was_in_time:
        return f"was lost: it was broken by force, and {other}"
    return (
        f"was lost: {silent_s:.1f} s without refresh(), its lifetime is {lifetime_s:g} s, and {other}: refresh more "
        "often or choose a longer lifetime"
    )


def _who(seen: Seen) -> str:
    return "a process" if seen.claimant is None else f"pid {seen.claimant.pid} on {shown(seen.claimant.host)}"
