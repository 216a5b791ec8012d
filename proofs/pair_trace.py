"""What an overlap or a loss was, by what the relay and the candidates wrote down beside each other on one clock.

A leader can know that the server has ended its lock session only when that has reached its own socket. Two that led at
once are therefore one of two things:

- **not reached**: the end of the old leader's lock session was not at its socket when it was last seen to lead. The
  server frees the locks of a session a moment before it closes the socket, and ``takeover="fast"`` does not promise
  anything about that moment (docs/explanation/session-locks.md);
- **a defect**: the end was at its socket, and it still said that it leads; or its lock session had not ended at all.

A loss has an untrue cause if what was written down contradicts it: an ended session where none had ended, a renewal
without an answer where all were answered, a process that stood still where it did not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proofs.traced_relay import Ending, SlowAnswer

__all__ = ["Loss", "Overlap", "Trace", "Traced"]

_SOON_S = 0.5
"""Within which the relay sees the end of a session whose locks are free."""
_MARGIN_S = 0.05
_STOOD_STILL_LEASES = 0.1
"""For how much of a lease before a loss an event loop stood still, if that was the cause."""
_ENDED = frozenset({"session_terminated", "connection_lost", "witness_lost"})
_SILENT = frozenset({"renew_timeout", "silenced"})


@dataclass(frozen=True)
class Overlap:
    """Two processes that led one role at once. The first is the one that had led before."""

    role: int
    names: tuple[str, str]
    began_at: float
    lasted_s: float
    first_since: float
    """When the old leader had begun."""
    first_until: float
    """When the old leader was last seen to lead."""

    @property
    def node(self) -> int:
        """The number of the old leader's node."""
        return int(self.names[0].partition(".")[0].removeprefix("n"))


@dataclass(frozen=True)
class Traced:
    """An overlap, and what the trace says of it."""

    overlap: Overlap
    is_defect: bool
    words: str


@dataclass(frozen=True)
class Loss:
    """The end of a term, as a candidate reported it."""

    node: int
    at: float
    cause: str
    detail: str | None = None


@dataclass
class Trace:
    """All that was written down: ends of sessions, slow answers, and for each node when its event loop stood still."""

    endings: list[Ending] = field(default_factory=list)
    slow: list[SlowAnswer] = field(default_factory=list)
    stalls: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    lock_pids: set[int] = field(default_factory=set)
    """The server's processes that were seen to hold locks of roles, not of witnesses."""

    def add(self, records: Iterable[Ending | SlowAnswer]) -> None:
        """Sort in what a relay wrote."""
        for record in records:
            (self.endings if isinstance(record, Ending) else self.slow).append(record)  # type: ignore[arg-type]

    # --- Overlaps ------------------------------------------------------------------------------------------------

    def explain(self, overlap: Overlap) -> Traced:
        """Say whether the old leader could know, and with how many milliseconds."""
        until = overlap.first_until
        ended = [each for each in self._lock_endings(overlap) if each.closed_at <= until + _SOON_S]
        if not ended:
            return Traced(overlap, is_defect=True, words="the lock session of the old leader had not ended")
        news = min(ended, key=lambda each: each.forwarded_at)
        late_ms = (until - news.forwarded_at) * 1e3
        if late_ms > 0:
            words = f"the end of its lock session was at its socket for {late_ms:.1f} ms, and it still led"
            return Traced(overlap, is_defect=True, words=words)
        relay_ms = (news.forwarded_at - news.closed_at) * 1e3
        words = f"the end of its lock session reached its socket {-late_ms:.1f} ms after its last look"
        return Traced(
            overlap, is_defect=False, words=f"{words} (of that {min(relay_ms, -late_ms):.1f} ms in the relay)"
        )

    def _lock_endings(self, overlap: Overlap) -> Sequence[Ending]:
        return [
            each
            for each in self.endings
            if each.node == overlap.node and each.pid in self.lock_pids and each.forwarded_at > overlap.first_since
        ]

    # --- Losses --------------------------------------------------------------------------------------------------

    def contradicts(self, loss: Loss, lease_s: float) -> bool:
        """Whether a loss cannot have the cause that was reported."""
        since = loss.at - lease_s
        stood_still = self._stood_still_s(loss, since) >= _STOOD_STILL_LEASES * lease_s
        if loss.cause in _ENDED:
            mine = [each for each in self.endings if each.node == loss.node and each.forwarded_at >= since]
            return not any(min(each.said_at, each.forwarded_at) <= loss.at + _MARGIN_S for each in mine)
        if loss.cause in _SILENT:
            return not (stood_still or self._was_unanswered(loss))
        return not (loss.cause == "stalled" and stood_still)

    def _was_unanswered(self, loss: Loss) -> bool:
        """Whether a request was under way at the loss, or answered late shortly before it."""
        mine = (each for each in self.slow if each.node == loss.node)
        return any(each.asked_at < loss.at and each.answered_at > loss.at - _SOON_S for each in mine)

    def _stood_still_s(self, loss: Loss, since: float) -> float:
        stalls = self.stalls.get(loss.node, [])
        until = loss.at + _MARGIN_S
        return sum(max(0.0, min(ended_at, until) - max(began_at, since)) for began_at, ended_at in stalls)
