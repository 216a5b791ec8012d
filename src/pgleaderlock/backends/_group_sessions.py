"""The two sessions of a group of roles, one for its locks and one for their witnesses, and what is done on them.

A *witness* is a second lock for each role (see :mod:`.leased`). Everything here is about all roles at once, and is
called by one task, one thing at a time. Any error means that the locks are gone, or that nobody can tell: then
:meth:`Sessions.fail` ends them for everybody. The witnesses outlive that until all were told.
"""

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterable
from typing import Any

from pgleaderlock._logging import get_logger
from pgleaderlock.backends import _group_sql, _sql
from pgleaderlock.backends._admission import Admission, Admitted
from pgleaderlock.backends.lease import Lease, witness_key
from pgleaderlock.backends.session import Session
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant

__all__ = ["CHANNEL", "Sessions", "SharedGrant", "Trust", "open_sessions"]

CHANNEL = "pgleaderlock_group"
"""On which a released lock is told of."""
_FULL = "out of shared memory"
_DOUBT = 1 / 20
"""Leases from the loss that is declared because a session does not answer, to its being closed."""
_DISBELIEF_S = 0.01
"""How much earlier than that nobody is believed to lead any more, even if an election had no time to hear of it."""


class Trust:
    """Until when the locks of a group may be believed in: one for all of them."""

    __slots__ = ("kept_until", "lost_at", "until")

    def __init__(self) -> None:
        self.until = self.lost_at = self.kept_until = -math.inf

    def renewed(self, lease: Lease, sent: float) -> None:
        """The server answered on both sessions to what was sent then."""
        grant = lease.grant(None, sent)
        self.until, self.lost_at = grant.trusted_until, grant.lost_at
        self.kept_until = grant.trusted_until

    def end(self, now: float) -> None:
        """Believe no longer. Whoever is being told of it still has its time: witnesses are kept as long as before."""
        self.until, self.lost_at = min(self.until, now), min(self.lost_at, now)


class SharedGrant(Grant):
    """A grant whose trust is extended by the group's renewals, without a word to its election."""

    __slots__ = ("trust",)
    trust: Trust

    def __init__(self, token: int, trust: Trust) -> None:
        object.__setattr__(self, "token", token)
        object.__setattr__(self, "trust", trust)

    @property
    def trusted_until(self) -> float:
        """As the last renewal left it."""
        return self.trust.until

    @property
    def lost_at(self) -> float:
        """Never, for the election: the group itself declares the loss, to all at once."""
        return math.inf


async def open_sessions(admission: Admission, lease: Lease, clock: Clock, where: str, roles: int) -> "Sessions":
    """Open both sessions, for so many roles; LockError if the server has no room for their locks."""
    admitted = await admission.admit(lease.lease_s)
    try:
        await _check_capacity(admitted.session, lease, where, roles)
        sessions = Sessions(admission, admitted, lease, clock, where)
        await sessions.begin()
    except BaseException:
        await admitted.session.close()
        raise
    return sessions


async def _check_capacity(session: Session, lease: Lease, where: str, roles: int) -> None:
    """Two locks for each role that we may come to hold. What others need is not known."""
    needed = roles * (2 if lease.witness else 1)
    row = await session.fetch(_group_sql.CAPACITY, bound_s=lease.answer_bound_s)
    room, setting = row or (math.inf, 0)
    if needed > room:
        enough = math.ceil(setting * needed * 1.5 / room)
        raise LockError(
            f"{roles} roles need {needed} locks, and the server's lock table has room for {room} ({where}): raise "
            f"max_locks_per_transaction, now {setting}, to {enough} or more and restart the server, or limit this node "
            "with max_roles"
        )


