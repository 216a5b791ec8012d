"""Many locks on one session pair, so that a process with hundreds of roles does not need hundreds of connections.

The protocol of the two sessions is in :mod:`.pair`, the same as for one lock. What is added here is batching and
scheduling: one task owns the pair and works on it in rounds: renew, unlock released locks, try for wanted ones. Only
that task uses the sessions, so statements of different roles never interleave. The members of the group, a
:class:`Member` for each role, are ordinary backends of ordinary elections; they leave a future and wait for that task.

**No member queues for its lock.** A session blocked in ``pg_advisory_lock`` for one role could serve no other. So the
task tries for all waiting members together, every ``poll_s``; a group that releases a lock notifies the other groups
(NOTIFY), which try at once. Only a member that got its lock is woken.

**One renewal is for all members.** Validity belongs to the pair, so an idle leader costs nothing.

**The end of the lock session** is the loss of all members: the pair ends their validity in one step, and they are
notified afterwards, one by one. The witness lock of a member is kept until that member was notified and has released,
so that no successor's ``on_acquired`` comes before our ``on_lost``.

Not promised, beyond what :mod:`.pair` does not promise: a failover in milliseconds after a crash (it takes up to the
poll interval); the order in which waiting processes lead; a fence or a strict takeover (there is no term table).
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.postgres import _keys_sql, _sql
from pgleaderlock.postgres._session_setup import SessionSetup
from pgleaderlock.postgres._unclaimed_roles import Unclaimed
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, quiet_period_log_level
from pgleaderlock.postgres.pair import SessionPair, Validity
from pgleaderlock.postgres.session import OpenSession, Session
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.times import retry_pause_s, until_renewal_s

__all__ = ["CHANNEL", "Group", "Member"]

CHANNEL = "pgleaderlock_group"
"""The channel on which a group notifies the others that it has released a lock."""

T = TypeVar("T")
_WITNESS_BUSY_S = 0.05  # until the next try while a predecessor still holds its witness lock, which it soon releases
_AFTER_BUG_S = 0.05  # pause after an unexpected exception: a repeated one must not starve members that have to stop
_NAMED = 5  # how many roles a warning names
_CLOSE_WAIT_S = 0.5  # for how long a member that closes waits for its release: the server may be silent
_LOCK_TABLE_FULL = "out of shared memory"


@dataclass(frozen=True, slots=True)
class _Won:
    """A lock that the group acquired for a member: valid as long as everything else on that lock session."""

    token: int
    validity: Validity

    @property
    def grant(self) -> Grant:
        """Its present state."""
        return self.validity.grant(self.token)


class Group:
    """The sessions of all roles of one process, and the task that works on them."""

    def __init__(
        self,
        open_session: OpenSession,
        lease: Lease,
        clock: Clock,
        where: str,
        *,
        poll_s: float,
        renew_every_s: float,
        max_roles: int | None = None,
    ) -> None:
        self._logger = get_logger().bind(group=where)
        setup = SessionSetup(open_session, lease, clock, "a group of roles", where)
        self._pair = SessionPair(setup, lease, clock, where, self._logger, channel=CHANNEL)
        self._lease = lease
        self.lease_s = lease.lease_s
        self._clock = clock
        self.where = where
        self._poll_s = poll_s
        self._renew_every_s = renew_every_s
        self._max_roles = max_roles
        self._members: dict[LockKey, Member] = {}
        self._opening: list[asyncio.Future[None]] = []
        self._asking: dict[LockKey, asyncio.Future[_Won | None]] = {}
        self._waiting: dict[LockKey, asyncio.Future[None]] = {}
        self._leaving: dict[LockKey, asyncio.Future[bool]] = {}
        self._starts = 0  # calls of win_what_is_free in progress: no member has asked yet, but the sessions are needed
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._poll_at = 0.0
        self.renewal_listeners: list[Callable[[float], object]] = []
        """Called with the duration of each renewal, in seconds, for metrics."""
        self._quiet_period_logged = False
        self._renew_at = 0.0
        self._has_busy_witness = False
        """Whether at the last try a predecessor still held its witness lock."""
        self._unclaimed = Unclaimed(poll_s)

    def member(self, key: LockKey, labels: Mapping[str, object]) -> "Member":
        """Add a role, and return its backend. A lock can be added only once."""
        if key in self._members:
            raise ValueError(f"lock {key.described} is in this group twice")
        member = self._members[key] = Member(self, key, labels)
        return member

    # --- What members ask for ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Wait until the sessions are open; the first caller has them opened."""
        if self._pair.is_open:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening.append(opened)
        self._go_on()
        await opened

    async def ask(self, key: LockKey) -> _Won | None:
        """Try for the lock once. Return None when another candidate holds it."""
        asked: asyncio.Future[_Won | None] = asyncio.get_running_loop().create_future()
        self._asking[key] = asked
        self._go_on()
        try:
            return await asked
        finally:
            self._forget({key: asked})

    async def win_what_is_free(self) -> dict[LockKey, Grant]:
        """Try for all roles at once, and return those that we now hold. If cancelled, it leaves nothing held."""
        self._starts += 1
        try:
            await self.open()
            won = await self._ask_for_all()
        finally:
            self._starts -= 1
            self._go_on()  # closes the sessions again if no member needs them
        for key, each in won.items():
            self._members[key].take(each)
        return {key: each.grant for key, each in won.items()}

    async def _ask_for_all(self) -> dict[LockKey, _Won]:
        loop = asyncio.get_running_loop()
        asked: dict[LockKey, asyncio.Future[_Won | None]] = {
            key: loop.create_future() for key in self._members if key not in self._asking
        }
        if not asked:
            return {}
        self._asking.update(asked)
        self._go_on()
        try:
            await asyncio.wait(asked.values())
        except BaseException:
            for key in _granted(asked):
                self.give_up(key)
            raise
        finally:
            self._forget(asked)
        return _granted(asked)

    def _forget(self, asked: Mapping[LockKey, "asyncio.Future[_Won | None]"]) -> None:
        """Remove requests that are answered or cancelled, but not a newer request for the same key."""
        for key, future in asked.items():
            if self._asking.get(key) is future:
                del self._asking[key]

    def return_unused(self, keys: Iterable[LockKey]) -> None:
        """Release locks that were acquired for roles which then could not start."""
        for key in keys:
            self._members[key].forget()
            self.give_up(key)

    async def wait(self, key: LockKey, timeout_s: float) -> None:
        """Wait until the lock was acquired or the sessions have ended, for ``timeout_s`` at most."""
        if not self._pair.is_open:
            return
        granted = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._go_on()
        try:
            await asyncio.wait({granted}, timeout=timeout_s)
        finally:
            self._waiting.pop(key, None)

    async def leave(self, key: LockKey, timeout_s: float | None = None) -> bool:
        """Release a lock. Return False when it was no longer held, or no answer came within ``timeout_s``."""
        left = self._leaving.setdefault(key, asyncio.get_running_loop().create_future())
        self._go_on()
        await asyncio.wait({left}, timeout=timeout_s)  # not awaited, which could cancel it: another caller may wait too
        return left.done() and left.result()

    @property
    def pair(self) -> SessionPair:
        """The two sessions of all members."""
        return self._pair

    def is_held(self, key: LockKey) -> bool:
        """Whether the lock is held, or was lost and its member is not yet notified."""
        return key in self._pair.held

    async def close(self) -> None:
        """End the task and both sessions, which frees all locks."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        self._fail(ConnectionError(f"the group was closed ({self.where})"))
        await self._close_pair()

    def give_up(self, key: LockKey) -> None:
        """Have a lock released that no member wants, if it is held. Does not wait."""
        if self.is_held(key):
            self._leaving.setdefault(key, asyncio.get_running_loop().create_future())
            self._go_on()

    def _go_on(self) -> None:
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._live(), name="pgleaderlock group")
            self._task.add_done_callback(self._note_task_end)
        self._news.set()

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        """If the task was cancelled before its first step, and not by close(), refuse what was asked of it."""
        if task is self._task and task.cancelled():
            self._fail(LockError(f"the task of the group was cancelled ({self.where})"))

    # --- The task ------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while not self._pair.is_closed or self._opening or self._asking or self._leaving:
            try:
                await self._round()
                await self._rest()
            except asyncio.CancelledError:
                if asyncio.current_task() is not self._task:  # by close(), which ends the sessions
                    raise
                # The event loop ends, and cancels the members too. This task goes on until they have been notified and
                # have released, which closes the sessions: none outlives its loop, or is closed before an on_lost.
                self._fail(LockError(f"the task of the group was cancelled ({self.where})"))
            except PgLeaderLockError as error:
                self._fail(error)
            except Exception as bug:  # no renewal follows from here, so no member may stay valid: all have lost
                self._logger.error("group_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
                self._fail(LockError(f"the group failed: {bug!r} ({self.where})"))
                await asyncio.sleep(_AFTER_BUG_S)

    async def _round(self) -> None:
        """Do everything that is due now, each step at most once.

        The renewal comes before releases and tries, because those may take long with many keys and a late renewal costs
        all members their leadership. Releases come before tries, so that a lock which one run of a member gave up and
        the next one asks for is freed first.
        """
        self._news.clear()
        pair = self._pair
        if pair.has_ended:
            await self._wind_down()
        if not self._is_needed():
            await self._close_pair()
        if pair.is_closed and self._opening:
            await self._open()
        if not pair.is_open:
            self._refuse_all(ConnectionError(f"the group has no session ({self.where})"))
            return
        for opened in self._opening:  # also those that asked while the sessions were being opened
            _answer(opened, None)
        self._opening.clear()
        if self._clock() >= self._renew_at or pair.witness_ended.is_set():
            await self._renew()
        await self._free_released()
        if self._asking or (self._waiting and self._clock() >= self._poll_at):
            await self._try()

    def _is_needed(self) -> bool:
        return bool(self._starts or self._leaving) or any(member.is_wanted for member in self._members.values())

    async def _renew(self) -> bool:
        sent = self._clock()
        self._renew_at = sent + self._renew_every_s
        is_renewed = await self._pair.renew()
        left_s = self._pair.validity.lost_at - self._clock()
        if not is_renewed:  # the witness session is missing
            self._renew_at = min(self._renew_at, self._clock() + retry_pause_s(left_s, self.lease_s))
            return False
        self._renew_at = self._clock() + until_renewal_s(self._renew_every_s, left_s, self.lease_s)
        for listener in self.renewal_listeners:
            listener(self._clock() - sent)
        return True

    async def _rest(self) -> None:
        """Wait until a member asks, a session ends or receives a notification, or the next poll or renewal is due."""
        pair = self._pair
        if pair.is_closed:
            return
        watches: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._news.wait())]
        if pair.has_ended:
            due_at = min(self._renew_at, pair.validity.kept_until)
        else:
            due_at = min(self._renew_at, self._poll_at if self._waiting else math.inf)
            watches.append(asyncio.ensure_future(pair.notified()))
            watches.append(asyncio.ensure_future(self._end_of_either()))
        try:
            left_s = max(0.0, due_at - self._clock())
            await asyncio.wait(watches, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if len(watches) > 1 and watches[1].done():
                self._poll_at = 0.0  # another group has released a lock: try now
        finally:
            await _end_all(watches)
        if pair.has_ended:
            self._refuse_waiting()

    async def _end_of_either(self) -> None:
        """Return when the lock session ends; or the witness session, unless it is known to be missing."""
        assert self._pair.ended is not None  # noqa: S101 - it is open
        watches: set[asyncio.Future[Any]] = {self._pair.ended}
        if not self._pair.witness_ended.is_set():
            watches.add(asyncio.ensure_future(self._pair.witness_ended.wait()))
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches - {self._pair.ended}:
                watch.cancel()

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            await self._pair.open(self._check_capacity, self._members)
            if self._lease.witness:
                await self._pair.open_witness()
        except PgLeaderLockError as error:
            await self._close_pair()
            self._refuse_all(error)
            return
        self._poll_at = 0.0
        self._renew_at = self._clock() + self._lease.renew_every_s

    async def _check_capacity(self, session: Session) -> None:
        """Refuse to start if the server's lock table has no room for two locks per role that we may hold.

        How many locks other clients need is not known.
        """
        roles = len(self._members) if self._max_roles is None else min(len(self._members), self._max_roles)
        needed = roles * (2 if self._lease.witness else 1)
        row = await session.fetch(_keys_sql.CAPACITY, bound_s=self._lease.answer_bound_s)
        room, setting = row or (math.inf, 0)
        if needed > room:
            enough = math.ceil(setting * needed * 1.5 / room)
            raise LockError(
                f"{roles} roles need {needed} locks, and the server's lock table has room for {room} ({self.where}): "
                f"raise max_locks_per_transaction, now {setting}, to {enough} or more and restart the server, or limit "
                "this node with max_roles"
            )

    def _fail(self, error: PgLeaderLockError) -> None:
        """Declare all members lost: the locks are gone, or it is not known whether we still hold them.

        Validity ends before any future is answered: a member that is woken must find that it does not lead.
        """
        if _LOCK_TABLE_FULL in str(error):
            advice = "the server's lock table is full: raise max_locks_per_transaction and restart the server"
            error = LockError(f"{advice} ({error})")
        self._pair.declare_lost(error)
        self._refuse_all(error)
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Wake members that wait on sessions which have ended: they have to open new ones."""
        self._wake_all()
        self._news.set()

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            _answer(waiting, None)

    def _refuse_all(self, error: PgLeaderLockError) -> None:
        for opening in self._opening:
            _refuse(opening, error)
        for asked in self._asking.values():
            _refuse(asked, error)
        self._opening.clear()
        self._asking.clear()  # or _live() would loop for them without a pause, and members could not read their answers
        leaving, self._leaving = self._leaving, {}
        for key, left in leaving.items():
            self._pair.held.discard(key)
            _answer(left, False)  # noqa: FBT003 - the answer

    async def _wind_down(self) -> None:
        """After a loss: keep the witness locks until their members have released, or validity would have ended.

        Members release once their listeners have been notified. Closing the witness session earlier would let a
        successor lead before our ``on_lost``; keeping it longer would delay the successor without a reason.
        """
        pair = self._pair
        pair.held.difference_update(self._leaving)
        if not pair.held or self._clock() >= pair.validity.kept_until:
            await self._close_pair()
            return
        await pair.free_witness_locks()  # of members that have released: no successor waits for another role's on_lost
        if self._clock() >= self._renew_at:
            self._renew_at = self._clock() + self._lease.renew_every_s
            await pair.keep_witness()

    async def _close_pair(self) -> None:
        self._wake_all()
        await self._pair.close()

    # --- Locks ---------------------------------------------------------------------------------------------------

    async def _free_released(self) -> None:
        leaving = dict(self._leaving)  # kept until done: a second release of a key waits for this one
        freed: set[LockKey] = set()
        try:
            freed = await self._pair.free(leaving)
        finally:
            self._pair.held.difference_update(leaving)
            for key, left in leaving.items():
                if self._leaving.get(key) is left:
                    del self._leaving[key]
                _answer(left, key in freed)
        if freed:  # after the unlock, or others would try too early. If it is lost, they find out at their next poll
            await self._pair.ask_lock(f"SELECT pg_notify('{CHANNEL}', '')")

    async def _try(self) -> None:
        """Try for all members that ask or wait."""
        held = self._pair.held
        self._poll_at = self._clock() + self._poll_s * random.uniform(0.8, 1.2)  # noqa: S311 - it spreads load
        for key in [key for key in self._asking if key in held]:
            # A member asks only if it has no grant, so this lock is held for an earlier request that was given up. It
            # is released, and the member asks again: then it gets a new token.
            self.give_up(key)
            self._hand_out(key, None)
        wanted = [key for key in {**self._asking, **self._waiting} if key not in held]
        room = len(wanted) if self._max_roles is None else self._max_roles - len(held)
        won: dict[LockKey, _Won] = {}
        if wanted and room > 0 and not self._is_quiet_period():
            limit = None if room >= len(wanted) else room
            if limit is not None:  # other nodes are limited too: in the same order all would try for the same roles
                random.shuffle(wanted)
            won = await self._win(wanted, limit)
            if self._has_busy_witness:
                self._poll_at = min(self._poll_at, self._clock() + _WITNESS_BUSY_S)
        if room > 0:
            self._unclaimed.forget()
        elif wanted and self._unclaimed.is_due(self._clock()):
            self._warn_of(self._unclaimed.saw(await self._find_free(wanted), self._clock()))
        for key in wanted:
            self._hand_out(key, won.get(key))
        if len(won) < len(wanted):
            await self._pair.look_for_stuck(wanted)

    async def _win(self, wanted: list[LockKey], limit: int | None) -> dict[LockKey, "_Won"]:
        """Take the free locks of these, ``limit`` at most; release those whose witness lock another still holds.

        The token comes from a transaction of its own after the grants: it is greater than that of every earlier leader.
        A token made by the locking statement itself could be older than the grant, and less than a predecessor's.

        The locks that are refused are released again and not waited for: the one task must not block for one role.
        """
        pair = self._pair
        idle_ms = self._lease.lease_ms if pair.is_enforced else None
        row = await pair.ask_lock(*_keys_sql.take_all(wanted, idle_ms, limit))
        taken = [wanted[place] for place in (row or ([],))[0]]
        self._has_busy_witness = False
        if not taken:
            return {}
        pair.held.update(taken)
        token = await pair.ask_lock(_sql.NEXT_TOKEN)
        assert token is not None  # noqa: S101 - it is a plain SELECT
        refused = await self._take_witness_locks(taken)
        if refused:
            self._has_busy_witness = True
            await pair.free(refused)
        # The grants may be old: this process may have been frozen since. Validity counts from a renewal after them.
        if len(refused) < len(taken) and not await self._renew():
            await pair.free(taken)
            return {}
        return {key: _Won(int(token[0]), pair.validity) for key in taken if key not in refused}

    async def _take_witness_locks(self, keys: list[LockKey]) -> set[LockKey]:
        """Take the witness locks, and return the keys that were refused: all, when the witness session ends meanwhile.

        That end is not raised, because it would be the loss of all members. The next renewal replaces the session,
        while the lock session keeps successors out.
        """
        try:
            return await self._pair.take_witness_locks(keys)
        except ConnectionError:
            if self._pair.has_ended:
                raise
            return set(keys)

    async def _find_free(self, keys: list[LockKey]) -> list[LockKey]:
        """Return which of these locks no session holds, without trying for them."""
        row = await self._pair.ask_lock(_keys_sql.FREE, _keys_sql.columns(keys))
        return [keys[place] for place in (row or ([],))[0]]

    def _warn_of(self, unclaimed: list[LockKey]) -> None:
        if not unclaimed:
            return
        names = ", ".join(key.name or str(key) for key in unclaimed[:_NAMED])
        self._logger.warning(
            "role_unclaimed",
            roles=names if len(unclaimed) <= _NAMED else f"{names}, ...",
            count=len(unclaimed),
            max_roles=self._max_roles,
            advice="no candidate for these roles has room: raise max_roles, or start another node",
        )

    def _hand_out(self, key: LockKey, grant: _Won | None) -> None:
        """Answer the member that asked; or keep the grant for a member that waits, and wake it; or else release it."""
        # A run of the member ended while the lock was being acquired. The next round frees the lock, so a term that
        # began with this grant would lead without a lock.
        if key in self._leaving:
            grant = None
        asked = self._asking.pop(key, None)
        if asked is not None and not asked.done():
            asked.set_result(grant)
        elif grant is None:
            return
        elif self._members[key].was_won(grant):
            if key in self._waiting:
                _answer(self._waiting[key], None)
        else:
            self.give_up(key)

    def _is_quiet_period(self) -> bool:
        """Whether the quiet period after a server start lasts. Logged once."""
        left_s = self._pair.quiet_until - self._clock()
        if left_s > 0 and not self._quiet_period_logged:
            self._quiet_period_logged = True
            reason = "the server started less than a lease ago"
            self._logger.log(quiet_period_log_level(left_s), "settling", seconds=left_s, reason=reason)
        return left_s > 0


