"""One request and its answer: uvicorn's protocol, with a deadline for the request's body and for reading the answer."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pgleaderlock.ops.http._limits import HttpLimits
from pgleaderlock.ops.http._rare_log import FailedRequestFilter

# Of our own, because uvicorn's logger belongs to the program: errors in a handler alone, and one of them a minute.
_logger = logging.getLogger("pgleaderlock.http")
_logger.addFilter(FailedRequestFilter())


class Connection(H11Protocol):
    """One client's connection, from the head of its request on."""

    def __init__(self, *args: Any, head: bytes, limits: HttpLimits, on_lost: Callable[["Connection"], None]) -> None:
        super().__init__(*args)
        self.logger = _logger
        self._head, self._limits, self._on_lost = head, limits, on_lost
        self._inner: Any = self.app
        self.app = self._answer
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self.stalled_since: float | None = None

    def abort(self) -> None:
        """Close it at once, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    # --- What asyncio and uvicorn call ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the original
        """Take in the head, which was read before, and begin to wait for the rest of the request.

        Here and not later: as soon as this returns, an event loop may read the rest.
        """
        super().connection_made(transport)
        self._start_timer(self._limits.request_s)
        self.data_received(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.app = self._inner  # no circle, so that all of it is freed now and not when the garbage is collected
        self._on_lost(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop the clock once the request is here to its last byte."""
        super().handle_events()
        if self._is_answering and self.stalled_since is None:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Give the client time to read what is written."""
        self._start_timer(self._limits.stall_s)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read."""
        self.stalled_since = self.loop.time()
        if self._timer is None:
            self._start_timer(self._limits.stall_s)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read enough to be written to."""
        self.stalled_since = None
        if self._is_answering:
            self._stop_timer()
        super().resume_writing()

    # --- Time ---

    @property
    def _is_answering(self) -> bool:
        """Whether the request has come to its last byte, and the answer is not written to its last."""
        cycle: Any = self.cycle  # None before the request, whatever its type says
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(seconds, self._on_time, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self, seconds: float) -> None:
        """Close the connection, unless its client is still reading."""
        self._timer = None
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._start_timer(seconds)
        else:
            self.transport.abort()

    # --- The request ---

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_while_open(message: Any) -> None:
            if self.transport.is_closing():
                # uvicorn has not been told yet, and asyncio would log a line for each write after the fifth.
                await asyncio.sleep(0)
            await send(message)

        await self._inner(scope, receive, send_while_open)
