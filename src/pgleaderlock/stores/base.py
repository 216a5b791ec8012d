"""The seam between the engine and a store: six verbs, and five more that have a default.

What the answers mean, for every verb of every store:

- *Held by another* is a value: ``None``.
- *Cannot tell* is :class:`~pgleaderlock.errors.ConnectionError`: the store did not answer.
- *Lost for certain* is :class:`~pgleaderlock.errors.LeadershipLost`: the store answered, and it is not ours.

There is no boolean in between, because a boolean has no place for "do not know".

What the engine relies on:

- Only one verb runs at a time, except that :meth:`Backend.close` may follow a cancelled one at once, and that
  :meth:`Backend.nominate` runs beside the others of a leader, and is not cancelled.
- A verb that is cancelled ends promptly, whatever the network does, and leaves nothing held that it cannot account
  for: in doubt it gives up its session. So time limits belong to the engine alone.
- A verb that failed has given up the session that it failed on; :meth:`Backend.close` gives up everything.
- Foreign exceptions do not leave a backend. One that does anyway is treated as *cannot tell*.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder

__all__ = ["LOST_SHARE", "TRUST_SHARE", "Backend", "leased_grant"]

LOST_SHARE = 2 / 3
"""The part of a lease after which leadership is declared lost."""
TRUST_SHARE = 0.9
"""The part of a lease after which the leader itself no longer treats it as valid (``Grant.trusted_until``)."""


def leased_grant(token: int | None, sent: float, lease_s: float) -> Grant:
    """Return the grant for a request that was sent at ``sent``, in a store with a lease of ``lease_s`` seconds.

    The three deadlines of every lease, counted from ``sent``: at 2/3 leadership is declared lost, so that leader tasks
    have time to stop; at 0.9 the grant stops being valid; and no store grants the lock to another candidate before the
    whole lease is over.
    """
    return Grant(token, trusted_until=sent + TRUST_SHARE * lease_s, lost_at=sent + LOST_SHARE * lease_s)


class Backend(ABC):
    """One lock in one store, seen by one candidate."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, object]:
        """The fields that identify this lock in every log line, such as ``key1`` and ``key2``. Never a secret."""

    @abstractmethod
    async def open(self) -> None:
        """Connect to the store. Does nothing when connected already."""

    @abstractmethod
    async def try_acquire(self) -> Grant | None:
        """Try once to acquire the lock, without waiting. Return None when another candidate holds it."""

    @abstractmethod
    async def renew(self, grant: Grant) -> Grant:
        """Renew the lease in the store, and return the grant with a later ``trusted_until``."""

    make_another: "Callable[..., Backend] | None" = None
    """Returns a backend of another candidate for the same lock, with the given ``identity``, ``lease_s`` and ``clock``.

    Set by the functions that make a backend from a URL or from the environment; None when a caller constructed it.
    """

    renews_itself = False
    """Whether grants are extended without :meth:`renew`; the engine then waits for :meth:`lost` alone."""

    @property
    def identity(self) -> str | None:
        """The name by which the store shows this candidate, and no other, as the leader; None if it has none."""
        return None

    @property
    def address(self) -> str | None:
        """The address that the store shows while this candidate leads; None without one, or if it cannot show one."""
        return None

    @property
    def place(self) -> str:
        """The place of this candidate in the succession, for display only: ``heir``, ``next heir``, or empty."""
        return ""

    async def nominate(self, grant: Grant, to: str) -> None:  # noqa: ARG002 - only some backends can
        """Have the candidate of this name lead next. Raises LockError, and changes nothing, if that cannot be.

        Called beside renewals and a release, and not cancelled.
        """
        raise LockError(
            f"it cannot be chosen that {visible(to)} leads next: only candidates for one lock on PostgreSQL sessions "
            "have places in a succession, not those of a group or of another store"
        )

    def look(self, grant: Grant) -> Grant:
        """Return the grant as it is at this moment: expired, once this process knows of its end, or extended.

        Called from any thread, each time a caller asks whether this process leads: it must not wait, and it must not
        depend on the event loop having had time to notice something.
        """
        return grant

    @abstractmethod
    async def release(self, grant: Grant) -> None:
        """Release the lock. Returning means that it is free; LockError means that this candidate did not hold it."""

    @abstractmethod
    async def holder(self) -> Holder | None:
        """Return the current holder, for display only: it may be outdated, so never decide by it. None when free."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources, the lock included. Does not raise, does not hang, may be repeated."""

    @property
    def lease_s(self) -> float | None:
        """Seconds without a renewal after which the store frees the lock; None where the lock never expires."""
        return None

    async def wait(self, timeout_s: float) -> None:
        """Return when another :meth:`try_acquire` may succeed, at the latest after ``timeout_s``.

        A backend that is notified of the lock's release overrides this; it may also acquire the lock here and return
        the grant from the next :meth:`try_acquire`. Without an open session this is a plain wait. Between two attempts
        of a recovery it keeps alive the sessions that protect that recovery.
        """
        await asyncio.sleep(timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Return the reason as soon as the store reports by itself that the grant is lost.

        None means that something happened which the engine should check with :meth:`renew` now. A store without such
        reports never returns; the engine then detects a loss by :meth:`renew`. May be cancelled without harm.
        """
        await asyncio.get_running_loop().create_future()
        raise NotImplementedError  # that future has no result

    def lifeline(self) -> tuple[int, ...]:
        """Return the open descriptors of which a copy in another process keeps the lock held when this process dies.

        For ``pgleaderlock exec``, whose guardian must stop the command before the lock becomes free. A copy may be
        kept and closed, but never read from or written to. Empty where the lock of a dead process stays held anyway,
        for the rest of its lease.
        """
        return ()
