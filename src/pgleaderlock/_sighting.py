"""What one contender has seen of a record, and what may be concluded from it. Nothing here reads, writes or waits.

A record is over when *we* have not seen it change for as long as the record itself says, on our own clock. One that was
there and is gone was deleted by somebody: its holder may still believe, so it is waited out like any other.

A record may say that it lasts for decades. It is not taken over before that, because its holder may be alive; but it is
:attr:`Sighting.endless`, which a candidate reports instead of waiting in silence. Once it is deleted, our own lease is
all that is waited for.
"""

import math
from dataclasses import dataclass

__all__ = ["Record", "Sighting"]

_LONGEST_LEASE_S = 24 * 3600.0
"""No elector that runs goes without a renewal for a day; unless our own lease is as long."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the store holds now."""

    holder: str
    """Empty when it is free."""
    token: int
    lease_s: float
    """As its holder wrote it: whoever waits goes by this, not by a setting of its own."""
    version: object
    """Changes with every write. Compared for equality, and handed back to the store with the next write."""
    since: str | None = None
    """For people."""


class Sighting:
    """The last record that we saw, and since when it has been like that."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: Record | None = None
        self._seen_at = 0.0
        self._is_gone = False
        self.highest = -1
        """The greatest token that was seen, of whatever record: the next term's is greater."""

    def note(self, record: Record | None, now: float) -> None:
        """Take in what was just read."""
        if record is None:
            if self._seen is not None and not self._is_gone:
                self._is_gone, self._seen_at = True, now
        elif self._seen is None or self._is_gone or record.version != self._seen.version:
            self._is_gone, self._seen, self._seen_at = False, record, now
        if record is not None:
            self.highest = max(self.highest, record.token)

    def know_since(self, since: float) -> None:
        """Take in that what was last seen has been as it is since then, on our clock."""
        self._seen_at = min(self._seen_at, since)

    @property
    def seen_at(self) -> float:
        """When what was last seen was seen first."""
        return self._seen_at

    def forget(self) -> None:
        """Begin anew, as another contender. What was the greatest token stays so."""
        self._seen, self._is_gone = None, False

    @property
    def current(self) -> Record | None:
        """The record as it was last seen; None when there was none."""
        return None if self._is_gone else self._seen

    @property
    def over_at(self) -> float:
        """When the record is over unless it changes; at once when nothing was ever seen."""
        if self._seen is None:
            return -math.inf
        # A number that makes no sense was not written by any of us: then our own lease is all that we have. Of whoever
        # held a record that is gone we may have seen nothing: then it is all that we have to go by too.
        lease_s = self._seen.lease_s if 0 < self._seen.lease_s < math.inf else self._lease_s
        if self._is_gone:
            lease_s = self._lease_s if lease_s > self._longest_s else max(lease_s, self._lease_s)
        return self._seen_at + lease_s

    @property
    def endless(self) -> Record | None:
        """The record as it was last seen, if its holder wrote a lease that no candidate lives to see the end of."""
        seen = self.current
        return seen if seen is not None and seen.holder and self._longest_s < seen.lease_s < math.inf else None

    @property
    def _longest_s(self) -> float:
        return max(_LONGEST_LEASE_S, self._lease_s)

    def is_free(self, now: float) -> bool:
        """Whether nobody can believe any more in what was last seen."""
        return self._seen is None or (not self._is_gone and not self._seen.holder) or now >= self.over_at
