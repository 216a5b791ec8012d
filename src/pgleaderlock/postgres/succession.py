"""Who leads next: how a follower waits, so that the next leader is ready before it is needed.

Two more locks, the *places*, are derived from the key of the lock (frozen, like that of the witness lock):

- **the heir** holds S1, is queued for the lock itself, and has its second session open (:mod:`.warm_session`);
- **the next heir** holds S2 and is queued for S1; between two wait slices it tries for the lock;
- **every other follower is quiet**: one idle session, which tries for the lock and then for S2 a few times per lease,
  and when it is notified that a place is free.

So two sessions wait for a lock, however many followers there are, and a failover is one grant and two round trips. The
first begins when the server announces the grant in the middle of the heir's wait slice, and the server draws the token
meanwhile. The place of the heir is left a moment after the leadership began.

**A place is never a precondition for the lock.** Every follower that wakes up tries for the lock first, so a frozen
heir delays a failover by a wait slice, and a place that no one holds costs speed only. Nothing here decides who leads.

**A session that holds a place is under the lease**, like one that holds the lock: the statement that may take a place
sets ``idle_session_timeout``. A frozen heir loses its place after a lease.

A notification proves nothing, and any user of the database can send one: it only makes a quiet follower try, and no
more often than :data:`_HEED_EVERY_S`. The lock session of a leader does not listen (:mod:`.pair` says why), nor
does that of an heir: a server that cannot send its notifications to a frozen client does not end the session either.
The heir hears of nominations on its second session, which stops listening soon after it became the witness session.

**The leader may name its successor** (:mod:`.nomination`). The nominee then queues for S1, and the others leave their
places for as long.

On a server that cannot end silent sessions (PostgreSQL 13) there are no places: a frozen heir would keep its place for
ever. There, every follower is queued for the lock.

Not promised: that places are handed on in the order of arrival, or that a quiet follower leads in milliseconds when the
leader, the heir and the next heir end at once: it leads within a third of the lease.
"""

import asyncio
import math
import random
from dataclasses import dataclass, replace

from pgleaderlock._base.clock import Clock
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres._session_setup import ReadySession
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, Place, heir_key, next_heir_key, place_channel
from pgleaderlock.postgres.nomination import Nominations
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.postgres.session import Row, Session
from pgleaderlock.postgres.warm_session import end_call

__all__ = ["LockGrant", "Succession"]

_JITTER = 0.25
_HEED_EVERY_S = 1.0
"""How often notifications of free places are heeded: any user of the database can send them."""
_SPREAD_S = 2.0
"""Within this time after a notification the quiet followers try, one after the other and not all at once."""


@dataclass(frozen=True, slots=True)
class LockGrant:
    """The grant of a lock, before there is a leadership."""

    token: int | None = None
    """The token, if the statement that was granted the lock has drawn it."""
    announced_at: float | None = None
    """When it was announced, and the witness lock asked for, before the answer came."""
    last_answer: "asyncio.Future[ReadySession | None] | None" = None
    """Done when the lock session has answered while a session held the witness lock, which is the result. None if it
    has not been asked."""

    async def drop(self) -> None:
        """End the question that is in flight. A session that it was sent on is closed."""
        if self.last_answer is not None:
            await end_call(self.last_answer)


