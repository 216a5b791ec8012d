"""The rows about this node's roles: their present values, and which of them the database does not have yet.

Pure: events come in, rows come out. History is appended; every other row is a state, so a row that could not be written
is written later with its values of that time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pgleaderlock._base.checks import visible
from pgleaderlock.engine.election import Election
from pgleaderlock.models import ERROR_KINDS, Event, EventKind, LockState
from pgleaderlock.ops.registry._outbox import Happening, Outbox
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.keys import LockKey

_NAMES = {
    EventKind.ACQUIRED: "acquired",
    EventKind.RECOVERED: "recovered",
    EventKind.RELEASED: "released",
    EventKind.LOST: "lost",
    EventKind.STOPPED: "stopped",
    EventKind.OVERRUN: "overrun",
    EventKind.ERROR: "error",
    EventKind.WORK_FAILED: "error",
}
_BEGINS = (EventKind.ACQUIRED, EventKind.RECOVERED)
_ENDS = (EventKind.RELEASED, EventKind.LOST, EventKind.STOPPED)
_LONGEST_DETAIL = 500
_LATE_S = 0.1
_SHOWN_PER_LEASE = 3
_SPARE_SHARE = 0.1  # of a lease: what is shown is written again so long before it is over, and not more often than this


@dataclass(slots=True)
class Standing:
    lock: str
    role: str
    key: LockKey | None
    election: Election
    state: LockState = LockState.STOPPED
    since: float = 0.0
    place: str = ""
    """The place in the succession, as it was at the last sign of life."""
    token: int | None = None
    acquired_at: float | None = None
    """None when it does not lead."""
    leaving_at: float | None = None
    """Since when it is being released, and not valid any more."""
    last_error: str | None = None
    shown_at: float | None = None
    """When the row of this leader was written last; None when it does not lead."""
    shown_until: float | None = None
    """Until when it says that this leader is valid; None where nothing ends that."""

    @property
    def shown_state(self) -> str:
        """What the row of this candidate says: its place, which only a follower has, or its state."""
        return self.place if self.place and self.state.is_following else self.state.value

    @property
    def interval_s(self) -> float:
        """How often the row of this leader is written, at least."""
        lease_s = self.election.lease_s
        return float("inf") if lease_s is None else lease_s / _SHOWN_PER_LEASE

    @property
    def due_at(self) -> float:
        """When the row must be written again, so that a leader that renews is never shown as one that does not.

        A third of a lease is enough where renewals are as frequent; where they are rarer, what is shown may be almost
        over by then.
        """
        lease_s = self.election.lease_s
        if lease_s is None or self.shown_at is None:
            return float("inf")
        spare_s = lease_s * _SPARE_SHARE
        until = float("inf") if self.shown_until is None else self.shown_until - spare_s
        return max(self.shown_at + spare_s, min(self.shown_at + self.interval_s, until))


@dataclass(slots=True)
class Changes:
    """Locks whose rows are not as they should be."""

    led: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    stands: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.led or self.cleared or self.stands or self.withdrawn)


class PendingRows:
    """All roles of one node."""

    def __init__(self, capacity: int) -> None:
        self.outbox = Outbox(capacity)
        self.standings: dict[str, Standing] = {}
        self._changes = Changes()

    @property
    def has_news(self) -> bool:
        return bool(self._changes) or len(self.outbox) > 0

    def add(self, standing: Standing, now: float) -> None:
        self.standings[standing.lock] = standing
        election = standing.election
        if election.state.is_stopped:
            return
        standing.state, standing.since = _shown(election.state), now
        if election.is_leader:
            standing.token, standing.acquired_at = election.token, now
        self.mark_all()

    def note_places(self) -> None:
        """Read the places of all candidates: no event tells of them."""
        for standing in self.standings.values():
            before, standing.place = standing.shown_state, standing.election.place
            if standing.shown_state != before:
                self._mark_candidate(standing)

    def leading(self) -> list[Standing]:
        """The roles that this node leads, as far as it has said so."""
        return [standing for standing in self.standings.values() if standing.acquired_at is not None]

    def valid(self) -> list[Standing]:
        """The roles that this node leads at this moment."""
        return [standing for standing in self.leading() if standing.election.is_leader]

    def take_changes(self) -> Changes:
        """Hand out what is to be written."""
        changes, self._changes = self._changes, Changes()
        return changes

    def put_back(self, changes: Changes) -> None:
        """They could not be written: write them as they are by then."""
        for lock in changes.led | changes.cleared:
            self._mark_leader(self.standings[lock])
        for lock in changes.stands | changes.withdrawn:
            self._mark_candidate(self.standings[lock])

    def mark_all(self) -> None:
        """The database may have forgotten everything."""
        for standing in self.standings.values():
            self._mark_candidate(standing)
            if standing.acquired_at is not None:
                self._mark_leader(standing)

    def hear(self, standing: Standing, event: Event) -> None:
        if event.kind is EventKind.STATE_CHANGE:
            self._note_state(standing, event)
            return
        if event.kind not in _NAMES or not self._is_worth_noting(standing, event):
            return
        if event.kind in _BEGINS:
            standing.token, standing.acquired_at = event.token, event.at
            self._mark_leader(standing)
        is_end = event.kind in _ENDS and standing.acquired_at is not None
        at = _ended_at(standing, event) if is_end else event.at
        self._append(standing, event, _NAMES[event.kind], token=event.token or standing.token, at=at)
        if is_end:
            standing.token = standing.acquired_at = standing.leaving_at = standing.shown_at = None
            self._mark_leader(standing)

    def stop_watching(self, now: float) -> None:
        """Record for each role that is led here until when that is known: its end will not be recorded."""
        for standing in self.leading():
            until = standing.election.trusted_until
            if until is not None:
                at, detail = min(now, until), "the registry was closed; the lock was still held"
                self.outbox.put(
                    Happening(standing.lock, standing.role, "unwatched", at, token=standing.token, detail=detail)
                )

    def _is_worth_noting(self, standing: Standing, event: Event) -> bool:
        """Return False for the same error again and again: it is one error."""
        if event.kind in ERROR_KINDS:
            is_new, standing.last_error = str(event.error) != standing.last_error, str(event.error)
            return is_new
        standing.last_error = None
        return True

    def _note_state(self, standing: Standing, event: Event) -> None:
        state = _shown(event.to_state)
        if state is LockState.RELEASING:  # from here on it does not lead: the release itself comes later
            standing.leaving_at = event.at
        if state.is_recovering:  # no callback is notified, but it does not lead meanwhile
            at = _ended_at(standing, event)
            self._append(standing, event, "reconnecting", token=standing.token, at=at)
        if state is not standing.state:
            standing.state, standing.since = state, event.at
            self._mark_candidate(standing)

    def _append(self, standing: Standing, event: Event, name: str, *, token: int | None, at: float) -> None:
        late = f"noticed {event.at - at:.3f} s later" if event.at - at > _LATE_S else ""
        text = "; ".join(filter(None, (late, "" if event.error is None else str(event.error))))
        detail = visible(text[:_LONGEST_DETAIL]) or None
        self.outbox.put(Happening(standing.lock, standing.role, name, at, event.cause, token, detail))

    def _mark_leader(self, standing: Standing) -> None:
        leads = standing.acquired_at is not None
        (self._changes.led if leads else self._changes.cleared).add(standing.lock)
        (self._changes.cleared if leads else self._changes.led).discard(standing.lock)

    def _mark_candidate(self, standing: Standing) -> None:
        stands = not standing.state.is_stopped
        (self._changes.stands if stands else self._changes.withdrawn).add(standing.lock)
        (self._changes.withdrawn if stands else self._changes.stands).discard(standing.lock)

    def leader_rows(self, locks: Iterable[str], now: float) -> list[dict[str, Any]]:
        """Return the rows of those that still lead, with readings of our own clock: they are about to be written."""
        rows = []
        for lock in locks:
            standing = self.standings[lock]
            classid, objid, objsubid = lock_columns(standing.key) if standing.key else (None, None, None)
            until = standing.election.trusted_until
            standing.shown_at, standing.shown_until = now, until
            rows.append(
                {
                    "lock": lock,
                    "role": standing.role,
                    "token": standing.token,
                    "at": standing.acquired_at,
                    "renewed": now if until is not None else standing.acquired_at,
                    "until": until if until is not None and until != float("inf") else None,
                    "classid": classid,
                    "objid": objid,
                    "objsubid": objsubid,
                }
            )
        return rows


def _shown(state: LockState) -> LockState:
    """A follower asks now and then; that is no news."""
    return LockState.FOLLOWER if state.is_following else state


def _ended_at(standing: Standing, event: Event) -> float:
    """Return when validity ended: of a process that was frozen long before it noticed, because the clock ended it."""
    ends = [event.at, *(each for each in (event.trusted_until, standing.leaving_at) if each is not None)]
    return max(min(ends), standing.acquired_at or min(ends))
