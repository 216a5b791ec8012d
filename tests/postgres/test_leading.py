"""``leading()`` on a real PostgreSQL, for coroutines and for threads."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgleaderlock import FixedInterval, LeadershipLost, LockError, LockKey, LockState
from pgleaderlock import sync as blocking
from pgleaderlock._base.causes import LossCause
from pgleaderlock.engine import _unused
from pgleaderlock.engine._leader_task import TaskRun
from pgleaderlock.engine.leading import LeadingBlock
from pgleaderlock.errors import UnusedLeadershipWarning
from tests.conftest import Postgres
from tests.support.postgres import QUICK, holders, make, terminate_holder

PATIENCE_S = 60


def terminate_leader(dsn: str, key: LockKey) -> None:
    """End the lock session of the leader, on the server."""
    asyncio.run(terminate_holder(dsn, key))


def make_blocking(dsn: str, key: LockKey, retry: FixedInterval = QUICK) -> blocking.LeaderLock:
    return blocking.LeaderLock(dsn, key=key, retry_strategy=retry, settle_s=0)


async def test_a_terminated_session_cancels_the_block(postgres: Postgres, key: LockKey):
    lock, _ = make(postgres.dsn, key)
    with pytest.raises(LeadershipLost) as raised:
        async with asyncio.timeout(PATIENCE_S), lock.leading() as term:
            assert term.token is not None
            # In a task of its own: the cancellation must not leave the connection of this test open.
            terminating = asyncio.create_task(terminate_holder(postgres.dsn, key))
            await asyncio.sleep(1e6)
    await terminating
    assert raised.value.cause is LossCause.SESSION_TERMINATED
    assert raised.value.__cause__ is not None
    assert await holders(postgres.dsn, key) == []


async def test_blocks_of_several_candidates_never_overlap(postgres: Postgres, key: LockKey):
    inside: list[int] = []
    tokens: list[int | None] = []

    async def lead() -> None:
        lock, _ = make(postgres.dsn, key)
        for _ in range(3):
            async with lock.leading() as term:
                inside.append(1)
                assert len(inside) == 1
                tokens.append(term.token)
                await asyncio.sleep(0)
                inside.pop()

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(lead() for _ in range(4)))
    assert len(set(tokens)) == 12


# --- Threads --------------------------------------------------------------------------------------------------------


def test_a_block_in_a_thread_leads_and_releases(postgres: Postgres, key: LockKey):
    lock = make_blocking(postgres.dsn, key, FixedInterval(600))  # so it does not try again while the test looks
    for _ in range(2):
        with lock.leading(PATIENCE_S) as term:
            assert lock.is_leader
            assert lock.is_in_leader_task
            assert not term.is_ending
        assert lock.state is LockState.STOPPED
    with lock:
        with lock.leading(PATIENCE_S):
            pass
        assert lock.state is LockState.FOLLOWER


def test_block_in_a_thread_is_notified_when_it_loses_leadership(postgres: Postgres, key: LockKey):
    lock = make_blocking(postgres.dsn, key)
    with pytest.raises(LeadershipLost) as raised, lock.leading(PATIENCE_S) as term:
        terminate_leader(postgres.dsn, key)
        assert term.wait(PATIENCE_S)
    assert raised.value.cause is LossCause.SESSION_TERMINATED
    with pytest.raises(KeyError), lock.leading(PATIENCE_S) as term:
        terminate_leader(postgres.dsn, key)
        assert term.wait(PATIENCE_S)
        with pytest.raises(LeadershipLost):
            term.check()
        raise KeyError


def test_a_block_in_a_thread_does_not_begin_in_a_term_that_ended_on_the_way(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """The event loop's thread checks that this process leads, and the thread of the block may go on much later."""
    enter, tokens = LeadingBlock.enter, list[int | None]()

    async def entering(block: LeadingBlock, timeout_s: float | None) -> TaskRun:
        run = await enter(block, timeout_s)
        tokens.append(run.term.token)
        if len(tokens) == 1:
            await terminate_holder(postgres.dsn, key)
            await run.term.wait_until_ending()
        return run

    monkeypatch.setattr(LeadingBlock, "enter", entering)
    with make_blocking(postgres.dsn, key).leading(PATIENCE_S) as term:
        assert not term.is_over
        assert term.token == tokens[1]


def test_a_block_in_a_thread_that_ends_when_asked_to_hand_over_is_no_loss(postgres: Postgres, key: LockKey):
    lock = make_blocking(postgres.dsn, key)
    with lock.leading(PATIENCE_S) as term:
        lock.step_down()  # only asks, inside the block
        assert term.wait(PATIENCE_S)
        assert not term.is_over


def test_a_block_in_a_thread_waits_no_longer_than_asked(postgres: Postgres, key: LockKey):
    first, second = (make_blocking(postgres.dsn, key) for _ in range(2))
    with first.leading(PATIENCE_S):
        with pytest.raises(TimeoutError), second.leading(0.2):
            pass
        with pytest.raises(LockError, match="would wait for itself"), first.leading():
            pass
        assert second.state is LockState.STOPPED


def test_blocks_of_several_threads_never_overlap(postgres: Postgres, key: LockKey):
    inside = threading.Lock()

    def lead(_: int) -> int | None:
        with make_blocking(postgres.dsn, key).leading(PATIENCE_S) as term:
            assert inside.acquire(blocking=False)
            inside.release()
            return term.token

    with ThreadPoolExecutor(5) as pool:
        tokens = list(pool.map(lead, range(10)))
    assert len(set(tokens)) == 10


def test_a_with_block_that_never_asks_is_warned_about(postgres: Postgres, key: LockKey, monkeypatch):
    monkeypatch.setattr(_unused, "_was_issued", False)
    lock = make_blocking(postgres.dsn, key)
    with pytest.warns(UnusedLeadershipWarning, match=r"with lock.leading\(\) waits"), lock:
        pass
    monkeypatch.setattr(_unused, "_was_issued", False)
    with make_blocking(postgres.dsn, key) as used:
        assert used.is_leader in (True, False)
