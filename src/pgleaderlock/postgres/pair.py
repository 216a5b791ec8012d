"""The session pair: a lock session and a witness session, for any number of keys. The protocol, written once.

What the server is authoritative for: which session holds a lock, and when a silent session ends
(``idle_session_timeout``). What local time is used for: only the leader's *own* validity, which ends before the server
can grant the lock to a successor.

With a lease of T seconds, counted from when a request was sent:

- a renewal is sent on both sessions every interval; if none has succeeded by 2/3 T, leadership is declared lost;
- at 0.9 T validity ends by the clock alone, even if the event loop is blocked;
- at T, and no earlier, the server ends a silent session and frees its locks.

**Two locks on two sessions.** A session that the *server* ends frees its locks at once, before the leader has read
that it ended. With one lock there would be two leaders during that time. So each leader takes its lock, on the lock
session, and then a *witness lock* on the witness session. A leader that loses one session still holds the other until
its listeners have been notified; a successor that holds the lock stays in ACQUIRING until the witness lock is free.

**Both sessions are watched from their opening to their close**: an idle session by its socket, a session with a call
in flight by that call. The end of the lock session ends the validity of all keys in one step, before any listener is
notified; :meth:`SessionPair.valid_until` looks at the socket itself, so it does not depend on the event loop. A lost
witness session is replaced while the validity that was there before lasts: until it is replaced, nothing extends it.

**The second session is there before it is needed.** A candidate that was granted its lock asks for the witness lock
on a second session, which the heir has open already (:mod:`.warm_session`). The lock session answers last, while the
witness lock is held: that shows that both locks were held together.

**A slow session has not ended.** It still keeps a successor out, and closing it would free its locks. So the pair waits
for an answer until leadership must be declared lost; then it ends validity first, and only then closes the silent
session. The other session keeps a successor out until the listeners have been notified.

**A session in an unknown state is closed, and its backend is terminated on the server too.** A commit that waits for an
absent synchronous standby keeps its locks in a backend whose client is gone: no time-out ends it. So the next session
that the pair opens terminates the backends of the sessions that it gave up, and a waiting candidate terminates a holder
that has been stuck there for a lease.

Not promised: with ``takeover="fast"``, a process that is frozen *and* has both sessions ended may act until its next
look at ``is_leader``; one that is cut off from the network and has both ended, until its validity is over. A server
clock that is stepped moves ``idle_session_timeout`` with it: a step forward ends the sessions of a leader that is cut
off too early; a step back keeps the sessions of a frozen leader for longer. Clocks of two hosts may not differ in rate
by more than 10 %.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError, LeadershipLost, PgLeaderLockError
from pgleaderlock.models import Grant
from pgleaderlock.postgres import _keys_sql, _sql
from pgleaderlock.postgres._server_start import ServerStart
from pgleaderlock.postgres._session_setup import ReadySession, SessionSetup
from pgleaderlock.postgres._stuck import StuckHolders
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, advertising_name, waiting_name, witness_key
from pgleaderlock.postgres.session import Row, Session
from pgleaderlock.postgres.warm_session import LATE_S, WarmSession, discard, end_call
from pgleaderlock.stores.times import SOON_SHARE

__all__ = ["SessionPair", "Validity"]

T = TypeVar("T")
U = TypeVar("U")
Prepare = Callable[[Session], Awaitable[None]]
"""Prepares a new lock session before its first use."""

_MARGIN_S = 0.01
"""The pair declares a loss this much before the engine's own bound, so that the pair's reason is the one reported."""
_CLOSE_AFTER_S = 0.01
"""Between a release and the close of its sessions: the ends of two backends would take processor time from the
successor, just when that begins its term."""
_RETRY_S = 0.02
_RETRIES = 5
"""Tries for a witness lock that our own former session still holds: the server needs some time to end it."""
_EARLY_WAIT_S = 0.02
"""How long the heir waits for the witness lock from the announcement on: much less than ``LATE_S``. Then it queues."""
_ENDED_BY_SERVER = frozenset({LossCause.SESSION_TERMINATED, LossCause.SERVER_RESTART, LossCause.SILENCED})
"""Causes after which the session is known to be gone on the server too, so that its backend need not be terminated."""


class Validity:
    """Until when the holder of one lock session may act as leader, for all its keys. One step ends it for all of them.

    All keys share one object that renewals extend, so no key stays valid longer than the session that holds its lock.
    """

    __slots__ = ("_change", "_made", "is_over", "kept_until", "lost_at", "until", "why")

    def __init__(self) -> None:
        self.until = self.lost_at = self.kept_until = -math.inf
        self.is_over = False
        self.why: PgLeaderLockError | None = None
        """Why it ended, for a role that asks only after the next session was opened."""
        self._change = 0
        # The last grant, and after which change it was made. Cached because thousands of roles ask for the same one.
        self._made: tuple[int, Grant] | None = None

    def extend(self, lease: Lease, sent: float) -> None:
        """Extend it, the server having answered on both sessions to requests of which the first was sent at ``sent``.

        Counted from sending: the server may have received the request at once and delayed only the answer, and its own
        lease counts from receiving. Does nothing once it has ended: an answer that is read after the loss was declared
        must not make a leader valid again whose listeners have already been notified.
        """
        if self.is_over:
            return
        grant = lease.grant(None, sent)
        self.until, self.lost_at, self.kept_until = grant.trusted_until, grant.lost_at, grant.trusted_until
        self._change += 1

    def end(self, why: PgLeaderLockError | None = None) -> None:
        """End it. ``kept_until`` stays: until then the remaining locks are kept while listeners are notified."""
        self.is_over = True
        self.why = self.why or why
        self.until = self.lost_at = -math.inf
        self._change += 1

    def grant(self, token: int | None) -> Grant:
        """Return its present state as a grant. May be called from any thread."""
        change, made = self._change, self._made
        if made is None or made[0] != change or made[1].token != token:
            grant = Grant(token, self.until, self.lost_at, self.kept_until if self.is_over else None)
            made = self._made = change, grant
        return made[1]


class SessionPair:
    """The two sessions of one candidate, from its first connection to its last."""

    def __init__(
        self,
        setup: SessionSetup,
        lease: Lease,
        clock: Clock,
        where: str,
        logger: NDLogger,
        *,
        connect_s: float = 0.0,
        channel: str | None = None,
    ) -> None:
        self._setup = setup
        self._lease = lease
        self._clock = clock
        self._where = where
        self._logger = logger
        self._connect_s = connect_s
        self._channel = channel  # listened to on the witness session, which stays open for that purpose
        self._lock: ReadySession | None = None
        self._witness: ReadySession | None = None
        self.warm = WarmSession(self._open_second, lease, logger, self._note_end)
        """A second session that is open before it is needed, on request."""
        self.held: set[LockKey] = set()
        """Keys whose lock we hold; after the end of the lock session, those whose listeners are not notified yet."""
        self._witnessed: set[LockKey] = set()
        """Keys whose witness lock the witness session holds. Each session has a set of its own: an answer may be read
        after its session has ended, and another has been opened. It says nothing of that one."""
        self.validity = Validity()
        """The validity of everything that the present lock session holds."""
        self.ended: asyncio.Future[PgLeaderLockError] | None = None
        """Done, with the reason as its result, when the lock session has ended or leadership was declared lost."""
        self.witness_ended = asyncio.Event()
        """Set while a witness session that was open is missing."""
        self._hears = False
        """Whether the witness session still hears of nominations, because it was the heir's second session."""
        self._given_up: list[tuple[int, str]] = []
        self._was_silent = False
        self._is_renewing = False
        self._answered_at = -math.inf
        self._trouble = ""
        self._was_warned = False
        settle_s = lease.lease_s if lease.settle_s is None else lease.settle_s
        self._server_start = ServerStart(settle_s)
        self._stuck = StuckHolders(lease.lease_s, logger)
        self.wait_slice_s = lease.slice_for(1.0)
        self.is_enforced = True
        """Whether this server can end silent sessions."""

    # --- What is there -------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a lock session that is not known to have ended."""
        return self._lock is not None and not self._lock.session.closed and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the last lock session has ended, or leadership on it was declared lost."""
        return self.ended is not None and self.ended.done()

    @property
    def has_witness(self) -> bool:
        """Whether there is a witness session that is not known to have ended."""
        return self._witness is not None and not self._witness.session.closed

    def has_witness_on(self, ready: ReadySession | None) -> bool:
        """Whether this is the witness session. It may have ended, but no other was opened in its place."""
        return ready is not None and ready is self._witness

    @property
    def is_closed(self) -> bool:
        """Whether both sessions are closed and no end is left to report."""
        return self._lock is None and self._witness is None and not self.has_ended

    @property
    def lock_session(self) -> Session:
        """The lock session. Raises ConnectionError if none is open."""
        if self._lock is None:
            raise ConnectionError(f"no session is open for {self._setup.what} ({self._where})")
        return self._lock.session

    @property
    def quiet_until(self) -> float:
        """When the quiet period after the server's start ends: no term begins before."""
        return self._server_start.quiet_until

    @property
    def met_another_run(self) -> bool:
        """Whether the server was restarted or replaced between the former lock session and this one."""
        return self._server_start.is_another

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The sockets of both sessions."""
        ready = [each for each in (self._lock, self._witness) if each is not None]
        return tuple(each.session.descriptor for each in ready if each.session.descriptor is not None)

    def valid_until(self, validity: Validity) -> float:
        """Return until when it is valid, after a look at the lock session's socket. From any thread; never waits."""
        lock = self._lock
        # The socket is looked at before the validity is read, because close_lock() ends the validity before it closes
        # the socket. A thread that looks at a descriptor which was just closed, and perhaps reused, then reads a
        # validity that has ended; in the other order it could return one that was valid before the close.
        if lock is None or lock.session.has_ended:
            return -math.inf
        return validity.until if validity is self.validity else -math.inf

    # --- Opening and closing -------------------------------------------------------------------------------------

    async def open(self, prepare: Prepare, keys: Collection[LockKey]) -> None:
        """Open a lock session for these keys, unless one is open. Terminates the backends of former sessions first.

        In this order, because a former session whose backend still runs may hold the locks that are asked for next.
        """
        if self.is_open:
            return
        if self._lock is not None and not self._lock.session.closed:
            # Leadership was declared lost, but the session lives and still holds its locks: it is used again, with a
            # new validity. Closing it would let a successor in during a recovery.
            self._begin(self._lock)
            return
        await self.close_lock()
        await self.warm.close()
        self.held.clear()
        ready = await self._setup.set_up(self._connect_bound_s)
        try:
            self._learn(ready)
            await self._end_given_up(ready.session)
            await prepare(ready.session)
        except BaseException:
            await ready.session.close()
            raise
        self._begin(ready)
        if self._was_silent:  # a candidate whose own commit is stuck never waits, and so never looks for a stuck holder
            self._was_silent = False
            await self.look_for_stuck(keys)

    def _begin(self, ready: ReadySession) -> None:
        self._lock, self.validity = ready, Validity()
        self.ended = asyncio.get_running_loop().create_future()
        ready.session.watch(lambda error: self._note_lock_end(ready, error))

    @property
    def _connect_bound_s(self) -> float:
        """How long connecting may take: longer for the first session, because some of several hosts may be silent.

        Later ones are bounded by one lease: what the other session holds could expire meanwhile.
        """
        is_first = self._lock is None and self._witness is None
        return max(self._lease.lease_s, self._connect_s if is_first else 0.0)

    def _learn(self, ready: ReadySession) -> None:
        self._server_start.learn(ready.run, ready.age_s, ready.read_at)
        self.wait_slice_s = self._lease.slice_for(ready.deadlock_s)
        version = ready.session.facts.version
        self.is_enforced = _sql.can_end_silent_sessions(version)
        if not self.is_enforced and not self._was_warned:
            self._was_warned = True
            self._logger.warning(
                "lease_not_enforced",
                server_version=version,
                advice="PostgreSQL before 14 cannot end a silent session: a frozen leader keeps the lock until it "
                "thaws. A dead network is noticed by keepalives, over TCP",
            )

    async def close(self) -> None:
        """End both sessions, which frees all locks. Validity ends first: no lock is free while its term is valid."""
        self.declare_lost(ConnectionError(f"the sessions of {self._setup.what} were closed ({self._where})"))
        await self.close_lock()
        await self.close_witness()
        await self.warm.close()
        self.held.clear()
        self.ended = None
        self.witness_ended = asyncio.Event()  # the next sessions may belong to another event loop

    async def close_lock(self) -> None:
        """End the lock session. Validity ends first: the server frees the locks as soon as the session closes."""
        lock, self._lock = self._lock, None
        self.validity.end()
        if lock is not None:
            await lock.session.close()

    async def close_witness(self) -> None:
        """End the witness session. Only when validity has ended or nothing is held: a successor may lead after it."""
        witness, self._witness = self._witness, None
        self._witnessed = set()
        self.witness_ended.clear()
        if witness is not None:
            await witness.session.close()

    # --- Ends ----------------------------------------------------------------------------------------------------

    def _note_lock_end(self, ready: ReadySession, error: ConnectionError) -> None:
        """End the validity of all keys in one step; listeners are notified afterwards.

        Without a witness session no renewal extends the validity, so its end cuts the wait for an answer short: then
        the missing witness is the cause, and not the silence.
        """
        self._note_end(ready, error)
        if ready is self._lock:
            is_cut_short = error.cause is LossCause.RENEW_TIMEOUT and self._is_valid and self._lacks_witness
            self.declare_lost(self._witness_not_replaced() if is_cut_short else error)

    def _note_witness_end(self, ready: ReadySession, error: ConnectionError) -> None:
        """Have a witness session that ended replaced. If it fell silent while leadership is valid, declare the loss.

        A session that *ended* freed its witness lock, and the lock session still keeps a successor out. One that is
        *silent* was closed by us at the deadline of the renewal: no time is left in which it could be replaced.
        """
        self._note_end(ready, error)
        if ready is not self._witness:
            return
        self._witnessed = set()
        self.witness_ended.set()
        if error.cause is LossCause.RENEW_TIMEOUT and self._is_valid:
            self.declare_lost(error)
        self._trouble = str(error)
        is_ours = error.cause is LossCause.ABORTED  # a shutdown or a step-down cancelled the call: not a fault
        self._logger.log(logging.DEBUG if is_ours else logging.WARNING, "witness_lost", error=error)

    def _note_end(self, ready: ReadySession, error: ConnectionError) -> None:
        self._was_silent |= error.cause is LossCause.RENEW_TIMEOUT
        if error.cause not in _ENDED_BY_SERVER:
            self._given_up.append((ready.pid, ready.started))

    def declare_lost(self, error: PgLeaderLockError) -> None:
        """End the validity of everything that is held, then wake those that wait for ``ended``, with the reason.

        In this order: a listener that is notified of the loss must find ``is_leader`` False.
        """
        self.validity.end(error)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(error)

    async def end_given_up(self) -> bool:
        """Terminate our former sessions again. Return whether one is still there: the server may need some time."""
        await self._end_given_up(self.lock_session)
        return bool(self._given_up)

    async def _end_given_up(self, session: Session) -> None:
        """Terminate the backends of our former sessions: one that is stuck in a commit keeps its locks."""
        for former in list(self._given_up):
            row = await session.fetch(_sql.END_BACKEND, former, bound_s=self._lease.answer_bound_s)
            if row is None:
                self._given_up.remove(former)
            else:
                self._stuck.note_own(row[1])

    # --- Asking --------------------------------------------------------------------------------------------------

    @property
    def _is_valid(self) -> bool:
        return bool(self.held) and not self.validity.is_over and self.validity.until > -math.inf

    def answer_bound_s(self) -> float:
        """Return how long an answer may take; if no time is left, declare the loss and raise LeadershipLost.

        The bound is ``lost_at``, not ``until``: leader tasks need the time between the two to stop.
        """
        if not self._is_valid:
            return self._lease.answer_bound_s
        left_s = self.validity.lost_at - self._clock() - min(_MARGIN_S, self._lease.lease_s / 100)
        if left_s > 0:
            return left_s
        error = self._missed_deadline()
        self.declare_lost(error)
        raise error

    @property
    def _lacks_witness(self) -> bool:
        return self._lease.witness and not self.has_witness

    def _missed_deadline(self) -> LeadershipLost:
        if self._lacks_witness:
            return self._witness_not_replaced()
        if self._is_renewing or self._clock() - self._answered_at < self._lease.lease_s * SOON_SHARE:
            return self._lost("the renewal was answered too late", LossCause.RENEW_TIMEOUT)
        return self._lost("this process stood still for too long", LossCause.STALLED)

    def _witness_not_replaced(self) -> LeadershipLost:
        return self._lost(f"the witness session was lost and not replaced ({self._trouble})", LossCause.WITNESS_LOST)

    def _lost(self, what: str, cause: LossCause) -> LeadershipLost:
        return LeadershipLost(f"{what}: leadership of {self._setup.what} ends ({self._where})", cause=cause)

    async def ask_lock(
        self, statement: str, parameters: tuple[Any, ...] = (), *, bound_s: float | None = None
    ) -> tuple[Any, ...] | None:
        """Execute a statement on the lock session. Without an answer in time it is closed, and leadership is lost."""
        bound_s = self.answer_bound_s() if bound_s is None else bound_s
        return await self.lock_session.fetch(statement, parameters, bound_s=bound_s)

    async def ask_witness(
        self, statement: str, parameters: tuple[Any, ...] = (), *, bound_s: float | None = None
    ) -> tuple[Any, ...] | None:
        """Execute a statement on the witness session. Without an answer in time it is closed.

        While leadership is valid, that is its loss.
        """
        if self._witness is None:
            raise ConnectionError(f"no witness session is open for {self._setup.what} ({self._where})")
        bound_s = self.answer_bound_s() if bound_s is None else bound_s
        return await self._witness.session.fetch(statement, parameters, bound_s=bound_s)

    async def look_for_stuck(self, keys: Collection[LockKey]) -> None:
        """Terminate a holder of these keys whose commit waits for an absent standby. Checks once per lease at most."""
        if not self._stuck.is_due(self._clock()):
            return
        locks = [*keys, *map(witness_key, keys)]
        row = await self.ask_lock(_sql.STUCK_HOLDERS, _keys_sql.columns(locks)[1:])
        for holder in self._stuck.saw([] if row is None else row[0], self._clock()):
            await self.ask_lock(_sql.END_BACKEND, holder)

    # --- Witness locks -------------------------------------------------------------------------------------------

    async def begin_term(self, key: LockKey, statement: str = "") -> tuple[Row | None, bool]:
        """Take the witness lock of this key, and execute a statement, if any, on the lock session at the same time.

        Return the answer, and whether the witness lock was taken; if not, another session holds it. In a recovery,
        which has it still, both are asked one after the other: to cut a call on the witness session short closes it,
        and it keeps a successor out until listeners are notified.
        """
        if key in self._witnessed:
            answer = await self.ask_lock(statement) if statement else None
            await self.ask_witness(_keys_sql.ping_as(self._advertising_name))  # the lock session is a new one
            return answer, True
        if not statement:
            return None, not await self.take_witness_locks([key])
        answer, refused = await _together(self.ask_lock(statement), self.take_witness_locks([key]))
        return answer, not refused

    @property
    def _advertising_name(self) -> str | None:
        """The name with which the witness session shows our address; None if we have none."""
        if self._lease.address is None or self._lock is None:
            return None
        return advertising_name(self._lease.address, self._lock.pid)

    async def show_wait(self, *, is_over: bool) -> None:
        """Send a heartbeat on the witness session, with a name that shows observers whether this candidate waits."""
        if self._witness is not None and self._lock is not None:
            name = self._advertising_name if is_over else waiting_name(self._lock.pid)
            await self.ask_witness(_keys_sql.ping_as(name))

    async def take_witness_locks(self, keys: Iterable[LockKey]) -> set[LockKey]:
        """Take the witness locks of these keys, and return the keys whose witness lock another session holds.

        If the witness session has ended, those of all other keys that are held are taken back first: the renewal would
        take the new session for one that holds them. If that fails, all of these are refused.
        """
        if not self._lease.witness:
            return set()
        keys = list(keys)
        others = self.held.difference(keys)
        if others and not self.has_witness:
            await self._unless_ended(self._replace_witness(others))
            if not self.has_witness:
                return set(keys)
        return await self._take_witness_locks(keys)

    async def _take_witness_locks(self, keys: Collection[LockKey]) -> set[LockKey]:
        wanted = [key for key in keys if key not in self._witnessed]
        if not wanted:
            return set()
        is_warm, asked = False, None
        if not self.has_witness:
            ready, asked = await self.warm.take()
            is_warm = self._adopt(ready)
            self._hears = is_warm and self.warm.listens is not None
        if not self.has_witness:
            await self.open_witness()
        witnessed, row = await (self._ask_warm(wanted, asked) if is_warm else self._ask_alone(wanted))
        taken = {wanted[place] for place in (row or ([],))[0]}
        witnessed |= taken
        return {key for key in wanted if key not in taken}

    def ask_witness_early(self, witness_wait: str) -> None:
        """Wait for the witness lock on the warm session, if there is one; :meth:`begin_term` takes the answer.

        A caller that then begins no term must close the warm session: it may hold the witness lock.
        """
        if self._lease.witness and not self.has_witness:
            self.warm.ask_early(partial(self._wait_early, witness_wait))

    async def _wait_early(self, witness_wait: str, session: Session) -> Row:
        row = await session.fetch(witness_wait, bound_s=self._early_wait_s + self._lease.answer_bound_s)
        return ([0] if row is not None and row[0] else [],)  # as the try for several locks answers

    @property
    def _early_wait_s(self) -> float:
        return min(_EARLY_WAIT_S, self.wait_slice_s)

    def early_witness_wait(self, key: LockKey) -> str:
        """Return the statement of a short wait for the witness lock of this key.

        A wait and not a try: the server ends the two sessions of a killed leader one after the other.
        """
        statements = _sql.LockStatements(witness_key(key), self._lease, is_enforced=self.is_enforced)
        return statements.slice(self._early_wait_s, more=_keys_sql.rename(self._advertising_name))

    def _witness_try(self, keys: list[LockKey]) -> _keys_sql.Statement:
        """Return the statement that tries for the witness locks of these keys."""
        idle_ms = self._lease.lease_ms if self.is_enforced else None
        return _keys_sql.take_all([witness_key(key) for key in keys], idle_ms, name=self._advertising_name)

    async def stop_hearing(self) -> None:
        """End the listening of a witness session that was the heir's second session."""
        if self._hears and self.has_witness:
            self._hears = False
            await self.ask_witness(_sql.STOP_LISTENING + _sql.PING)

    async def _ask_warm(self, keys: list[LockKey], asked: "asyncio.Future[Row | None] | None") -> "_Answer":
        """Try for the witness locks on the session that was warm, where they may be ``asked`` for already.

        If that does not answer soon, try for them on a fresh one, opened beside it.

        The session may be dead without a notice. Its backend may run the statement nevertheless, and hold the witness
        lock: it is terminated before the fresh session asks.
        """
        witnessed = self._witnessed
        if asked is None:
            asked = asyncio.ensure_future(self.ask_witness(*self._witness_try(keys)))
        fresh: asyncio.Future[ReadySession] | None = None
        try:
            if not asked.done():
                await asyncio.wait({asked}, timeout=LATE_S)
            if not _has_answered(asked):
                fresh = asyncio.ensure_future(self._open_second())
                pending: set[asyncio.Future[Any]] = {fresh} if asked.done() else {asked, fresh}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if _has_answered(asked) or fresh is None:
                return witnessed, asked.result()
            await end_call(asked)
            await self.close_witness()
            await asyncio.wait({fresh})
            self._adopt(fresh.result())
            fresh = None
        finally:
            await end_call(asked)
            if fresh is not None:
                await discard(fresh)
        return await self._ask_alone(keys)

    async def _ask_alone(self, keys: list[LockKey]) -> "_Answer":
        """Try for the witness locks when our own former sessions, of which one may hold them, are terminated.

        A warm session that ended on our side only has tried for it perhaps. The server may need some time to end it.
        """
        statement = self._witness_try(keys)
        if not self._given_up:
            return self._witnessed, await self.ask_witness(*statement)
        await self._end_given_up(self._witness_session)
        witnessed, row = self._witnessed, await self.ask_witness(*statement)
        for _ in range(_RETRIES):
            if row is None or row[0]:
                break
            await asyncio.sleep(_RETRY_S)
            witnessed, row = self._witnessed, await self.ask_witness(*statement)
        return witnessed, row

    async def notified(self) -> None:
        """Wait for a notification on the channel; without a witness session, wait until cancelled."""
        if self._witness is None:
            await asyncio.Event().wait()
        else:
            await self._witness.session.notified()

    async def queue_for_witness_lock(self, key: LockKey, wait_slice: str, slice_s: float) -> bool:
        """Execute a wait slice for the witness lock of this key. Return whether it was granted."""
        witnessed = self._witnessed
        row = await self.ask_witness(wait_slice, bound_s=slice_s + self._lease.answer_bound_s)
        is_granted = row is not None and bool(row[0])
        if is_granted:
            witnessed.add(key)
        return is_granted

    async def open_witness(self) -> None:
        """Open a witness session, which listens to the channel if there is one."""
        self._adopt(await self._open_second())

    def _adopt(self, ready: ReadySession | None) -> bool:
        """Use this as the witness session. Return False for None."""
        if ready is None:
            return False
        self._witness, self._witnessed = ready, set()
        self.witness_ended.clear()
        ready.session.watch(lambda error: self._note_witness_end(ready, error))
        return True

    async def _open_second(self) -> ReadySession:
        """Open a session that can become the witness session.

        The lock session of a leader never listens: any user of the database may send notifications, and unread
        notifications hide the end of a session from a look at its socket.
        """
        ready = await self._setup.set_up(self._connect_bound_s, with_facts=False)
        try:
            if self._channel is not None:
                await ready.session.listen(self._channel)
        except BaseException:
            await ready.session.close()
            raise
        return ready

    async def free_witness_locks(self) -> None:
        """Unlock the witness locks of keys that are no longer held. A failure ends that session, and is noted there."""
        await self._unlock_witness([key for key in self._witnessed if key not in self.held])
        if not self.held and self._channel is None:
            await self.close_witness()

    async def _unlock_witness(self, keys: Collection[LockKey]) -> None:
        keys = self._witnessed.intersection(keys)
        self._witnessed.difference_update(keys)
        if keys and self.has_witness:
            statement = _keys_sql.unlock_all(
                [witness_key(key) for key in keys], are_all=False, is_enforced=self.is_enforced
            )
            await self._try_witness(*statement)

    async def _try_witness(self, statement: str, parameters: tuple[Any, ...] = ()) -> bool:
        """Execute a statement on the witness session. Return False when it has ended, which is not yet a loss."""
        if not self.has_witness:
            return False
        is_leading = self._is_valid
        try:
            await self.ask_witness(statement, parameters, bound_s=None if is_leading else self._lease.renew_every_s)
        except ConnectionError:
            if is_leading and self.has_ended:
                raise
            return False
        return True

    # --- Renewal -------------------------------------------------------------------------------------------------

    async def renew(self) -> bool:
        """Extend the validity of all keys. Return False, extending nothing, when the witness session is missing.

        The end of the lock session cancels the renewal and is raised, whatever the renewal was waiting for: a leader
        that waits for a new witness session would otherwise notice the loss of its lock only when that wait is over.
        """
        self.answer_bound_s()
        self._is_renewing = True
        try:
            return await self._unless_ended(self._renew())
        finally:
            self._is_renewing = False

    async def _renew(self) -> bool:
        sent = self._clock()
        await self.ask_lock(_sql.PING)
        if self._lease.witness and not await self._try_witness(_sql.PING):
            if not await self._replace_witness(self.held):
                return False
            # Anew, and on both sessions: validity counts from a time at which both locks were held together.
            sent = self._clock()
            await self.ping_both()
        self.answer_bound_s()  # raises if the answers came too late: a term that had to be declared lost is not renewed
        self.validity.extend(self._lease, sent)
        self._answered_at = self._clock()
        return True

    async def ping_both(self) -> None:
        """Send a heartbeat on both sessions, so that the server keeps them. Validity is not extended."""
        await self.ask_lock(_sql.PING)
        if self._witness is not None:
            await self.ask_witness(_sql.PING)

    async def keep_witness(self) -> bool:
        """Renew the witness session while nothing is valid, to keep a successor out. Return False when it has ended."""
        return await self._try_witness(_sql.PING)

    async def _replace_witness(self, keys: Collection[LockKey]) -> bool:
        """Take these witness locks on a new session. Return False if that failed; it is tried again.

        No other candidate can take them first, because a candidate takes the lock before its witness lock and the lock
        session still holds the locks. What can hold them is our own former session, whose backend is terminated first.
        """
        bound_s = self.answer_bound_s()
        try:
            async with asyncio.timeout(bound_s):
                await self.open_witness()
                await self._end_given_up(self._witness_session)
                refused = await self._take_back(keys)
        except (PgLeaderLockError, TimeoutError) as error:
            if self.has_ended:
                raise
            self._trouble, is_replaced = str(error) or f"no new session within {bound_s:.3g} s", False
        else:
            self._trouble, is_replaced = "another session holds a witness lock", not refused
        if not is_replaced:
            self._logger.warning("witness_not_replaced", error=self._trouble)
            await self.close_witness()
            self.witness_ended.set()
            return False
        self._logger.info("witness_replaced", keys=len(keys))
        return True

    async def _take_back(self, keys: Collection[LockKey]) -> set[LockKey]:
        refused = await self._take_witness_locks(keys)
        for _ in range(_RETRIES):
            if not refused:
                break
            await asyncio.sleep(_RETRY_S)
            refused = await self._take_witness_locks(keys)
        return refused

    @property
    def _witness_session(self) -> Session:
        assert self._witness is not None  # noqa: S101 - its callers have opened it
        return self._witness.session

    async def _unless_ended(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call; when the lock session ends first, cancel the call and raise the reason of that end."""
        assert self.ended is not None  # noqa: S101 - nothing is renewed before it is open
        task = asyncio.ensure_future(call)
        either: set[asyncio.Future[Any]] = {task, self.ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done():  # also when the call failed with it: this is the reason that was declared
                raise self.ended.result()
            return task.result()
        finally:
            await end_call(task)

    # --- Release -------------------------------------------------------------------------------------------------

    async def free(self, keys: Iterable[LockKey], *, first: str = "", bound_s: float | None = None) -> set[LockKey]:
        """Unlock these keys and, at the same time, their witness locks. Return the keys whose lock was held.

        Their terms are over: the state that calls this is not that of a leader. So a successor may lead as soon as the
        server has both unlocks, before they are answered here. ``first`` is sent before the unlock, in the same round
        trip; only where one key is freed.
        """
        freed = [key for key in keys if key in self.held]
        if not freed:
            return set()
        are_all = len(freed) == len(self.held)
        statement, parameters = _keys_sql.unlock_all(freed, are_all=are_all, is_enforced=self.is_enforced)
        unlocking = asyncio.ensure_future(self._unlock_witness(freed))
        try:
            row = await self.ask_lock(first + statement, parameters, bound_s=bound_s)
            await asyncio.wait({unlocking})
        except PgLeaderLockError:
            await asyncio.wait({unlocking})  # cancelled, it would close the session that protects the other keys
            raise
        finally:
            await end_call(unlocking)
        unlocking.result()
        self.held.difference_update(freed)
        if are_all:
            self.validity = Validity()  # a later term has one of its own, and cannot extend grants of this term
            if self._channel is None and self.has_witness:
                await asyncio.sleep(_CLOSE_AFTER_S)
        await self.free_witness_locks()
        return {freed[place] for place in (row or ([],))[0]}


_Answer = tuple[set[LockKey], Row | None]
"""The set in which the session notes what it holds (:attr:`SessionPair._witnessed`), and its answer."""


async def _together(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Await both. When one fails or this is cancelled, cancel the other, and raise that."""
    one, other = asyncio.ensure_future(first), asyncio.ensure_future(second)
    both: set[asyncio.Future[Any]] = {one, other}
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return one.result(), other.result()
    finally:
        await end_call(one)
        await end_call(other)


def _has_answered(call: asyncio.Future[Any]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None
