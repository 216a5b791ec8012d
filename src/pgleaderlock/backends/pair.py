"""The session pair: a lock session and a witness session, for any number of keys. The protocol, written once.

What the server is authoritative for: which session holds a lock, and when a silent session ends
(``idle_session_timeout``). What local time is used for: nothing but *our own* validity, which ends before the server
could have given a lock to another.

With a lease of T seconds, counted from when a request was sent:

- a renewal is sent on both sessions every interval; none succeeded by 2/3 T, and leadership is declared lost;
- at 0.9 T nothing is valid any more, whatever the event loop is doing;
- at T, and no earlier, the server ends a silent session and frees its locks.

**Two locks on two sessions.** A session that the *server* ends frees its locks at once, while the leader may not have
read that news. So each leadership takes its lock, on the lock session, and then a *witness lock* on the witness
session. A leader that loses one session still holds the other until its listeners were notified; a successor holds the
lock and stays in ACQUIRING until the witness lock is free.

**Both sessions are watched from their opening to their close**, whatever else is in progress: while a session rests by
its socket, while a call is in flight by that call. The end of the lock session ends the validity of all keys in one
step, before anything is notified; :meth:`SessionPair.valid_until` looks at the socket itself, so it does not depend on
the event loop. A lost witness session is replaced within the validity that was there before: none is added meanwhile.

**Silence is not an end.** A session that is only slow still keeps a successor out. So an answer is waited for until
leadership must be declared lost; then validity ends first, and only then is the silent session closed. The other one
keeps a successor out until the listeners were notified.

**Any doubt closes the session, and a closed session is ended on the server too.** A commit that waits for an absent
synchronous standby keeps its locks in a backend whose client is gone: no time-out ends it. So the next session that is
opened terminates the backends of those that were given up, and a candidate that waits terminates a holder that has
been stuck there for a lease.

Not promised: with ``takeover="fast"``, a process that is frozen *and* has both sessions ended may act until its first
look at ``is_leader``; one that is cut off from the network and has both ended, until its validity is over. A server
clock that is stepped moves ``idle_session_timeout`` with it: forward, it ends the sessions of a leader that is cut off
early; back, it keeps those of a frozen one longer. Clocks of two hosts may not differ in rate by more than 10 %.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar

from pgleaderlock._logging import NDLogger
from pgleaderlock.backends import _keys_sql, _sql
from pgleaderlock.backends._admission import Admission, Admitted
from pgleaderlock.backends._server_start import ServerStart
from pgleaderlock.backends._stuck import StuckHolders
from pgleaderlock.backends.lease import Lease, witness_key
from pgleaderlock.backends.session import Session
from pgleaderlock.backends.times import SOON_SHARE
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError, LeadershipLost, PgLeaderLockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant

__all__ = ["SessionPair", "Validity"]

T = TypeVar("T")
Prepare = Callable[[Session], Awaitable[None]]
"""What else a new lock session needs before it is used."""

_MARGIN_S = 0.01
"""The pair declares a loss this much before the engine's own bound, so that the pair's reason is the one reported."""
_RETRY_S = 0.02
_RETRIES = 5
"""For a witness lock that our own former session still holds: the server needs a moment to end it."""
_SERVER_SAID = frozenset({LossCause.SESSION_TERMINATED, LossCause.SERVER_RESTART, LossCause.SILENCED})
"""Causes by which a session is known to be gone on the server too."""


class Validity:
    """Until when everything that one lock session holds may be acted upon. One step ends it, for all keys."""

    __slots__ = ("_change", "_made", "is_over", "kept_until", "lost_at", "until", "why")

    def __init__(self) -> None:
        self.until = self.lost_at = self.kept_until = -math.inf
        self.is_over = False
        self.why: PgLeaderLockError | None = None
        """The reason of its end, for a role that gets to ask only after the next session was opened."""
        self._change = 0
        self._made: tuple[int, Grant] | None = None  # after which change it was made: thousands of roles ask for one

    def extend(self, lease: Lease, sent: float) -> None:
        """Note that the server answered on both sessions to what was sent then. What is over stays over."""
        if self.is_over:
            return
        grant = lease.grant(None, sent)
        self.until, self.lost_at, self.kept_until = grant.trusted_until, grant.lost_at, grant.trusted_until
        self._change += 1

    def end(self, why: PgLeaderLockError | None = None) -> None:
        """End it. ``kept_until`` stays: so long at most are the remaining locks kept, for listeners to be notified."""
        self.is_over = True
        self.why = self.why or why
        self.until = self.lost_at = -math.inf
        self._change += 1

    def grant(self, token: int | None) -> Grant:
        """Return it as a grant, as it stands now. May be asked from any thread."""
        change, made = self._change, self._made
        if made is None or made[0] != change or made[1].token != token:
            grant = Grant(token, self.until, self.lost_at, self.kept_until if self.is_over else None)
            made = self._made = change, grant
        return made[1]


class SessionPair:
    """The two sessions of one candidate, from its first connection to its last."""

    def __init__(
        self,
        admission: Admission,
        lease: Lease,
        clock: Clock,
        where: str,
        logger: NDLogger,
        *,
        connect_s: float = 0.0,
        channel: str | None = None,
    ) -> None:
        self._admission = admission
        self._lease = lease
        self._clock = clock
        self._where = where
        self._logger = logger
        self._connect_s = connect_s
        self._channel = channel  # to be heard on the witness session, which is kept open for that
        self._lock: Admitted | None = None
        self._witness: Admitted | None = None
        self.held: set[LockKey] = set()
        """Keys whose lock we took; after the end of the lock session, those whose listeners were not notified yet."""
        self._witnessed: set[LockKey] = set()
        self.validity = Validity()
        """Of everything held on the present lock session."""
        self.ended: asyncio.Future[PgLeaderLockError] | None = None
        """Done, with the reason, when the lock session has ended or leadership was declared lost."""
        self.witness_ended = asyncio.Event()
        """Set while a witness session is missing that has been there."""
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

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing left to close."""
        return self._lock is None and self._witness is None and not self.has_ended

    @property
    def lock_session(self) -> Session:
        """The lock session. ConnectionError where there is none."""
        if self._lock is None:
            raise ConnectionError(f"no session is open for {self._admission.what} ({self._where})")
        return self._lock.session

    @property
    def quiet_until(self) -> float:
        """Until when no term begins, because the server has started only just now."""
        return self._server_start.quiet_until

    @property
    def met_another_run(self) -> bool:
        """Whether the lock session is of another run of a server than the one before it."""
        return self._server_start.is_another

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The sockets of both sessions."""
        admitted = [each for each in (self._lock, self._witness) if each is not None]
        return tuple(each.session.descriptor for each in admitted if each.session.descriptor is not None)

    def valid_until(self, validity: Validity) -> float:
        """Return until when it is valid, having looked at the lock session's socket. From any thread; never waits."""
        lock = self._lock
        if lock is None or lock.session.has_ended:  # asked first: what closes the socket has ended the validity before
            return -math.inf
        return validity.until if validity is self.validity else -math.inf

    # --- Opening and closing -------------------------------------------------------------------------------------

    async def open(self, prepare: Prepare, keys: Collection[LockKey]) -> None:
        """Have a lock session, for these keys. What was given up before is ended on the server first."""
        if self.is_open:
            return
        if self._lock is not None and not self._lock.session.closed:
            self._begin(self._lock)  # leadership was declared lost, but the session lives, and keeps others out
            return
        await self.close_lock()
        self.held.clear()
        admitted = await self._admission.admit(self._connect_bound_s)
        try:
            self._learn(admitted)
            await self._end_given_up(admitted.session)
            await prepare(admitted.session)
        except BaseException:
            await admitted.session.close()
            raise
        self._begin(admitted)
        if self._was_silent:  # a candidate whose own commit is stuck does not get as far as to wait for another's
            self._was_silent = False
            await self.look_for_stuck(keys)

    def _begin(self, admitted: Admitted) -> None:
        self._lock, self.validity = admitted, Validity()
        self.ended = asyncio.get_running_loop().create_future()
        admitted.session.watch(lambda error: self._note_lock_end(admitted, error))

    @property
    def _connect_bound_s(self) -> float:
        """With several hosts, silent ones are tried first at times. Nothing that is held could run out meanwhile."""
        is_first = self._lock is None and self._witness is None
        return max(self._lease.lease_s, self._connect_s if is_first else 0.0)

    def _learn(self, admitted: Admitted) -> None:
        self._server_start.learn(admitted.run, admitted.age_s, admitted.read_at)
        self.wait_slice_s = self._lease.slice_for(admitted.deadlock_s)
        version = admitted.session.facts.version
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
        """End both sessions. Whatever was held is free."""
        self.declare_lost(ConnectionError(f"the sessions of {self._admission.what} were closed ({self._where})"))
        await self.close_lock()
        await self.close_witness()
        self.held.clear()
        self.ended = None

    async def close_lock(self) -> None:
        """End the lock session; validity first."""
        lock, self._lock = self._lock, None
        self.validity.end()
        if lock is not None:
            await lock.session.close()

    async def close_witness(self) -> None:
        """End the witness session. To be called only when nothing is valid any more, or nothing is held."""
        witness, self._witness = self._witness, None
        self._witnessed.clear()
        self.witness_ended.clear()
        if witness is not None:
            await witness.session.close()

    def abandon(self) -> None:
        """End both sessions where no event loop is left to wait on: a driver's close() does not wait."""
        for admitted in (self._lock, self._witness):
            if admitted is not None:
                with contextlib.suppress(StopIteration, Exception):
                    admitted.session.close().send(None)
        self.validity.end()
        self._lock = self._witness = self.ended = None
        self.held.clear()
        self._witnessed.clear()
        self.witness_ended = asyncio.Event()

    # --- Ends ----------------------------------------------------------------------------------------------------

    def _note_lock_end(self, admitted: Admitted, error: ConnectionError) -> None:
        """End the validity of all keys in one step. What follows from it is notified afterwards."""
        self._note_end(admitted, error)
        if admitted is self._lock:
            self.declare_lost(error)

    def _note_witness_end(self, admitted: Admitted, error: ConnectionError) -> None:
        """A witness session that ended is replaced. One that fell silent while a leadership is valid is its loss."""
        self._note_end(admitted, error)
        if admitted is not self._witness:
            return
        self._witnessed.clear()
        self.witness_ended.set()
        if error.cause is LossCause.RENEW_TIMEOUT and self._is_valid:
            self.declare_lost(error)
        self._trouble = str(error)
        is_ours = error.cause is LossCause.ABORTED  # a shutdown or a step-down cut the call short: nothing is wrong
        self._logger.log(logging.DEBUG if is_ours else logging.WARNING, "witness_lost", error=error)

    def _note_end(self, admitted: Admitted, error: ConnectionError) -> None:
        self._was_silent |= error.cause is LossCause.RENEW_TIMEOUT
        if error.cause not in _SERVER_SAID:
            self._given_up.append((admitted.pid, admitted.started))

    def declare_lost(self, error: PgLeaderLockError) -> None:
        """End the validity of everything that is held, and say why to whoever waits for that."""
        self.validity.end(error)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(error)

    async def end_given_up(self) -> bool:
        """Terminate our former sessions again. Whether one is still there: the server may need a moment."""
        await self._end_given_up(self.lock_session)
        return bool(self._given_up)

    async def _end_given_up(self, session: Session) -> None:
        """Terminate the backends of our former sessions: one that is stuck in a commit would keep its locks."""
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
        """How long an answer may take: what is not renewed by then is lost, so that work has time to stop."""
        if not self._is_valid:
            return self._lease.answer_bound_s
        left_s = self.validity.lost_at - self._clock() - min(_MARGIN_S, self._lease.lease_s / 100)
        if left_s > 0:
            return left_s
        if self._lease.witness and not self.has_witness:
            what, cause = f"the witness session was lost and not replaced ({self._trouble})", LossCause.WITNESS_LOST
        elif self._is_renewing or self._clock() - self._answered_at < self._lease.lease_s * SOON_SHARE:
            what, cause = "the renewal was answered too late", LossCause.RENEW_TIMEOUT
        else:
            what, cause = "this process stood still for too long", LossCause.STALLED
        error = LeadershipLost(f"{what}: leadership of {self._admission.what} ends ({self._where})", cause=cause)
        self.declare_lost(error)
        raise error

    async def ask_lock(
        self, statement: str, parameters: tuple[Any, ...] = (), *, bound_s: float | None = None
    ) -> tuple[Any, ...] | None:
        """Ask on the lock session. Past the bound it is closed, and leadership is lost."""
        bound_s = self.answer_bound_s() if bound_s is None else bound_s
        return await self.lock_session.fetch(statement, parameters, bound_s=bound_s)

    async def ask_witness(
        self, statement: str, parameters: tuple[Any, ...] = (), *, bound_s: float | None = None
    ) -> tuple[Any, ...] | None:
        """Ask on the witness session. Past the bound it is closed; while a leadership is valid, that is its loss."""
        if self._witness is None:
            raise ConnectionError(f"no witness session is open for {self._admission.what} ({self._where})")
        bound_s = self.answer_bound_s() if bound_s is None else bound_s
        return await self._witness.session.fetch(statement, parameters, bound_s=bound_s)

    async def look_for_stuck(self, keys: Collection[LockKey]) -> None:
        """Once per lease while waiting: end a holder of these whose commit waits for a standby that is not there."""
        if not self._stuck.is_due(self._clock()):
            return
        locks = [*keys, *map(witness_key, keys)]
        row = await self.ask_lock(_sql.STUCK_HOLDERS, _keys_sql.columns(locks)[1:])
        for holder in self._stuck.saw([] if row is None else row[0], self._clock()):
            await self.ask_lock(_sql.END_BACKEND, holder)

    # --- Witness locks -------------------------------------------------------------------------------------------

    async def take_witnesses(self, keys: Iterable[LockKey]) -> set[LockKey]:
        """Take the witness locks of these, and return those of which it is not to be had now."""
        wanted = [key for key in keys if key not in self._witnessed]
        if not self._lease.witness or not wanted:
            return set()
        if not self.has_witness:
            await self.open_witness()
        idle_ms = self._lease.lease_ms if self.is_enforced else None
        row = await self.ask_witness(*_keys_sql.take_all([witness_key(key) for key in wanted], idle_ms))
        taken = {wanted[place] for place in (row or ([],))[0]}
        self._witnessed |= taken
        return {key for key in wanted if key not in taken}

    async def notified(self) -> None:
        """Wait for a notification on the channel; without a witness session, for ever."""
        if self._witness is None:
            await asyncio.Event().wait()
        else:
            await self._witness.session.notified()

    def note_witness(self, key: LockKey) -> None:
        """Note that queueing has brought the witness lock of this key."""
        self._witnessed.add(key)

    async def open_witness(self) -> None:
        """Have a witness session, which hears the channel if there is one.

        Never the lock session: any user of the database may notify, and behind unread notifications the end of a
        session does not show at its socket.
        """
        admitted = await self._admission.admit(self._connect_bound_s, with_facts=False)
        try:
            if self._channel is not None:
                await admitted.session.listen(self._channel)
        except BaseException:
            await admitted.session.close()
            raise
        self._witness = admitted
        self.witness_ended.clear()
        admitted.session.watch(lambda error: self._note_witness_end(admitted, error))

    async def free_witnesses(self) -> None:
        """Unlock those whose lock is not held any more. A failure is the end of that session, which is noted."""
        if not self.held and self._channel is None:
            await self.close_witness()
            return
        keys = [key for key in self._witnessed if key not in self.held]
        self._witnessed.difference_update(keys)
        if keys and self.has_witness:
            statement = _keys_sql.unlock_all(
                [witness_key(key) for key in keys], are_all=False, is_enforced=self.is_enforced
            )
            await self._try_witness(*statement)

    async def _try_witness(self, statement: str, parameters: tuple[Any, ...] = ()) -> bool:
        """Ask on the witness session. False when it has ended, which costs nothing yet."""
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
        """Extend the validity of all keys. False when the witness session is missing: then nothing is added.

        The end of the lock session cuts it short, whatever it is waiting for.
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
            if not await self._replace_witness():
                return False
            sent = self._clock()
            await self.ping_both()
        self.answer_bound_s()  # what had to be declared lost meanwhile is not renewed
        self.validity.extend(self._lease, sent)
        self._answered_at = self._clock()
        return True

    async def ping_both(self) -> None:
        """Show on both sessions that we live, adding nothing."""
        await self.ask_lock(_sql.PING)
        if self._witness is not None:
            await self.ask_witness(_sql.PING)

    async def keep_witness(self) -> bool:
        """While nothing is valid: hold on to what keeps a successor out. False when that is gone."""
        return await self._try_witness(_sql.PING)

    async def _replace_witness(self) -> bool:
        """Take all witness locks on a new session. No other candidate can have them: the locks are still ours."""
        bound_s = self.answer_bound_s()
        try:
            async with asyncio.timeout(bound_s):
                await self.open_witness()
                await self._end_given_up(self._witness_session)
                refused = await self._take_back()
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
        self._logger.info("witness_replaced", keys=len(self.held))
        return True

    async def _take_back(self) -> set[LockKey]:
        refused = await self.take_witnesses(self.held)
        for _ in range(_RETRIES):
            if not refused:
                break
            await asyncio.sleep(_RETRY_S)
            refused = await self.take_witnesses(self.held)
        return refused

    @property
    def _witness_session(self) -> Session:
        assert self._witness is not None  # noqa: S101 - its callers have opened it
        return self._witness.session

    async def _unless_ended(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call, but no longer than the lock session lives."""
        assert self.ended is not None  # noqa: S101 - nothing is renewed before it is open
        task = asyncio.ensure_future(call)
        either: set[asyncio.Future[Any]] = {task, self.ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self.ended.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it as forgotten

    # --- Release -------------------------------------------------------------------------------------------------

    async def free(self, keys: Iterable[LockKey], *, first: str = "", bound_s: float | None = None) -> set[LockKey]:
        """Unlock these, and their witness locks after them. Return which were held on the server.

        ``first`` is sent before the unlock, in the same round trip; only where one key is freed.
        """
        freed = [key for key in keys if key in self.held]
        if not freed:
            return set()
        are_all = len(freed) == len(self.held)
        statement, parameters = _keys_sql.unlock_all(freed, are_all=are_all, is_enforced=self.is_enforced)
        row = await self.ask_lock(first + statement, parameters, bound_s=bound_s)
        self.held.difference_update(freed)
        if are_all:
            self.validity = Validity()  # nothing is held that it could be about
        await self.free_witnesses()
        return {freed[place] for place in (row or ([],))[0]}
