"""The seam between the engine and a store: six verbs, and three more that have a default.

What the answers mean, for every verb of every store:

- *Held by another* is a value: ``None``.
- *Cannot tell* is :class:`~pgleaderlock.errors.ConnectionError`: the store did not answer.
- *Lost for certain* is :class:`~pgleaderlock.errors.LeadershipLost`: the store answered, and it is not ours.

There is no boolean in between, because a boolean has no place for "do not know".

What the engine relies on:

- Only one verb runs at a time, except that :meth:`Backend.close` may follow a cancelled one at once.
- A verb that is cancelled ends promptly, whatever the network does, and leaves nothing held that it cannot account
  for: in doubt it gives up its session. So time limits belong to the engine alone.
- A verb that failed has given up the session that it failed on; :meth:`Backend.close` gives up everything.
- Foreign exceptions do not leave a backend. One that does anyway is treated as *cannot tell*.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Grant, Holder

__all__ = ["LOST_SHARE", "TRUST_SHARE", "Backend", "leased_grant"]

LOST_SHARE = 2 / 3
"""The part of a lease after which leadership is declared lost."""
TRUST_SHARE = 0.9
"""The part of a lease after which nobody believes in it any more."""


def leased_grant(token: int | None, sent: float, lease_s: float) -> Grant:
    """Return what the answer to a request is worth that was sent then, with a store that waits for ``lease_s``.

    The three times of every lease: leadership is declared lost at 2/3, so that work has time to stop; it is not
    believed in past 0.9; and no store gives it to another before the whole is over.
    """
    return Grant(token, trusted_until=sent + TRUST_SHARE * lease_s, lost_at=sent + LOST_SHARE * lease_s)


class Backend(ABC):
    """One lock in one store, seen by one contender."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, object]:
        """What names this lock in every log line, such as ``key1`` and ``key2``. Never a secret."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready to ask. Does nothing when it is ready already."""

    @abstractmethod
    async def try_acquire(self) -> Grant | None:
        """Ask once, without waiting. None means that another holds it."""

    @abstractmethod
    async def renew(self, grant: Grant) -> Grant:
        """Show that the grant still stands, and return it with its trust extended."""

    make_another: "Callable[..., Backend] | None" = None
    """Makes another candidate for the same lock, with this ``identity``, ``lease_s`` and ``clock``.

    Set by what made this one from a URL or from the environment; None where it was made by hand.
    """

    renews_itself = False
    """Whether grants are extended without :meth:`renew`; the engine then waits for :meth:`lost` alone."""

    def look(self, grant: Grant) -> Grant:
        """Return the grant as it stands at this moment: over, once its end is known here, or extended.

        Asked each time somebody asks whether this process leads, from any thread: it must not wait, and it must not
        depend on the event loop having had time to notice something.
        """
        return grant

    @abstractmethod
    async def release(self, grant: Grant) -> None:
        """Give it up. Returning means that it is free; LockError that it was not ours to give."""

    @abstractmethod
    async def holder(self) -> Holder | None:
        """Say who holds it, for people to look at. Never decide by it."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything, the lock included. Does not raise, does not hang, may be repeated."""

    @property
    def lease_s(self) -> float | None:
        """How long the store waits for a silent holder before it frees the lock; None where nothing ends it."""
        return None

    async def wait(self, timeout_s: float) -> None:
        """Return when asking again is worth while, at the latest after ``timeout_s``.

        A store that can be woken by the lock's release overrides this; it may also be granted the lock here and
        hand it out at the next :meth:`try_acquire`. Works without an open session, as a plain wait. Between two
        attempts of a recovery it keeps alive what protects that recovery.
        """
        await asyncio.sleep(timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Return, with the reason, once the store shows by itself that the grant is gone.

        None means that something happened which :meth:`renew` should look at now. A store that cannot show
        anything never returns, and the engine learns of a loss from :meth:`renew`. May be cancelled without harm.
        """
        await asyncio.get_running_loop().create_future()
        raise NotImplementedError  # that future has no result

    def lifeline(self) -> tuple[int, ...]:
        """Return the open descriptors of which a copy in another process keeps the lock held when this process dies.

        For whoever has to stop work first (``pgleaderlock exec``). A copy is to be kept and closed, never read from or
        written to. None where a dead process's lock is kept anyway, for what is left of its lease.
        """
        return ()
