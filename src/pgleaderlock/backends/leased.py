"""A lease on a session advisory lock: what makes a leader both quick to replace and never one of two.

What the server is authoritative for: who holds a lock, and when a silent session ends (``idle_session_timeout``). What
local time is used for: nothing but *our own* trust, which ends before the server could have given the lock away.

With a lease of T seconds, counted from when a request was sent:

- a renewal is sent every health interval; none succeeded by 2/3 T, and leadership is declared lost;
- at 0.9 T ``is_leader`` is False, whatever the event loop is doing;
- at T, and no earlier, the server ends a silent session and frees its lock.

**Two locks on two sessions.** A session that the *server* ends frees its lock at once, while its owner may not have
read the news. So leadership takes the lock, for which contenders stand in line, and then a *witness* lock on a second
session. A leader that loses one session still holds the other until its callbacks were told; a successor holds the
lock and stays in ACQUIRING until the witness is free.

**Standing in line** is a blocking ``pg_advisory_lock`` in slices shorter than ``deadlock_timeout``, with the time-out
caught on the server: a follower is granted the lock in milliseconds, and neither holds back vacuum nor fills the log.

Only a session that holds the lock, or stands in line for it, is under the lease: one that sleeps between two tries
would be ended by its own.

**Any doubt closes the session.** A closed session holds nothing.

**The past.** Before anybody leads, whoever may still believe must have had time to stop: a restart of the server frees
locks that a leader cut off from it believes in. With the term row (:mod:`.terms`) a clean release ends that wait, a
promotion counts as a restart, and ``takeover="strict"`` waits after every end that was not clean.

Not promised: without the term row a promoted standby is not noticed; with ``takeover="fast"`` a frozen process whose
sessions are *both* killed by the server may find out last, by up to 0.9 T; clocks of two hosts may not differ in rate
by more than 10 %.
"""

import asyncio
import math
from collections.abc import Mapping

from pgleaderlock._logging import get_logger
from pgleaderlock.backends import _sql
from pgleaderlock.backends._admission import Admission
from pgleaderlock.backends._dsn import agreement_of
from pgleaderlock.backends._pg_activity import holder_of, holder_query
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.lease import Lease, settling_level, witness_key
from pgleaderlock.backends.session import OpenSession, Session
from pgleaderlock.backends.terms import Terms, past_s
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant, Holder

__all__ = ["LeasedLockBackend"]

_COMPARE_EVERY_S = 60.0


