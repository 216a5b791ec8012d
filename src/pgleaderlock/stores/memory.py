"""A lease in this process's own memory: for documentation, tests, and programs that are one process.

It fulfils the whole contract of a record store: candidates in one process that name the same record compete for it, on
any number of event loops and threads.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from pgleaderlock.stores.record import Claim, Record, RecordStore

__all__ = ["MemoryStore"]

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


@dataclass
class _SharedRecord:
    """The state that all candidates for one record share."""

    record: Record | None = None
    guard: threading.Lock = field(default_factory=threading.Lock)
    waiters: set[_Waiter] = field(default_factory=set)


_places: dict[str, _SharedRecord] = {}
_places_guard = threading.Lock()


class MemoryStore(RecordStore):
    """A record by name."""

    carries_address = True

    def __init__(self, name: str) -> None:
        self._name = name
        with _places_guard:
            self._place = _places.setdefault(name, _SharedRecord())

    @property
    def labels(self) -> Mapping[str, object]:
        """The record's name."""
        return {"memory": self._name}

    async def read(self) -> Record | None:
        """Return the record; None when there is none yet."""
        return self._place.record

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Compare and swap the record, and wake the waiting candidates; return None when it was another version."""
        with self._place.guard:
            now = self._place.record
            if (now.version if now else None) != (replacing.version if replacing else None):
                return None
            version = 1 if now is None else int(str(now.version)) + 1
            self._place.record = Record(claim.holder, claim.token, claim.lease_s, version, address=claim.address)
            for loop, event in self._place.waiters:
                with contextlib.suppress(RuntimeError):  # the waiter's event loop was closed
                    loop.call_soon_threadsafe(event.set)
            return self._place.record

    async def overwritten(self, held: Record) -> Record | None:
        """Return the record after the next write."""
        return await self._after_write(held, None)

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Return the record after the next write, at the latest after ``timeout_s``."""
        return await self._after_write(seen, timeout_s)

    async def _after_write(self, seen: Record | None, timeout_s: float | None) -> Record | None:
        waiter = asyncio.get_running_loop(), asyncio.Event()
        with self._place.guard:
            if self._place.record != seen:
                return self._place.record
            self._place.waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._place.guard:
                self._place.waiters.discard(waiter)
        return self._place.record
