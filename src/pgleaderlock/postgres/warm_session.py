"""The warm session: the heir's second session, opened before it is needed.

A candidate that is granted the lock needs a second session for its witness lock. To connect takes longer than all the
rest of a failover, so the heir has that session open already. It holds nothing, is under no lease, and is never a
condition for anything: without it a failover is slower by one connection.

It is watched, and pinged as often as a leader renews: a session that a firewall dropped silently would be noticed only
when it is needed. Its ping rehearses what it is needed for. One that ended is replaced. Where the server has no room
for it, that is logged once, and tried again later.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError, PgLeaderLockError
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres._session_setup import ReadySession
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import Heard, Row, Session

__all__ = ["LATE_S", "WarmSession", "discard", "end_call"]

LATE_S = 0.1
"""After this time without an answer on the warm session, a fresh one is opened beside it."""
_PAUSE_JITTER = 0.25
_FIRST_PAUSE_S = 0.1
"""Before the first opening: a candidate becomes the heir just when a new leader begins its term on the same server."""

Ask = Callable[[Session], Coroutine[Any, Any, Row | None]]
"""Asks for locks on a session. The answer begins with the places of those that were granted."""
NoteEnd = Callable[[ReadySession, ConnectionError], None]
"""Called with a warm session that ended, so that its backend can be terminated if it may still run."""


class WarmSession:
    """Opens a session, keeps it open, and gives it away once."""

    def __init__(
        self, open_ready: Callable[[], Awaitable[ReadySession]], lease: Lease, logger: NDLogger, note_end: NoteEnd
    ) -> None:
        self._open_ready = open_ready
        self._lease = lease
        self._logger = logger
        self._note_end = note_end
        self.listens: tuple[str, Heard] | None = None
        """A channel to listen to, and what to do with its notifications, until the session is given away."""
        self._task: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[ReadySession] | None = None
        self._ready: ReadySession | None = None
        self._ping: asyncio.Future[Row | None] | None = None
        self._early: asyncio.Future[Row | None] | None = None
        self._was_warned = False

    @property
    def is_open(self) -> bool:
        """Whether there is such a session that is not known to have ended."""
        return self._ready is not None and not self._ready.session.closed

    def keep(self) -> None:
        """Have a session opened and kept open, unless that is so already. Does not wait."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="pgleaderlock warm session")

    def ask_early(self, ask: Ask) -> None:
        """Ask now, on the session that is taken soon. Without a session, or during a ping, this does nothing."""
        if self._ready is None or not self.is_open or self._ping is not None or self._early is not None:
            return
        if self._task is not None:
            self._task.cancel()  # it sends pings, and a session is used by one caller at a time
        self._early = asyncio.ensure_future(ask(self._ready.session))

    async def granted_early(self) -> ReadySession | None:
        """Wait for the answer to the call that was begun early. Return its session if the answer names a lock."""
        ready, early = self._ready, self._early
        if early is None:
            return None
        if not early.done():
            await asyncio.wait({early})
        row = None if early.cancelled() or early.exception() else early.result()
        return ready if row is not None and row[0] else None

    async def take(self) -> tuple[ReadySession | None, "asyncio.Future[Row | None] | None"]:
        """Give the session away, with the call that was begun early, if any; None if there is none that answers.

        One that is being opened is waited for a moment. No longer, because the host that it connects to may be silent,
        and another session may be opened meanwhile.
        """
        if self._early is not None and self.is_open:
            ready, early = self._ready, self._early
            self._ready = self._early = None
            return ready, early
        ping, is_late = self._ping, False
        if ping is not None:  # cancelled, it would close the session
            await asyncio.wait({ping}, timeout=LATE_S)
            is_late = not ping.done()
        opening, self._opening = self._opening, None
        ready, self._ready = (None, self._ready) if is_late or not self.is_open else (self._ready, None)
        try:
            await self.close()
            if opening is None:
                return ready, None
            await asyncio.wait({opening}, timeout=LATE_S)
        except asyncio.CancelledError:
            if ready is not None:
                await ready.session.close()
            if opening is not None:
                await discard(opening)
            raise
        if not opening.done():
            await discard(opening)
        return (None if opening.cancelled() or opening.exception() else opening.result()), None

    async def close(self) -> None:
        """Stop keeping it, and close it if it was not given away."""
        early, self._early = self._early, None
        if early is not None:
            await end_call(early)
            # It may hold the witness lock, and if the network is silent, the server does not notice the close.
            if self._ready is not None and not self._ready.session.closed:
                self._note_end(self._ready, ConnectionError("a session that had asked for a lock early was given up"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        ready, self._ready = self._ready, None
        if ready is not None:
            await ready.session.close()

    async def _keep(self) -> None:
        await asyncio.sleep(_FIRST_PAUSE_S)
        while True:
            try:
                await self._until_its_end(await self._open())
            except PgLeaderLockError as error:
                self._warn(error)
            pause_s = self._lease.renew_every_s * random.uniform(_PAUSE_JITTER, 1)  # noqa: S311 - it spreads load
            await asyncio.sleep(pause_s)

    async def _open(self) -> ReadySession:
        opening = self._opening = asyncio.ensure_future(self._open_ready())
        try:
            await asyncio.wait({opening})
        except asyncio.CancelledError:
            if self._opening is opening:  # not given away
                await discard(opening)
            raise
        finally:
            self._opening = None
        ready = opening.result()
        self._was_warned = False
        if self.listens is not None:
            try:
                await ready.session.listen(*self.listens)
            except BaseException:
                await ready.session.close()
                raise
        return ready

    async def _until_its_end(self, ready: ReadySession) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note_end(error: ConnectionError) -> None:
            self._note_end(ready, error)
            if not ended.done():
                ended.set_result(None)

        self._ready = ready
        ready.session.watch(note_end)
        while not ended.done():
            await self._send_ping(ready)
            await asyncio.wait({ended}, timeout=self._lease.renew_every_s)
        self._ready = None

    async def _send_ping(self, ready: ReadySession) -> None:
        ping = self._ping = asyncio.ensure_future(
            ready.session.fetch(_sql.REHEARSAL, bound_s=self._lease.answer_bound_s)
        )
        try:
            await asyncio.wait({ping})
            ping.exception()  # retrieved: the session has reported its end
        finally:
            ping.cancel()
            self._ping = None

    def _warn(self, error: PgLeaderLockError) -> None:
        if not self._was_warned:
            self._was_warned = True
            self._logger.warning(
                "warm_session_missing",
                error=error,
                advice="the next failover takes longer by one connection; nothing else depends on this session",
            )


async def end_call(task: "asyncio.Future[Any]") -> None:
    """Cancel a task that is not done, wait for it, and retrieve what it raised, or asyncio would log it."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def discard(opening: "asyncio.Future[ReadySession]") -> None:
    """Cancel the opening of a session; one that was opened in the same moment is closed."""
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().session.close()
