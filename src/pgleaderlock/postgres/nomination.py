"""Nominations: the leader names the candidate that leads next.

The leader notifies all candidates, on the channel of the places. The nominee queues for the heir's place; every other
candidate leaves its place and takes none again until the nominee has its own, or the time is over. The leader looks at
the locks until the nominee is the heir and is queued for the lock.

**A notification proves nothing**, and any user of the database can send one. A candidate heeds it only if the session
that sent it, which the server names, holds the lock; and it asks for that a few times a second at most.

A nomination decides nothing: it arranges the succession, and the next leader is the one that is granted the lock. A
nominee that ends meanwhile is replaced as any heir is.

Not promised: that the nominee leads. Candidates of 0.1.0 are queued for the lock itself and hear nothing: they cannot
step aside. Neither can a candidate that polls, which cannot be nominated either.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable

from pgleaderlock._base.checks import visible
from pgleaderlock._base.clock import Clock
from pgleaderlock.errors import LockError
from pgleaderlock.postgres import _keys_sql, _sql
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres._dsn import is_named
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import heir_key, next_heir_key, place_channel
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.postgres.session import Row

__all__ = ["Nominations", "nominate"]

_PREFIX = "next leader: "
_PATIENCE_S = 2.0
_MORE_THAN_SLICE_S = 1.0
_LOOK_EVERY_S = 0.03
_CHECK_EVERY_S = 0.5
_REPEAT_S = 0.3
_MOST_HEARD = 20

AskLeader = Callable[..., Awaitable[Row | None]]
"""Runs a statement with its parameters on the lock session of a leader, and raises if its term is over."""


def _patience_s(pair: SessionPair) -> float:
    """Return how long a nomination lasts. A queued session hears of it at the end of its wait slice."""
    return max(_PATIENCE_S, pair.wait_slice_s + _MORE_THAN_SLICE_S)


class Nominations:
    """What one follower has heard of nominations, and what follows from that for the time being."""

    def __init__(self, key: LockKey, pair: SessionPair, clock: Clock) -> None:
        self._key = key
        self._pair = pair
        self._clock = clock
        self._heard: deque[tuple[int, str]] = deque(maxlen=_MOST_HEARD)
        self._checked_at = -math.inf
        self._is_ours = False
        self.lasts_until = -math.inf
        """Until when the last nomination is heeded."""

    @property
    def is_nominee(self) -> bool:
        """Whether this candidate was nominated, and has still time to take the heir's place."""
        return self._is_ours and self._clock() < self.lasts_until

    @property
    def is_aside(self) -> bool:
        """Whether this candidate has to leave the places to another one."""
        return not self._is_ours and self._clock() < self.lasts_until

    @property
    def next_check_s(self) -> float:
        """In how many seconds what was heard may be checked; infinite if nothing was."""
        return max(0.0, self._checked_at + _CHECK_EVERY_S - self._clock()) if self._heard else math.inf

    def hear(self, pid: int, payload: str) -> None:
        """Keep a nomination until it is checked. Any other notification says that a place is free: the nominee's."""
        if payload.startswith(_PREFIX):
            self._heard.append((pid, payload.removeprefix(_PREFIX)))
        elif self.is_aside:
            self.lasts_until = -math.inf

    def forget(self) -> None:
        """Begin again, on another session."""
        self._heard.clear()
        self.lasts_until = -math.inf

    async def check(self) -> None:
        """Ask the server who holds the lock, if a nomination was heard, and heed the last one that the holder sent."""
        if self.next_check_s > 0:
            return
        heard = list(self._heard)
        self._heard.clear()
        self._checked_at = self._clock()
        row = await self._pair.ask_lock(_sql.HOLDER_AND_OWN_NAME, lock_columns(self._key))
        holder_pid, own_name = (None, "") if row is None else row
        named = [to for pid, to in heard if pid == holder_pid]
        if named:
            self._is_ours = is_named(own_name, named[-1])
            self.lasts_until = self._clock() + _patience_s(self._pair)


async def nominate(to: str, ask: AskLeader, key: LockKey, pair: SessionPair, *, clock: Clock, where: str) -> None:
    """Have the candidate of this name become the heir of the lock that this session holds.

    Returns when it is, or when it had its time. Raises LockError if no such candidate answers.
    """
    what = f"lock {key.described} ({where})"
    row = await ask(_sql.SESSION_NAMES)
    own_name, names = ("", []) if row is None else row
    if is_named(own_name, to):
        raise LockError(f"{visible(to)} leads already: {what}")
    if not any(is_named(name, to) for name in names):
        raise LockError(
            f"no session of {visible(to)} is connected, so it cannot lead: {what}. A candidate is named by host and "
            "process id, as in pgleaderlock status (host-2:18), or by its whole application_name"
        )
    locks = _keys_sql.columns([heir_key(key), next_heir_key(key), key])
    deadline, answered = clock() + _patience_s(pair), False
    notify_at = -math.inf
    while clock() < deadline:
        if clock() >= notify_at:  # repeated, because a new heir hears nothing until its second session is open
            notify_at = clock() + _REPEAT_S
            await ask(_sql.NOTIFY_OF_NOMINEE, (place_channel(key), f"{_PREFIX}{to}"))
        seen = _seen(await ask(_sql.SESSIONS_AT, locks), to)
        if {(0, True), (2, False)} <= seen:
            return
        answered = answered or bool(seen & {(0, True), (0, False)})
        await asyncio.sleep(_LOOK_EVERY_S)
    if not answered:
        raise LockError(
            f"{visible(to)} did not answer within {_patience_s(pair):g} s. It may be frozen, cut off, resting after a "
            f"step-down, polling, of version 0.1.0, or no candidate for this lock. This leader leads on: {what}"
        )


def _seen(row: Row | None, name: str) -> set[tuple[int, bool]]:
    """Return for which locks this candidate shows, and whether they were granted."""
    seen = set()
    for text in [] if row is None else row[0]:
        place, granted, application_name = text.split(" ", 2)
        if is_named(application_name, name):
            seen.add((int(place), granted == "true"))
    return seen
