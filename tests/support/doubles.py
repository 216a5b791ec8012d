"""Doubles for the pure engine, and for the contract of ``connect_fn``. PostgreSQL itself is never faked."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pgleaderlock import Event, EventKind, FixedInterval, LeaderLock, LockState, PgLeaderLockError
from pgleaderlock.engine.election import Election
from pgleaderlock.models import Grant, Holder
from pgleaderlock.stores.base import Backend


class Hang:
    """An answer that never comes. What was asked says in ``backend.cut_short`` when it was cancelled."""


HANG = Hang()
Answer = object


class ScriptedBackend(Backend):
    """Answers each verb from its script, then from its default; notes everything it was asked."""

    def __init__(self, **scripts: list[Any]) -> None:
        self.scripts = {verb: list(answers) for verb, answers in scripts.items()}
        self.defaults: dict[str, Any] = {"open": None, "try_acquire": Grant(), "renew": Grant(), "release": None}
        self.calls: list[tuple[float, str]] = []
        self.cut_short: list[str] = []
        self.is_open = False
        self.holds = False
        self.loss: asyncio.Future[PgLeaderLockError] | None = None

    @property
    def labels(self) -> Mapping[str, object]:
        return {"key1": 1, "key2": 2}

    @property
    def verbs(self) -> list[str]:
        return [verb for _, verb in self.calls]

    def times(self, verb: str) -> list[float]:
        return [at for at, called in self.calls if called == verb]

    async def _answer(self, verb: str) -> Any:
        self.calls.append((asyncio.get_running_loop().time(), verb))
        script = self.scripts.get(verb)
        answer = script.pop(0) if script else self.defaults[verb]
        if isinstance(answer, Hang):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cut_short.append(verb)
                self.holds = self.is_open = False
                raise
        if callable(answer):
            answer = await answer()
        if isinstance(answer, BaseException):
            self.holds = self.is_open = False
            raise answer
        return answer

    async def open(self) -> None:
        if not self.is_open:
            await self._answer("open")
            self.is_open = True

    async def try_acquire(self) -> Grant | None:
        grant: Grant | None = await self._answer("try_acquire")
        self.holds = grant is not None
        return grant

    async def renew(self, grant: Grant) -> Grant:
        renewed: Grant = await self._answer("renew")
        return renewed

    async def release(self, grant: Grant) -> None:
        await self._answer("release")
        self.holds = False

    async def holder(self) -> Holder | None:
        return None

    async def close(self) -> None:
        self.calls.append((asyncio.get_running_loop().time(), "close"))
        self.is_open = self.holds = False

    async def lost(self) -> PgLeaderLockError:
        self.loss = asyncio.get_running_loop().create_future()
        return await self.loss


CALLBACKS = (
    "on_acquired",
    "on_released",
    "on_lost",
    "on_acquire_failed",
    "on_stopped",
    "on_error",
    "on_overrun",
)


class Witness:
    """Records everything that an election reports, as events and as the names of the callbacks that were called."""

    def __init__(self, election: Election) -> None:
        self.events: list[Event] = []
        self.renewals: list[Event] = []
        self.errors: list[Exception] = []
        election.subscribe(self._hear)
        election.on_error(self.errors.append)
        self.words: list[str] = []
        """The callbacks that were called, but for changes of state; and ``recovered``, which has none."""
        for name in CALLBACKS:
            getattr(election, name)(lambda *_, name=name: self.words.append(name))

    def _hear(self, event: Event) -> None:
        (self.renewals if event.kind is EventKind.RENEWED else self.events).append(event)
        if event.kind is EventKind.RECOVERED:
            self.words.append(event.kind.value)

    @property
    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    @property
    def path(self) -> list[LockState]:
        changes = [event for event in self.events if event.kind is EventKind.STATE_CHANGE]
        return [changes[0].from_state, *(event.to_state for event in changes)] if changes else []

    def causes(self, kind: EventKind) -> list[str]:
        return [event.cause for event in self.events if event.kind is kind]


def make_election(backend: ScriptedBackend | None = None, **settings: Any) -> tuple[Election, ScriptedBackend, Witness]:
    """Return an election on a double, on the loop's own clock, and what listens to it."""
    backend = backend or ScriptedBackend()
    settings.setdefault("retry_strategy", FixedInterval(2.0))
    settings.setdefault("clock", asyncio.get_running_loop().time)
    election = Election(backend, **settings)
    return election, backend, Witness(election)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Let the loop run until the condition holds. Virtual seconds on a virtual loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)


async def until_state(election: Election, state: LockState, timeout_s: float = 60.0) -> None:
    await until(lambda: election.state is state, timeout_s)


class DoubleCursor:
    def __init__(self, row: Any) -> None:
        self._row = row

    async def fetchone(self) -> Any:
        return self._row


class DoubleConnection:
    """What ``connect_fn`` may return in place of psycopg's: ``execute`` and ``close``, and nothing else."""

    def __init__(self, *answers: Any, default: Any = (True,)) -> None:
        self._answers = list(answers)
        self._default = default
        self.statements: list[tuple[Any, ...]] = []
        self.closed_times = 0

    async def execute(self, *arguments: Any) -> DoubleCursor:
        self.statements.append(arguments)
        answer = self._answers.pop(0) if self._answers else self._default
        if isinstance(answer, Hang):
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, BaseException):
            raise answer
        return DoubleCursor(answer)

    async def close(self) -> None:
        self.closed_times += 1


def connect_to(*connections: Any) -> Callable[[], Any]:
    """Return a factory that hands out these, in order; an exception among them is raised."""
    remaining = list(connections)

    async def connect() -> Any:
        connection = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(connection, BaseException):
            raise connection
        return connection

    return connect


def make_lock(*connections: Any, **settings: Any) -> tuple[LeaderLock, Witness]:
    """Return a LeaderLock over doubles, and what listens to it."""
    settings.setdefault("retry_strategy", FixedInterval(2.0))
    lock = LeaderLock("unused", 1234, 5678, connect_fn=connect_to(*connections), **settings)
    return lock, Witness(lock)
