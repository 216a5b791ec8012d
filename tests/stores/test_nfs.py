"""Elections in a folder that hosts share, here on a local disk. ``make test-nfs`` has real NFS, and two hosts."""

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError, LeadershipLost, open_backend
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.models import Grant
from pgleaderlock.stores import nfs, place
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.nfs import _acquiring, _inspect
from pgleaderlock.stores.nfs._claim import Claimant, encode
from pgleaderlock.stores.nfs._folder import Folder
from pgleaderlock.stores.nfs._host import hostname
from pgleaderlock.stores.nfs.backend import NfsStore, open_nfs
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing import BackendContract
from pgleaderlock.testing.contract._tools import token_of
from tests.support.doubles import until
from tests.support.nfs_lock import Clock


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
async def candidate(path: Path, **settings: Any) -> AsyncIterator[RecordBackend]:
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
    async with candidate(path) as backend:
        await backend.release(await acquired(backend))
    assert names(path) == ["epoch.0", "released.0"]


async def test_an_election_and_a_lock_with_the_same_path_see_each_other(path: Path):
    lock = nfs.Lock(path)
    async with candidate(path) as backend:
        grant = await acquired(backend)
        with pytest.raises(nfs.TimeOutError):
            lock.lock(timeout=0.05)
        await backend.release(grant)
        with lock:
            assert await backend.try_acquire() is None


async def test_another_process_with_our_name_is_another(path: Path):
    async with candidate(path, identity="twin") as first, candidate(path, identity="twin") as second:
        grant = await acquired(first)
        assert await second.try_acquire() is None
        holder = await second.holder()
        assert holder is not None
        assert holder.name.startswith("twin (pid ")
        await first.renew(grant)


async def test_a_renewal_that_is_answered_too_late_is_a_loss_and_not_a_retry(path: Path):
    clock = Clock()
    async with candidate(path, clock=clock) as backend:
        grant = await acquired(backend)
        clock.now += LEASE_S * 0.95
        with pytest.raises(LeadershipLost, match="answered too late: another candidate may be taking over"):
            await backend.renew(grant)
        assert not [name for name in names(path) if name.startswith("claim")]


async def test_an_event_loop_that_stood_still_after_a_look_does_not_take_over_by_it(path: Path, monkeypatch):
    """What it has seen was true then. Its clock has gone on since, and so has the leader."""
    clock = Clock()
    async with candidate(path, clock=clock) as leader, candidate(path, clock=clock) as follower:
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
    async with candidate(path) as backend:
        grant = await acquired(backend)
        assert _inspect.break_lock(path) == 0
        with pytest.raises(LeadershipLost, match="is free after term 1: our term 0 is over"):
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
    async with candidate(path, lease_s=0.15) as backend:
        errors = []
        for _ in range(10):
            with pytest.raises(ConnectionError) as raised:
                await backend.try_acquire()
            errors.append(str(raised.value))
        assert "did not answer within 0.1 s" in errors[0]
        assert "answered none of the last 8 calls" in errors[-1]
        answers.set()
        await until(lambda: threading.active_count() < 8)
        grant = None
        while grant is None:  # as an election would: a busy machine may be late once more
            with contextlib.suppress(ConnectionError):
                grant = await backend.try_acquire()


