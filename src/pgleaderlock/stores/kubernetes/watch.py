"""A watch on one Lease: candidates are notified within milliseconds instead of at the next poll.

One stream stays open while a follower waits or a leader leads. A task reads it, because cancelling a read closes the
connection. The task only notes the versions that it received, in order. Whether a version is new depends on what the
caller has seen: versions received *before* that are not new, and resourceVersions have no order that a client may rely
on. So if the version that the caller has seen was received, every version after it is new; if it was not received yet,
the stream is still behind the caller.

Every change reaches the stream, from the version at which it was opened. If the version that the caller has seen is not
received during a whole wait, the stream is dead without an error (as when a network drops packets), and is closed. A
leader waits between two renewals only; it closes a stream on which its last renewal but one was not received.
"""

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Any

from pgleaderlock._base.checks import shown
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.api import ApiError, LeaseClient, LeaseObject
from pgleaderlock.stores.kubernetes.lease import LeaseVersion, read_lease

__all__ = ["LeaseWatch"]

_GONE = 410
_SHORTEST_STREAM_S = 1.0  # a server or proxy that ends each stream at once is not asked in a tight loop


class LeaseWatch:
    """The stream of one Lease, opened by the first wait."""

    def __init__(self, client: LeaseClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._received: deque[LeaseVersion | None] = deque(maxlen=1000)  # None: there was no Lease then
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._held: LeaseVersion | None = None  # the version that the leader passed to its last wait

    async def wait_for_loss(self, held: LeaseVersion, timeout_s: float) -> bool:
        """Return whether the Lease is no longer the one that the leader holds; :attr:`last` is what it is now."""
        before, self._held = self._held, held
        if before is not None and before != held and before not in self._received:
            self.stop()
        await self._wait(held, timeout_s)
        return self._is_over(held)

    @property
    def last(self) -> LeaseVersion | None:
        """The version received last; None when the Lease was deleted then."""
        return self._received[-1]

    async def wait_for_change(self, seen: LeaseVersion | None, timeout_s: float) -> LeaseVersion | None:
        """Return the new version once the Lease differs from the one that was seen; None after ``timeout_s``."""
        self._held = None
        return await self._wait(seen, timeout_s)

    async def _wait(self, seen: LeaseVersion | None, timeout_s: float) -> LeaseVersion | None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed(seen)
                return self._received[-1] if self._is_over(seen) else None
        except TimeoutError:
            if seen not in self._received:
                self.stop()
            return None

    async def close(self) -> None:
        """Close the stream, and wait until it is closed, for 1 s at most."""
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
        with contextlib.suppress(RuntimeError):  # its event loop was closed, and the stream with it
            task.cancel()

    async def _changed(self, seen: LeaseVersion | None) -> None:
        if self._task is None:
            self._received.clear()
            self._news = asyncio.Event()  # of this loop: an election may be started again on another
            self._task = asyncio.get_running_loop().create_task(self._follow(seen))
            self._task.add_done_callback(partial(_wake, self._news))
        task = self._task
        while not self._is_over(seen):
            if task.done():
                self.stop()
                if not task.cancelled():  # by close(), which needs no result
                    task.result()
                return
            self._news.clear()
            await self._news.wait()

    def _is_over(self, seen: LeaseVersion | None) -> bool:
        """Whether a newer version than this one was received. Forget the older ones."""
        if seen not in self._received:
            return False
        while self._received[0] != seen:
            self._received.popleft()
        return self._received[-1] != seen

    async def _follow(self, seen: LeaseVersion | None) -> None:
        self._received.append(seen)
        since = await self._list() if seen is None else seen.resource_version
        while True:
            since = await self._read_stream(since)

    async def _read_stream(self, since: str) -> str:
        """Read one stream to its end, and return the resourceVersion from which to go on."""
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
        """List the Lease, when no version was seen or the server has forgotten it (410).

        Note its current version, and return the resourceVersion from which to go on.
        """
        listing = await self._client.list(self._namespace, self._name)
        items, metadata = listing.get("items") or [], listing.get("metadata")
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ConnectionError(f"the answer to list lease {self._namespace}/{self._name} is not a list")
        current = read_lease(items[0]).version if items else None
        if isinstance(current, LeaseVersion | None) and current != self._received[-1]:
            self._note(current)
        return str(metadata.get("resourceVersion", ""))

    def _note(self, version: LeaseVersion | None) -> None:
        self._received.append(version)
        self._news.set()


def _wake(news: asyncio.Event, _ended: asyncio.Task[Any]) -> None:
    news.set()
