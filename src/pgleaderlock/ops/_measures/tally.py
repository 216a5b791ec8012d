"""What the events of one election add up to. Knows nothing of Prometheus or OpenTelemetry, and reads no clock."""

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from pgleaderlock._base.causes import LossCause
from pgleaderlock.engine.fsm import Input
from pgleaderlock.models import Event, EventKind, LockState

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)
"""The upper ends, included, of the buckets that renewals are sorted into; one more takes the rest."""

_ENDS_A_TERM = frozenset({EventKind.LOST, EventKind.RELEASED, EventKind.STOPPED})
# The last brings no news of a leader, but ends the asking for one.
_ENDS_THE_DOUBT = frozenset({EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED, EventKind.RECOVERED, EventKind.STOPPED})


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers at one moment."""

    tenure_s: float
    elections: int
    failovers: int
    losses: dict[LossCause, int]
    leaderless_s: float
    renewals: tuple[int, ...]
    """How many took no longer than each of the buckets; the last is all of them."""
    renewing_s: float
    callback_errors: int
    work_failures: int
    work_overruns: int


class Tally:
    """Hears the events on the election's thread, and is read on others."""

    def __init__(self, state: LockState, now: float) -> None:
        self._guard = threading.Lock()
        self._elections = self._failovers = self._callback_errors = 0
        self._work_failures = self._work_overruns = 0
        self._losses = Counter(dict.fromkeys(LossCause, 0))  # a series that is born at 1 has no increase
        self._renewals = [0] * (len(BUCKETS_S) + 1)
        self._renewing_s = self._leaderless_s = 0.0
        self._knows_of_an_earlier_leader = False
        self._term_began = now if state.is_in_term else None
        self._leaderless_since = now if state.is_following or state.is_recovering else None

    def hear(self, event: Event) -> None:
        """Count. Runs within the election's event stream: nothing here waits, or can raise."""
        with self._guard:
            self._count(event)
            self._follow_the_term(event)
            self._follow_the_doubt(event)

    def renewed(self, took_s: float) -> None:
        """Count a renewal of which the election itself was not told, as in a group."""
        with self._guard:
            self._count_renewal(took_s)

    def _count_renewal(self, took_s: float) -> None:
        self._renewals[bisect_left(BUCKETS_S, took_s)] += 1
        self._renewing_s += took_s

    def read(self, now: float, *, leads: bool) -> Reading:
        """Return the numbers as they are at this time, for an election that leads or does not."""
        with self._guard:
            if not leads:  # else the news that ends the doubt is still on its way to hear()
                self._count_leaderless_until(now)
            began = self._term_began if leads else None
            return Reading(
                tenure_s=0.0 if began is None else max(0.0, now - began),
                elections=self._elections,
                failovers=self._failovers,
                losses=dict(self._losses),
                leaderless_s=self._leaderless_s,
                renewals=tuple(accumulate(self._renewals)),
                renewing_s=self._renewing_s,
                callback_errors=self._callback_errors,
                work_failures=self._work_failures,
                work_overruns=self._work_overruns,
            )

    def _count(self, event: Event) -> None:
        match event.kind:
            case EventKind.STATE_CHANGE if event.cause == Input.ACQUIRE_ATTEMPT.value:
                self._elections += 1
            case EventKind.ACQUIRED if self._knows_of_an_earlier_leader:
                self._failovers += 1
            case EventKind.LOST:
                self._losses[LossCause(event.cause)] += 1
            case EventKind.CALLBACK_FAILED:
                self._callback_errors += 1
            case EventKind.WORK_FAILED:
                self._work_failures += 1
            case EventKind.OVERRUN:
                self._work_overruns += 1
            case EventKind.RENEWED if event.took_s is not None:
                self._count_renewal(event.took_s)

    def _follow_the_term(self, event: Event) -> None:
        if event.kind is EventKind.ACQUIRED:
            self._term_began = event.at
        elif event.kind in _ENDS_A_TERM or event.from_state.is_stopped:  # a loop that was closed told no end
            self._term_began = None
        if event.kind in (EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED) or event.from_state.is_in_term:
            self._knows_of_an_earlier_leader = True

    def _follow_the_doubt(self, event: Event) -> None:
        leaderless = _leaderless_after(event)
        if leaderless is None:
            return
        self._count_leaderless_until(event.at)
        if not leaderless:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = event.at

    def _count_leaderless_until(self, now: float) -> None:
        """Move what has passed into the counter. An event may be heard late, but what was shown is not taken back."""
        if self._leaderless_since is not None and now > self._leaderless_since:
            self._leaderless_s += now - self._leaderless_since
            self._leaderless_since = now


def _leaderless_after(event: Event) -> bool | None:
    """Whether this node knows of no leader from here on. None where the event says nothing about that."""
    if event.kind in _ENDS_THE_DOUBT:
        return False
    if event.kind is EventKind.LOST:
        return event.cause != LossCause.HELD_BY_ANOTHER
    cannot_ask = event.kind is EventKind.ERROR and event.from_state.is_following
    if event.kind is EventKind.RELEASED or cannot_ask:
        return True
    begins = event.from_state.is_stopped or event.to_state.is_recovering
    return True if event.kind is EventKind.STATE_CHANGE and begins else None