class Sessions:
    """One pair of sessions, from their opening to the last word about their end."""

    def __init__(self, admission: Admission, admitted: Admitted, lease: Lease, clock: Clock, where: str) -> None:
        self._admission = admission
        self._lease = lease
        self._clock = clock
        self._where = where
        self._locks = admitted.session
        self._witnesses: Session | None = None
        settle_s = lease.lease_s if lease.settle_s is None else lease.settle_s
        self.settled_at = admitted.read_at + settle_s - admitted.age_s
        self.trust = Trust()
        self.held: set[LockKey] = set()
        """On these sessions; after their end, by members that have not let go yet."""
        self._witnessed: set[LockKey] = set()
        """Whose witness we have."""
        self.ended: asyncio.Future[PgLeaderLockError] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the locks are gone."""
        self.renew_at = clock() + lease.renew_every_s
        self._tried: tuple[list[LockKey], tuple[Any, ...]] | None = None
        self.has_busy_witness = False
        """Whether a predecessor had not yet let go, when we tried last."""
        self._logger = get_logger().bind(group=where)

    async def begin(self) -> None:
        """Come under the lease, and listen."""
        await self._come_under_lease(self._locks)
        await self._locks.listen(CHANNEL)
        if self._lease.witness:
            self._witnesses = await self._witness_session()

    @property
    def is_over(self) -> bool:
        """Whether the locks are gone."""
        return self.ended.done()

    @property
    def locks(self) -> Session:
        """The session of the locks."""
        return self._locks

    @property
    def open_sessions(self) -> list[Session]:
        """Those whose end is to be watched for, that of the locks first."""
        witnesses = self._witnesses
        return [self._locks] if witnesses is None or witnesses.closed else [self._locks, witnesses]

    @property
    def lacks_witnesses(self) -> bool:
        """Whether that session has ended, and is to be replaced."""
        return self._lease.witness and (self._witnesses is None or self._witnesses.closed)

    def fail(self, error: PgLeaderLockError) -> None:
        """Declare everybody's loss. The witnesses are kept until all were told."""
        if self.is_over:
            return
        if _FULL in str(error):
            advice = "the server's lock table is full: raise max_locks_per_transaction and restart the server"
            error = LockError(f"{advice} ({error})")
        self.ended.set_result(error)

    async def close(self) -> None:
        """End both sessions. Whatever was held is free."""
        self.held.clear()
        self._witnessed.clear()
        await self._locks.close()
        if self._witnesses is not None:
            await self._witnesses.close()

    def abandon(self) -> None:
        """The same, where no event loop is left to wait on: a driver's close() does not wait."""
        for session in (self._locks, self._witnesses):
            if session is not None:
                with contextlib.suppress(StopIteration, Exception):
                    session.close().send(None)

    async def _witness_session(self) -> Session:
        admitted = await self._admission.admit(self._lease.lease_s, with_facts=False)
        await self._come_under_lease(admitted.session)
        return admitted.session

    async def _come_under_lease(self, session: Session) -> None:
        """From now on it is renewed, whether it holds anything or not: that is one thing less to get wrong."""
        if _sql.can_end_silent_sessions(session.facts.version):
            statement = f"SELECT set_config('idle_session_timeout', '{self._lease.lease_ms}', false)"
            await session.fetch(statement, bound_s=self._lease.answer_bound_s)

    # --- Locks ---------------------------------------------------------------------------------------------------

    async def win(self, wanted: list[LockKey], limit: int | None) -> dict[LockKey, SharedGrant]:
        """Take what is free of these, at most so many; let go again of those whose witness another still has.

        The token comes from a transaction of its own after the grants: it is greater than that of every leader before.
        """
        places = await self._try_locks(wanted, limit)
        taken = [wanted[place] for place in places]
        self.has_busy_witness = False
        if not taken:
            return {}
        self.held.update(taken)
        row = await self._ask_locks(_group_sql.NEXT_TOKEN)
        assert row is not None  # noqa: S101 - it is a plain SELECT
        refused = await self._without_witness(taken)
        if refused:
            self.has_busy_witness = True
            await self.free(refused)
        if len(refused) < len(taken) and not await self.renew():  # the grants may be old by now
            await self.free(taken)
            return {}
        return {key: SharedGrant(int(row[0]), self.trust) for key in taken if key not in refused}

    async def _try_locks(self, wanted: list[LockKey], limit: int | None) -> list[int]:
        """Mostly the same ones again and again, in vain: then what is sent is made once."""
        if limit is not None or self._tried is None or self._tried[0] != wanted:
            self._tried = wanted, _group_sql.arrays(wanted, limit)
        row = await self._ask_locks(_group_sql.try_all(), self._tried[1])
        return [] if row is None else list(row[0])

    async def find_free(self, keys: list[LockKey]) -> list[LockKey]:
        """Return which of these nobody holds. They are not tried for."""
        row = await self._ask_locks(_group_sql.FREE, _group_sql.columns(keys))
        return [] if row is None else [keys[place] for place in row[0]]

    async def free(self, keys: Iterable[LockKey]) -> set[LockKey]:
        """Unlock these, and their witnesses after them. Return which were held."""
        keys = [key for key in keys if key in self.held]
        if not keys:
            return set()
        row = await self._ask_locks(_group_sql.unlock_all(), _group_sql.arrays(keys))
        self.held.difference_update(keys)
        await self.free_witnesses()
        return set() if row is None else {keys[place] for place in row[0]}

    async def tell(self) -> None:
        """Tell those who may want what was freed. Without it they find out when they try next."""
        await self._ask_locks(f"SELECT pg_notify('{CHANNEL}', '')")

    async def free_witnesses(self) -> None:
        """Let go of those whose lock is not held any more. That it fails is told by whoever needs that session next."""
        keys = list(self._witnessed - self.held)
        self._witnessed &= self.held
        if keys and self._witnesses is not None and not self._witnesses.closed:
            with contextlib.suppress(LeadershipLost):  # no time is left, which the next renewal says
                await self._for_each_witness(_group_sql.unlock_all(), keys)

    async def _without_witness(self, keys: Collection[LockKey]) -> set[LockKey]:
        """Try the witnesses of these, and return whose is not to be had."""
        if not self._lease.witness:
            return set()
        if self._witnesses is None or self._witnesses.closed:
            return set(keys)
        ordered = list(keys)
        places = await self._for_each_witness(_group_sql.try_all(), ordered)
        got = {ordered[place] for place in places}
        self._witnessed |= got
        return set(keys) - got

    async def _for_each_witness(self, statement: str, keys: list[LockKey]) -> list[int]:
        """The end of that session costs nobody a lock: it is replaced while the locks protect."""
        assert self._witnesses is not None  # noqa: S101 - whoever calls has looked
        try:
            arrays = _group_sql.arrays([witness_key(key) for key in keys])
            row = await self._ask_witnesses(statement, arrays)
            return [] if row is None else list(row[0])
        except ConnectionError as error:
            self._note_lost_witnesses(error)
            return []

    async def _ask_witnesses(self, statement: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        assert self._witnesses is not None  # noqa: S101 - whoever calls has looked
        if self.is_over or not self.held:
            return await self._witnesses.fetch(statement, parameters, bound_s=self._lease.renew_every_s)
        return await self._ask(self._witnesses, statement, parameters)

    async def _ask_locks(self, statement: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return await self._ask(self._locks, statement, parameters)

    async def _ask(self, session: Session, statement: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Silence is not an end: what is only slow still keeps successors waiting, and must not be closed too early.

        So while anybody is believed to lead, everybody's loss is declared first, and nobody is believed to lead any
        more when that session is given up. Of either: the other one may have been killed, and we not have heard of it.
        """
        bound_s = self._bound_s()
        if not self.held or math.isinf(self.trust.lost_at):
            return await session.fetch(statement, parameters, bound_s=bound_s)
        loop, doubt_s = asyncio.get_running_loop(), _DOUBT * self._lease.lease_s
        silence = ConnectionError(f"no answer within {bound_s:.3g} s ({self._where})", cause=LossCause.RENEW_TIMEOUT)
        doubts = (
            loop.call_later(bound_s, self.fail, silence),
            loop.call_later(bound_s + doubt_s, lambda: self.trust.end(self._clock())),
        )
        try:
            return await session.fetch(statement, parameters, bound_s=bound_s + doubt_s + _DISBELIEF_S)
        finally:
            for doubt in doubts:
                doubt.cancel()

    def _note_lost_witnesses(self, error: ConnectionError) -> None:
        """What is known to have ended is replaced. What fell silent is everybody's loss, as it is with the locks."""
        if error.cause is LossCause.RENEW_TIMEOUT and self.held and not self.is_over:
            raise error
        self._logger.warning("witness_lost", error=error)

    # --- Renewal -------------------------------------------------------------------------------------------------

    async def renew(self) -> bool:
        """Show on both sessions that we live. A lost witness session is replaced while the locks still protect.

        False when there is none: then no trust is added.
        """
        self.renew_at = self._clock() + self._lease.renew_every_s
        sent = self._clock()
        await self._ask_locks(_sql.PING)
        if self._lease.witness and not await self._witnesses_live():
            if not await self._replace_witnesses():
                self.renew_at = min(self.renew_at, self._clock() + self._lease.renew_every_s / 4)
                return False
            sent = self._clock()
            await self._ask_locks(_sql.PING)
        self._bound_s()  # what nobody believed in any more, even for a moment, is not believed in again
        self.trust.renewed(self._lease, sent)
        return True

    def _bound_s(self) -> float:
        """How long an answer may take: what was not renewed by then is lost, so that work has time to stop."""
        if not self.held or math.isinf(self.trust.lost_at):
            return self._lease.answer_bound_s
        left_s = self.trust.lost_at - self._clock()
        if left_s <= 0:
            raise LeadershipLost(f"the group was not renewed in time ({self._where})", cause=LossCause.STALLED)
        return min(left_s, self._lease.answer_bound_s)

    async def keep_witnesses(self) -> None:
        """After the end of the locks: hold on to what keeps a successor waiting until our members were told."""
        if self._clock() < self.renew_at:
            return
        self.renew_at = self._clock() + self._lease.renew_every_s
        await self._witnesses_live()

    async def _witnesses_live(self) -> bool:
        if self._witnesses is None or self._witnesses.closed:
            return False
        try:
            await self._ask_witnesses(_sql.PING)
        except ConnectionError as error:
            self._note_lost_witnesses(error)
            return False
        return True

    async def _replace_witnesses(self) -> bool:
        """Win all of them back on a new session. Nobody else can: the locks are still ours."""
        try:
            async with asyncio.timeout(self._bound_s()):
                self._witnesses = await self._witness_session()
                refused = await self._without_witness(self.held)
        except (ConnectionError, LockError, TimeoutError) as error:
            self._logger.warning("witness_not_replaced", error=error)
            return False
        if refused:
            await self._witnesses.close()
            return False
        self._logger.info("witness_replaced", roles=len(self.held))
        return True
