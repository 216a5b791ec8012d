"""What one candidate has observed of a record, and whether that makes the lock free. Nothing here reads or waits.

A record has expired when *this candidate* has not seen it change, on its own clock, for the lease duration that the
record states. A record that existed and is gone was deleted by another client: its holder may still act as leader, so
the candidate waits for the end of its lease as for any other.

A record may state a lease of decades. A candidate does not take over before that, because the holder may be alive; but
the record is :attr:`LeaseObservation.endless`, which a candidate reports instead of waiting without a message. Once it
is deleted, the candidate waits for its own lease duration only.
"""

import math
from dataclasses import dataclass

from pgleaderlock._base.checks import address_fault

__all__ = ["LeaseObservation", "Record", "address_in", "address_text"]

_LONGEST_LEASE_S = 24 * 3600.0
"""A longer lease is reported as endless, unless our own is as long: a running leader renews more than once a day."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the store."""

    holder: str
    """Empty when the lock is free."""
    token: int
    lease_s: float
    """As the holder wrote it: a follower waits for this duration, not for its own setting."""
    version: object
    """Changes with every write. Compared for equality, and passed to the store with the next write."""
    since: str | None = None
    """When the term began, for display."""
    address: str | None = None
    """Where clients reach the holder; None if it advertises no address. For display too."""
    claimed_token: int | None = None
    """The token of the claim that began the term, if the store assigned another, greater one; else None."""


def address_text(token: int, address: str | None) -> str:
    """Return an address with the number of its term, for a store in which other programs leave the text unchanged."""
    return "" if address is None else f"{token} {address}"


def address_in(text: object, token: int) -> str | None:
    """Return the address of that text if it is of this term; None for one that an earlier holder has left behind."""
    term, _, address = str(text or "").partition(" ")
    return address if term == str(token) and address_fault(address) is None else None


class LeaseObservation:
    """The record that this candidate saw last, and since when it has been unchanged."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: Record | None = None
        self._seen_at = 0.0
        self._is_gone = False
        self.highest = -1
        """The greatest token seen in any record: that of the next term is greater."""

    def note(self, record: Record | None, now: float) -> None:
        """Note a record that was read at ``now``; None when the store has none."""
        if record is None:
            if self._seen is not None and not self._is_gone:
                self._is_gone, self._seen_at = True, now
        elif self._seen is None or self._is_gone or record.version != self._seen.version:
            self._is_gone, self._seen, self._seen_at = False, record, now
        if record is not None:
            self.highest = max(self.highest, record.token)

    def know_since(self, since: float) -> None:
        """Note that the record seen last has been unchanged since this time, on our clock."""
        self._seen_at = min(self._seen_at, since)

    @property
    def seen_at(self) -> float:
        """When the current version of the record was seen first."""
        return self._seen_at

    def forget(self) -> None:
        """Forget the record, as a new candidate must. Keep the greatest token."""
        self._seen, self._is_gone = None, False

    @property
    def current(self) -> Record | None:
        """The record that was seen last; None when there was none."""
        return None if self._is_gone else self._seen

    @property
    def over_at(self) -> float:
        """When the record expires unless it changes; -inf when no record was ever seen."""
        if self._seen is None:
            return -math.inf
        # A lease duration that makes no sense was not written by a candidate: use our own. After a deletion, wait for
        # our own at least: the last holder before it may be one whose record we never saw.
        lease_s = self._seen.lease_s if 0 < self._seen.lease_s < math.inf else self._lease_s
        if self._is_gone:
            lease_s = self._lease_s if lease_s > self._longest_s else max(lease_s, self._lease_s)
        return self._seen_at + lease_s

    @property
    def endless(self) -> Record | None:
        """The record seen last, if its lease is longer than a day and than our own; else None."""
        seen = self.current
        return seen if seen is not None and seen.holder and self._longest_s < seen.lease_s < math.inf else None

    @property
    def _longest_s(self) -> float:
        return max(_LONGEST_LEASE_S, self._lease_s)

    def is_free(self, now: float) -> bool:
        """Whether the lock is free: there was never a record, it was released, or its lease has expired."""
        return self._seen is None or (not self._is_gone and not self._seen.holder) or now >= self.over_at