class Succession:
    """The place of one follower, on the lock session of its pair."""

    def __init__(self, key: LockKey, pair: SessionPair, lease: Lease, clock: Clock) -> None:
        self._key = key
        self._pair = pair
        self._lease = lease
        self._clock = clock
        self._channel = place_channel(key)
        self._session: Session | None = None  # the one that the rest of this state is about
        self._place = Place.NONE
        self._is_listening = False
        self._leaves_next = False  # whether S2 is still held and is left with the next statement
        self._leaves_heir = False  # whether S1 is still held, by a leader that leaves it soon
        self._nominations = Nominations(key, pair, clock)
        pair.warm.listens = self._channel, self._nominations.hear
        self._tells_others = False  # whether the next statement notifies others that they may take places again
        self._is_under_lease = False  # without a place, because it was nominated
        self._tried_at = self._try_at = -math.inf
        self._grant: LockGrant | None = None

    @property
    def place(self) -> Place:
        """The place that the present lock session holds."""
        is_ours = self._session is not None and self._pair.is_open and self._session is self._pair.lock_session
        return self._place if is_ours else Place.NONE

    async def wait(self, timeout_s: float) -> LockGrant | None:
        """Wait for the lock for so long at most. Return its grant, if it was granted.

        Raises ConnectionError when the session ends.
        """
        self._meet_session()
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            await self._heed_nomination()
            granted = await self._wait_once(left_s)
            if granted == "lock":
                return self._grant or LockGrant()
            if granted:
                self._advance(Place(granted))
            elif self._place is not Place.NONE or not self._pair.is_enforced:
                await self._pair.look_for_stuck([self._key])
        return None

    def begin_sql(self) -> str:
        """Return what the statement that begins a term starts with: it ends the listening, and leaves a place.

        The place of the heir is left later, with :meth:`leave_sql`: the next heir, which is queued for it, would wake
        up just when this process has most to do.
        """
        self._meet_session()  # a first try on a new session is granted without a wait: it has no place of the last one
        place, is_listening, self._is_listening = self.place, self._is_listening, False
        self._place, leaves_next, self._leaves_next = Place.NONE, self._leaves_next, False
        # A nominee's others wait for its word. Without a nomination they find a free place by themselves: to wake them
        # now would slow down the beginning of this term.
        tells_others, self._tells_others = self._tells_others and self._nominations.is_nominee, False
        parts = [_sql.STOP_LISTENING if is_listening else ""]
        if leaves_next or place is Place.NEXT_HEIR:
            parts.append(self._statements(Place.NEXT_HEIR).leave(self._channel))
        elif tells_others:
            parts.append(_sql.notify_first(self._channel))
        self._leaves_heir = self._leaves_heir or place is Place.HEIR  # the last answer may be asked for twice
        return "".join(parts)

    def leave_sql(self) -> str:
        """Return the statement that leaves the place of the heir, if it is still to be left. It needs no notification.

        The next heir is queued for it.
        """
        leaves, self._leaves_heir = self._leaves_heir and self._session is self._pair.lock_session, False
        return self._statements(Place.HEIR).unlock if leaves else ""

    def _meet_session(self) -> None:
        """Begin without a place on a session that is new."""
        session = self._pair.lock_session
        if session is not self._session:
            self._session, self._place, self._is_listening = session, Place.NONE, False
            self._leaves_next = self._leaves_heir = False
            self._tried_at = self._try_at = -math.inf
            self._tells_others = self._is_under_lease = False
            self._nominations.forget()

    async def _wait_once(self, left_s: float) -> str:
        """Wait for one step of the succession, and return what was granted: the lock, a place, or nothing."""
        self._grant = None
        slice_s = min(self._pair.wait_slice_s, left_s)
        lock = _sql.LockStatements(self._key, self._lease, is_enforced=self._pair.is_enforced)
        if not self._pair.is_enforced:
            return await self._ask(lock.slice(slice_s), slice_s)
        if self._place is Place.HEIR:
            return await self._wait_as_heir(lock, slice_s)
        if self._place is Place.NEXT_HEIR:
            return await self._ask(self._statements(Place.HEIR).slice(slice_s, lock), slice_s)
        if self._nominations.is_nominee:
            self._is_under_lease = True
            slice_s = min(slice_s, self._nominations.lasts_until - self._clock())
            return await self._ask(self._statements(Place.HEIR).slice(slice_s, lock), slice_s)
        return await self._wait_quietly(lock, left_s)

    async def _wait_as_heir(self, lock: _sql.LockStatements, slice_s: float) -> str:
        """Queue for the lock at once; the second session is opened meanwhile, and never before."""
        if self._lease.witness:
            self._pair.warm.keep()
        first, self._is_listening = _sql.STOP_LISTENING if self._is_listening else "", False
        if self._leaves_next:
            first += self._statements(Place.NEXT_HEIR).unlock
        elif self._tells_others:
            first += _sql.notify_first(self._channel)
        witness_wait = self._pair.early_witness_wait(self._key)  # made now: after the announcement each step counts
        self._pair.lock_session.on_announcement(lambda: self._hear_grant(witness_wait))
        granted = await self._queue(first + lock.slice(slice_s, begins_term=True), slice_s)
        # Others are notified of the free place one wait slice later: a new leader is just about to draw its token, and
        # fifty followers that wake up at that moment would slow it down.
        self._tells_others, self._leaves_next = self._leaves_next, False
        return granted

    def _hear_grant(self, witness_wait: str) -> None:
        """Wait for the witness lock while the server draws the token, and before it answers."""
        self._grant = LockGrant(announced_at=self._clock())
        self._pair.ask_witness_early(witness_wait)

    async def _ask_last(self) -> ReadySession | None:
        """Ask the lock session once the witness lock is held, while the engine comes to the next state."""
        witness = await self._pair.warm.granted_early()
        if witness is not None:
            await self._pair.ask_lock(self.begin_sql() + _sql.PING)
        return witness

    async def _queue(self, statement: str, slice_s: float) -> str:
        """Ask for the lock, and keep the token that comes with a grant. Without a grant, no witness lock is kept."""
        row: Row | None = None
        try:
            row = await self._pair.ask_lock(statement, bound_s=slice_s + self._lease.answer_bound_s)
        finally:
            if self._grant is not None and (row is None or not row[0]):
                await self._pair.warm.close()
        granted, *token = row or ("",)
        if granted and any(token):
            self._grant = replace(self._grant or LockGrant(), token=int(token[0]))
            if self._grant.announced_at is not None:
                self._grant = replace(self._grant, last_answer=asyncio.ensure_future(self._ask_last()))
        return str(granted or "")

    async def _heed_nomination(self) -> None:
        """Check what was heard. Leave a place that is meant for another candidate, and the lease with it."""
        await self._nominations.check()
        if self._nominations.is_aside:
            spread_s = random.uniform(0, _SPREAD_S)  # noqa: S311 - it spreads load
            self._try_at = min(self._try_at, self._nominations.lasts_until + spread_s)
            if self._place is not Place.NONE:
                await self._step_aside()
        elif self._is_under_lease and self._place is Place.NONE and not self._nominations.is_nominee:
            self._is_under_lease = False
            await self._pair.ask_lock(_sql.END_LEASE)

    async def _step_aside(self) -> None:
        left = [Place.HEIR] if self._place is Place.HEIR else []
        left += [Place.NEXT_HEIR] if self._leaves_next or self._place is Place.NEXT_HEIR else []
        self._place, self._leaves_next, self._tells_others = Place.NONE, False, False
        await self._pair.ask_lock("".join(self._statements(place).unlock for place in left) + _sql.END_LEASE)
        await self._pair.warm.close()

    async def _wait_quietly(self, lock: _sql.LockStatements, left_s: float) -> str:
        if not self._is_listening:
            await self._pair.lock_session.listen(self._channel, self._nominations.hear)
            self._is_listening = True
        if self._clock() < self._try_at:
            await self._rest(min(left_s, self._try_at - self._clock(), self._nominations.next_check_s))
        if self._clock() < self._try_at:
            return ""
        self._tried_at = self._clock()
        self._try_at = self._tried_at + self._lease.renew_every_s * random.uniform(1 - _JITTER, 1)  # noqa: S311 - it spreads load
        # For the lock in any case: the leader may die while another candidate, which may be frozen, is nominated.
        other = None if self._nominations.is_aside else self._statements(Place.NEXT_HEIR)
        row = await self._pair.ask_lock(lock.attempt(other))
        return "" if row is None or row[0] is None else str(row[0][0])

    async def _rest(self, timeout_s: float) -> None:
        """Sleep until a notification, which makes the next try earlier. Raise when the session ends."""
        ended = self._pair.ended
        assert ended is not None  # noqa: S101 - there is a lock session
        heard = asyncio.ensure_future(self._pair.lock_session.notified())
        either: set[asyncio.Future[object]] = {heard, ended}  # type: ignore[arg-type] # of results of any type
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            is_notified = heard.done()
        finally:
            heard.cancel()
        if ended.done():
            raise ended.result()
        if is_notified:
            soon = max(self._tried_at + _HEED_EVERY_S, self._clock()) + random.uniform(0, _SPREAD_S)  # noqa: S311 - it spreads load
            self._try_at = min(self._try_at, soon)

    async def _ask(self, statement: str, slice_s: float) -> str:
        row = await self._pair.ask_lock(statement, bound_s=slice_s + self._lease.answer_bound_s)
        return "" if row is None else str(row[0] or "")

    def _advance(self, place: Place) -> None:
        self._leaves_next = place is Place.HEIR and self._place is Place.NEXT_HEIR
        self._tells_others = place is Place.HEIR and self._nominations.is_nominee
        self._is_under_lease = False  # as every session with a place is, until it leaves that
        self._place = place

    def _statements(self, place: Place) -> _sql.LockStatements:
        key = heir_key(self._key) if place is Place.HEIR else next_heir_key(self._key)
        return _sql.LockStatements(key, self._lease, is_enforced=True, granted=place.value)
