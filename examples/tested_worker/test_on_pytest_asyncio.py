"""With pytest-asyncio."""

import asyncio

import pytest
from outbox_worker import Worker

from pgleaderlock import Election, LeaderLock
from pgleaderlock.integrations.pytest_plugin import LoseLeadership
from pgleaderlock.testing.embedded import Server

pytestmark = pytest.mark.asyncio


@pytest.mark.virtual_time
async def test_an_hour_of_work_takes_no_time(leader_lock: Election, lose_leadership: LoseLeadership) -> None:
    worker = Worker(leader_lock)
    async with leader_lock:
        await leader_lock.wait_for_leadership()
        await asyncio.sleep(3600)
        await lose_leadership()
        assert len(worker.sent) >= 3600
        assert worker.lost == ["held_by_another"]


async def test_a_loss_in_real_time(leader_lock: Election, lose_leadership: LoseLeadership) -> None:
    worker = Worker(leader_lock)
    async with leader_lock:
        await leader_lock.wait_for_leadership()
        await lose_leadership()
        assert worker.lost == ["held_by_another"]


async def test_a_loss_on_a_real_server(embedded_postgres: Server, lose_leadership: LoseLeadership) -> None:
    lock = LeaderLock(embedded_postgres.dsn, role="worker")
    worker = Worker(lock)
    async with lock:
        await lock.wait_for_leadership()
        await lose_leadership(lock)
        assert worker.lost == ["session_terminated"]