class Member(Backend):
    """One role of a group, as its election sees it."""

    def __init__(self, group: Group, key: LockKey, labels: Mapping[str, object]) -> None:
        self._group = group
        self._key = key
        self._labels = labels
        self.is_wanted = False
        self._won: _Won | None = None  # acquired while waiting, not yet returned by try_acquire
        self._held: _Won | None = None  # returned by try_acquire

    renews_itself = True

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of every PostgreSQL lock."""
        return self._labels

    @property
    def lease_s(self) -> float | None:
        """The lease of the group's sessions."""
        return self._group.lease_s

    def take(self, grant: _Won) -> None:
        """Note a lock that ``win_what_is_free`` acquired and returned."""
        self._held, self.is_wanted = grant, True

    def forget(self) -> None:
        """Forget a lock that the group is about to release."""
        self._won = self._held = None
        self.is_wanted = False

    def was_won(self, grant: _Won) -> bool:
        """Keep a lock that was acquired while waiting. Return False if this member has closed meanwhile."""
        self._won = grant if self.is_wanted else None
        return self.is_wanted

    async def open(self) -> None:
        """Wait until the group's sessions are open."""
        self.is_wanted = True
        await self._group.open()

    async def try_acquire(self) -> Grant | None:
        """Return the grant that waiting brought, or try once, in one statement with all members that ask now."""
        won, self._won = self._won, None
        # What was acquired while waiting may belong to a lock session that has ended, or been replaced, since.
        if won is None or won.validity.is_over or won.validity is not self._group.pair.validity:
            won = await self._ask()
        self._held = won
        return None if won is None else won.grant

    async def _ask(self) -> _Won | None:
        try:
            return await self._group.ask(self._key)
        except asyncio.CancelledError:
            await self.close()  # the lock may have been acquired already: release it
            raise

    async def renew(self, grant: Grant) -> Grant:
        """Return the grant as the group's last renewal, which is for all members, left it."""
        self._check_current(grant)
        return self.look(grant)

    def look(self, grant: Grant) -> Grant:
        """Return the grant after a look at the socket that all members share and at their validity."""
        held = self._held
        if held is None or grant.token != held.token:
            return grant.ended()
        now = held.grant
        return now if self._group.pair.valid_until(held.validity) >= now.trusted_until else now.ended()

    async def release(self, grant: Grant) -> None:
        """Release the lock; the group notifies other groups."""
        self._check_current(grant)
        self._held = None
        if not await self._group.leave(self._key):
            raise LockError(
                f"lock {self._key.described} was no longer held by its group ({self._group.where}): its session ended"
            )

    async def holder(self) -> Holder | None:
        """Return None: the group's session is busy. ``pgleaderlock status`` asks on a session of its own."""
        return None

    async def close(self) -> None:
        """Release this role's lock, and wait for that for half a second at most: the group's task goes on with it.

        The sessions belong to the group, which ends them if the server does not answer.
        """
        self.forget()
        if self._group.is_held(self._key):
            await self._group.leave(self._key, _CLOSE_WAIT_S)

    async def wait(self, timeout_s: float) -> None:
        """Wait while the group tries for this lock, together with those of all waiting members."""
        self.is_wanted = True
        if self._won is None:
            await self._group.wait(self._key, timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Wait for the end of the group's lock session, and return its reason."""
        ended = self._group.pair.ended
        if self._held is None or ended is None or self._held.validity is not self._group.pair.validity:
            why = None if self._held is None else self._held.validity.why
            return why or ConnectionError(f"the session of the group is gone ({self._group.where})")
        return await asyncio.shield(ended)

    def _check_current(self, grant: Grant) -> None:
        held = self._held
        if held is None or held.token != grant.token or held.validity.is_over:
            raise LeadershipLost(
                f"term {grant.token} of lock {self._key.described} is over ({self._group.where})",
                cause=LossCause.CONNECTION_LOST,
            )


def _granted(asked: Mapping[LockKey, "asyncio.Future[_Won | None]"]) -> dict[LockKey, _Won]:
    """Return the requests that were answered with a grant."""
    grants = {}
    for key, future in asked.items():
        grant = future.result() if future.done() and not future.cancelled() and future.exception() is None else None
        if grant is not None:
            grants[key] = grant
    return grants


async def _end_all(watches: list[asyncio.Future[Any]]) -> None:
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    for watch in watches:
        _ = watch.cancelled() or watch.exception()  # retrieved, or asyncio would log it


def _answer(future: asyncio.Future[T], value: T) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        future.set_result(value)


def _refuse(future: asyncio.Future[Any], error: Exception) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        future.set_exception(error)
