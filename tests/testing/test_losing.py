"""What code sees when a test ends a leadership is what it sees of a real loss."""

import asyncio
import threading
from itertools import count
from typing import Any

import psycopg
import pytest

from pgleaderlock import Election, EventKind, LeaderLock, LeadershipLost, LockError, sync
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores.memory import MemoryStore
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing import LoopClock, lose_leadership
from tests.conftest import Postgres
from tests.support.doubles import ScriptedBackend, until

_numbers = count(1)


def in_memory(**settings: Any) -> Election:
    clock = LoopClock()
    backend = RecordBackend(MemoryStore(f"test_losing {next(_numbers)}"), clock=clock)
    return Election(backend, clock=clock, **settings)


class Record:
    """Everything that code can notice, in order."""

    def __init__(self, lock: Election) -> None:
        self.lock = lock
        self.notes: list[tuple[Any, ...]] = []
        lock.on_lost(lambda: self.note("on_lost"))
        lock.on_error(lambda _: self.note("on_error"))
        lock.on_state_change(lambda before, after: self.note("on_state_change", before, after))
        lock.while_leader(self.work)
        lock.subscribe(lambda event: self.note(event.kind, event.from_state, event.to_state))

    def note(self, *what: Any) -> None:
        self.notes.append(
            (*what, self.lock.is_leader, self.lock.state, self.lock.token is None, self.lock.term is None)
        )

    async def work(self) -> None:
        self.note("work begins")
        try:
            await asyncio.Event().wait()
        finally:
            self.note("work ends")

    def of_the_loss(self) -> list[tuple[Any, ...]]:
        began = next(n for n, each in enumerate(self.notes) if each[0] == "work begins")
        kinds = [each[0] for each in self.notes]
        return [n for n in self.notes[began : kinds.index(EventKind.LOST) + 1] if n[0] is not EventKind.RENEWED]


async def loss_by_hand(lock: LeaderLock, dsn: str) -> None:
    """End the lock session as an administrator does, with nothing of the function under test."""
    columns = "classid::text::bigint, objid::text::bigint"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        rows = await connection.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND ({columns}) = (%s, %s)",
            (lock.key.numbers[0], lock.key.numbers[1]),
        )
        assert await rows.fetchall() == [(True,)]


async def record_loss(lock: Election, lose: Any) -> list[tuple[Any, ...]]:
    record = Record(lock)
    async with lock:
        await lock.wait_for_leadership()
        await until(lambda: "work begins" in [note[0] for note in record.notes])
        await lose(lock)
        await until(lambda: EventKind.LOST in [note[0] for note in record.notes])
        return record.of_the_loss()


@pytest.mark.parametrize("settings", [{}, {"auto_reacquire": False}], ids=["candidate again", "stops"])
async def test_code_sees_the_same_in_memory_and_on_a_server_as_when_an_administrator_ends_the_session(
    postgres: Postgres, key: LockKey, settings: dict[str, Any]
):
    def on_server() -> LeaderLock:
        return LeaderLock(postgres.dsn, key=key, **settings)

    real = await record_loss(on_server(), lambda lock: loss_by_hand(lock, postgres.dsn))
    assert [each[0] for each in real][-1] is EventKind.LOST
    assert await record_loss(on_server(), lose_leadership) == real
    assert await record_loss(in_memory(**settings), lose_leadership) == real


@pytest.mark.virtual_time
async def test_it_returns_the_loss_after_every_callback_has_returned():
    lock, told = in_memory(), []

    @lock.on_lost
    async def slow() -> None:
        await asyncio.sleep(30)
        told.append(lock.is_leader)

    async with lock:
        await lock.wait_for_leadership()
        event = await lose_leadership(lock)
        assert (event.kind, event.cause, told) == (EventKind.LOST, "held_by_another", [False])


@pytest.mark.virtual_time
async def test_the_other_candidate_leads_for_one_lease_and_the_next_token_is_greater_than_its_own():
    lock = in_memory()
    async with lock:
        await lock.wait_for_leadership()
        first, began = lock.token, asyncio.get_running_loop().time()
        await lose_leadership(lock)
        await lock.wait_for_leadership()
        assert lock.lease_s is not None
        assert asyncio.get_running_loop().time() - began >= lock.lease_s
        assert first is not None
        assert lock.token == first + 2


async def test_a_grace_period_recovers_as_in_production(postgres: Postgres, key: LockKey):
    async with LeaderLock(postgres.dsn, key=key, reconnect_grace_s=60) as lock:
        await lock.wait_for_leadership()
        event = await lose_leadership(lock)
        assert event.kind is EventKind.RECOVERED
        assert lock.is_leader


async def test_a_lock_that_does_not_lead_is_refused():
    lock = in_memory()
    with pytest.raises(LockError, match="does not lead"):
        await lose_leadership(lock)


async def test_a_lock_on_another_store_is_refused_and_leads_on():
    async with Election(ScriptedBackend()) as lock:
        await lock.wait_for_leadership()
        with pytest.raises(TypeError, match="ScriptedBackend"):
            await lose_leadership(lock)
        assert lock.is_leader


@pytest.mark.virtual_time
async def test_a_callback_that_would_wait_for_itself_is_refused():
    lock = in_memory()
    errors: list[Exception] = []
    lock.on_error(errors.append)

    @lock.on_acquired
    async def lose() -> None:
        await lose_leadership(lock)

    async with lock:
        await lock.wait_for_leadership()
        assert "would wait for itself" in str(errors)
        assert lock.is_leader


@pytest.mark.virtual_time
async def test_a_leading_block_and_a_task_that_it_created_are_refused_but_a_task_from_before_is_not():
    lock = in_memory()

    async def lose_after(seconds: float) -> EventKind:
        await asyncio.sleep(seconds)
        return (await lose_leadership(lock)).kind

    before = asyncio.create_task(lose_after(10))
    with pytest.raises(LeadershipLost):
        async with lock.leading():
            with pytest.raises(LockError, match=r"leading\(\) blocks.*create the task before the block"):
                await lose_leadership(lock)
            with pytest.raises(LockError, match="a task that one of them created"):
                await asyncio.create_task(lose_after(1))
            assert lock.is_leader
            await asyncio.sleep(60)
    assert await before is EventKind.LOST


def test_a_blocking_leading_block_is_refused_but_another_thread_is_not():
    lock = sync.Election(RecordBackend(MemoryStore(f"test_losing {next(_numbers)}")))
    with pytest.raises(LeadershipLost), lock.leading(timeout_s=60) as term:
        with pytest.raises(LockError, match="would wait for itself"):
            lose_leadership(lock)
        other = threading.Thread(target=lose_leadership, args=(lock,))
        other.start()
        assert term.wait(60)
    other.join()


def test_a_blocking_callback_that_would_wait_for_itself_is_refused():
    lock = sync.Election(RecordBackend(MemoryStore(f"test_losing {next(_numbers)}")))
    errors: list[Exception] = []
    lock.on_error(errors.append)
    lock.on_acquired(lambda: lose_leadership(lock))
    with lock:
        assert lock.wait_for_leadership(timeout_s=60)
        assert "would wait for itself" in str(errors)


def test_what_is_no_lock_is_refused():
    with pytest.raises(TypeError, match="not str"):
        lose_leadership("billing")  # type: ignore[call-overload]