async def test_an_attempt_that_is_cancelled_in_its_thread_is_undone_there(path: Path, monkeypatch):
    link, begun, goes_on = os.link, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(source: str, target: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        link(source, target)

    monkeypatch.setattr(os, "link", slowly)
    async with candidate(path, lease_s=600.0) as first, candidate(path, lease_s=600.0) as second:
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


async def test_an_election_on_a_local_disk_is_warned_about_once(path: Path, caplog, monkeypatch):
    """The share may not be mounted: then each host has a leader of its own."""
    for is_local in (False, True):
        monkeypatch.setattr(place, "is_local", lambda _, answer=is_local: answer)
        backend = open_nfs(path)
        for _ in range(2):
            await backend.open()
        await backend.close()
        assert caplog.text.count("nfs_on_local_disk") == int(is_local)


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

    async with candidate(path, lease_s=60.0) as backend:  # a store that a busy machine keeps waiting is not silent
        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(ConnectionError, match=advice):
            await backend.try_acquire()
    assert not [name for name in names(path) if name.startswith("claim")]


@pytest.mark.parametrize("url", ["nfs://host/path", "nfs:///", "nfs:///a?b"])
def test_urls_that_make_no_sense_are_refused(url: str):
    with pytest.raises(ValueError, match=r"nfs|folder|%3F"):
        open_backend(url)


# --- The command line -------------------------------------------------------------------------------------------------


def test_status_of_a_lock_that_was_never_held(path: Path, capsys):
    assert invoke(["nfs", "status", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"there is no lock at {path} yet", f"  on {place.describe(path)}"]
    path.mkdir()
    assert invoke(["nfs", "status", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{path} is free (never held yet)"


def test_status_names_the_holder_and_its_times(path: Path, capsys):
    with nfs.Lock(path, lifetime=60):
        assert invoke(["nfs", "status", str(path)]) == 0
        headline, times, expiry, file_system = capsys.readouterr().out.splitlines()
        assert headline == f"{path} is held by pid {os.getpid()} on {hostname()}"
        assert times.startswith("  epoch 0, lifetime 60 s, last sign of life 0.")
        assert expiry.startswith("  expires in ")
        assert file_system == f"  on {place.describe(path)}"
        assert invoke(["nfs", "status", str(path), "--json"]) == 0
        fields = json.loads(capsys.readouterr().out)
        assert (fields["state"], fields["epoch"], fields["holder"]["pid"]) == ("held", 0, os.getpid())
        assert fields["waiting"] == 0
    assert invoke(["nfs", "status", f"nfs://{path}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{path} is free (epoch 0 was the last)"


def test_status_of_something_that_cannot_be_read(path: Path, capsys):
    path.mkdir()
    (path / "epoch.3").write_bytes(b"")
    os.utime(path / "epoch.3", (1, 1))
    assert invoke(["nfs", "status", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "is held by a process whose claim file cannot be read\n  epoch 3, last sign of life" in shown
    assert "  expired " in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_break_asks_before_it_breaks(path: Path, capsys, monkeypatch):
    lock = nfs.Lock(path)
    lock.lock()
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert invoke(["nfs", "break", str(path)]) == exit_codes.INTERRUPTED
    assert "at the same time as its successor" in capsys.readouterr().err
    assert lock.is_locked
    assert invoke(["nfs", "break", str(path), "--yes"]) == 0
    assert "is free: epoch 0 was broken" in capsys.readouterr().out
    assert not lock.is_locked
    assert invoke(["nfs", "break", str(path)]) == 0
    assert "is free (epoch 1 was the last)" in capsys.readouterr().out


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None])
def test_break_without_a_terminal_on_which_to_ask_is_wrong_usage_and_breaks_nothing(
    path: Path, capsys, monkeypatch, stdin: Any
):
    monkeypatch.setattr("sys.stdin", stdin)
    with nfs.Lock(path) as lock:
        assert invoke(["nfs", "break", str(path)]) == exit_codes.USAGE
        assert "add --yes" in capsys.readouterr().err
        assert lock.is_locked


def test_break_and_tidy_answer_in_json_too(path: Path, capsys, monkeypatch):
    def answer(*words: str) -> Any:
        assert invoke(["nfs", *words, str(path), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    nfs.Lock(path).lock()
    assert answer("break", "--yes") == {"lockfile": str(path), "broken_epoch": 0}
    assert answer("break", "--yes") == {"lockfile": str(path), "broken_epoch": None}
    (path / "claim|lock|dead|1|1").write_bytes(b"")
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
    assert "claim|lock|dead|1|1" in answer("tidy")["removed"]
    assert answer("tidy") == {"lockfile": str(path), "removed": []}


# What is in the JSON of status is promised in docs/reference/command-line.md.
STATUS_DOCS = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def status_of(path: Path, capsys) -> dict[str, Any]:
    capsys.readouterr()
    assert invoke(["nfs", "status", str(path), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_fields_of_status_are_those_that_are_documented(path: Path, capsys):
    section = STATUS_DOCS.read_text(encoding="utf-8").partition("## `nfs status`")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert documented == list(status_of(path, capsys))
    with nfs.Lock(path):
        assert documented == list(status_of(path, capsys))


@pytest.mark.parametrize("is_local", [True, False])
def test_status_counts_as_waiting_who_shows_life_and_the_others_as_left_behind(
    path: Path, capsys, monkeypatch, is_local: bool
):
    monkeypatch.setattr(place, "is_local", lambda _: is_local)
    with nfs.Lock(path):
        waiting = nfs.Lock(path)
        candidate = waiting._ready()[0]
        candidate.lay_claim()
        dead = nfs.Lock(path)
        dead._ready()[0].lay_claim()
        dead._ready()[0].drop()
        if is_local:
            monkeypatch.setattr(_inspect, "_YOUNG_S", -1.0)
        else:
            time.sleep(0.4)
            candidate.stay()
            monkeypatch.setattr(_inspect, "_ALIVE_S", 0.3)
        fields = status_of(path, capsys)
        assert (fields["waiting"], fields["left_behind"]) == (1, 1)
        assert invoke(["nfs", "status", str(path)]) == 0
        when = "" if is_local else " after 10 minutes"
        shown = capsys.readouterr().out
        assert f"\n  1 waiting\n  1 left behind (`nfs tidy` removes them{when})\n" in shown
        assert all(len(line) < 120 for line in shown.replace(str(path), "").splitlines())


def test_status_does_not_get_in_the_way_of_a_claim_that_is_just_being_made(path: Path, monkeypatch):
    """It would be locked for a moment, and its owner told that it cannot lock."""
    path.mkdir()
    (path / "claim|lock|young|1|1").write_bytes(b"")
    monkeypatch.setattr(Folder, "is_claim_alone", lambda *_: pytest.fail("it is young"))
    assert _inspect.inspect(path).waiting == 1


def test_follower_touches_its_claim_often_enough_to_count_as_waiting():
    assert _acquiring._TOUCH_EVERY_S + _acquiring._LONGEST_WAIT_S < _inspect._ALIVE_S


async def test_status_of_an_election_does_not_count_followers_who_lay_no_claim(path: Path, capsys):
    async with candidate(path, lease_s=60.0, identity="node-7") as backend:
        await acquired(backend)
        fields = status_of(path, capsys)
        assert fields["waiting"] is None
        assert fields["holder"]["name"] == "node-7"
        assert invoke(["nfs", "status", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "  as node-7, of an election\n" in shown
        assert "waiting" not in shown


@pytest.mark.parametrize("is_local", [True, False])
def test_status_says_when_the_holder_is_dead(path: Path, capsys, is_local: bool):
    script = (
        "import os, sys; from pgleaderlock.stores import place; from pgleaderlock.stores.nfs import Lock\n"
        f"place.is_local = lambda folder: {is_local}\n"
        "lock = Lock(sys.argv[1], lifetime=600); lock.lock(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    fields = status_of(path, capsys)
    assert (fields["state"], fields["holder_alive"], fields["expired"]) == ("held", False, False)
    assert invoke(["nfs", "status", str(path)]) == 0
    assert "\n  its process is dead\n" in capsys.readouterr().out


def test_status_says_whether_the_holder_lives_and_since_when_its_lock_is_over(path: Path, capsys):
    with nfs.Lock(path, lifetime=0.1):
        fields = status_of(path, capsys)
        assert (fields["holder_alive"], fields["expired"]) == (True, False)
        time.sleep(0.2)
        assert status_of(path, capsys)["expired"] is True
        assert invoke(["nfs", "status", str(path)]) == 0
        assert "\n  expired 0 s ago: " in capsys.readouterr().out
    assert status_of(path, capsys)["expired"] is None


def test_status_says_nothing_of_the_life_of_another_host_s_process(path: Path, capsys):
    with nfs.Lock(path):
        (path / "epoch.0").write_bytes(encode(Claimant("x", "elsewhere", 1, str(path), 15.0)))
        assert status_of(path, capsys)["holder_alive"] is None


@pytest.mark.parametrize(
    ("kind", "shown"), [("nfs4 server:/export", "nfs4 server:/export"), ("ext4 /dev/sda1", "local disk (ext4)")]
)
def test_status_shows_the_file_system(path: Path, capsys, monkeypatch, kind: str, shown: str):
    mounts = path.with_name("mountinfo")
    mounts.write_text(f"36 35 98:0 / {path.parent} rw,noatime - {kind} rw,vers=4.2,hard\n")
    monkeypatch.setattr(place, "_MOUNTS", mounts)
    assert status_of(path, capsys)["file_system"] == shown
    monkeypatch.setattr(place, "_MOUNTS", path.with_name("missing"))
    assert status_of(path, capsys)["file_system"] is None


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["break", "--yes"], ["break"], ["tidy"]])
def test_a_folder_that_is_missing_may_be_a_share_that_is_not_mounted(path: Path, capsys, words: list[str]):
    assert invoke(["nfs", *words, str(path / "x.lock")]) == exit_codes.UNREACHABLE
    assert f"the folder {path} does not exist: is the share mounted?" in capsys.readouterr().err


def test_break_and_tidy_of_a_missing_lock_change_nothing(path: Path, capsys):
    assert invoke(["nfs", "break", "--yes", str(path)]) == 0
    assert f"there is no lock at {path} yet" in capsys.readouterr().out
    assert invoke(["nfs", "tidy", str(path)]) == 0
    assert f"there is no lock at {path} yet" in capsys.readouterr().err
    assert not path.exists()


def test_error_about_a_missing_permission_says_what_to_do(path: Path, capsys, monkeypatch):
    def refuse(target: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(target))

    path.mkdir()
    monkeypatch.setattr(os, "listdir", refuse)
    assert invoke(["nfs", "status", str(path)]) == exit_codes.UNREACHABLE
    assert f"Every candidate must be able to create and remove files in {path} (uid " in capsys.readouterr().err


def test_tidy_removes_the_claims_of_dead_processes(path: Path, capsys, monkeypatch):
    with nfs.Lock(path):
        (path / "claim|lock|dead|1|1").write_bytes(b"")
        monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
        assert invoke(["nfs", "tidy", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out == "claim|lock|dead|1|1\n"
    assert "1 removed" in shown.err


@pytest.mark.parametrize("words", [["status", ""], ["status", "a/"], ["break", "nfs://host/x"]])
def test_a_path_that_is_none_is_wrong_usage(words: list[str]):
    assert invoke(["nfs", *words]) == exit_codes.USAGE


def test_place_that_is_no_lock_is_reported_without_a_traceback(path: Path, capsys):
    path.write_text("a file")
    assert invoke(["nfs", "status", str(path)]) == exit_codes.UNREACHABLE
    assert "cannot be used as a lock" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["\x1b[31mred", "new\nline", "\u202eright to left", "\udcff"])
def test_a_terminal_does_not_obey_what_a_holder_calls_itself(tmp_path: Path, name: str, capsys):
    path = tmp_path / "work.lck"
    path.mkdir()
    claimant = Claimant(name, name, 7, str(path), 60.0)
    (path / "epoch.0").write_bytes(encode(claimant))
    assert invoke(["nfs", "status", str(path)]) == exit_codes.CLEAN
    shown = capsys.readouterr().out
    assert name not in shown
    assert ascii(name)[1:-1].replace(" to left", "") in shown
