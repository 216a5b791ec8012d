"""One lock of one candidate: trying for it, and the steps from a granted lock to a leadership.

The protocol of its two sessions is in :mod:`.pair`, how a follower waits in :mod:`.succession`. What holds for one key:

**The queue** is a blocking ``pg_advisory_lock`` in wait slices shorter than ``deadlock_timeout``, with the time-out
caught on the server: a follower is granted the lock in milliseconds, and neither holds back vacuum nor fills the log.
``idle_session_timeout`` is set only for a session that holds the lock or queues for it: the server would end a session
that sleeps between two tries.

**From grant to leadership**, two round trips. The first tries for the witness lock, and at the same time, on the lock
session, the server draws the token of an heir, or the candidate reads the term row (:mod:`.terms`). An heir begins when
the server announces the grant, before the statement that was granted the lock is answered, and waits a moment for the
witness lock. Where the predecessor still holds it then, the candidate queues for it and renews the lock meanwhile; then
for the end of the quiet period after a server start. With a term row, a clean release ends that wait, and so does a
table without any term that is older than the server's start; a promotion counts as a restart; ``takeover="strict"``
waits after every end that was not clean. The second round trip, on the lock session, shows that the lock is still held;
an heir begins it as soon as it holds the witness lock. It draws the token of a candidate that was not the heir, or
claims the term. The two are the first renewal too, because the grant may be old by the time it is read: validity counts
from before the first. If all that took long, both sessions are renewed once more.

**Nothing is announced to listeners before the token is on the disk**: the statement that draws it is answered after its
commit was flushed.

Not promised, beyond what :mod:`.pair` does not promise: without the term row, a candidate that was not connected during
a promotion does not notice it.
"""

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres._activity import holder_of, holder_query
from pgleaderlock.postgres._dsn import agreement_of
from pgleaderlock.postgres._session_setup import SessionSetup
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, quiet_period_log_level, witness_key
from pgleaderlock.postgres.nomination import nominate
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.postgres.session import OpenSession, Row, Session
from pgleaderlock.postgres.succession import LockGrant, Succession
from pgleaderlock.postgres.terms import Terms, past_s
from pgleaderlock.postgres.warm_session import end_call
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.times import SOON_SHARE, retry_pause_s

__all__ = ["LeasedLockBackend"]

_LEAVE_PLACE_AFTER_S = 0.02
_COMPARE_EVERY_S = 60.0


