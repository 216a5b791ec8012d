"""``once()`` on a real PostgreSQL: one process per slot, and what the others find out."""

import asyncio
import collections
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from psycopg import conninfo

from pgleaderlock import ConnectionError, LeaderLock, LockError, LockKey
from pgleaderlock import sync as blocking
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.schedule._connection import LedgerConnection
from pgleaderlock.work.schedule.cron import Cron
from pgleaderlock.work.schedule.once import Once, SlotClaim, _OnceConnection
from pgleaderlock.work.schedule.timetable import Every, slot_meant
from tests.conftest import Postgres
from tests.support.lease import query
from tests.support.pooler import pgbouncer
from tests.support.processes import Process
from tests.support.registry import eventually
from tests.support.sync import until
from tests.support.terms import make_termed

SLOT = datetime(2026, 3, 4, 5, tzinfo=UTC)
CHILD = """
import os, sys, time
from datetime import datetime
from pgleaderlock import LockKey, sync
lock = sync.LeaderLock(sys.argv[1], key=LockKey.parse(sys.argv[2]))
with lock.once("job", datetime.fromisoformat(sys.argv[3])) as mine:
    print("mine" if mine else "not mine", flush=True)
    time.sleep(600)
"""
FORKED = """
import os, sys
from datetime import datetime
from pgleaderlock import LockKey, sync
lock, slot = sync.LeaderLock(sys.argv[1], key=LockKey.parse(sys.argv[2])), datetime.fromisoformat(sys.argv[3])
with lock.once("job", slot):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        with lock.once("job", slot) as other:
            print("after the child:", other.state)
if not child:
    os._exit(0)
"""


def make_lock(postgres: Postgres, key: LockKey) -> LeaderLock:
    return LeaderLock(postgres.dsn, key=key)


