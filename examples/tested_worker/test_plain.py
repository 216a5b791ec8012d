"""Without a plugin for asyncio: plain functions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from outbox_worker import BlockingWorker, Worker

from pgleaderlock import Election, EventKind, sync
from pgleaderlock.integrations.pytest_plugin import LoseLeadership
from pgleaderlock.testing.embedded import Server


def test_the_worker_stops_at_a_loss_and_goes_on_in_the_next_term(
    leader_lock: Election, lose_leadership: LoseLeadership, virtual_time: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    worker = Worker(leader_lock)

    async def scenario() -> None:
        async with leader_lock:
            await leader_lock.wait_for_leadership()
            first = leader_lock.token
            await asyncio.sleep(60)
            assert len(worker.sent) >= 60
            event = await lose_leadership()
            assert event.kind is EventKind.LOST
            assert worker.lost == ["held_by_another"]
            sent = len(worker.sent)
            await asyncio.sleep(10)
            assert len(worker.sent) == sent
            await leader_lock.wait_for_leadership()  # the other candidate's lease has ended: no second of yours has
            assert (leader_lock.token or 0) > (first or 0)
            await asyncio.sleep(60)
            assert len(worker.sent) > sent

    virtual_time(scenario())


def test_a_blocking_worker_sends_nothing_after_a_loss(
    blocking_leader_lock: sync.Election, lose_leadership: LoseLeadership
) -> None:
    worker = BlockingWorker(blocking_leader_lock)
    with blocking_leader_lock:
        assert blocking_leader_lock.wait_for_leadership(timeout_s=60)
        assert worker.send("one")
        lose_leadership(blocking_leader_lock)
        assert worker.lost == ["held_by_another"]
        assert not worker.send("two")
    assert worker.sent == ["one"]


def test_a_loss_on_a_real_server(embedded_postgres: Server, lose_leadership: LoseLeadership) -> None:
    with sync.LeaderLock(embedded_postgres.dsn, role="worker") as lock:
        assert lock.wait_for_leadership(timeout_s=60)
        event = lose_leadership(lock)
        assert (event.kind, event.cause) == (EventKind.LOST, "session_terminated")
