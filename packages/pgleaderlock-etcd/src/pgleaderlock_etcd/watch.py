"""A watch on one key: candidates are notified of a change within milliseconds.

A task reads the stream, because cancelling a read closes the connection. Revisions have an order, so the last change is
all that has to be kept: it is new to a caller that knows the key up to an earlier revision, and otherwise not.

A leader renews three times in a lease, so a stream is never silent for long: one that is (a network that drops packets,
a member that is cut off) is closed after half a lease, and the next wait opens another.
"""

import asyncio
import contextlib

from pgleaderlock.errors import ConnectionError
from pgleaderlock_etcd.api import Change, EtcdClient

__all__ = ["KeyWatch"]

_CLOSING_S = 1.0


class KeyWatch:
    """The stream of one key, opened by the first wait."""

    def __init__(self, client: EtcdClient, key: bytes, *, silence_s: float) -> None:
        self._client = client
        self._key = key
        self._silence_s = silence_s
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._last: Change | None = None
        self._heard_at = 0.0  # on the loop's clock

    async def wait(self, known_up_to: int, timeout_s: float) -> Change | None:
        """Return the newest change after that revision; None after ``timeout_s``.

        ConnectionError when the stream failed. The next wait opens another, from the revision that it is given.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        task = self._opened(known_up_to)
        while (change := self._last) is None or change.revision <= known_up_to:
            if task.done():
                self.stop()
                raise _reason(task)
            ends_at = min(deadline, self._heard_at + self._silence_s)
            if loop.time() >= ends_at:
                if ends_at < deadline:
                    self.stop()
                return None
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_at):
                    await self._news.wait()
        return change

    async def close(self) -> None:
        """Close the stream, and wait until it is closed, for 1 s at most."""
        task = self._task
        self.stop()
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=_CLOSING_S)

    def stop(self) -> None:
        """Begin to close the stream."""
        task, self._task = self._task, None
        if task is not None:
            with contextlib.suppress(RuntimeError):  # its event loop was closed, and the stream with it
                task.cancel()

    def _opened(self, known_up_to: int) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if self._task is not None and self._task.get_loop() is not loop:  # of our parent, or of an earlier run
            self._task = None
        if self._task is None:
            self._last, self._news, self._heard_at = None, asyncio.Event(), loop.time()
            self._task = loop.create_task(self._follow(known_up_to + 1, self._news))
        return self._task

    async def _follow(self, start_revision: int, news: asyncio.Event) -> None:
        try:
            async with contextlib.aclosing(self._client.watch(self._key, start_revision)) as stream:
                async for change in stream:
                    if news is self._news:  # otherwise a later stream has taken our place
                        self._last, self._heard_at = change, asyncio.get_running_loop().time()
                        news.set()
        finally:
            news.set()


def _reason(task: asyncio.Task[None]) -> ConnectionError:
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, ConnectionError) else ConnectionError(f"the watch ended ({error!r})")