async def test_one_caller_runs_the_slot_and_the_others_see_who_did(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    async with lock.once("job", SLOT) as mine:
        assert mine
        assert (mine.state, mine.attempt, mine.slot, mine.job) == ("running", 1, SLOT, "job")
        same_time = SLOT.astimezone(timezone(timedelta(hours=3)))
        async with lock.once("job", same_time) as other:
            assert not other
            assert other.state == "running"
            assert other.holder == mine.holder
            assert str(os.getpid()) in other.holder
    async with lock.once("job", SLOT) as late:
        assert not late
        assert late.state == "done"
        assert late.ended_at is not None
    async with lock.once("job", SLOT + timedelta(hours=1)) as following, lock.once("another", SLOT) as another:
        assert following
        assert another


@pytest.mark.parametrize("kind", [_OnceConnection, LedgerConnection])
async def test_a_claim_is_flushed_whatever_the_user_s_default(postgres: Postgres, kind: type[LedgerConnection]):
    """A crash of the server would forget one that is not, and the slot would be run twice."""
    dsn = conninfo.make_conninfo(postgres.tcp_dsn, options="-c synchronous_commit=off")
    connection = kind(Connector("the ledger", dsn=dsn), "pgleaderlock")
    await connection.open()
    assert await connection.fetch("SELECT current_setting('synchronous_commit')") == [("local",)]
    await connection.close()


async def test_a_session_that_a_pooler_shares_is_refused(own_server: Server, key: LockKey):
    """Its end would show nothing, and limits that are set on it would be those of other clients."""
    with pgbouncer(own_server, "transaction") as shared:
        for allow, why in ((False, "a connection pooler stands before"), (True, "is not fit for it")):
            lock = LeaderLock(shared, key=key, allow_pooler=allow)
            with pytest.raises(ConnectionError, match=rf"{why}.*once\(\)|once\(\).*{why}"):
                async with lock.once("job", SLOT):
                    pass
    with pgbouncer(own_server, "session") as own:
        async with LeaderLock(own, key=key, allow_pooler=True).once("job", SLOT) as mine:
            assert mine


async def test_an_error_is_recorded_and_not_repeated(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    with pytest.raises(KeyError):
        async with lock.once("job", SLOT, if_killed="repeat"):
            raise KeyError("no such\0invoice")
    async with lock.once("job", SLOT, if_killed="repeat") as found:
        assert not found
        assert found.state == "failed"
        assert found.detail == "KeyError: 'no such\\x00invoice'"


async def test_a_block_that_is_cancelled_was_cut_off_and_may_be_repeated(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    entered = asyncio.Event()

    async def run() -> None:
        async with lock.once("job", SLOT):
            entered.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(run())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with lock.once("job", SLOT) as left:
        assert not left
        assert left.state == "killed"
    async with lock.once("job", SLOT, if_killed="repeat", max_attempts=1) as limited:
        assert not limited
    async with lock.once("job", SLOT, if_killed="repeat") as again:
        assert again
        assert again.attempt == 2
    async with lock.once("job", SLOT, if_killed="repeat") as done:
        assert not done
        assert done.state == "done"


@pytest.mark.parametrize("if_killed", ["leave", "repeat"])
async def test_the_slot_of_a_killed_process_is_left_or_repeated(postgres: Postgres, key: LockKey, if_killed):
    lock = make_lock(postgres, key)
    with Process(sys.executable, "-u", "-c", CHILD, postgres.dsn, str(key), SLOT.isoformat()) as child:
        await asyncio.to_thread(child.wait_for, "mine")
        async with lock.once("job", SLOT, if_killed=if_killed) as running:
            assert not running
            assert running.state == "running"
            assert str(child.pid) in running.holder
        child.signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait)

    async def is_settled() -> bool:  # when the server has seen the end of the session
        async with lock.once("job", SLOT, if_killed=if_killed) as found:
            return bool(found) or found.state == "killed"

    await eventually(is_settled)
    rows = await query(postgres.dsn, "SELECT state FROM pgleaderlock.ticks WHERE lock = %s ORDER BY attempt", str(key))
    assert [row[0] for row in rows] == (["killed"] if if_killed == "leave" else ["repeated", "done"])


async def test_a_run_whose_session_was_ended_is_recorded_on_another(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    once = lock.once("job", SLOT)
    async with once as mine:
        assert mine
        session = once._connection._connection
        assert session is not None
        pid = session.info.backend_pid
        await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", pid)
        async with lock.once("job", SLOT) as found:
            assert not found
    async with lock.once("job", SLOT) as late:
        assert late.state == "done"


def test_of_many_threads_each_slot_is_run_by_one(postgres: Postgres, key: LockKey):
    slots = [SLOT + timedelta(minutes=number) for number in range(10)]
    ran: list[datetime] = []

    def run(_: int) -> None:
        lock = blocking.LeaderLock(postgres.dsn, key=key)
        for slot in slots:
            with lock.once("job", slot) as mine:
                if mine:
                    ran.append(slot)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert collections.Counter(ran) == collections.Counter(slots)


async def test_slots_that_were_pruned_are_refused(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    now = datetime.now(UTC)
    old, new = now - timedelta(days=3), now
    async with lock.once("job", old) as mine:
        assert mine
    ages = "UPDATE pgleaderlock.ticks SET claimed_at = slot WHERE lock = %s RETURNING 1"
    await query(postgres.dsn, ages, str(key))
    async with lock.once("job", old) as found:
        assert found.state == "done"
    async with lock.once("job", new, keep_days=1) as mine:
        assert mine
    with pytest.raises(LockError, match="does not remember"):
        async with lock.once("job", old):
            pass
    async with lock.once("job", new) as found:
        assert found.state == "done"


async def test_a_name_of_a_scheduled_job_is_refused(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    ran = asyncio.Event()

    async def job() -> None:
        ran.set()

    lock.every("50ms", job, name="job")
    async with lock:
        await ran.wait()
    with pytest.raises(LockError, match="Choose another name"):
        async with lock.once("job", SLOT):
            pass


def test_wrong_arguments_are_refused_at_once(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    with pytest.raises(ValueError, match="no time zone"):
        lock.once("job", datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(TypeError, match="datetime"):
        lock.once("job", "today")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="printable"):
        lock.once("", SLOT)
    with pytest.raises(TypeError, match="str"):
        lock.once(1, SLOT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="if_killed"):
        lock.once("job", SLOT, if_killed="again")  # type: ignore[arg-type]


async def test_without_a_database_nothing_is_run(key: LockKey):
    lock = LeaderLock("postgresql://127.0.0.1:1/none", key=key)
    with pytest.raises(ConnectionError):
        async with lock.once("job", SLOT):
            raise AssertionError


def test_without_a_database_nothing_is_run_by_a_thread_and_the_background_thread_ends(key: LockKey):
    lock = blocking.LeaderLock("postgresql://127.0.0.1:1/none", key=key)
    with pytest.raises(ConnectionError), lock.once("job", SLOT):
        raise AssertionError
    until(lambda: "pgleaderlock loop" not in [thread.name for thread in threading.enumerate()])


def test_a_child_that_was_forked_in_the_block_records_nothing(postgres: Postgres, key: LockKey):
    with Process(sys.executable, "-u", "-c", FORKED, postgres.dsn, str(key), SLOT.isoformat()) as parent:
        assert parent.wait_for("after the child") == "after the child: running"
        assert parent.wait() == 0
    with blocking.LeaderLock(postgres.dsn, key=key).once("job", SLOT) as late:
        assert late.state == "done"


@pytest.mark.parametrize(
    ("now", "meant"),
    [
        ("03:00:00", "04T03:00"),
        ("02:59:35", "04T03:00"),  # a clock that is 25 s ahead
        ("02:59:25", "03T03:00"),
        ("03:20:00", "04T03:00"),
        ("23:00:00", "04T03:00"),
    ],
)
def test_the_slot_that_is_meant_is_the_last_one_or_one_that_comes_in_seconds(now: str, meant: str):
    at = datetime.fromisoformat(f"2026-03-04T{now}+00:00")
    assert slot_meant(Cron("0 3 * * *"), at).isoformat().startswith(f"2026-03-{meant}")


def test_of_short_intervals_only_a_quarter_is_early():
    at = datetime.fromisoformat("2026-03-04T03:00:00+00:00")
    assert slot_meant(Every("1m"), at - timedelta(seconds=14)) == at
    assert slot_meant(Every("1m"), at - timedelta(seconds=16)) == at - timedelta(minutes=1)
    assert slot_meant(Cron("0 0 29 2 *"), at).year == 2024


def test_an_interrupt_just_after_the_claim_leaves_no_slot_that_seems_to_run(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    enter = Once.__aenter__

    async def enter_and_interrupt(self: Once) -> SlotClaim:
        claim = await enter(self)
        os.kill(os.getpid(), signal.SIGINT)
        return claim

    with blocking.LeaderLock(postgres.dsn, role="another", settle_s=0):  # keeps the thread of the blocking API
        lock = blocking.LeaderLock(postgres.dsn, key=key)
        with monkeypatch.context() as patch:
            patch.setattr(Once, "__aenter__", enter_and_interrupt)
            with pytest.raises(KeyboardInterrupt), lock.once("job", SLOT):
                pytest.fail("the block was entered")
        with lock.once("job", SLOT) as found:
            assert not found
            assert found.state == "killed"
