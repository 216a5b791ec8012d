"""The one call on a backend that is in flight, and how it is cut short.

A backend's verb runs in a task of its own, so that an ask from a caller can come first. What happens to the verb then
depends on the state that began it: mostly it is cancelled with that state, and a backend's verb ends promptly when it
is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pgleaderlock.errors import ConnectionError, PgLeaderLockError

__all__ = ["Asked", "Calls", "Verb", "guarded", "see_out"]

T = TypeVar("T")

Verb = Callable[[], Coroutine[Any, Any, T]]
"""A call yet to be made; it is made only once its task runs, so that no coroutine is left never awaited."""


class Asked(Exception):  # noqa: N818 - control flow, not an error: a caller's ask came first
    """The wait for a call was cut short because a caller asked for something. The call is still in flight."""


class Calls:
    """At most one call at a time, for one run of an election."""

    def __init__(self, news: Callable[[], asyncio.Future[None]]) -> None:
        self._news = news
        self.in_flight: asyncio.Task[Any] | None = None

    async def call(self, verb: Verb[T]) -> T:
        """Make a call and see it to its end, unless a caller asks for something first."""
        task = self.begin(verb)
        await self.wait(task)
        return self.take(task)

    async def call_within(self, verb: Verb[T], timeout_s: float | None) -> T | None:
        """Make a call for so long and no longer. None when its time was up."""
        answer = await self.call_while(verb, timeout_s)
        if self.in_flight is not None:
            await self.cancel()
        return answer

    async def call_while(self, verb: Verb[T], timeout_s: float | None) -> T | None:
        """Make a call. None when its time was up; then it is still in flight, for whoever must do something first."""
        task = self.begin(verb)
        return self.take(task) if await self.wait(task, timeout_s) else None

    def begin(self, verb: Verb[T]) -> asyncio.Task[T]:
        """Put a call in flight."""
        self.in_flight = task = asyncio.get_running_loop().create_task(guarded(verb))
        return task

    async def wait(self, task: asyncio.Task[Any], timeout_s: float | None = None) -> bool:
        """Wait for a call. False when the time was up; raises Asked when an ask came first."""
        news = self._news()
        await asyncio.wait({task, news}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and news.done():
            raise Asked
        return task.done()

    def take(self, task: asyncio.Task[T]) -> T:
        """Return what a finished call came to."""
        self.in_flight = None
        return task.result()

    async def cancel(self) -> None:
        """End the call in flight, if there is one."""
        task, self.in_flight = self.in_flight, None
        if task is not None:
            await see_out(task)


async def guarded(verb: Verb[T]) -> T:
    """Make of whatever a backend lets slip through: cannot tell."""
    try:
        return await verb()
    except PgLeaderLockError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError("the driver cancelled its own call") from error  # it was not us
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ConnectionError(f"the backend failed: {type(error).__name__}: {error}") from error


async def see_out(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, whatever it comes to."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it as forgotten
