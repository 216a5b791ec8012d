"""Elections in a folder that hosts share, here on a local disk. ``make test-nfs`` has real NFS, and two hosts."""

import asyncio
import contextlib
import errno
import io
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError, LeadershipLost, nfs, open_backend
from pgleaderlock._files import place
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.nfs import NfsStore, open_nfs
from pgleaderlock.backends.record import RecordBackend
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.models import Grant
from pgleaderlock.nfs import _inspect
from pgleaderlock.nfs._folder import Folder
from pgleaderlock.testing import BackendContract
from pgleaderlock.testing.contract._tools import token_of
from tests.doubles import until
from tests.test_nfs_lock import Clock


class TestContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(f"nfs://{self.folder}/{name}", **settings)


LEASE_S = 1.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader"


@contextlib.asynccontextmanager
async def contender(path: Path, **settings: Any) -> AsyncIterator[RecordBackend]:
    backend = open_nfs(path, **{"lease_s": LEASE_S, **settings})
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def acquired(backend: RecordBackend) -> Grant:
    grant = await backend.try_acquire()
    assert grant is not None
    return grant


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


async def test_a_term_leaves_a_tidy_folder(path: Path):
    async with contender(path) as backend:
        await backend.release(await acquired(backend))
    assert names(path) == ["epoch.0", "released.0"]


async def test_an_election_and_a_lock_with_the_same_path_see_each_other(path: Path):
    lock = nfs.Lock(path)
    async with contender(path) as backend:
        grant = await acquired(backend)
        with pytest.raises(nfs.TimeOutError):
            lock.lock(timeout=0.05)
        await backend.release(grant)
        with lock:
            assert await backend.try_acquire() is None


async def test_another_process_with_our_name_is_another(path: Path):
    async with contender(path, identity="twin") as first, contender(path, identity="twin") as second:
        grant = await acquired(first)
        assert await second.try_acquire() is None
        holder = await second.holder()
        assert holder is not None
        assert holder.name.startswith("twin (pid ")
        await first.renew(grant)


async def test_a_renewal_that_is_answered_too_late_is_a_loss_and_not_a_retry(path: Path):
    clock = Clock()
    async with contender(path, clock=clock) as backend:
        grant = await acquired(backend)
        clock.now += LEASE_S * 0.95
        with pytest.raises(LeadershipLost, match="answered too late: another may be taking over"):
            await backend.renew(grant)
        assert not [name for name in names(path) if name.startswith("claim")]


async def test_an_event_loop_that_stood_still_after_a_look_does_not_take_over_by_it(path: Path, monkeypatch):
    """What it has seen was true then. Its clock has gone on since, and so has the leader."""
    clock = Clock()
    async with contender(path, clock=clock) as leader, contender(path, clock=clock) as follower:
        grant = await acquired(leader)
        assert await follower.try_acquire() is None
        clock.now += LEASE_S * 0.5
        read, grants = NfsStore.read, [grant]

        async def read_and_stand_still(store: NfsStore) -> Any:
            record = await read(store)
            monkeypatch.undo()
            clock.now += LEASE_S * 0.1
            grants.append(await leader.renew(grant))
            clock.now += LEASE_S * 0.5
            return record

        monkeypatch.setattr(NfsStore, "read", read_and_stand_still)
        assert await follower.try_acquire() is None
        assert clock() < grants[-1].trusted_until
        await leader.renew(grants[-1])


async def test_a_lock_that_was_broken_by_force_is_lost_at_the_next_renewal(path: Path):
    async with contender(path) as backend:
        grant = await acquired(backend)
        assert _inspect.break_lock(path) == 0
        with pytest.raises(LeadershipLost, match="held by nobody in term 1: our term 0 is over"):
            await backend.renew(grant)
        assert token_of(await acquired(backend)) == 2
        assert sum(name.startswith("claim") for name in names(path)) == 1


async def test_a_file_server_that_does_not_answer_keeps_threads_and_not_the_event_loop(path: Path, monkeypatch):
    answers = threading.Event()
    look = Folder.look

    def hang(folder: Folder) -> Any:
        answers.wait()
        return look(folder)

    monkeypatch.setattr(Folder, "look", hang)
    async with contender(path, lease_s=0.15) as backend:
        errors = []
        for _ in range(10):
            with pytest.raises(ConnectionError) as raised:
                await backend.try_acquire()
            errors.append(str(raised.value))
        assert "did not answer within 0.1 s" in errors[0]
        assert "answered none of the last 8 calls" in errors[-1]
        answers.set()
        await until(lambda: threading.active_count() < 8)
        assert await backend.try_acquire() is not None


