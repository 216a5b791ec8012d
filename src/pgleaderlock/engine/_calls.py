"""The one call on a backend that is in flight, and how it is cancelled.

A backend's verb runs in a task of its own, so that a request (a shutdown, a step-down) can come first. What happens to
the verb then depends on the state that began it: mostly it is cancelled with that state, and a backend's verb ends
promptly when it is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pgleaderlock.errors import ConnectionError, PgLeaderLockError

T = TypeVar("T")

Verb = Callable[[], Coroutine[Any, Any, T]]
"""A call yet to be made; it is made only once its task runs, so that no coroutine is left never awaited."""


class Asked(Exception):  # noqa: N818 - control flow, not an error: a request came first
    """A request came before the call ended. The call is still in flight."""


class Calls:
    """At most one call at a time, for one run of an election."""

    def __init__(self, news: Callable[[], asyncio.Future[None]]) -> None:
        self._news = news
        self.in_flight: asyncio.Task[Any] | None = None

    async def call(self, verb: Verb[T]) -> T:
        """Make a call and return its result. Raises Asked when a request comes first."""
        task = self.begin(verb)
        await self.wait(task)
        return self.take(task)

    async def call_within(self, verb: Verb[T], timeout_s: float | None) -> T | None:
        """Make a call and return its result. When its time is up, cancel it and return None."""
        answer = await self.call_while(verb, timeout_s)
        if self.in_flight is not None:
            await self.cancel()
        return answer

    async def call_while(self, verb: Verb[T], timeout_s: float | None) -> T | None:
        """Make a call and return its result. When its time is up, return None and leave it in flight.

        For a caller that has to do something before the call is cancelled, because cancelling closes the session.
        """
        task = self.begin(verb)
        return self.take(task) if await self.wait(task, timeout_s) else None

    def begin(self, verb: Verb[T]) -> asyncio.Task[T]:
        """Begin a call, and return its task."""
        self.in_flight = task = asyncio.get_running_loop().create_task(guarded(verb))
        return task

    async def wait(self, task: asyncio.Task[Any], timeout_s: float | None = None) -> bool:
        """Wait for a call. Return False when the time was up; raise Asked when a request came first."""
        news = self._news()
        await asyncio.wait({task, news}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and news.done():
            raise Asked
        return task.done()

    def take(self, task: asyncio.Task[T]) -> T:
        """Return the result of a finished call, or raise its exception."""
        self.in_flight = None
        return task.result()

    async def cancel(self) -> None:
        """Cancel the call in flight, if there is one, and wait for its end."""
        task, self.in_flight = self.in_flight, None
        if task is not None:
            await see_out(task)


async def guarded(verb: Verb[T]) -> T:
    """Await a backend's verb, and turn exceptions that are not ours into ConnectionError: the outcome is unknown."""
    try:
        return await verb()
    except PgLeaderLockError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError("the driver cancelled its own call") from error  # this task was not cancelled
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ConnectionError(f"the backend failed: {type(error).__name__}: {error}") from error


async def see_out(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, ignoring its result or exception."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio would log it
