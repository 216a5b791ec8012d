"""Many locks on one session: what a process with hundreds of roles needs instead of hundreds of connections.

One task owns a pair of sessions (:mod:`._group_sessions`) and does everything that is to be done on them, in rounds:
let go of what was given up, try what is wanted, renew. The members of the group, a :class:`Member` for each role, are
ordinary backends of ordinary elections; they wait for that task.

**Nobody stands in line for thousands of locks.** Whoever waits is tried for, together with all others, every
``poll_s``; a member that releases a lock tells the others (NOTIFY), who try at once. Only who got its lock is woken.

**One renewal is everybody's.** Trust belongs to the sessions, so all grants look at the same trust, and an idle leader
costs nothing.

**The end of a session** is everybody's loss. The witnesses are kept until each member was told and has let go, so that
nobody's ``on_acquired`` comes before our ``on_lost``.

Not promised, beyond what :mod:`.leased` does not promise: a failover in milliseconds after a crash, it is the poll
interval; the order in which waiting processes come to their turn; no term table, so no fence and no strict take-over.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pgleaderlock._logging import get_logger
from pgleaderlock.backends._admission import Admission
from pgleaderlock.backends._group_sessions import Sessions, SharedGrant, Trust, open_sessions
from pgleaderlock.backends._group_unclaimed import Unclaimed
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.lease import Lease, settling_level
from pgleaderlock.backends.session import OpenSession
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant, Holder

__all__ = ["Group", "Member"]

T = TypeVar("T")
_WITNESS_BUSY_S = 0.05  # a predecessor is about to let its witness go
_AFTER_BUG_S = 0.05  # so that one which comes again and again leaves others the time to stop
_NAMED = 5  # of those that a warning is about
_LAST_WORD_S = 0.5  # that a member which closes waits for the group, on a server that may be silent


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
        max_roles: int | None = None,
    ) -> None:
        self._admission = Admission(open_session, lease, clock, "a group of roles", where)
        self._lease = lease
        self._clock = clock
        self.where = where
        self._poll_s = poll_s
        self._max_roles = max_roles
        self._members: dict[LockKey, Member] = {}
        self._sessions: Sessions | None = None
        self._opening: list[asyncio.Future[None]] = []
        self._asking: dict[LockKey, asyncio.Future[SharedGrant | None]] = {}
        self._waiting: dict[LockKey, asyncio.Future[None]] = {}
        self._leaving: dict[LockKey, asyncio.Future[bool]] = {}
        self._starts = 0  # of the whole group that are under way: what they win is wanted by no member yet
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll_at = 0.0
        self.renewal_listeners: list[Callable[[float], object]] = []
        """Called with how long each renewal took, for whoever measures."""
        self._was_told_to_settle = False
        self._unclaimed = Unclaimed(poll_s)
        self._logger = get_logger().bind(group=where)

    def member(self, key: LockKey, labels: Mapping[str, object]) -> "Member":
        """Add a role. One lock is one role."""
        if key in self._members:
            raise ValueError(f"lock {key.described} is in this group twice")
        member = self._members[key] = Member(self, key, labels)
        return member

    # --- What members ask for ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Have sessions that can be asked."""
        if self._sessions is not None and not self._sessions.is_over:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening.append(opened)
        self._go_on()
        await opened

    async def ask(self, key: LockKey) -> SharedGrant | None:
        """Try once; None when another has it."""
        asked: asyncio.Future[SharedGrant | None] = asyncio.get_running_loop().create_future()
        self._asking[key] = asked
        self._go_on()
        try:
            return await asked
        finally:
            self._forget({key: asked})

    async def win_what_is_free(self) -> dict[LockKey, SharedGrant]:
        """Try for all roles at once, and return those that are ours now. Cut short, it leaves nothing held."""
        self._starts += 1
        try:
            await self.open()
            grants = await self._ask_for_all()
        finally:
            self._starts -= 1
            self._go_on()  # to close what was opened, if nobody came to want it
        for key, grant in grants.items():
            self._members[key].take(grant)
        return grants

    async def _ask_for_all(self) -> dict[LockKey, SharedGrant]:
        loop = asyncio.get_running_loop()
        asked: dict[LockKey, asyncio.Future[SharedGrant | None]] = {
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

    def _forget(self, asked: Mapping[LockKey, "asyncio.Future[SharedGrant | None]"]) -> None:
        """Whoever asked this has its answer, or wants none. Another may have asked the same since."""
        for key, future in asked.items():
            if self._asking.get(key) is future:
                del self._asking[key]

    def return_unused(self, keys: Iterable[LockKey]) -> None:
        """Take back what was won for roles that could not begin with it."""
        for key in keys:
            self._members[key].forget()
            self.give_up(key)

    async def wait(self, key: LockKey, timeout_s: float) -> None:
        """Return when the lock was won or the sessions have ended, at the latest after this time."""
        if self._sessions is None or self._sessions.is_over:
            return
        granted = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._go_on()
        try:
            await asyncio.wait({granted}, timeout=timeout_s)
        finally:
            self._waiting.pop(key, None)

    async def leave(self, key: LockKey, timeout_s: float | None = None) -> bool:
        """Let go of a lock. False when it was not held any more, or that is not known within this time."""
        left = self._leaving.setdefault(key, asyncio.get_running_loop().create_future())
        self._go_on()
        await asyncio.wait({left}, timeout=timeout_s)  # which another may be waiting for too
        return left.done() and left.result()

    def of(self, trust: Trust) -> Sessions | None:
        """The sessions on which this trust was given, if they live."""
        sessions = self.last_of(trust)
        return None if sessions is None or sessions.is_over else sessions

    def last_of(self, trust: Trust) -> Sessions | None:
        """The same, also when they have ended and are not buried yet."""
        return self._sessions if self._sessions is not None and self._sessions.trust is trust else None

    def is_held(self, key: LockKey) -> bool:
        """Whether our sessions hold it, living or not yet buried."""
        return self._sessions is not None and key in self._sessions.held

    async def close(self) -> None:
        """End the task and both sessions. Whatever was held is free."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        self._fail(ConnectionError(f"the group was closed ({self.where})"))
        await self._bury()

    def give_up(self, key: LockKey) -> None:
        """Let go of a lock that nobody wants, if it is held. Nobody waits for it."""
        if self.is_held(key):
            self._leaving.setdefault(key, asyncio.get_running_loop().create_future())
            self._go_on()

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._forget_another_loop()
            self._loop = loop
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = loop.create_task(self._live(), name="pgleaderlock group")
        self._news.set()

    def _forget_another_loop(self) -> None:
        """What an event loop left behind that ended without a word to us. A closed session holds nothing."""
        sessions, self._sessions, self._task = self._sessions, None, None
        if sessions is not None:
            sessions.abandon()
        for asked in (self._asking, self._waiting, self._leaving):
            for key in [key for key, future in asked.items() if future.get_loop().is_closed()]:
                del asked[key]
        self._opening = [opened for opened in self._opening if not opened.get_loop().is_closed()]

    # --- The task ------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        while self._sessions is not None or self._opening or self._asking or self._leaving:
            try:
                await self._round()
                await self._rest()
            except PgLeaderLockError as error:
                self._fail(error)
            except Exception as bug:  # whatever it is, nobody may go on believing in what nobody renews
                if loop.is_closed():  # collected, and the group runs elsewhere by now, if at all
                    return
                self._logger.error("group_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
                self._fail(LockError(f"the group failed: {bug!r} ({self.where})"))
                await asyncio.sleep(_AFTER_BUG_S)

    async def _round(self) -> None:
        """Everything that is to be done now, each at most once."""
        self._news.clear()
        await self._see_off(self._sessions)
        if not self._is_needed():
            await self._bury()
        if self._sessions is None and self._opening:
            await self._open()
        sessions = self._sessions
        if sessions is None or sessions.is_over:
            self._refuse_all(ConnectionError(f"the group has no session ({self.where})"))
            return
        for opened in self._opening:  # who came while it was being opened
            _answer(opened, None)
        self._opening.clear()
        if self._clock() >= sessions.renew_at or sessions.lacks_witnesses:
            await self._renew(sessions)
        await self._let_go(sessions)
        if self._asking or (self._waiting and self._clock() >= self._poll_at):
            await self._try(sessions)

    def _is_needed(self) -> bool:
        return bool(self._starts or self._leaving) or any(member.is_wanted for member in self._members.values())

    async def _renew(self, sessions: Sessions) -> None:
        sent = self._clock()
        if await sessions.renew():
            for listener in self.renewal_listeners:
                listener(self._clock() - sent)

    async def _rest(self) -> None:
        """Until somebody asks, a session ends or is told something, or the next poll or renewal is due."""
        sessions = self._sessions
        if sessions is None:
            return
        watches: list[asyncio.Task[Any]] = [asyncio.ensure_future(self._news.wait())]
        if sessions.is_over:
            due_at = min(sessions.renew_at, sessions.trust.kept_until)
        else:
            due_at = min(sessions.renew_at, self._poll_at if self._waiting else math.inf)
            watches += [asyncio.ensure_future(session.ended()) for session in sessions.open_sessions]
            watches.append(asyncio.ensure_future(sessions.locks.notified()))
        try:
            left_s = max(0.0, due_at - self._clock())
            await asyncio.wait(watches, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            self._look_at(watches[1:])
        finally:
            if not watches[0].get_loop().is_closed():  # else we are being collected, and nothing can be waited for
                await _end_all(watches)

    def _look_at(self, watches: list[asyncio.Task[Any]]) -> None:
        """What happened to the sessions while we rested: the end of the locks, first of all; or a word of a release.

        A watch that failed raises here: what cannot be watched is not to be believed in.
        """
        for watch in watches:
            if watch.done():
                watch.result()
        if watches and watches[0].done():
            self._fail(watches[0].result())
        elif watches and watches[-1].done():
            self._poll_at = 0.0

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        roles = len(self._members) if self._max_roles is None else min(len(self._members), self._max_roles)
        try:
            self._sessions = await open_sessions(self._admission, self._lease, self._clock, self.where, roles)
        except PgLeaderLockError as error:
            self._refuse_all(error)
            return
        self._poll_at = 0.0

    def _fail(self, error: PgLeaderLockError) -> None:
        """The locks are gone, or nobody can tell: everybody is told."""
        if self._sessions is not None:
            self._sessions.fail(error)
        self._refuse_all(error)
        self._wake_all()
        self._news.set()

    def _wake_all(self) -> None:
        """Whoever waits at sessions that have ended must ask for new ones."""
        for waiting in self._waiting.values():
            _answer(waiting, None)

    def _refuse_all(self, error: PgLeaderLockError) -> None:
        for opening in self._opening:
            _refuse(opening, error)
        for asked in self._asking.values():
            _refuse(asked, error)
        self._opening.clear()
        self._asking.clear()  # or the task would go on for them, and leave nobody the time to hear it
        leaving, self._leaving = self._leaving, {}
        for key, left in leaving.items():
            if self._sessions is not None:
                self._sessions.held.discard(key)
            _answer(left, False)  # noqa: FBT003 - the answer

    async def _see_off(self, sessions: Sessions | None) -> None:
        """After the end: when everybody has let go, or nobody can believe any more, the witnesses go too."""
        if sessions is None or not sessions.is_over:
            return
        sessions.held.difference_update(self._leaving)
        if sessions.held and self._clock() < sessions.trust.kept_until:
            await sessions.free_witnesses()  # of those who were told: nobody's successor waits for another's on_lost
            await sessions.keep_witnesses()
        else:
            await self._bury()

    async def _bury(self) -> None:
        sessions, self._sessions = self._sessions, None
        self._wake_all()
        if sessions is not None:
            await sessions.close()

    # --- The work ------------------------------------------------------------------------------------------------

    async def _let_go(self, sessions: Sessions) -> None:
        leaving, self._leaving = self._leaving, {}
        freed: set[LockKey] = set()
        try:
            freed = await sessions.free(leaving)
        finally:
            sessions.held.difference_update(leaving)
            for key, left in leaving.items():
                _answer(left, key in freed)
        if freed:
            await sessions.tell()

    async def _try(self, sessions: Sessions) -> None:
        """Try for everybody who asks or waits."""
        self._poll_at = self._clock() + self._poll_s * random.uniform(0.8, 1.2)  # noqa: S311 - it spreads load
        for key in [key for key in self._asking if key in sessions.held]:
            self.give_up(key)  # it is nobody's: whoever asks for it has no grant of it
            self._hand_out(key, None)
        wanted = [key for key in {**self._asking, **self._waiting} if key not in sessions.held]
        room = len(wanted) if self._max_roles is None else self._max_roles - len(sessions.held)
        won: dict[LockKey, SharedGrant] = {}
        if wanted and room > 0 and not self._has_to_settle(sessions):
            limit = None if room >= len(wanted) else room
            if limit is not None:  # others are limited too, and would all try the same ones first
                random.shuffle(wanted)
            won = await sessions.win(wanted, limit)
            if sessions.has_busy_witness:
                self._poll_at = min(self._poll_at, self._clock() + _WITNESS_BUSY_S)
        if room > 0:
            self._unclaimed.forget()
        elif wanted and self._unclaimed.is_due(self._clock()):
            self._warn_of(self._unclaimed.saw(await sessions.find_free(wanted), self._clock()))
        for key in wanted:
            self._hand_out(key, won.get(key))

    def _warn_of(self, unclaimed: list[LockKey]) -> None:
        if not unclaimed:
            return
        names = ", ".join(key.name or str(key) for key in unclaimed[:_NAMED])
        self._logger.warning(
            "role_left_to_nobody",
            roles=names if len(unclaimed) <= _NAMED else f"{names}, ...",
            count=len(unclaimed),
            max_roles=self._max_roles,
            advice="no node that stands for them has room: raise max_roles, or start another node",
        )

    def _hand_out(self, key: LockKey, grant: SharedGrant | None) -> None:
        """To whoever asked; or keep it for whoever waits, and wake that one. What nobody wants any more is given up."""
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

    def _has_to_settle(self, sessions: Sessions) -> bool:
        left_s = sessions.settled_at - self._clock()
        if left_s > 0 and not self._was_told_to_settle:
            self._was_told_to_settle = True
            reason = "the server started less than a lease ago"
            self._logger.log(settling_level(left_s), "settling", seconds=left_s, reason=reason)
        return left_s > 0


class Member(Backend):
    """One role of a group, as its election sees it."""

    def __init__(self, group: Group, key: LockKey, labels: Mapping[str, object]) -> None:
        self._group = group
        self._key = key
        self._labels = labels
        self.is_wanted = False
        self._won: SharedGrant | None = None  # while waiting, and not yet handed out
        self._grant: SharedGrant | None = None

    @property
    def labels(self) -> Mapping[str, object]:
        """As every PostgreSQL lock is labelled."""
        return self._labels

    def take(self, grant: SharedGrant) -> None:
        """It is handed out already."""
        self._grant, self.is_wanted = grant, True

    def forget(self) -> None:
        """It is to be given back, by the group."""
        self._won = self._grant = None
        self.is_wanted = False

    def was_won(self, grant: SharedGrant) -> bool:
        """The group has the lock for us. False if we have closed meanwhile."""
        self._won = grant if self.is_wanted else None
        return self.is_wanted

    async def open(self) -> None:
        """Have the group's sessions."""
        self.is_wanted = True
        await self._group.open()

    async def try_acquire(self) -> Grant | None:
        """Ask once, together with whoever else asks now; or take what waiting brought."""
        won, self._won = self._won, None
        if won is None or self._group.of(won.trust) is None:
            won = await self._ask()
        self._grant = won
        return won

    async def _ask(self) -> SharedGrant | None:
        try:
            return await self._group.ask(self._key)
        except asyncio.CancelledError:
            await self.close()  # the answer may be on its way
            raise

    async def renew(self, grant: Grant) -> Grant:
        """The group renews by itself: a grant that it still stands for is as good as it can be."""
        self._check_current(grant)
        return grant

    async def release(self, grant: Grant) -> None:
        """Give it up, and tell the others."""
        self._check_current(grant)
        self._grant = None
        if not await self._group.leave(self._key):
            raise LockError(
                f"lock {self._key.described} was no longer held by its group ({self._group.where}): its session ended"
            )

    async def holder(self) -> Holder | None:
        """Not asked here: the session is the group's, and busy. ``pgleaderlock status`` asks on one of its own."""
        return None

    async def close(self) -> None:
        """Let go of this role, soon if not at once. The sessions are the group's, and end if they do not answer."""
        self.forget()
        if self._group.is_held(self._key):
            await self._group.leave(self._key, _LAST_WORD_S)

    async def wait(self, timeout_s: float) -> None:
        """Be tried for, with everybody else who waits."""
        self.is_wanted = True
        if self._won is None:
            await self._group.wait(self._key, timeout_s)

    async def lost(self) -> PgLeaderLockError | None:
        """Wait for the end of the group's session."""
        sessions = None if self._grant is None else self._group.last_of(self._grant.trust)
        if sessions is None:
            return ConnectionError(f"the session of the group is gone ({self._group.where})")
        return await asyncio.shield(sessions.ended)

    def _check_current(self, grant: Grant) -> None:
        ours = self._grant
        if ours is None or grant is not ours or self._group.of(ours.trust) is None:
            raise LeadershipLost(
                f"term {grant.token} of lock {self._key.described} is over ({self._group.where})",
                cause=LossCause.CONNECTION_LOST,
            )


def _granted(asked: Mapping[LockKey, "asyncio.Future[SharedGrant | None]"]) -> dict[LockKey, SharedGrant]:
    """Return what was answered with a grant."""
    grants = {}
    for key, future in asked.items():
        grant = future.result() if future.done() and not future.cancelled() and future.exception() is None else None
        if grant is not None:
            grants[key] = grant
    return grants


async def _end_all(watches: list[asyncio.Task[Any]]) -> None:
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    for watch in watches:
        _ = watch.cancelled() or watch.exception()  # retrieved, so that asyncio does not report it as forgotten


def _answer(future: asyncio.Future[T], value: T) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        future.set_result(value)


def _refuse(future: asyncio.Future[Any], error: Exception) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        future.set_exception(error)
