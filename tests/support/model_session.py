"""Sessions with scripted answers, for tests of the decisions on the session port alone."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pgleaderlock import ConnectionError, LockKey
from pgleaderlock.models import Grant, LossCause
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import ServerFacts

KEY = LockKey.pair(1, 2)
LEASE_S = 15.0


class ModelSession:
    """Answers what a willing server would, unless scripted otherwise; notes what it was asked, and when."""

    def __init__(self, version: int = 180000, pid: int = 100, **answers: Any) -> None:
        self._facts = ServerFacts(version, pid)
        self.closed = False
        self.delay_s = 0.0
        self.on_end: Any = None
        self.announced: Any = None
        self.notification = asyncio.Event()
        self.statements: list[str] = []
        self.asked: list[tuple[float, str]] = []
        self.answers: dict[str, Any] = {
            "setup": ("", pid, False, "12.5", 1.0, 10_000.0, "first run"),
            "attempt": (["lock", ""],),
            "token": (7, ""),
            "take": ([0], ""),
            "slice": ("lock",),
            "listen": None,
            "unlock": ([0], None, ""),
            "former": None,
            "holder": None,
            "stuck": ([],),
            "ping": (1,),
            **answers,
        }

    @property
    def facts(self) -> ServerFacts:
        return self._facts

    @property
    def has_ended(self) -> bool:
        return self.closed

    @property
    def descriptor(self) -> int | None:
        return None  # there is no socket behind a model

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        words = {"pg_is_in_recovery": "setup", "DO $slice$": "slice", "THEN ARRAY['lock'": "attempt"}
        words |= {"pg_try_advisory_lock": "take", "SyncRep": "stuck"}
        words |= {
            "DO $claim$": "claim",
            "pg_current_xact_id()": "token",
            "t.released_at": "read",
            "relname = 'terms'": "table",
        }
        words |= {"pg_advisory_unlock": "unlock", "pg_terminate_backend": "former", "pg_locks": "holder"}
        words |= {"SELECT 1": "ping"}
        kind = next(kind for word, kind in words.items() if word in statement)
        self.asked.append((asyncio.get_running_loop().time(), kind))
        self.statements.append(statement)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.end(ConnectionError("cut short", cause=LossCause.ABORTED))
            raise
        answer = self.answers[kind]
        if isinstance(answer, list) and answer and not isinstance(answer[0], str):
            answer = answer.pop(0)
        if isinstance(answer, ConnectionError):
            self.end(answer)
            raise answer
        return answer  # type: ignore[no-any-return]

    def on_announcement(self, call: Any) -> None:
        self.announced = call

    async def listen(self, channel: str, heard: Any = None) -> None:
        self.asked.append((asyncio.get_running_loop().time(), "listen"))

    async def notified(self) -> None:
        await self.notification.wait()
        self.notification.clear()

    def watch(self, on_end: Any) -> None:
        self.on_end = on_end

    def end(self, error: ConnectionError) -> None:
        if self.on_end is not None:
            self.on_end(error)
        self.closed = True

    async def close(self) -> None:
        self.on_end = None
        self.closed = True

    def kinds(self) -> list[str]:
        return [kind for _, kind in self.asked]


def make(*sessions: Any, **settings: Any) -> LeasedLockBackend:
    """A backend that gets these sessions, in order; an exception among them is raised instead."""
    waiting = list(sessions)

    async def open_session() -> ModelSession:
        # Our own error, which a warm session survives: a task that fails with another one is reported when it is
        # collected, in the middle of any later test.
        session = waiting.pop(0) if waiting else ConnectionError("the model has no further session")
        if isinstance(session, Exception):
            raise session
        if session is None:
            await asyncio.get_running_loop().create_future()
        assert isinstance(session, ModelSession)
        return session

    clock = asyncio.get_running_loop().time
    return LeasedLockBackend(KEY, open_session, Lease(LEASE_S, **settings), clock, "the model")


async def lead(backend: LeasedLockBackend) -> Grant:
    await backend.open()
    grant = await backend.try_acquire()
    assert grant is not None
    return grant
