"""Which node claimed to lead when, by the nodes' own reports, and whether two did at once. Pure: no I/O, no clock.

Only what is certain counts: a claim lasts from the moment at which a node reported its beginning to the last moment at
which the node was seen to lead. So two claims that overlap here have overlapped in fact.
"""

import math
from dataclasses import dataclass

from pgleaderlock._base.overlaps import Overlap, find_overlaps

_REMEMBERED = 50


@dataclass(slots=True)
class ReportedClaim:
    """One node's claim to lead in one term. Times are in seconds, by the clock that all nodes share."""

    node: str
    process_id: int
    token: int
    began_at: float
    seen_at: float
    """Until when it certainly lasted."""
    has_ceased: bool = False


class Ledger:
    """The newest claims of all nodes, and every overlap among them."""

    def __init__(self) -> None:
        self._claims: list[ReportedClaim] = []
        self.overlaps: dict[tuple[int, int], Overlap[ReportedClaim]] = {}
        """Every overlap that was found, by the tokens of the two terms."""

    def began(self, node: str, process_id: int, token: int, at: float) -> None:
        """Record that a node claims to lead from this moment on."""
        self._claims = [*self._claims[1 - _REMEMBERED :], ReportedClaim(node, process_id, token, at, at)]
        self._compare()

    def worked(self, process_id: int, token: int, at: float) -> None:
        """Record that a node acted as leader at this moment."""
        for claim in self._of(process_id, token):
            claim.seen_at = max(claim.seen_at, at)
        self._compare()

    def ceased(self, process_id: int, token: int, at: float) -> None:
        """Record that a node no longer claims to lead, and when it did last."""
        for claim in self._of(process_id, token):
            claim.has_ceased = True
        self.worked(process_id, token, at)

    def died(self, process_id: int) -> None:
        """Record that a node's process has ended, and its claim with it."""
        for claim in self._claims:
            if claim.process_id == process_id:
                claim.has_ceased = True

    def current(self) -> ReportedClaim | None:
        """Return the claim with the greatest token, if it is not known to have ended."""
        newest = max(self._claims, key=lambda claim: claim.token, default=None)
        return None if newest is None or newest.has_ceased else newest

    def successor(self, token: int) -> ReportedClaim | None:
        """Return the claim of the first term after this one."""
        later = [claim for claim in self._claims if claim.token > token]
        return min(later, key=lambda claim: claim.token, default=None)

    def _of(self, process_id: int, token: int) -> list[ReportedClaim]:
        return [each for each in self._claims if (each.process_id, each.token) == (process_id, token)]

    def _compare(self) -> None:
        found = find_overlaps(
            self._claims, lambda claim: claim.seen_at, lambda claim: claim.seen_at if claim.has_ceased else math.inf
        )
        for each in found:
            if each.first.process_id != each.second.process_id:
                self.overlaps[each.first.token, each.second.token] = each
