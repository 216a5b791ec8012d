"""The stream of events: one election speaks, any number of listeners hear it, in order, one event at a time.

Delivery has a task of its own, because a slow callback must never delay a renewal. The engine waits for it
(:meth:`EventStream.drained`) wherever nothing needs to be renewed, so that to a callback it looks as if it ran within
the transition.

What a listener raises is logged and comes back as an ``on_error`` event; what an ``on_error`` listener raises is only
logged. ``SystemExit`` and ``KeyboardInterrupt`` end the event loop. Nothing that a listener does ends the stream,
cancelling its task included: it ends with its election.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import LockError
from pgleaderlock.models import Event, EventKind, Listener

__all__ = ["CALLBACK_FAILED", "WORK_FAILED", "EventStream"]

CALLBACK_FAILED = "callback_failed"
"""The cause of an ``on_error`` event that a listener brought about."""
WORK_FAILED = "work_failed"
"""The cause of an ``on_error`` event that gated work brought about."""

_PATIENCE_S = 0.2  # after hurry(), for each callback


class EventStream:
    """Ordered delivery for one run of one election."""

    def __init__(self, listeners: Sequence[Listener], delivered: Callable[[Event], None], logger: NDLogger) -> None:
        self._listeners = listeners
        self._delivered = delivered
        self._logger = logger
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._unheard = 0
        self._heard: asyncio.Future[None] | None = None
        self._ended = False
        self._is_loop_ending = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pgleaderlock events")
        self._task.add_done_callback(lambda _: self._note_heard())

    def put(self, event: Event) -> None:
        """Say something. Returns at once."""
        self._unheard += 1
        self._events.put_nowait(event)

    def drained(self) -> asyncio.Future[None]:
        """Return what is done when everything said so far was heard, or there is nobody left to hear it.

        Shared by all who wait: not to be cancelled.
        """
        if self._heard is None or self._heard.done():
            self._heard = asyncio.get_running_loop().create_future()
            if self._unheard == 0 or self._task.done():
                self._note_heard()
        return self._heard

    def _note_heard(self) -> None:
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def is_current_task(self) -> bool:
        """Whether the caller runs inside a callback, where waiting for this election would be waiting for itself."""
        return asyncio.current_task() is self._task

    def hurry(self) -> None:
        """Cancel the callback that is running, and every later one that does not return soon."""
        if not self._task.done():
            self._task.cancel()
            asyncio.get_running_loop().call_later(_PATIENCE_S, self.hurry)

    def end(self) -> None:
        """Say that nothing more will come. What is left is still delivered."""
        if not self._ended:
            self._ended = True
            self._events.put_nowait(None)

    async def finish(self, timeout_s: float | None) -> None:
        """Deliver what is left, then end. Past the time-out the rest is abandoned."""
        self.end()
        await asyncio.wait({self._task}, timeout=timeout_s)
        if not self._task.done():
            self._logger.error("callbacks_abandoned", undelivered=self._events.qsize())

    async def _run(self) -> None:
        while True:
            try:
                event = await self._events.get()
            except asyncio.CancelledError:
                # The loop is shutting down. The election is being cancelled too and has last events to tell.
                self._is_loop_ending = True
                self._uncancel()
                continue
            if event is None:
                return
            await self._deliver(event)
            self._delivered(event)
            self._unheard -= 1
            if self._unheard == 0:
                self._note_heard()

    async def _deliver(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            error = await self._call(listener, event)
            if error is None:
                continue
            name = getattr(listener, "__qualname__", repr(listener))
            self._logger.error(CALLBACK_FAILED, callback=name, event_kind=event.kind.value, error=error, exc_info=error)
            if event.kind is not EventKind.ERROR:  # whoever fails at an error is not told of another
                await self._deliver(replace(event, kind=EventKind.ERROR, cause=CALLBACK_FAILED, error=error))

    async def _call(self, listener: Listener, event: Event) -> Exception | None:
        try:
            result = listener(event)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            return LockError("the callback was cancelled before it finished")
        except Exception as error:  # noqa: BLE001 - whatever user code raises must not end the election
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
        """Let it end the event loop, as it was meant to, but not this task: other listeners have to hear of the loss.

        Once the loop is ending, a second one would cut that end short, with sessions still open.
        """
        if not self._is_loop_ending:
            asyncio.get_running_loop().call_soon(_raise, end)

    def _uncancel(self) -> None:
        """Forget a cancellation that was for the callback, so that the next one can be awaited."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


def _raise(error: BaseException) -> NoReturn:
    raise error
