"""A watch on one Lease: wake-up within milliseconds instead of at the next poll.

One stream stays open for as long as a follower waits or a leader leads; a task reads it, because a read of a stream
that is cut short costs the connection. The task only notes which versions went by, in order. Whether that is news
depends on what the caller has seen: versions that went by *before* it are not, and resourceVersions themselves have no
order that one may rely on. So: a version that was seen and went by is followed by news or it is not; one that was seen
and has not gone by yet is on its way.

Every change reaches the stream, from the version that it was opened at. If what was seen does not come by for a whole
wait, the stream is dead without having said so (a network that swallows packets does that), and is given up. A leader
waits between two renewals only; it gives a stream up on which its last renewal but one has not come by.
"""

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Any

from pgleaderlock._checks import shown
from pgleaderlock.backends.kubernetes.api import ApiError, LeaseClient, LeaseObject
from pgleaderlock.backends.kubernetes.lease import LeaseVersion, read_lease
from pgleaderlock.errors import ConnectionError

__all__ = ["LeaseWatch"]

_GONE = 410
_SHORTEST_STREAM_S = 1.0  # a server or proxy that ends each stream at once is not asked in a tight loop


class LeaseWatch:
    """The stream, opened when it is first waited for."""

    def __init__(self, client: LeaseClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._went_by: deque[LeaseVersion | None] = deque(maxlen=1000)  # None: there was no Lease then
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._held: LeaseVersion | None = None  # what the leader last waited with

    async def wait_for_loss(self, held: LeaseVersion, timeout_s: float) -> bool:
        """Return whether the Lease is no longer the one that the leader holds; :attr:`last` is what it is now."""
        before, self._held = self._held, held
        if before is not None and before != held and before not in self._went_by:
            self.stop()
        await self._wait(held, timeout_s)
        return self._is_over(held)

    @property
    def last(self) -> LeaseVersion | None:
        """What came by last; None when the Lease was gone then."""
        return self._went_by[-1]

    async def wait_for_change(self, seen: LeaseVersion | None, timeout_s: float) -> LeaseVersion | None:
        """Return when the Lease is no longer the one that was seen, or the time is up; with what came by, if it did."""
        self._held = None
        return await self._wait(seen, timeout_s)

    async def _wait(self, seen: LeaseVersion | None, timeout_s: float) -> LeaseVersion | None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed(seen)
                return self._went_by[-1] if self._is_over(seen) else None
        except TimeoutError:
            if seen not in self._went_by:
                self.stop()
            return None

    async def close(self) -> None:
        """Close the stream, and return when it is closed. A second is enough for that."""
        task = self._task
        self.stop()
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=1)

    def stop(self) -> None:
        """Begin to close the stream. The next wait opens another."""
        task, self._task = self._task, None
        if task is None:
            return
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it as forgotten
        with contextlib.suppress(RuntimeError):  # its loop was closed under it, and it is gone anyway
            task.cancel()

    async def _changed(self, seen: LeaseVersion | None) -> None:
        if self._task is None:
            self._went_by.clear()
            self._news = asyncio.Event()  # of this loop: an election may be started again on another
            self._task = asyncio.get_running_loop().create_task(self._follow(seen))
            self._task.add_done_callback(partial(_wake, self._news))
        task = self._task
        while not self._is_over(seen):
            if task.done():
                self.stop()
                if not task.cancelled():  # by close(): then nobody cares
                    task.result()
                return
            self._news.clear()
            await self._news.wait()

    def _is_over(self, seen: LeaseVersion | None) -> bool:
        """Whether something came after what was seen. What came before it will not be asked about again."""
        if seen not in self._went_by:
            return False
        while self._went_by[0] != seen:
            self._went_by.popleft()
        return self._went_by[-1] != seen

    async def _follow(self, seen: LeaseVersion | None) -> None:
        self._went_by.append(seen)
        since = await self._list() if seen is None else seen.resource_version
        while True:
            since = await self._read_stream(since)

    async def _read_stream(self, since: str) -> str:
        """Read one stream to its end, and return from where to go on."""
        loop = asyncio.get_running_loop()
        opened_at = loop.time()
        try:
            async with contextlib.aclosing(self._client.watch(self._namespace, self._name, since)) as stream:
                async for event in stream:
                    since = self._take(event, since)
        except ApiError as error:
            if error.status != _GONE:
                raise
            since = await self._list()
        await asyncio.sleep(max(0.0, opened_at + _SHORTEST_STREAM_S - loop.time()))
        return since

    def _take(self, event: LeaseObject, since: str) -> str:
        kind, subject = event.get("type"), event.get("object")
        if not isinstance(subject, dict):
            raise ConnectionError(f"the watch on lease {self._namespace}/{self._name} sent something that is no event")
        if kind == "ERROR":
            code = subject.get("code")
            raise ApiError(
                f"the watch on lease {self._namespace}/{self._name} ended: {shown(str(subject.get('message')))}",
                code if isinstance(code, int) else 500,
            )
        version = read_lease(subject).version if kind != "BOOKMARK" else None
        if isinstance(version, LeaseVersion):
            self._note(None if kind == "DELETED" else version)
            return version.resource_version
        return since

    async def _list(self) -> str:
        """Look at the present, where the past is no longer told or nothing was seen; return from where to go on."""
        listing = await self._client.list(self._namespace, self._name)
        items, metadata = listing.get("items") or [], listing.get("metadata")
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ConnectionError(f"the list of lease {self._namespace}/{self._name} is none")
        current = read_lease(items[0]).version if items else None
        if isinstance(current, LeaseVersion | None) and current != self._went_by[-1]:
            self._note(current)
        return str(metadata.get("resourceVersion", ""))

    def _note(self, version: LeaseVersion | None) -> None:
        self._went_by.append(version)
        self._news.set()


def _wake(news: asyncio.Event, _ended: asyncio.Task[Any]) -> None:
    news.set()