class LeasedLockBackend(Backend):
    """One candidate for one lock: a lock session, and while leading a witness session."""

    def __init__(
        self,
        key: LockKey,
        open_session: OpenSession,
        lease: Lease,
        clock: Clock,
        where: str,
        *,
        labels: Mapping[str, object] | None = None,
        connect_s: float = 0.0,
        identity: str | None = None,
    ) -> None:
        self._key = key
        self._identity = identity
        self._labels = labels or key.labels
        self._lease = lease
        self._clock = clock
        self._where = where
        self._logger = get_logger().bind(**self.labels)
        setup = SessionSetup(open_session, lease, clock, f"lock {key.described}", where)
        self._pair = SessionPair(setup, lease, clock, where, self._logger, connect_s=connect_s)
        self._succession = Succession(key, self._pair, lease, clock)
        self._granted: LockGrant | None = None  # while waiting, and not yet confirmed
        self._terms = Terms(key, lease, where) if lease.term_table else None
        self._moved_until = -math.inf
        """Until then, term rows shorten no wait: they are those of another server than before."""
        self._claimed: int | None = None  # the token of our last term, if it was written to the term table
        self._term: int | None = None  # the token of the last term that try_acquire returned
        self._is_contested = False
        """Whether another candidate holds the lock and waits for the witness lock, which our recovery still holds."""
        self._compared_at = -math.inf
        self._in_use = asyncio.Lock()
        """Held by a statement of a leader: a nomination goes on beside the renewals."""
        self._leaving: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str | None:
        """The name of our lock session, with host and process id; None if the connection string gives another."""
        return self._identity

    @property
    def address(self) -> str | None:
        """The address that the name of our witness session shows."""
        return self._lease.address

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of every PostgreSQL lock."""
        return self._labels

    @property
    def lease_s(self) -> float:
        """The lease of both sessions."""
        return self._lease.lease_s

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held, by a leader or by a candidate that may not lead yet."""
        return self._key in self._pair.held

    @property
    def place(self) -> str:
        """The place in the succession that the lock session holds."""
        return self._succession.place.value

    # --- The verbs ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open a lock session if none is open. A witness lock that another candidate waits for is released first."""
        await self._release_contested_witness()
        if not self._pair.is_open:
            await self._drop_grant()
            await self._pair.open(self._prepare, [self._key])

    async def _drop_grant(self) -> None:
        granted, self._granted = self._granted, None
        if granted is not None:
            await granted.drop()

    async def _prepare(self, session: Session) -> None:
        if self._terms is None:
            return
        is_moved = await self._terms.make_ready(session)
        if self._pair.met_another_run if is_moved is None else is_moved:  # None: unknown, so a restart counts as a move
            self._moved_until = self._clock() + self._lease.lease_s

    async def try_acquire(self) -> Grant | None:
        """Take the lock that was granted while waiting, or try for it once; then confirm it as a leadership."""
        async with self._in_use:  # a recovery may begin while the place of the heir is being left
            return await self._try_acquire()

    async def _try_acquire(self) -> Grant | None:
        granted, self._granted = self._granted, None
        is_recovery = self._pair.has_witness
        is_granted = granted is not None or await self._try_lock()
        if not is_granted and is_recovery:
            is_granted = await self._take_from_former_session()
        if not is_granted:
            self._is_contested = is_recovery
            await self._compare_with_holder()
            await self._pair.look_for_stuck([self._key])
            return None
        granted = granted or LockGrant()
        try:
            grant = await self._confirm(granted)
        except BaseException:
            try:
                await granted.drop()
            finally:
                await self._pair.close_lock()
                if not is_recovery:  # in a recovery it keeps a successor out until our listeners know of the loss
                    await self._pair.close_witness()
            raise
        self._leaving = asyncio.create_task(self._leave_place_soon(), name="pgleaderlock leaves its place")
        return grant

    async def _leave_place_soon(self) -> None:
        """Let the next heir become the heir, a moment after listeners were notified of the new leadership."""
        await asyncio.sleep(_LEAVE_PLACE_AFTER_S)
        with contextlib.suppress(PgLeaderLockError):  # an end of the session is reported to its watcher
            async with self._in_use:
                if statement := self._succession.leave_sql():
                    await self._pair.ask_lock(statement + _sql.PING)
                await self._pair.stop_hearing()

    async def renew(self, grant: Grant) -> Grant:
        """Extend the grant. While the witness session cannot be replaced, retry until the loss must be declared."""
        self._check_current(grant)
        async with self._in_use:
            while not await self._pair.renew():
                assert self._pair.ended is not None  # noqa: S101 - a leader has a lock session
                pause_s = retry_pause_s(self._pair.answer_bound_s(), self._lease.lease_s)
                await asyncio.wait({self._pair.ended}, timeout=pause_s)
        return self._pair.validity.grant(grant.token)

    async def release(self, grant: Grant) -> None:
        """Mark the term as released in its row, unlock, and end the witness session.

        The mark is sent before the unlock: a successor that reads the row finds the clean release and need not wait.
        """
        self._check_current(grant)
        mark = "" if self._terms is None or grant.token is None else self._terms.mark_released_sql(grant.token)
        self._term = None
        async with self._in_use:
            first = self._succession.leave_sql() + mark
            is_freed = await self._pair.free([self._key], first=first, bound_s=self._lease.lease_s)
        if not is_freed:
            await self.close()
            raise LockError(
                f"PostgreSQL answered that lock {self._key.described} was not held by this session ({self._where}): "
                "other code released it on this session. The session is closed."
            )

    async def nominate(self, grant: Grant, to: str) -> None:
        """Have the candidate of this name become the heir, while the engine goes on renewing.

        Its statements must not be cancelled: that would close the lock session.
        """
        self._check_current(grant)
        if not self._pair.is_enforced:
            raise LockError(
                f"lock {self._key.described} cannot be handed over to a named candidate ({self._where}): PostgreSQL "
                "before 14 cannot end silent sessions, so followers have no places there"
            )

        async def ask(statement: str, parameters: tuple[Any, ...] = ()) -> Row | None:
            async with self._in_use:
                self._check_current(grant)
                return await self._pair.ask_lock(statement, parameters)

        await nominate(to, ask, self._key, self._pair, clock=self._clock, where=self._where)

    def look(self, grant: Grant) -> Grant:
        """Return the grant, ended if the lock session's socket shows its end or the term is not the current one."""
        is_valid = grant.token == self._term and self._pair.valid_until(self._pair.validity) >= grant.trusted_until
        return grant if is_valid else grant.ended()

    def _check_current(self, grant: Grant) -> None:
        """Raise LeadershipLost for a grant of an earlier term: it must not renew or release the present one."""
        if grant.token != self._term:
            raise LeadershipLost(
                f"term {grant.token} of lock {self._key.described} is over, this is term {self._term} ({self._where})",
                cause=LossCause.HELD_BY_ANOTHER,
            )

    async def holder(self) -> Holder | None:
        """Return the holder of the lock as the server shows it, asked on the lock session."""
        row = await self._pair.ask_lock(*holder_query(self._key))
        return None if row is None else holder_of(row)

    async def close(self) -> None:
        """End both sessions."""
        self._is_contested = False
        try:
            await self._drop_grant()
            if self._leaving is not None:
                await end_call(self._leaving)
        finally:  # also when this is cancelled: a session that may hold a lock is never left open
            self._in_use = asyncio.Lock()  # the next sessions may belong to another event loop
            await self._pair.close()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the lock. In a recovery, renew the witness session instead, and leave the lock to try_acquire."""
        await self._release_contested_witness()
        if self._granted is not None:  # by an earlier wait: the lock session is in use
            return
        if self._pair.has_witness:
            await self._keep_witness(timeout_s)
        elif not self._pair.is_open or self._lease.wake == "poll":
            await asyncio.sleep(timeout_s)
        else:
            self._granted = await self._succession.wait(timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Wait for the end of either session. Return the reason of a loss; None if the witness session ended.

        After None the engine renews at once, and the renewal replaces the witness session.
        """
        assert self._pair.ended is not None  # noqa: S101 - a leader has a lock session
        witness = asyncio.ensure_future(self._pair.witness_ended.wait())
        either: set[asyncio.Future[Any]] = {self._pair.ended, witness}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return self._pair.ended.result() if self._pair.ended.done() else None
        finally:
            witness.cancel()

    def lifeline(self) -> tuple[int, ...]:
        """Return the sockets of both sessions: the server sees no disconnect while a copy of the socket is open."""
        return self._pair.descriptors

    # --- Getting the lock --------------------------------------------------------------------------------------

    def _statements(self, key: LockKey) -> _sql.LockStatements:
        return _sql.LockStatements(key, self._lease, is_enforced=self._pair.is_enforced)

    async def _try_lock(self) -> bool:
        row = await self._pair.ask_lock(self._statements(self._key).attempt())
        return row is not None and row[0] is not None

    async def _take_from_former_session(self) -> bool:
        """In a recovery, take the lock from our own former session, which may still hold it: terminate that session.

        Otherwise the recovery would fail as if another candidate led. Ends when no former session is left.
        """
        is_granted, is_there = False, True
        while is_there and not is_granted:
            is_there = await self._pair.end_given_up()
            slice_s = self._pair.wait_slice_s if is_there else 0.001
            row = await self._pair.ask_lock(
                self._statements(self._key).slice(slice_s), bound_s=slice_s + self._lease.answer_bound_s
            )
            is_granted = row is not None and bool(row[0])
            await self._pair.keep_witness()  # a wait slice is a third of the lease at most, so this is in time
        return is_granted

    async def _compare_with_holder(self) -> None:
        """Warn if the holder's settings, which its application_name shows, differ from ours. Checks once a minute."""
        if self._clock() < self._compared_at + _COMPARE_EVERY_S:
            return
        self._compared_at = self._clock()
        holder = await self.holder()
        theirs = None if holder is None else agreement_of(holder.name)
        if holder is not None and theirs not in (None, self._lease.agreement):
            self._logger.warning(
                "candidates_disagree",
                ours=self._lease.agreement,
                theirs=theirs,
                holder=holder.name,
                advice="lease_s, witness, takeover, term_table and schema must be the same for all candidates: else "
                "two may lead at once",
            )

    async def _release_contested_witness(self) -> None:
        if self._is_contested:
            self._is_contested = False
            await self._pair.close_witness()

    async def _keep_witness(self, timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            await asyncio.sleep(min(left_s, self._lease.renew_every_s))
            async with self._in_use:  # a leader that has just begun may still be ending its listening there
                if not await self._pair.keep_witness():
                    await self._pair.close_witness()

    # --- From grant to leadership ------------------------------------------------------------------------------

    async def _confirm(self, granted: LockGrant) -> Grant:
        """Turn a lock that is held into a leadership that is valid.

        The order matters. The waiting comes after the witness lock, because a predecessor that has lost its lock
        session may act as leader until it releases its witness lock. It comes before the claim, because the row of the
        last term says how long to wait, and the claim overwrites it. The lock session answers last, while the witness
        lock is held: this shows that it has held the lock since the grant, so that both locks were held together and
        no other leader has drawn a token since. Without that answer, the lock session could have ended before the try
        for the witness lock arrived, and another could have led in between. If all this took long, both sessions are
        renewed: little would be left of the validity otherwise.
        """
        sent = self._clock() if granted.announced_at is None else granted.announced_at
        self._pair.held.add(self._key)
        beside = "" if self._terms is None else self._succession.begin_sql() + self._terms.read_sql()
        row, has_witness = await self._pair.begin_term(self._key, beside)
        has_answered = granted.last_answer is not None and self._pair.has_witness_on(await granted.last_answer)
        ends_at, reason = self._predecessor_ends(row, sent)
        if not has_witness:
            await self._queue_for_witness(sent + self._lease.lease_s)
        await self._wait_out_predecessor(ends_at, reason)
        if self._terms is not None:
            token = await self._claim(self._terms)
        elif has_answered and granted.token is not None:
            token = granted.token
        else:
            token = await self._last_answer(granted)
        if self._clock() - sent > self._lease.lease_s * SOON_SHARE:
            sent = self._clock()
            await self._pair.ping_both()
        self._pair.validity.extend(self._lease, sent)
        self._term = token
        return self._pair.validity.grant(token)

    async def _queue_for_witness(self, deadline: float) -> None:
        """Wait until the predecessor has released its witness lock, for a lease at most; renew the lock meanwhile.

        A wait slice is no longer than the renewal interval: the lock session is idle while the witness session waits.
        """
        witness = witness_key(self._key)
        while (left_s := deadline - self._clock()) > 0:
            slice_s = min(self._pair.wait_slice_s, left_s, self._lease.renew_every_s)
            statement = self._statements(witness).slice(slice_s)
            if await self._pair.queue_for_witness_lock(self._key, statement, slice_s):
                return
            await self._pair.ask_lock(_sql.PING)
            await self._pair.look_for_stuck([self._key])  # a candidate of 0.1.0 may keep it in a commit that waits
        raise LockError(
            f"lock {self._key.described} is held, but its witness lock {witness} was not free within the lease of "
            f"{self._lease.lease_s:g} s ({self._where}): does another candidate have a longer lease_s? Releasing it."
        )

    def _predecessor_ends(self, row: Row | None, held_since: float) -> tuple[float, str]:
        """Return until when an earlier term may be valid, and why, for the log."""
        if self._terms is not None:
            left_s = past_s(self._terms.past(row), self._lease, ours=self._claimed)
            if left_s is not None:
                return max(held_since + left_s, self._moved_until), "the last leader may still be valid"
        return self._pair.quiet_until, "the server started less than a lease ago"

    async def _wait_out_predecessor(self, ends_at: float, reason: str) -> None:
        """Wait until no earlier term can be valid any more, and renew both sessions meanwhile."""
        left_s = ends_at - self._clock()
        if left_s <= 0:
            return
        self._logger.log(quiet_period_log_level(left_s), "settling", seconds=left_s, reason=reason)
        await self._pair.show_wait(is_over=False)
        while (left_s := ends_at - self._clock()) > 0:
            await asyncio.sleep(min(left_s, self._lease.renew_every_s))
            await self._pair.ping_both()
        await self._pair.show_wait(is_over=True)

    async def _last_answer(self, granted: LockGrant) -> int:
        """Return the token, which is drawn now unless it came with the grant. The lock session is asked either way."""
        last = _sql.NEXT_TOKEN if granted.token is None else _sql.PING
        row = await self._pair.ask_lock(self._succession.begin_sql() + last)
        assert row is not None  # noqa: S101 - it is a plain SELECT
        return int(row[0]) if granted.token is None else granted.token

    async def _claim(self, terms: Terms) -> int:
        """Write our term to the term table, after all transactions that the last leader fenced have ended.

        If they do not end within ``fence_wait_s``, raise an error that names one; the lock is then released.
        """
        session = self._pair.lock_session
        wait_s = self._lease.lease_s if self._lease.fence_wait_s is None else self._lease.fence_wait_s
        deadline = self._clock() + wait_s
        while True:
            slice_s = max(0.001, min(self._pair.wait_slice_s, deadline - self._clock()))
            claimed = await terms.claim(session, slice_s)
            if claimed is not None:
                self._claimed = claimed
                return claimed
            await self._pair.ping_both()
            if self._clock() >= deadline:
                raise await terms.refused(session, wait_s)
