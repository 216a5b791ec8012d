"""One election in one process: how it is asked to stop, and how it ended. Shared by ``run`` and ``acquire``."""

import asyncio
import signal

from loguru import logger

from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind

_GRACEFUL_TIMEOUT_S = 10.0  # within what a supervisor allows between SIGTERM and SIGKILL
_FORCED_TIMEOUT_S = 0.5  # a healthy release takes milliseconds, so even a hasty second Ctrl-C may end cleanly


class Participant:
    """Follows an election from its start to its end. Make it in the loop that the election runs in."""

    def __init__(self, lock: Election) -> None:
        loop = asyncio.get_running_loop()
        self.stop_asked: asyncio.Future[signal.Signals | None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.ended_cleanly = True
        """False once an error ended the election, for example a release that failed or was forced."""
        self._lock = lock
        self._shutdowns: list[asyncio.Task[None]] = []
        lock.subscribe(self._hear)

    def stop(self, signal_number: signal.Signals | None = None) -> None:
        """Ask for a graceful end; asked again, for one by force."""
        if signal_number is not None:
            manner = "again: closing the session by force" if self._shutdowns else "received: leaving the election"
            logger.info(f"{signal_number.name} {manner}")
        if not self.stop_asked.done():
            self.stop_asked.set_result(signal_number)
        self._begin_shutdown()

    async def leave(self) -> None:
        """Shut down unless that has begun, and wait until the lock is released and all listeners were notified."""
        if not self._shutdowns:
            self._begin_shutdown()
        while running := [task for task in self._shutdowns if not task.done()]:
            await asyncio.wait(running)

    def _begin_shutdown(self) -> None:
        timeout_s = _FORCED_TIMEOUT_S if self._shutdowns else _GRACEFUL_TIMEOUT_S
        self._shutdowns.append(asyncio.get_running_loop().create_task(self._lock.shutdown(timeout_s)))

    def _hear(self, event: Event) -> None:
        if event.kind is EventKind.STOPPED and not self.ended.done():
            self.ended.set_result(None)
        elif event.kind is EventKind.ERROR and event.to_state.is_stopped:
            self.ended_cleanly = False
