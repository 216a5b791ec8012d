"""What seldom happens, or happens in a child whose lines coverage does not count: each once, where it can be seen."""

import asyncio
import os
from pathlib import Path

import pytest

from pgleaderlock import ConnectionError, LockKey, LockState
from pgleaderlock._base.files import descriptor as descriptors
from pgleaderlock.engine import hard_fence
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._listener import Listener
from pgleaderlock.stores import place
from tests.conftest import Postgres
from tests.support.doubles import make_election, until
from tests.support.lease import query


def listener(dsn: str) -> Listener:
    return Listener(Connector(LockKey.pair(1, 2), dsn=dsn, connect_fn=None), "rare", "me")


async def test_listener_without_a_server_receives_nothing_and_logs_that_once(caplog: pytest.LogCaptureFixture):
    deaf = listener("postgresql://u@127.0.0.1:1/d")
    for _ in range(3):
        assert not await deaf.listen()
    await deaf.wait(10)
    await deaf.close()
    assert sum("Connection refused" in record.getMessage() for record in caplog.records) == 1


async def test_listener_receives_its_own_notifications_and_no_others(postgres: Postgres):
    ours = listener(postgres.dsn)
    assert await ours.listen()
    hearing = asyncio.create_task(ours.wait(20))
    await query(postgres.dsn, "SELECT pg_notify('rare', 'another')")
    assert not (await asyncio.wait({hearing}, timeout=0.3))[0]
    await query(postgres.dsn, "SELECT pg_notify('rare', 'me')")
    await asyncio.wait_for(hearing, 5)
    await ours.close()


def test_forked_child_closes_the_file_locks(tmp_path: Path):
    """What runs in a child, run here."""
    descriptor = descriptors.Descriptor(lambda: os.open(tmp_path / "x", os.O_CREAT | os.O_RDWR))
    descriptors._after_fork_in_child()
    assert not descriptor.is_open


def test_a_system_that_does_not_tell_its_boot_is_certain_of_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(place, "_BOOT_ID", tmp_path / "missing")
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    place.boot_id.cache_clear()
    try:
        assert place.boot_id() is None
    finally:
        place.boot_id.cache_clear()


def test_a_folder_that_may_not_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    with pytest.raises(ConnectionError, match="cannot be read and written"):
        place.check_folder(tmp_path / "lock")


@pytest.mark.virtual_time
async def test_a_fenced_election_whose_task_is_cancelled_before_its_first_step_leaves_no_watchdog():
    election, _, _ = make_election(hard_fence=True)
    await election.start()
    assert election._running is not None
    election._running.task.cancel()
    await until(lambda: election.state is LockState.STOPPED)
    assert hard_fence._deadlines == {}
