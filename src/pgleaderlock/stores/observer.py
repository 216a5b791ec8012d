"""Who leads, seen by a process that takes no part: the seam for every store, and the one for lease stores.

What the record says counts for as long as a candidate would respect it (:class:`LeaseObservation`): once it has not
changed for the lease that it states, on the observer's own clock, or once the store knows that its holder has died,
there is no leader. Nothing is written.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TypeVar

from pgleaderlock._base.checks import address_fault
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import ConnectionError, PgLeaderLockError
from pgleaderlock.models import LeaderSeen
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.lease_observation import LeaseObservation, Record
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.stores.times import USUAL_LEASE_S

__all__ = ["ANSWER_S", "LOOK_EVERY_S", "HolderObserver", "Observer", "RecordObserver", "observer_of"]

T = TypeVar("T")

ANSWER_S = 5.0
"""How long to wait for one answer of a store; without one, it is unknown which process leads."""
LOOK_EVERY_S = 5.0
"""How often to look where the store reports changes by itself: a store that went silent reports none."""
_PAUSE_S = 0.05  # after a report without a change: a store that repeats it must not occupy the event loop


class Observer(ABC):
    """Looks at one lock in one store."""

    @abstractmethod
    async def look(self) -> LeaderSeen | None:
        """Return the leader, None when there is none; a PgLeaderLockError when the store does not answer."""

    @abstractmethod
    async def wait(self, poll_s: float) -> None:
        """Return when the answer may have changed: at once where the store reports that, else after ``poll_s``."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections and files. The next :meth:`look` opens them again."""


class RecordObserver(Observer):
    """Looks at a lease in a record."""

    def __init__(self, backend: RecordBackend, *, clock: Clock = suspend_aware_clock) -> None:
        self._store = backend.store
        self._store.only_read()
        self._clock = clock
        self._observation = LeaseObservation(USUAL_LEASE_S)
        self._reported: Record | None = None  # what the store reported during the last wait

    async def look(self) -> LeaderSeen | None:
        """Return the holder of the record, unless its lease has expired."""
        record, self._reported = self._reported, None
        if record is None:
            record = await _bounded(self._store.peek(), self._store.labels)
        self._observation.note(record, self._clock())
        is_over = record is None or self._observation.is_free(self._clock()) or self._store.is_abandoned(record)
        return None if is_over or record is None else _seen(record)

    async def wait(self, poll_s: float) -> None:
        """Wait for a report of the store, or for the end of the lease."""
        began, seen = self._clock(), self._observation.current
        left_s = self._observation.over_at - began
        timeout_s = min(LOOK_EVERY_S, left_s) if left_s > 0 else LOOK_EVERY_S
        try:
            self._reported = await self._store.changed(seen, timeout_s)
            if self._reported == seen and self._clock() < began + _PAUSE_S:  # a change was reported, but there was none
                await asyncio.sleep(_PAUSE_S)
        except PgLeaderLockError:  # a record that no candidate may decide by can be shown nevertheless
            await asyncio.sleep(min(poll_s, timeout_s))

    async def close(self) -> None:
        """Close the store. What was seen of the record still counts."""
        self._reported = None
        await self._store.close()


class HolderObserver(Observer):
    """Looks at any other backend, by polling."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def look(self) -> LeaderSeen | None:
        """Return the holder of the lock."""
        await _bounded(self._backend.open(), self._backend.labels)
        holder = await _bounded(self._backend.holder(), self._backend.labels)
        return None if holder is None else LeaderSeen(holder.name, since=holder.since)

    async def wait(self, poll_s: float) -> None:
        """Wait until the next poll."""
        await asyncio.sleep(poll_s)

    async def close(self) -> None:
        """Close the backend, which holds nothing."""
        await self._backend.close()


def observer_of(backend: Backend) -> Observer:
    """Return an observer that reads through this backend, which must not be used otherwise."""
    return RecordObserver(backend) if isinstance(backend, RecordBackend) else HolderObserver(backend)


async def _bounded(call: Awaitable[T], labels: object) -> T:
    """Await an answer of a store; ConnectionError when it takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return await call
    raise ConnectionError(f"the store did not answer within {ANSWER_S:g} s about {labels}")


def _seen(record: Record) -> LeaderSeen:
    # Other programs write records too: what cannot be an address is not passed on as one.
    address = record.address if address_fault(record.address) is None else None
    return LeaderSeen(record.holder, address, record.token, record.since)
