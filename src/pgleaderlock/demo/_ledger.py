"""Who believed when, as the nodes said it, and whether two ever did at once. Pure: no I/O, no clock.

Only what is certain counts: a belief lasts from the moment at which a node said that it began to the last one at which
it was seen to be believed. So an overlap that is found here was one.
"""

from dataclasses import dataclass

__all__ = ["Belief", "Ledger", "Overlap"]

_REMEMBERED = 50


@dataclass(slots=True)
class Belief:
    """One node's belief in one term. Times are in seconds, by the clock that all nodes share."""

    node: str
    process_id: int
    token: int
    began_at: float
    seen_at: float
    """Until when it certainly lasted."""
    has_ceased: bool = False


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two that believed at once, which must never be."""

    first: str
    second: str
    seconds: float
    pair: tuple[int, int]
    """The tokens of the two terms."""

    def __str__(self) -> str:
        return f"TWO LEADERS AT ONCE: {self.first} and {self.second} both led for {self.seconds * 1000:.1f} ms"


class Ledger:
    """The beliefs of all nodes, the newest of them, and what was wrong with them."""

    def __init__(self) -> None:
        self._beliefs: list[Belief] = []
        self._overlaps: dict[tuple[int, int], Overlap] = {}

    @property
    def overlaps(self) -> list[Overlap]:
        """Every overlap that was found."""
        return list(self._overlaps.values())

    def began(self, node: str, process_id: int, token: int, at: float) -> None:
        """Note that a node believes."""
        self._beliefs = [*self._beliefs[1 - _REMEMBERED :], Belief(node, process_id, token, at, at)]
        self._compare()

    def worked(self, process_id: int, token: int, at: float) -> None:
        """Note that a node believed at this moment."""
        for belief in self._of(process_id, token):
            belief.seen_at = max(belief.seen_at, at)
        self._compare()

    def ceased(self, process_id: int, token: int, at: float) -> None:
        """Note that a node believes no more, and when it did last."""
        for belief in self._of(process_id, token):
            belief.has_ceased = True
        self.worked(process_id, token, at)

    def died(self, process_id: int) -> None:
        """Note that a node is dead, and believes nothing."""
        for belief in self._beliefs:
            if belief.process_id == process_id:
                belief.has_ceased = True

    def believer(self) -> Belief | None:
        """Return whoever began last, if it is not known to have ceased."""
        newest = max(self._beliefs, key=lambda belief: belief.token, default=None)
        return None if newest is None or newest.has_ceased else newest

    def successor(self, token: int) -> Belief | None:
        """Return the first belief in a later term than this."""
        later = [belief for belief in self._beliefs if belief.token > token]
        return min(later, key=lambda belief: belief.token, default=None)

    def _of(self, process_id: int, token: int) -> list[Belief]:
        return [each for each in self._beliefs if (each.process_id, each.token) == (process_id, token)]

    def _compare(self) -> None:
        ordered = sorted(self._beliefs, key=lambda belief: belief.began_at)
        for place, first in enumerate(ordered):
            for second in ordered[place + 1 :]:
                if first.process_id != second.process_id and first.seen_at > second.began_at:
                    until = min(first.seen_at, second.seen_at) if second.has_ceased else first.seen_at
                    seconds = until - second.began_at
                    pair = (first.token, second.token)
                    self._overlaps[pair] = Overlap(first.node, second.node, seconds, pair)
