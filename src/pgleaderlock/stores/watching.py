"""Who leads, for processes that take no part in the election: clients, proxies, operators.

    async for leader in watch_leader("postgresql://app@db/app", "billing/scheduler"):
        if leader:
            print("talk to", leader.address)

**What is not promised.** The answer is a hint. The leader may have lost its term before the answer is read, and two
watchers may see a change at different times. A leader that died is shown until the store frees its lock: at once on
PostgreSQL sessions and files of one host, after its lease elsewhere. So a client that reaches a process by this address
asks *that process* whether it leads, and writes that must not come from a former leader carry its fencing token.

**What it costs.** No lock, no write, no place among the candidates. On PostgreSQL one connection and one short query a
second, besides notifications; on Kubernetes one watch and a GET every five seconds; on files of one host inotify; on
NFS a listing per ``poll_s``.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from typing import Any

from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.schemes import is_postgres_scheme
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import LeaderSeen, LeaderUnknown
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.observer import LOOK_EVERY_S, Observer, observer_of

__all__ = ["LeaderSeen", "LeaderUnknown", "LeaderView", "find_leader", "watch_leader"]

_POLL_S = 1.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
_FRESH_S = LOOK_EVERY_S + 1.0  # the longest time between two looks, and some for the answer
_POLLED = ("postgresql+lease", "nfs")
"""The stores that have an interval between two reads as an option."""


def watch_leader(
    url: Dsn,
    role: str | None = None,
    *,
    key: LockKey | None = None,
    poll_s: float = _POLL_S,
    **options: Any,
) -> AsyncGenerator[LeaderSeen | LeaderUnknown | None, None]:
    """Yield who leads: at once, and whenever leader, address, token or beginning of the term change. Never ends.

    A :class:`LeaderSeen` is the leader, None means that there is none, and :class:`LeaderUnknown` that the store does
    not answer: then what was yielded before may be outdated, and the watch goes on until the store answers again. Only
    the first is true as a condition.

    ``url`` and ``role`` are those of :func:`~pgleaderlock.open_backend`; for a lock of PostgreSQL sessions, ``url`` is
    what :class:`~pgleaderlock.LeaderLock` takes as ``dsn``, and ``key`` may name it instead. ``poll_s`` is the time
    between two reads where the store does not report changes by itself. ``options`` are those of the backend; on
    PostgreSQL sessions ``password``, and ``schema`` and ``schema_owner`` of the tables in which tokens are found. A
    wrong argument raises ValueError or TypeError at once.
    """
    return _follow(_observer(url, role, key, check_seconds("poll_s", poll_s), options), poll_s)


async def find_leader(
    url: Dsn, role: str | None = None, *, key: LockKey | None = None, **options: Any
) -> LeaderSeen | None:
    """Return who leads now, None when there is no leader; ConnectionError when the store does not answer.

    A record whose leader died just now counts until its lease is over, and this sees it for the first time: only
    :func:`watch_leader` can tell. The arguments are those of :func:`watch_leader`.
    """
    observer = _observer(url, role, key, _POLL_S, options)
    try:
        return await observer.look()
    finally:
        await observer.close()


class LeaderView:
    """Who leads, for a process that is asked about it at any time: :func:`watch_leader`, with the age of its answer.

    Run :meth:`keep` in a task, and read the rest on the same event loop. The arguments are those of
    :func:`watch_leader`.
    """

    def __init__(
        self,
        url: Dsn,
        role: str | None = None,
        *,
        key: LockKey | None = None,
        poll_s: float = _POLL_S,
        clock: Clock = suspend_aware_clock,
        **options: Any,
    ) -> None:
        self._clock, self._poll_s = clock, check_seconds("poll_s", poll_s)
        self._observer = _TimedObserver(_observer(url, role, key, poll_s, options), clock)
        self._seen: LeaderSeen | LeaderUnknown | None = LeaderUnknown("the store has not answered yet")

    async def keep(self) -> None:
        """Watch the store until cancelled."""
        async with contextlib.aclosing(_follow(self._observer, self._poll_s)) as leaders:
            async for self._seen in leaders:
                pass

    @property
    def age_s(self) -> float | None:
        """How many seconds ago the store was asked for its last answer; None while it does not answer."""
        looked_at = self._observer.looked_at
        return None if looked_at is None else self._clock() - looked_at

    @property
    def has_answered(self) -> bool:
        """Whether the store has ever answered: address, password and permissions are right then."""
        return self._observer.has_answered

    @property
    def leader(self) -> LeaderSeen | LeaderUnknown | None:
        """The last answer of the store. LeaderUnknown once it is older than six seconds: that store is silent."""
        age_s = self.age_s
        if isinstance(self._seen, LeaderUnknown) or age_s is None:
            return self._seen
        return self._seen if age_s <= _FRESH_S else LeaderUnknown(f"the store has not answered for {age_s:.0f} s")


class _TimedObserver(Observer):
    """Another observer, and when the question was sent that it answered last."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer, self._clock = observer, clock
        self.looked_at: float | None = None
        self.has_answered = False

    async def look(self) -> LeaderSeen | None:
        began_at = self._clock()
        try:
            seen = await self._observer.look()
        except PgLeaderLockError:
            self.looked_at = None
            raise
        self.looked_at, self.has_answered = began_at, True
        return seen

    async def wait(self, poll_s: float) -> None:
        await self._observer.wait(poll_s)

    async def close(self) -> None:
        await self._observer.close()


def _observer(url: Dsn, role: str | None, key: LockKey | None, poll_s: float, options: dict[str, Any]) -> Observer:
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    scheme = scheme.lower()
    if not isinstance(url, str) or not separator or is_postgres_scheme(scheme):
        if (role is None) == (key is None):
            raise ValueError("name the lock in exactly one way: role= or key=")
        from pgleaderlock.postgres._observer import SessionObserver  # noqa: PLC0415 - it imports the driver

        dsn = f"{scheme}://{rest}" if isinstance(url, str) and separator else url
        return SessionObserver(dsn, LockKey.named(str(role)) if key is None else key, **options)
    if key is not None:
        raise ValueError("key is only for sessions of PostgreSQL: name the lock by role=, or in the URL")
    polled: dict[str, Any] = {"poll_s": poll_s} if scheme in _POLLED else {}
    return observer_of(open_backend(url, role=role, **polled, **options))


async def _follow(observer: Observer, poll_s: float) -> AsyncGenerator[LeaderSeen | LeaderUnknown | None, None]:
    shown: list[LeaderSeen | LeaderUnknown | None] = []  # the last one, if any
    retry_s = _FIRST_RETRY_S
    try:
        while True:
            seen = await _look(observer)
            if shown != [seen]:
                shown = [seen]
                yield seen
            if isinstance(seen, LeaderUnknown):
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load
                retry_s = min(_LONGEST_RETRY_S, 2 * retry_s)
            else:
                retry_s = _FIRST_RETRY_S
                await observer.wait(poll_s)
    finally:
        await observer.close()


async def _look(observer: Observer) -> LeaderSeen | LeaderUnknown | None:
    try:
        return await observer.look()
    except PgLeaderLockError as error:
        await observer.close()
        return LeaderUnknown(str(error))
