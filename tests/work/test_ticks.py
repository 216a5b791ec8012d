"""Scheduled work on a real PostgreSQL: who claims what, what becomes of it, and what the ledger says afterwards."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import psycopg
import pytest

from pgleaderlock import ConnectionError, LeaderLock, LeadershipLost, LockError, LockKey, Tick
from pgleaderlock._logging import get_logger
from pgleaderlock.engine.term import Term
from pgleaderlock.models import Grant
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._schema import make_tables
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.retry import ExponentialBackoff
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.schedule._connection import LedgerConnection
from pgleaderlock.work.schedule._ledger import Answer, JobStanding, Ledger, Run
from pgleaderlock.work.schedule._runner import JobRunner, _token_of
from pgleaderlock.work.schedule._sql import statements
from pgleaderlock.work.schedule.policy import JobPolicy, Plan
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import query
from tests.support.postgres import terminate_holder
from tests.support.registry import eventually
from tests.support.terms import make_termed

ROWS = """
SELECT slot, attempt, state, token, detail, skipped_from FROM pgleaderlock.ticks
 WHERE lock = %s AND job = %s ORDER BY slot, attempt
"""


async def rows(dsn: str, key: LockKey, job: str = "job") -> list[tuple[Any, ...]]:
    return await query(dsn, ROWS, str(key), job)


async def states(dsn: str, key: LockKey, job: str = "job") -> list[str]:
    return [row[2] for row in await rows(dsn, key, job)]


async def rows_begun(dsn: str, key: LockKey, job: str = "job") -> list[tuple[Any, ...]]:
    """Return the rows without those of skipped slots: a busy machine skips some before the first."""
    return [row for row in await rows(dsn, key, job) if row[2] != "skipped"]


async def states_begun(dsn: str, key: LockKey, job: str = "job") -> list[str]:
    return [row[2] for row in await rows_begun(dsn, key, job)]


async def eventually_states(dsn: str, key: LockKey, expected: list[str], job: str = "job") -> None:
    async def are_so() -> bool:
        return (await states_begun(dsn, key, job))[: len(expected)] == expected

    await eventually(are_so)


class Ticks:
    """A function that remembers what it was called with."""

    __qualname__ = "job"

    def __init__(self) -> None:
        self.seen: list[Tick] = []

    async def __call__(self, tick: Tick) -> None:
        self.seen.append(tick)

    async def until(self, number: int) -> None:
        await until(lambda: len(self.seen) >= number, timeout_s=15)


@contextlib.asynccontextmanager
async def leading(dsn: str, key: LockKey, **settings: Any) -> AsyncIterator[LeaderLock]:
    """A lock that is started when the block has registered its jobs and waits for leadership."""
    lock, _ = make_termed(dsn, key, **settings)
    try:
        yield lock
    finally:
        await lock.shutdown()


async def lead(lock: LeaderLock) -> int:
    await lock.start()
    assert await lock.wait_for_leadership(15)
    assert lock.token is not None
    return lock.token


# --- Running ----------------------------------------------------------------------------------------------------------


async def test_slots_are_run_in_order_and_each_is_written_down(postgres: Postgres, key: LockKey):
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("100ms", ticks, name="job")
        token = await lead(lock)
        await ticks.until(4)
        await lock.shutdown()
    slots = [tick.slot for tick in ticks.seen]
    assert slots == sorted(set(slots))
    assert all(slot.microsecond % 100_000 == 0 and slot.tzinfo is UTC for slot in slots)
    found = await rows(postgres.dsn, key)
    assert [row[0] for row in found if row[2] != "skipped"] == slots
    assert {(row[1], row[2], row[3]) for row in found if row[2] != "skipped"} == {(1, "done", token)}
    first = ticks.seen[0]
    assert (first.job, first.attempt, first.token) == ("job", 1, token)
    assert 0 <= first.late_s < 5
    assert "attempt=1" in repr(first)
    assert first.is_ending
    assert first.time_left_s >= 0
    with pytest.raises(LeadershipLost):
        first.check()


async def test_the_decorators_and_a_zone(postgres: Postgres, key: LockKey):
    seen: list[Tick] = []
    plain: list[str] = []
    async with leading(postgres.dsn, key) as lock:

        @lock.cron("* * * * * *", tz="Asia/Kolkata", name="cron")
        async def by_cron(tick: Tick) -> None:
            seen.append(tick)

        @lock.every("50ms", name="plain")
        def in_a_thread() -> None:
            plain.append(threading.current_thread().name)

        await lead(lock)
        await until(lambda: bool(seen) and len(plain) > 1, timeout_s=10)
    assert seen[0].scheduled_at == seen[0].slot
    assert seen[0].scheduled_at.utcoffset() == timedelta(hours=5.5)
    assert plain[0] == "pgleaderlock job plain"
    assert "done" in await states(postgres.dsn, key, "plain")


async def test_a_new_job_begins_with_the_next_slot_after_its_first_sight(postgres: Postgres, key: LockKey):
    async with leading(postgres.dsn, key) as lock:
        lock.every("24h", Ticks(), name="job")
        await lead(lock)
        found = await eventually(lambda: query(postgres.dsn, JOB, str(key)))
    ((through, since),) = found
    assert through == since
    assert await rows(postgres.dsn, key) == []


JOB = "SELECT through, since FROM pgleaderlock.tick_jobs WHERE lock = %s AND job = 'job'"


async def test_exception_of_a_function_is_recorded_and_reported_and_not_repeated(postgres: Postgres, key: LockKey):
    heard: list[Exception] = []
    calls: list[datetime] = []
    async with leading(postgres.dsn, key) as lock:
        lock.on_error(heard.append)

        @lock.every("100ms", name="job", if_killed="repeat")
        async def fail(tick: Tick) -> None:
            calls.append(tick.slot)
            if len(calls) == 2:
                raise asyncio.CancelledError
            raise ValueError("no \0 luck " + "x" * 1000)

        await lead(lock)
        await until(lambda: len(calls) >= 3, timeout_s=10)
    found = await rows_begun(postgres.dsn, key)
    assert {(row[1], row[2]) for row in found} == {(1, "failed")}
    assert found[0][4].startswith("ValueError: no  luck xxx")
    assert len(found[0][4]) == 500
    assert "not by its election" in found[1][4]
    assert len(set(calls)) == len(calls)
    assert isinstance(heard[0], ValueError)


async def test_an_error_that_cannot_be_printed_is_recorded_by_its_kind(postgres: Postgres, key: LockKey):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job")
        def fail() -> None:
            raise MuteError

        await lead(lock)
        await eventually_states(postgres.dsn, key, ["failed"])
    assert (await rows_begun(postgres.dsn, key))[0][4] == "MuteError"


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_of_a_rare_kind_is_a_failure_like_any_other(
    postgres: Postgres, key: LockKey, is_async: bool
):
    class Rare(BaseException):
        pass

    def fail_in_a_thread() -> None:
        raise (Rare if is_async else SystemExit)(3)

    async def fail() -> None:
        fail_in_a_thread()

    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", fail if is_async else fail_in_a_thread, name="job", if_missed="all")
        await lead(lock)
        await eventually_states(postgres.dsn, key, ["failed", "failed"])
    assert ("Rare" if is_async else "SystemExit") in (await rows_begun(postgres.dsn, key))[0][4]


async def test_a_thread_that_cannot_be_had_is_not_waited_for_in_the_next_term(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    ran = threading.Event()
    async with leading(postgres.dsn, key) as lock:
        lock.every("1s", ran.set, name="job")
        with monkeypatch.context() as scarce:
            scarce.setattr(threading, "Thread", Mock(side_effect=RuntimeError("can't start new thread")))
            await lead(lock)
            await eventually_states(postgres.dsn, key, ["failed"])
            await lock.shutdown()
        await lead(lock)
        await until(ran.is_set, timeout_s=10)


async def test_one_run_at_a_time_and_what_a_long_one_makes_late_is_skipped_but_for_the_newest(
    postgres: Postgres, key: LockKey
):
    running, most = 0, 0
    begun: list[Tick] = []
    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job")
        async def slow(tick: Tick) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            begun.append(tick)
            try:
                await asyncio.sleep(0.22)
            finally:  # a term may end meanwhile
                running -= 1

        await lead(lock)
        await until(lambda: len(begun) >= 3, timeout_s=10)
        await lock.shutdown()  # which lets the last one finish
    assert most == 1
    found = await rows(postgres.dsn, key)
    slots = [row[0] for row in found]
    assert slots == [slots[0] + number * timedelta(milliseconds=50) for number in range(len(slots))]
    assert [row[0] for row in found if row[2] == "done"] == [tick.slot for tick in begun]
    assert sum(row[2] == "skipped" for row in found) >= 6


async def test_all_missed_slots_are_run_in_order_if_that_is_wanted(postgres: Postgres, key: LockKey):
    begun: list[datetime] = []
    # A lease that no busy machine outlasts: a term that ends between the claim of a slot and its run leaves it killed.
    async with leading(postgres.dsn, key, lease_s=30.0, health_interval_s=5.0) as lock:

        @lock.every("50ms", name="job", if_missed="all")
        async def first_is_slow(tick: Tick) -> None:
            begun.append(tick.slot)
            await asyncio.sleep(0.3 if len(begun) == 1 else 0)

        await lead(lock)
        await until(lambda: len(begun) >= 7, timeout_s=10)
    assert begun == [begun[0] + number * timedelta(milliseconds=50) for number in range(len(begun))]
    assert "skipped" not in await states(postgres.dsn, key)


# --- The end of a term ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("if_killed", "first"), [("leave", "killed"), ("repeat", "repeated")])
async def test_a_run_that_lost_its_leadership_is_found_by_the_successor(
    postgres: Postgres, key: LockKey, if_killed: Any, first: str, caplog: pytest.LogCaptureFixture
):
    begun: list[Tick] = []
    cancelled = asyncio.Event()
    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job", if_killed=if_killed)
        async def stuck(tick: Tick) -> None:
            begun.append(tick)
            if len(begun) == 1:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

        token = await lead(lock)
        await until(lambda: len(begun) == 1, timeout_s=10)
        await terminate_holder(postgres.dsn, key)
        await asyncio.wait_for(cancelled.wait(), 10)
        await until(lambda: len(begun) >= 3, timeout_s=10)
        assert (lock.token or 0) > token
    ran = await rows_begun(postgres.dsn, key)
    assert ran[0][:4] == (begun[0].slot, 1, first, token)
    assert [row[:2] for row in ran] == [(tick.slot, tick.attempt) for tick in begun]
    assert begun[1].attempt == (1 if if_killed == "leave" else 2)
    assert "tick_killed" in caplog.text


async def test_slot_that_kills_every_process_is_not_repeated_for_ever(postgres: Postgres, key: LockKey):
    policy = JobPolicy(if_killed="repeat", max_attempts=3)
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        assert (await book.claim(1, slot)).is_ours
        for token, attempt in ((2, 2), (3, 3)):
            assert (await book.take_over(token, policy)).runs == (Run(slot, attempt, token),)
        assert (await book.take_over(4, policy)).runs == ()
    assert await states(postgres.dsn, key) == ["repeated", "repeated", "killed"]


async def test_a_hand_over_lets_the_run_finish_and_claims_nothing_more(postgres: Postgres, key: LockKey):
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job")
        async def work(tick: Tick) -> None:
            begun.set()
            await tick.wait_until_ending()
            await go_on.wait()

        await lead(lock)
        await begun.wait()
        stopping = asyncio.create_task(lock.shutdown())
        await asyncio.sleep(0.2)
        assert lock.is_leader
        go_on.set()
        await stopping
    assert await states_begun(postgres.dsn, key) == ["done"]


async def test_a_run_that_stops_half_way_for_a_hand_over_counts_as_killed(postgres: Postgres, key: LockKey):
    seen = Ticks()
    begun = threading.Event()

    def half_way(tick: Tick) -> None:
        begun.set()
        tick.wait()
        tick.check()

    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", half_way, name="job")
        await lead(lock)
        await until(begun.is_set, timeout_s=10)
    assert await states_begun(postgres.dsn, key) == ["running"]
    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", seen, name="job", if_killed="repeat")
        await lead(lock)
        await seen.until(2)
    assert (await states_begun(postgres.dsn, key))[:2] == ["repeated", "done"]
    assert seen.seen[0].attempt == 2
    assert seen.seen[1].slot > seen.seen[0].slot


@pytest.mark.slow
async def test_a_thread_that_does_not_end_with_its_term_is_waited_for(
    postgres: Postgres, key: LockKey, caplog: pytest.LogCaptureFixture
):
    """Also by the runner itself: a leader task that is cancelled twice does not wait."""
    go_on = threading.Event()
    running, most, calls = 0, 0, 0

    def deaf(tick: Tick) -> None:
        nonlocal running, most, calls
        calls += 1
        running += 1
        most = max(most, running)
        go_on.wait(10)
        running -= 1
        if calls == 1:
            raise ValueError("too late for any caller")

    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", deaf, name="job")
        await lead(lock)
        await until(lambda: calls == 1, timeout_s=10)
        for _ in range(2):
            await terminate_holder(postgres.dsn, key)
            await until(lambda: not lock.is_leader, timeout_s=10)
            assert await lock.wait_for_leadership(10)
        await asyncio.sleep(0.2)
        assert (calls, most) == (1, 1)
        go_on.set()
        await until(lambda: calls >= 3, timeout_s=10)
    assert most == 1
    assert "work_still_running" in caplog.text
    assert (await states_begun(postgres.dsn, key))[0] == "killed"


def _job_of(lock: LeaderLock) -> Any:
    return lock._leader_tasks._tasks[0].work.__self__._job  # type: ignore[attr-defined]


# --- The ledger alone -------------------------------------------------------------------------------------------------


class Book:
    """A ledger without an election: terms are what a test says they are."""

    def __init__(self, dsn: str, key: LockKey, schema: str = "pgleaderlock") -> None:
        self.dsn, self.key = dsn, key
        connection = LedgerConnection(Connector("the tick ledger", dsn=dsn), schema)
        self.ledger = Ledger(connection, key, Lease(1.5, term_table=True, schema=schema), get_logger())

    async def set_term(self, token: int, *, released_at: datetime | None = None) -> None:
        statement = (
            "INSERT INTO pgleaderlock.terms VALUES (%s, NULL, %s, 1.5, 1, 'test', 1, now(), %s) "
            "ON CONFLICT (lock) DO UPDATE SET token = excluded.token, released_at = excluded.released_at"
        )
        await query(self.dsn, statement, str(self.key), token, released_at)

    async def take_over(self, token: int, policy: JobPolicy | None = None) -> JobStanding:
        await self.ledger.now()  # makes the tables, on a server that has none
        await self.set_term(token)
        return await self.ledger.take_over("job", "every 1h", token, policy or JobPolicy())

    async def begin(self, token: int) -> datetime:
        """Take over, and return a slot that is due."""
        place = await self.take_over(token)
        statement = "UPDATE pgleaderlock.tick_jobs SET through = through - interval '1 hour' WHERE lock = %s"
        await query(self.dsn, statement, str(self.key))
        return place.through - timedelta(minutes=30)

    async def claim(self, token: int, slot: datetime, *skipped: datetime) -> Answer:
        return await self.ledger.record("job", token, Plan(slot, skipped, None, slot))


@contextlib.asynccontextmanager
async def opened(dsn: str, key: LockKey, **settings: Any) -> AsyncIterator[Book]:
    book = Book(dsn, key, **settings)
    async with book.ledger.in_use():
        yield book


async def test_a_slot_is_claimed_once_and_the_same_claim_is_answered_alike(postgres: Postgres, key: LockKey):
    """A runner that did not get the answer asks again. Once the run is over, there is nothing to claim any more."""
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        assert (await book.claim(1, slot)).is_ours
        assert (await book.claim(1, slot)).is_ours
        await book.ledger.finish("job", Run(slot, 1, 1), "done")
        with pytest.raises(LeadershipLost):
            await book.claim(1, slot)
        write_off = Plan(None, (slot + timedelta(minutes=1),), None, slot + timedelta(minutes=1))
        for _ in range(2):
            assert (await book.ledger.record("job", 1, write_off)).is_recorded
    assert await states(postgres.dsn, key) == ["done", "skipped"]


async def test_a_slot_that_has_not_come_by_the_database_s_clock_is_not_claimed(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        await book.begin(1)
        answer = await book.claim(1, await book.ledger.now() + timedelta(minutes=1))
        assert (answer.is_recorded, answer.is_ours) == (False, False)
        assert abs(answer.now - await book.ledger.now()) < timedelta(seconds=10)
    assert await rows(postgres.dsn, key) == []


@pytest.mark.parametrize("how", ["taken over", "a newer term", "released"])
async def test_a_term_that_is_over_claims_nothing(postgres: Postgres, key: LockKey, how: str):
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        if how == "taken over":
            await book.take_over(2)
            await book.set_term(1)  # were it only for the term row, the claim would pass
        elif how == "a newer term":
            await book.set_term(2)
        else:
            await book.set_term(1, released_at=datetime.now(UTC))
        with pytest.raises(LeadershipLost, match="claim nothing of job 'job'"):
            await book.claim(1, slot)
        if how != "taken over":
            with pytest.raises(LeadershipLost):
                await book.ledger.take_over("job", "every 1h", 1, JobPolicy())
    assert await rows(postgres.dsn, key) == []


async def test_a_term_that_is_older_than_the_ledger_s_newest_takes_nothing_over(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        await book.take_over(2)
        with pytest.raises(LeadershipLost):
            await book.take_over(1)


async def test_claims_and_take_overs_come_one_after_the_other(postgres: Postgres, key: LockKey):
    """A stale claim that waited for a take-over finds that it is stale, with whatever it saw before it waited."""
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as successor:
            await successor.execute("UPDATE pgleaderlock.tick_jobs SET token = 2 WHERE lock = %s", (str(key),))
            claiming = asyncio.create_task(book.claim(1, slot))
            await asyncio.sleep(0.1)
            assert not claiming.done()
            await successor.commit()
            with pytest.raises(LeadershipLost):
                await claiming


async def test_what_was_claimed_while_a_take_over_waited_is_found_by_it(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book, await psycopg.AsyncConnection.connect(postgres.dsn) as stale:
        slot = await book.begin(1)
        plan = {"through": slot, "run": slot, "skipped": [], "skipped_from": None}
        await stale.execute(book.ledger._sql["record"].encode(), {**book.ledger._of_job("job", 1), **plan})
        taking = asyncio.create_task(book.take_over(2))
        await asyncio.sleep(0.2)
        assert not taking.done()
        await stale.commit()
        assert (await taking).killed == ((Run(slot, 1, 1), False),)


async def test_a_job_whose_row_is_gone_is_refused_until_it_is_taken_over_again(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        await query(postgres.dsn, "DELETE FROM pgleaderlock.tick_jobs WHERE lock = %s", str(key))
        with pytest.raises(LeadershipLost):
            await book.claim(1, slot)


async def test_how_a_run_ended_is_not_written_over_what_a_successor_found(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        slot = await book.begin(1)
        await book.claim(1, slot)
        await book.take_over(2)
        assert (await book.ledger.finish("job", Run(slot, 1, 1), "done"))[0] == "killed"


async def test_what_is_older_than_it_is_kept_is_deleted_by_a_range_of_the_key(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pgleaderlock.work.schedule._ledger.PRUNED_AT_ONCE", 10)
    async with opened(postgres.dsn, key) as book:
        await book.take_over(1)
        await query(
            postgres.dsn,
            "INSERT INTO pgleaderlock.ticks SELECT %s, 'job', now() - make_interval(days => n), 1, "
            "CASE WHEN n = 40 THEN 'running' ELSE 'done' END, 1, 'x', now() FROM generate_series(1, 45) AS n",
            str(key),
        )
        assert [await book.ledger.prune("job", 1, 30) for _ in range(3)] == [True, True, False]
    found = await rows(postgres.dsn, key)
    assert len(found) == 30
    assert found[0][2] == "running"
    text = statements("pgleaderlock")["prune"]
    parameters = {"lock": str(key), "job": "job", "keep_days": 30, "at_once": 10}
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await connection.execute("SET enable_seqscan = off")
        cursor = await connection.execute(f"EXPLAIN {text}".encode(), parameters)
        shown = "\n".join(line for (line,) in await cursor.fetchall())
    assert any("Index Cond" in line and "slot <" in line for line in shown.splitlines())


# --- Effect and mark in one transaction -------------------------------------------------------------------------------


async def claimed_tick(book: Book, job: str = "job") -> tuple[Tick, Run]:
    slot = await book.begin(1)
    await book.claim(1, slot)
    run = Run(slot, 1, 1)
    term: Any = None
    statement = book.ledger.done_sql("job", run)
    return Tick(term, job="job", slot=slot, zone=UTC, token=1, attempt=1, late_s=0, done_sql=statement), run


async def test_a_slot_is_done_with_its_transaction_and_not_before(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        tick, run = await claimed_tick(book)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
            await tick.done_in(connection)
            assert await states(postgres.dsn, key) == ["running"]
            await connection.rollback()
            assert await states(postgres.dsn, key) == ["running"]
            await tick.done_in(connection)
            await connection.commit()
        assert await states(postgres.dsn, key) == ["done"]
        assert (await book.ledger.finish("job", run, "failed", "after the fact"))[0] == "done"
        assert (await book.take_over(2)).killed == ()


@pytest.mark.parametrize("isolation", [None, psycopg.IsolationLevel.REPEATABLE_READ])
async def test_a_run_that_has_lost_its_slot_cannot_commit(postgres: Postgres, key: LockKey, isolation: Any):
    async with opened(postgres.dsn, key) as book:
        tick, _ = await claimed_tick(book)
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await connection.set_isolation_level(isolation)
        async with connection:
            await connection.execute("SELECT 1")
            await book.take_over(2)
            with pytest.raises(LeadershipLost, match="no longer claimed by this run") as caught:
                await tick.done_in(connection)
            assert caught.value.cause.value == "fenced"
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            await connection.rollback()
        with psycopg.connect(postgres.dsn) as blocking:
            with pytest.raises(LeadershipLost):
                tick.done_in(blocking)
            blocking.rollback()
    assert await states(postgres.dsn, key) == ["killed"]


async def test_a_successor_waits_for_a_transaction_that_has_marked_its_slot(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        tick, _ = await claimed_tick(book)
        with psycopg.connect(postgres.dsn) as blocking:
            tick.done_in(blocking)
            with pytest.raises(ConnectionError, match="lock timeout"):  # and is asked again, by the leader
                await book.take_over(2)
            taking = asyncio.create_task(book.take_over(2))
            await asyncio.sleep(0.1)
            blocking.commit()
            assert (await taking).killed == ()
    assert await states(postgres.dsn, key) == ["done"]


async def test_a_transaction_that_is_left_open_is_ended_by_the_server(postgres: Postgres, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        tick, _ = await claimed_tick(book)
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await connection.execute(tick.done_sql().encode())
        await asyncio.sleep(2.0)
        with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
            await connection.execute("SELECT 1")
        await connection.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_mark_that_was_not_awaited_makes_the_run_a_failure(postgres: Postgres, key: LockKey):
    ran = asyncio.Event()

    async def forgetful(tick: Tick) -> None:
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection, connection.transaction():
            tick.done_in(connection)
        ran.set()

    async with leading(postgres.dsn, key) as lock:
        lock.every("200ms", forgetful, name="job")
        await lead(lock)
        await asyncio.wait_for(ran.wait(), 15)

        async def failed() -> bool:
            return "failed" in await states(postgres.dsn, key)

        await eventually(failed)
    gc.collect()  # what was not awaited says so now, and not in another test


async def test_done_in_says_what_is_missing(postgres: Postgres, own_server: Server, key: LockKey):
    async with opened(postgres.dsn, key) as book:
        tick, _ = await claimed_tick(book)
        with pytest.raises(TypeError, match=r"done_in\(\) takes a psycopg connection, not str"):
            tick.done_in("postgresql://")  # type: ignore[call-overload]
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
            with pytest.raises(LockError, match=r"done_in\(\) outside a transaction"):
                await tick.done_in(connection)
        async with await psycopg.AsyncConnection.connect(own_server.dsn) as elsewhere:
            with pytest.raises(LockError, match=r"tick ledger of slot .* is not in the database"):
                await tick.done_in(elsewhere)


@pytest.mark.parametrize("name", ['it\'s "quoted"', "$done$; DROP TABLE x", "ünïcode 名", "%(lock)s %s {now}"])
async def test_the_name_of_a_job_is_data(postgres: Postgres, key: LockKey, name: str):
    done = asyncio.Event()
    async with leading(postgres.dsn, key) as lock, await psycopg.AsyncConnection.connect(postgres.dsn) as connection:

        @lock.every("50ms", name=name)
        async def work(tick: Tick) -> None:
            if not done.is_set():
                await tick.done_in(connection)
                await connection.commit()
                done.set()
                raise ValueError("after the effect: the slot is done all the same")

        await lead(lock)
        await asyncio.wait_for(done.wait(), 10)
    assert "done" in await states(postgres.dsn, key, name)  # those before it may have been too late, and skipped


# --- Trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_leader_keeps_the_lock_when_the_ledger_cannot_be_written(
    postgres: Postgres, key: LockKey, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", ticks, name="job", if_missed="all")
        token = await lead(lock)
        await ticks.until(1)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as sitter:
            await sitter.execute("SELECT FROM pgleaderlock.tick_jobs WHERE lock = %s FOR UPDATE", (str(key),))
            await until(lambda: "ticks_down" in caplog.text, timeout_s=10)
            await asyncio.sleep(1.5)
            before = len(ticks.seen)
            await sitter.rollback()
        await ticks.until(before + 30)
        assert lock.token == token
    assert caplog.text.count("ticks_down") == 1
    assert caplog.text.count("ticks_up") == 1
    assert set(await states(postgres.dsn, key)) == {"done"}
    slots = [tick.slot for tick in ticks.seen]
    assert slots == [slots[0] + number * timedelta(milliseconds=50) for number in range(len(slots))]


async def test_how_a_run_ended_is_written_when_the_ledger_is_back(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    calls = 0
    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job")
        async def work() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                monkeypatch.setattr(Ledger, "finish", broken_once(Ledger.finish))

        await lead(lock)
        await until(lambda: calls >= 2, timeout_s=10)
    assert (await states_begun(postgres.dsn, key))[0] == "done"


def broken_once(method: Any) -> Any:
    calls = 0

    async def call(self: Ledger, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("the cable is out")
        return await method(self, *arguments)

    return call


async def test_a_claim_whose_answer_was_lost_is_run_once(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """It is in the ledger, and only the leader does not know."""
    record = Ledger.record
    lost: list[Plan] = []

    async def lose_first(self: Ledger, job: str, token: int, plan: Plan) -> Answer:
        answer = await record(self, job, token, plan)
        if not lost and answer.is_ours:
            lost.append(plan)
            raise ConnectionError("the answer got lost")
        return answer

    monkeypatch.setattr(Ledger, "record", lose_first)
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("500ms", ticks, name="job", if_missed="all")
        await lead(lock)
        await ticks.until(2)
    assert ticks.seen[0].slot == lost[0].run
    assert (await states(postgres.dsn, key))[:2] == ["done", "done"]


async def test_a_run_is_not_begun_again_in_its_term_because_of_a_bug_of_ours(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """The work is restarted then, finds the slot running in its own term, and leaves it to the next one."""
    finish = Ledger.finish
    failures = 0

    async def fail_once(self: Ledger, *arguments: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise RuntimeError("a bug")
        return await finish(self, *arguments)

    monkeypatch.setattr(Ledger, "finish", fail_once)
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("200ms", ticks, name="job")
        await lead(lock)
        await ticks.until(2)
    slots = [tick.slot for tick in ticks.seen]
    assert len(set(slots)) == len(slots)
    assert (await states(postgres.dsn, key)).count("running") == 1


async def test_a_process_that_stood_still_after_its_claim_does_not_begin(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """By its own clock, at once: no notification of the end of its term has reached it."""
    jumped_s = 0.0
    record = Ledger.record

    async def stand_still(self: Ledger, *arguments: Any) -> Answer:
        nonlocal jumped_s
        answer = await record(self, *arguments)
        if answer.is_ours and not jumped_s:
            jumped_s = 10.0
        return answer

    monkeypatch.setattr(Ledger, "record", stand_still)
    ticks = Ticks()
    async with leading(postgres.dsn, key, clock=lambda: time.monotonic() + jumped_s) as lock:
        lock.every("100ms", ticks, name="job")
        token = await lead(lock)
        await ticks.until(1)
    assert all(tick.token > token for tick in ticks.seen)
    assert (await rows_begun(postgres.dsn, key))[0][2:4] == ("killed", token)


async def test_run_that_ends_after_a_successor_has_found_it_is_logged(
    postgres: Postgres, key: LockKey, caplog: pytest.LogCaptureFixture
):
    async with leading(postgres.dsn, key) as lock:

        @lock.every("50ms", name="job")
        async def work() -> None:
            await query(postgres.dsn, "UPDATE pgleaderlock.ticks SET state = 'killed' WHERE lock = %s", str(key))

        await lead(lock)
        await until(lambda: "tick_superseded" in caplog.text, timeout_s=10)
    assert "recorded=killed" in caplog.text


async def test_a_leader_that_the_ledger_refuses_takes_the_job_over_again(
    postgres: Postgres, key: LockKey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """As after an operator has deleted the row of the job, or restored it."""
    monkeypatch.setattr("pgleaderlock.work.schedule._runner._PAUSES", ExponentialBackoff(base_s=0.05, max_s=0.1))
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("50ms", ticks, name="job")
        await lead(lock)
        await ticks.until(1)
        await query(postgres.dsn, "DELETE FROM pgleaderlock.tick_jobs WHERE lock = %s", str(key))
        await until(lambda: "ticks_refused" in caplog.text, timeout_s=10)
        before = len(ticks.seen)
        await ticks.until(before + 2)
    slots = [tick.slot for tick in ticks.seen]
    assert len(set(slots)) == len(slots)


async def test_the_clock_of_the_process_only_says_how_long_to_sleep(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """One that thinks it is later than it is asks too early, and gets an error."""
    reckon = JobRunner._now
    monkeypatch.setattr(JobRunner, "_now", lambda self: reckon(self) + timedelta(milliseconds=30))
    ticks = Ticks()
    async with leading(postgres.dsn, key) as lock:
        lock.every("100ms", ticks, name="job")
        await lead(lock)
        await ticks.until(3)
    statement = "SELECT bool_and(claimed_at >= slot) FROM pgleaderlock.ticks WHERE lock = %s"
    assert await query(postgres.dsn, statement, str(key)) == [(True,)]


async def test_a_long_sleep_is_cut_into_pieces_and_what_is_old_is_deleted(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    asked = 0
    ask = Ledger.now

    async def count(self: Ledger) -> datetime:
        nonlocal asked
        asked += 1
        return await ask(self)

    monkeypatch.setattr(Ledger, "now", count)
    monkeypatch.setattr("pgleaderlock.work.schedule._runner._LONGEST_SLEEP_S", 0.05)
    async with opened(postgres.dsn, key) as book:
        await book.take_over(1)
        await query(
            postgres.dsn,
            "INSERT INTO pgleaderlock.ticks VALUES (%s, 'job', now() - interval '3 days', 1, 'done', 1, 'x', now())",
            str(key),
        )
    async with leading(postgres.dsn, key) as lock:
        lock.every("24h", Ticks(), name="job", keep_days=2)
        await lead(lock)
        await until(lambda: asked >= 4, timeout_s=10)
    assert await rows(postgres.dsn, key) == []


async def test_user_who_may_not_create_the_tables_gets_an_error_that_names_who_must(
    own_server: Server, key: LockKey, caplog: Any
):
    for statement in ("CREATE ROLE app LOGIN", "CREATE SCHEMA pgleaderlock"):
        await query(own_server.dsn, statement)
    await query(own_server.dsn, "GRANT USAGE ON SCHEMA pgleaderlock TO app")
    dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app")
    async with opened(dsn, key) as book:
        with pytest.raises(ConnectionError, match="schema apply --schema pgleaderlock --grant-to app"):
            await book.ledger.now()
        await make_tables(own_server.dsn, "pgleaderlock", "app")
        assert (await book.take_over(1)).killed == ()
    assert not book.ledger.is_down


async def test_a_database_that_does_not_answer_is_given_up_in_time(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    async with opened(postgres.dsn, key) as book:
        await book.ledger.now()
        monkeypatch.setattr("pgleaderlock.postgres._tables._CALL_S", 0.2)
        book.ledger._sql["time"] = "SELECT now() FROM pg_sleep(5)"
        with pytest.raises(ConnectionError, match=r"no answer within 0\.2 s"):
            await book.ledger.now()
        await book.ledger._connection.close()
        with pytest.raises(ConnectionError, match="no connection"):
            await book.ledger._connection.fetch("SELECT 1", {})


async def test_a_factory_s_connections_serve_the_ledger_too_if_they_are_psycopg_s(postgres: Postgres, key: LockKey):
    ticks = Ticks()
    async with leading("", key, connect_fn=lambda: psycopg.AsyncConnection.connect(postgres.dsn)) as lock:
        lock.every("50ms", ticks, name="job")
        await lead(lock)
        await ticks.until(2)
    ledger = LedgerConnection(Connector(key, dsn=None, connect_fn=AsyncMock()), "pgleaderlock")
    with pytest.raises(ConnectionError, match="psycopg connection from connect_fn"):
        await ledger.open()


# --- Registration -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_scheduled_is_refused_at_once():
    lock = LeaderLock("postgresql://app@db/app", 1, 2, term_table=True)
    lock.every("5m", Ticks(), name="job")
    refusals: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "there is a job 'job' already", lambda: lock.every("5m", Ticks(), name="job")),
        (ValueError, "give the job a name", lambda: lock.every("5m", lambda: None)),
        (ValueError, "printable", lambda: lock.every("5m", Ticks(), name="a\nb")),
        (ValueError, "printable", lambda: lock.every("5m", Ticks(), name="a" * 201)),
        (TypeError, "name must be a str", lambda: lock.every("5m", Ticks(), name=5)),  # type: ignore[call-overload]
        (TypeError, "must be callable", lambda: lock.every("5m", 5)),  # type: ignore[call-overload]
        (TypeError, "with a tick, nor without", lambda: lock.every("5m", lambda a, b: None, name="two")),
        (TypeError, "unknown option if_lost", lambda: lock.every("5m", if_lost="x")),  # type: ignore[call-overload]
        (ValueError, "grace must be", lambda: lock.every("5m", grace="soon")),
        (ValueError, "if_killed must be", lambda: lock.every("5m", if_killed="x")),  # type: ignore[call-overload]
        (ValueError, "the interval must be", lambda: lock.every("soon")),
        (ValueError, "not a cron expression", lambda: lock.cron("soon")),
    ]
    for kind, text, call in refusals:
        with pytest.raises(kind, match=text):
            call()
    with pytest.raises(LockError, match="term_table=True"):
        LeaderLock("postgresql://app@db/app", 1, 2).every("5m", Ticks(), name="job")


def test_a_function_is_known_by_its_name():
    lock = LeaderLock("postgresql://app@db/app", 1, 2, term_table=True)
    assert lock.every("5m", grace="1m 30s")(_job_of) is _job_of
    assert _job_of(lock).name == "_job_of"
    assert _job_of(lock).policy.grace_s == 90


async def test_a_term_without_a_token_is_refused():
    with pytest.raises(LockError, match="token"):
        _token_of(Term(Grant(), lambda: None, time.monotonic, "x"))
