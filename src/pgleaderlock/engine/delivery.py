"""The stream of events: notifies all listeners of one election, in order, of one event at a time.

Delivery has a task of its own, because a slow callback must never delay a renewal. The engine waits for it
(:meth:`EventStream.drained`) wherever nothing needs to be renewed, so that callbacks seem to run within the transition.

An exception of a listener is logged and becomes a CALLBACK_FAILED event; while it is notified of an error, only logged.
``SystemExit`` and ``KeyboardInterrupt`` end the event loop. A listener cannot end the stream, not even by cancelling
its task: the stream ends with its election.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import LockError
from pgleaderlock.models import ERROR_KINDS, Event, EventKind, Listener

__all__ = ["EventStream"]

_CALLBACK_LIMIT_S = 0.2  # after hurry(), for each callback


class EventStream:
    """Ordered delivery for one run of one election."""

    def __init__(self, listeners: Sequence[Listener], delivered: Callable[[Event], None], logger: NDLogger) -> None:
        self._listeners = listeners
        self._delivered = delivered
        self._logger = logger
        self._events: deque[Event | None] = deque()  # no asyncio.Queue: thousands of roles may start at once
        self._more: asyncio.Future[None] | None = None
        """Done when there is an event to deliver."""
        self._undelivered = 0
        self._drained: asyncio.Future[None] | None = None
        self._ended = False
        self._is_loop_ending = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pgleaderlock events")
        self._task.add_done_callback(lambda _: self._note_drained())

    def put(self, event: Event) -> None:
        """Add an event to be delivered. Returns at once."""
        self._undelivered += 1
        self._append(event)

    def _append(self, event: Event | None) -> None:
        self._events.append(event)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def drained(self) -> asyncio.Future[None]:
        """Return a future that is done when all events so far were delivered, or delivery has ended.

        Several tasks wait for it: it must not be cancelled.
        """
        if self._drained is None or self._drained.done():
            self._drained = asyncio.get_running_loop().create_future()
            if self._undelivered == 0 or self._task.done():
                self._note_drained()
        return self._drained

    def _note_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def is_current_task(self) -> bool:
        """Return whether the caller runs inside a callback, where waiting for this election would be a deadlock."""
        return asyncio.current_task() is self._task

    def hurry(self) -> None:
        """Cancel the running callback, and each later one that does not return within 0.2 s."""
        if not self._task.done():
            self._task.cancel()
            asyncio.get_running_loop().call_later(_CALLBACK_LIMIT_S, self.hurry)

    def end(self) -> None:
        """Accept no more events. Those that are left are still delivered."""
        if not self._ended:
            self._ended = True
            self._append(None)

    async def finish(self, timeout_s: float | None) -> None:
        """Deliver the events that are left, then end. After ``timeout_s`` the rest is abandoned."""
        self.end()
        await asyncio.wait({self._task}, timeout=timeout_s)
        if not self._task.done():
            self._logger.error("callbacks_abandoned", undelivered=len(self._events))

    async def _run(self) -> None:
        while True:
            try:
                event = await self._next()
            except asyncio.CancelledError:
                # The loop is shutting down. The election is being cancelled too, and its last events are yet to come.
                self._is_loop_ending = True
                self._uncancel()
                continue
            if event is None:
                return
            await self._deliver(event)
            self._delivered(event)
            self._undelivered -= 1
            if self._undelivered == 0:
                self._note_drained()

    async def _next(self) -> Event | None:
        while not self._events:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        return self._events.popleft()

    async def _deliver(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            error = await self._call(listener, event)
            if error is None:
                continue
            name = getattr(listener, "__qualname__", repr(listener))
            failed = replace(event, kind=EventKind.CALLBACK_FAILED, cause="callback_failed", error=error)
            self._logger.error(failed.cause, callback=name, event_kind=event.kind.value, error=error, exc_info=error)
            if event.kind not in ERROR_KINDS:  # an on_error callback that fails would be called for ever
                await self._deliver(failed)

    async def _call(self, listener: Listener, event: Event) -> Exception | None:
        try:
            result = listener(event)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            return LockError("the callback was cancelled before it finished")
        except Exception as error:  # noqa: BLE001 - exceptions of user code must not end the election
            return error
        except (KeyboardInterrupt, SystemExit) as end:
            self._end_program(end)
        except BaseException as error:  # noqa: BLE001 - such as pytest.fail(): no Exception, yet no end of the program
            failure = LockError(f"the callback raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        finally:
            self._uncancel()  # a callback may also have swallowed its cancellation
        return None

    def _end_program(self, end: BaseException) -> None:
        """Raise it in the event loop, which it is meant to end, and not in this task: other listeners must be notified.

        Once the loop is ending, a second one would interrupt that, and leave sessions open.
        """
        if not self._is_loop_ending:
            asyncio.get_running_loop().call_soon(_raise, end)

    def _uncancel(self) -> None:
        """Undo a cancellation that was meant for the callback, so that the next callback can be awaited."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


def _raise(error: BaseException) -> NoReturn:
    raise error
