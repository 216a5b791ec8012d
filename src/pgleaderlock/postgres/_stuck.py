"""Holders that wait for an absent synchronous standby: find them, report them once, end them after a lease. Pure.

``synchronous_standby_names`` may name a standby that is not connected. Then every commit waits (``SyncRep``), also the
one that grants a lock: its backend keeps the lock, and goes on waiting when its client has died. No statement time-out,
idle time-out or connection check ends it, so no candidate would lead until an operator intervened. The wait is measured
on our own clock: the same backend, seen for longer than a lease.
"""

from collections.abc import Iterable

from pgleaderlock._logging import NDLogger
from pgleaderlock.postgres._standby import REMEDY
from pgleaderlock.stores.times import RENEWALS_PER_LEASE

_SYNC_REP = "SyncRep"
_ADVICE = f"a synchronous standby does not confirm commits, so no term can begin: {REMEDY}"


class StuckHolders:
    """The stuck holders that one candidate has seen."""

    def __init__(self, lease_s: float, logger: NDLogger) -> None:
        self._lease_s = lease_s
        self._logger = logger
        self._look_at = 0.0
        self._since: dict[tuple[int, str], float] = {}
        self._was_warned = False

    def is_due(self, now: float) -> bool:
        """Return whether the next look is due: about as often as a renewal."""
        if now < self._look_at:
            return False
        self._look_at = now + self._lease_s / RENEWALS_PER_LEASE
        return True

    def saw(self, holders: Iterable[str], now: float) -> list[tuple[int, str]]:
        """Note the holders of our locks that wait, each as ``pid start``; return those to be terminated."""
        seen = [(int(pid), start) for pid, start in (holder.split() for holder in holders)]
        self._since = {holder: self._since.get(holder, now) for holder in seen}
        if seen:
            self._warn(seen[0][0])
        else:
            self._was_warned = False
        return [holder for holder, since in self._since.items() if now - since >= self._lease_s]

    def note_own(self, wait_event: str) -> None:
        """Note what our own former session was waiting for when we terminated it."""
        if wait_event == _SYNC_REP:
            self._warn(None)

    def _warn(self, pid: int | None) -> None:
        if not self._was_warned:
            self._was_warned = True
            self._logger.warning("synchronous_standby_missing", holder_pid=pid, advice=_ADVICE)