class LeasedLockBackend(Backend):
    """One contender: a session for the lock, and while leading another for the witness."""

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
    ) -> None:
        self._key = key
        self._connect_s = connect_s
        self._labels = labels or key.labels
        self._witness_key = witness_key(key)
        self._admission = Admission(open_session, lease, clock, f"lock {key.described}", where)
        self._lease = lease
        self._clock = clock
        self._where = where
        self._lock: Session | None = None
        self._witness: Session | None = None
        self._granted: int | None = None  # a token that standing in line brought, not yet handed out
        self._terms = Terms(key, lease, where) if lease.term_table else None
        self._claimed: int | None = None  # the token of our last term, if it was written down
        self._term: int | None = None  # the token of the term that was handed out last
        self._settled_at = 0.0
        self._lock_sql = _sql.LockStatements(key, lease, is_enforced=True)
        self._witness_sql = _sql.LockStatements(self._witness_key, lease, is_enforced=True)
        self._was_warned = False
        self._former: tuple[int, str] | None = None  # our own session before this one, which may not be gone yet
        self._mine: tuple[int, str] | None = None
        self._slice_s = lease.slice_for(1.0)
        self._contested = False
        self._compared_at = -math.inf
        self._logger = get_logger().bind(**self.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """As every PostgreSQL lock is labelled."""
        return self._labels

    # --- The verbs ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Have a session for the lock. A witness that another waits for is let go first."""
        await self._let_contested_witness_go()
        if self._lock is None or self._lock.closed:
            self._granted = self._lock = None
            self._former = self._mine
            self._lock, self._mine = await self._lock_session()

    async def try_acquire(self) -> Grant | None:
        """Ask for the lock, or take what standing in line brought; then make sure of it."""
        token, self._granted = self._granted, None
        if token is None:
            token = await self._try_lock()
        if token is None and self._witness is not None:
            token = await self._take_from_former_self()
        if token is None:
            self._contested = self._witness is not None
            await self._compare_with_holder()
            return None
        recovering = self._witness is not None
        try:
            return await self._confirm(token)
        except BaseException:
            await self._close_lock()
            if not recovering:  # else it keeps a successor waiting until our loss was told
                await self._close_witness()
            raise

    async def renew(self, grant: Grant) -> Grant:
        """Show on both sessions that we live. A lost witness is replaced while the lock still protects."""
        self._check_current(grant)
        sent = self._clock()
        await self._ping_lock()
        if self._lease.witness and not await self._witness_answers():
            if not await self._replace_witness(grant):
                return grant  # no trust is added without a witness
            sent = self._clock()
            await self._ping_both()
        return self._lease.grant(grant.token, sent)

    async def release(self, grant: Grant) -> None:
        """Write down that the term is over, unlock, and end the witness."""
        self._check_current(grant)
        statement = self._lock_sql.unlock
        if self._terms is not None and grant.token is not None:
            statement = self._terms.mark_released_sql(grant.token) + statement
        row = await self._session().fetch(statement, bound_s=self._lease.lease_s)
        await self._close_witness()
        if row is None or row[0] is not True:
            await self.close()
            raise LockError(
                f"PostgreSQL answered that lock {self._key.described} was not held by this session ({self._where}): "
                "something else released it. The session is closed."
            )

    def _check_current(self, grant: Grant) -> None:
        """A grant of an earlier term says nothing about the lock that is held now, and must not touch it."""
        if grant.token != self._term:
            raise LeadershipLost(
                f"term {grant.token} of lock {self._key.described} is over, this is term {self._term} ({self._where})",
                cause=LossCause.HELD_BY_ANOTHER,
            )

    async def holder(self) -> Holder | None:
        """Ask the server, on the session that is open."""
        statement, parameters = holder_query(self._key)
        row = await self._session().fetch(statement, parameters, bound_s=self._lease.answer_bound_s)
        return None if row is None else holder_of(row)

    async def close(self) -> None:
        """End both sessions."""
        self._granted, self._contested = None, False
        await self._close_lock()
        await self._close_witness()

    async def wait(self, timeout_s: float) -> None:
        """Stand in line. Between attempts of a recovery, keep the witness instead: the lock is then only tried."""
        await self._let_contested_witness_go()
        if self._witness is not None:
            await self._keep_witness(timeout_s)
        elif self._lock is None or self._lock.closed or self._lease.wake == "poll":
            await asyncio.sleep(timeout_s)
        else:
            await self._stand_in_line(timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Watch both sockets. The lock's end is a loss; the witness's end is something to look at."""
        lock = asyncio.ensure_future(self._session().ended())
        watches = [lock]
        if self._witness is not None:
            watches.append(asyncio.ensure_future(self._witness.ended()))
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return lock.result() if lock.done() else None
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)

    def lifeline(self) -> tuple[int, ...]:
        """Return the sockets of both sessions: the server ends neither as long as a copy of it is open."""
        sessions = [session for session in (self._lock, self._witness) if session is not None]
        return tuple(session.descriptor for session in sessions if session.descriptor is not None)

    # --- Sessions ----------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        if self._lock is None:
            raise ConnectionError(f"no session is open for lock {self._key.described} ({self._where})")
        return self._lock

    async def _lock_session(self) -> tuple[Session, tuple[int, str]]:
        """Open a session for the lock, and learn what must be known of the server."""
        admitted = await self._admission.admit(self._connect_bound_s)
        try:
            settle_s = self._lease.lease_s if self._lease.settle_s is None else self._lease.settle_s
            self._settled_at = admitted.read_at + settle_s - admitted.age_s
            self._slice_s = self._lease.slice_for(admitted.deadlock_s)
            self._note_version(admitted.session.facts.version)
            if self._terms is not None:
                await self._terms.make_ready(admitted.session)
        except BaseException:
            await admitted.session.close()
            raise
        return admitted.session, (admitted.pid, admitted.started)

    async def _witness_session(self) -> Session:
        return (await self._admission.admit(self._connect_bound_s, with_facts=False)).session

    @property
    def _connect_bound_s(self) -> float:
        """With several hosts, the silent ones come first at times. Nothing that is held could run out meanwhile."""
        return max(self._lease.lease_s, self._connect_s if self._lock is None and self._witness is None else 0.0)

    def _note_version(self, version: int) -> None:
        is_enforced = _sql.can_end_silent_sessions(version)
        self._lock_sql = _sql.LockStatements(self._key, self._lease, is_enforced=is_enforced)
        self._witness_sql = _sql.LockStatements(self._witness_key, self._lease, is_enforced=is_enforced)
        if not is_enforced and not self._was_warned:
            self._was_warned = True
            self._logger.warning(
                "lease_not_enforced",
                server_version=version,
                advice="PostgreSQL before 14 cannot end a silent session: a frozen leader keeps the lock until it "
                "thaws. A dead network is noticed by keepalives, over TCP",
            )

    async def _close_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.close()

    async def _close_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            await witness.close()

    async def _let_contested_witness_go(self) -> None:
        if self._contested:
            self._contested = False
            await self._close_witness()

    # --- Getting the lock --------------------------------------------------------------------------------------

    async def _try_lock(self) -> int | None:
        return await self._attempt(self._session(), self._lock_sql)

    async def _attempt(self, session: Session, statements: _sql.LockStatements) -> int | None:
        row = await session.fetch(statements.attempt, bound_s=self._lease.answer_bound_s)
        return int(row[0][0]) if row is not None and row[0] is not None else None

    async def _take_from_former_self(self) -> int | None:
        """While recovering: the holder may be our own session before this one, which the server has not missed yet.

        That is not another contender, so it is ended.
        """
        token: int | None = None
        while token is None and self._former is not None:
            row = await self._session().fetch(_sql.END_FORMER_SELF, self._former, bound_s=self._lease.answer_bound_s)
            if row is None:
                self._former = None  # it is gone, so whoever holds the lock is another
            token = await self._slice(self._session(), self._lock_sql, self._slice_s if row else 0.001)
            await self._witness_lives()  # a slice is a third of the lease at most: the witness must hear from us too
        return token

    async def _compare_with_holder(self) -> None:
        """Now and then, see in its name whether the holder plays by the same rules; if not, say so."""
        if self._clock() < self._compared_at + _COMPARE_EVERY_S:
            return
        self._compared_at = self._clock()
        holder = await self.holder()
        theirs = None if holder is None else agreement_of(holder.name)
        if holder is not None and theirs not in (None, self._lease.agreement):
            self._logger.warning(
                "contenders_disagree",
                ours=self._lease.agreement,
                theirs=theirs,
                holder=holder.name,
                advice="lease_s, witness, takeover, term_table and schema must be the same for all contenders: two may "
                "lead at once",
            )

    async def _stand_in_line(self, timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            self._granted = await self._slice(self._session(), self._lock_sql, min(self._slice_s, left_s))
            if self._granted is not None:
                return

    async def _slice(self, session: Session, statements: _sql.LockStatements, slice_s: float) -> int | None:
        row = await session.fetch(statements.slice(slice_s), bound_s=slice_s + self._lease.answer_bound_s)
        return int(row[0]) if row is not None and row[0] else None

    # --- Making sure of it -------------------------------------------------------------------------------------

    async def _confirm(self, token: int) -> Grant:
        """Turn a lock that is held into a leadership that can be believed in.

        The grant may be old: we may have been frozen in line. So after the witness is won and the past is over,
        both sessions are renewed once, and trust counts from there.
        """
        held_since = self._clock()
        if self._lease.witness and (self._witness is None or self._witness.closed):
            await self._win_witness()
        await self._let_the_past_end(held_since)
        if self._terms is not None:
            token = await self._claim(self._terms, token)
        sent = self._clock()
        await self._ping_both()
        self._term = token
        return self._lease.grant(token, sent)

    async def _win_witness(self) -> None:
        """Wait until a predecessor has let go, renewing the lock meanwhile; not longer than a lease."""
        deadline = self._clock() + self._lease.lease_s
        witness = await self._witness_session()
        try:
            # Mostly it is free: ask before standing in line for it, which takes the server longer.
            if await self._attempt(witness, self._witness_sql) is not None:
                self._witness = witness
                return
            while (left_s := deadline - self._clock()) > 0:
                slice_s = min(self._slice_s, left_s, self._lease.renew_every_s)
                if await self._slice(witness, self._witness_sql, slice_s) is not None:
                    self._witness = witness
                    return
                await self._ping_lock()
        finally:
            if self._witness is not witness:
                await witness.close()
        raise LockError(
            f"lock {self._key.described} is held, but its witness {self._witness_key} was not free within the lease of "
            f"{self._lease.lease_s:g} s ({self._where}): is there a contender with a longer lease_s? Letting go."
        )

    async def _let_the_past_end(self, held_since: float) -> None:
        """Wait, renewing, until nobody can believe any more in a term before ours."""
        ends_at, reason = self._settled_at, "the server started less than a lease ago"
        if self._terms is not None:
            left_s = past_s(await self._terms.read(self._session()), self._lease, ours=self._claimed)
            if left_s is not None:
                ends_at, reason = held_since + left_s, "the last leader may still believe"
        left_s = ends_at - self._clock()
        if left_s > 0:
            self._logger.log(settling_level(left_s), "settling", seconds=left_s, reason=reason)
        while (left_s := ends_at - self._clock()) > 0:
            await asyncio.sleep(min(left_s, self._lease.renew_every_s))
            await self._ping_both()

    async def _claim(self, terms: Terms, token: int) -> int:
        """Write our term down. Transactions that the last leader fenced end first, or we let go and name one."""
        wait_s = self._lease.lease_s if self._lease.fence_wait_s is None else self._lease.fence_wait_s
        deadline = self._clock() + wait_s
        while True:
            slice_s = max(0.001, min(self._slice_s, deadline - self._clock()))
            claimed = await terms.claim(self._session(), token, slice_s)
            if claimed is not None:
                self._claimed = claimed
                return claimed
            await self._ping_both()
            if self._clock() >= deadline:
                raise await terms.refused(self._session(), wait_s)

    async def _ping_lock(self) -> None:
        await self._session().fetch(_sql.PING, bound_s=self._lease.answer_bound_s)

    async def _ping_both(self) -> None:
        await self._ping_lock()
        if self._witness is not None:
            await self._witness.fetch(_sql.PING, bound_s=self._lease.answer_bound_s)

    # --- Keeping the witness -----------------------------------------------------------------------------------

    async def _witness_answers(self) -> bool:
        """Whether it is there, while we are believed to lead; False when it is known to have ended.

        Silence is not an end. To close a witness that is only slow would free it while we still believe, and if the
        lock's session was just killed, a successor would lead beside us. So an answer is waited for until leadership
        is declared lost, which comes before this bound, and before anything is closed.
        """
        try:
            return await self._ping_witness(self._lease.answer_bound_s)
        except ConnectionError as error:
            if error.cause is LossCause.RENEW_TIMEOUT:
                raise
            self._logger.warning("witness_lost", error=error)
            return False

    async def _witness_lives(self) -> bool:
        """The same, while nobody believes that we lead: then whatever does not answer soon is given up."""
        try:
            return await self._ping_witness(self._lease.renew_every_s)
        except ConnectionError as error:
            self._logger.warning("witness_lost", error=error)
            return False

    async def _ping_witness(self, bound_s: float) -> bool:
        if self._witness is None or self._witness.closed:
            return False
        await self._witness.fetch(_sql.PING, bound_s=bound_s)
        return True

    async def _replace_witness(self, grant: Grant) -> bool:
        """Win it back on a new session, in what is left of the grant. Nobody else can: the lock is still ours."""
        await self._close_witness()
        try:
            async with asyncio.timeout(max(0.0, grant.lost_at - self._clock())):
                await self._win_witness()
        except (PgLeaderLockError, TimeoutError) as error:
            self._logger.warning("witness_not_replaced", error=error)
            return False
        self._logger.info("witness_replaced")
        return True

    async def _keep_witness(self, timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            await asyncio.sleep(min(left_s, self._lease.renew_every_s))
            if not await self._witness_lives():
                await self._close_witness()