async def test_an_attempt_that_is_cancelled_in_its_thread_is_undone_there(path: Path, monkeypatch):
    link, begun, goes_on = os.link, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(source: str, target: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        link(source, target)

    monkeypatch.setattr(os, "link", slowly)
    async with contender(path, lease_s=600.0) as first, contender(path, lease_s=600.0) as second:
        attempt = asyncio.create_task(first.try_acquire())
        await begun.wait()
        attempt.cancel()
        await asyncio.wait({attempt})
        goes_on.set()
        await until(lambda: "released.0" in names(path))
        assert token_of(await acquired(second)) == 1


async def test_a_mount_that_shows_heartbeats_late_is_refused(path: Path, tmp_path: Path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 98:0 / {tmp_path} rw,noatime - nfs4 server:/x rw,vers=4.2,nocto,hard\n")
    monkeypatch.setattr(place, "_MOUNTS", mounts)
    with pytest.raises(ConnectionError, match=r"mounted with nocto.*Mount it without"):
        await open_nfs(path).open()


async def test_a_folder_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConnectionError, match="does not exist: create it"):
        await open_nfs(tmp_path / "no" / "leader").open()


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "must be able to create"), (errno.ENOSPC, "Free some space"), (errno.EROFS, "can be written")],
)
async def test_errors_of_the_system_say_what_to_do(path: Path, monkeypatch, number: int, advice: str):
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    async with contender(path) as backend:
        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(ConnectionError, match=advice):
            await backend.try_acquire()
    assert not [name for name in names(path) if name.startswith("claim")]


@pytest.mark.parametrize("url", ["nfs://host/path", "nfs:///", "nfs:///a?b"])
def test_urls_that_make_no_sense_are_refused(url: str):
    with pytest.raises(ValueError, match=r"nfs|folder|%3F"):
        open_backend(url)


# --- The command line -------------------------------------------------------------------------------------------------


def test_status_of_a_lock_that_nobody_had(path: Path, capsys):
    assert invoke(["nfs", "status", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} is free (nobody has had it yet)\n"


def test_status_names_the_holder_and_its_times(path: Path, capsys):
    with nfs.Lock(path, lifetime=60):
        assert invoke(["nfs", "status", str(path)]) == 0
        shown = capsys.readouterr().out
        assert f"is held by pid {os.getpid()} on " in shown
        assert "epoch 0, lifetime 60 s, last sign of life 0." in shown
        assert "expires in " in shown
        assert invoke(["nfs", "status", str(path), "--json"]) == 0
        fields = json.loads(capsys.readouterr().out)
        assert (fields["state"], fields["epoch"], fields["holder"]["pid"]) == ("held", 0, os.getpid())
        assert fields["waiting"] == 0
    assert invoke(["nfs", "status", f"nfs://{path}"]) == 0
    assert capsys.readouterr().out == f"{path} is free (epoch 0 was the last)\n"


def test_status_of_something_that_cannot_be_read(path: Path, capsys):
    path.mkdir()
    (path / "epoch.3").write_bytes(b"")
    os.utime(path / "epoch.3", (1, 1))
    assert invoke(["nfs", "status", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "somebody whose claim cannot be read: epoch 3" in shown
    assert "expired " in shown


def test_break_asks_before_it_breaks(path: Path, capsys, monkeypatch):
    lock = nfs.Lock(path)
    lock.lock()
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert invoke(["nfs", "break", str(path)]) == exit_codes.INTERRUPTED
    assert "beside whoever comes next" in capsys.readouterr().err
    assert lock.is_locked
    assert invoke(["nfs", "break", str(path), "--yes"]) == 0
    assert "is free: epoch 0 was broken" in capsys.readouterr().out
    assert not lock.is_locked
    assert invoke(["nfs", "break", str(path)]) == 0
    assert "is free (epoch 1 was the last)" in capsys.readouterr().out


def test_tidy_removes_what_the_dead_left(path: Path, capsys, monkeypatch):
    with nfs.Lock(path):
        (path / "claim|dead").write_bytes(b"")
        monkeypatch.setattr("pgleaderlock.nfs._folder._YOUNG_S", -1.0)
        assert invoke(["nfs", "tidy", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out == "claim|dead\n"
    assert "1 removed" in shown.err


@pytest.mark.parametrize("words", [["status", ""], ["status", "a/"], ["break", "nfs://host/x"]])
def test_a_path_that_is_none_is_wrong_usage(words: list[str]):
    assert invoke(["nfs", *words]) == exit_codes.USAGE


def test_a_place_that_is_something_else_is_told_without_a_traceback(path: Path, capsys):
    path.write_text("a file")
    assert invoke(["nfs", "status", str(path)]) == exit_codes.UNREACHABLE
    assert "cannot be used as a lock" in capsys.readouterr().err
