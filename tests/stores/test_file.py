"""The lock in a file: crash, freeze, fork, full disks, other people's files, and steps that cross."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock._base.files.watch import Watch
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError
from pgleaderlock.stores import place
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.file import _record as _file_record
from pgleaderlock.stores.file._folder import Folder
from pgleaderlock.stores.file.backend import FileStore, open_file
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing import BackendContract
from proofs.file_torture import Group, kill_renewers, overlaps_in, simulate, tokens_out_of_order
from tests.support.file import LEASE_S, RENEW, acquired, candidates, names, path, patient, process, taken_over
from tests.support.processes import Process

__all__ = ["path", "patient"]  # fixtures


def store_of(backend: RecordBackend) -> FileStore:
    store = backend._store
    assert isinstance(store, FileStore)
    return store


def die(backend: RecordBackend) -> None:
    """End as a killed process does: the kernel closes what was open, and that is all."""
    store_of(backend)._close_term()


def before(backend: RecordBackend, step: str, what: Any) -> None:
    """Do something once, just before this candidate takes that step on the files."""
    folder: Any = store_of(backend)._folder
    original = getattr(folder, step)

    def take(*arguments: Any) -> Any:
        setattr(folder, step, original)
        what()
        return original(*arguments)

    setattr(folder, step, take)


def now(coroutine: Any) -> Any:
    """Run a verb to its end inside a step: it must not have to wait for anything."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(asyncio.run(coroutine))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


class TestContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_file(f"file://{self.folder}/{name}", **settings)


# --- The record ------------------------------------------------------------------------------------------------------


async def test_the_record_can_be_read_by_people_and_other_programs(path):
    async with candidates(path, 1, lease_s=15) as (only,):
        grant = await acquired(only)
        await only.renew(grant)
        fields = json.loads(path.read_bytes())
        assert fields["holder"] == only.identity
        assert fields["leaseDuration"] == "15s"
        assert fields["token"] == fields["transitions"] == grant.token == 0
        assert fields["pid"] == os.getpid()
        assert fields["boot_id"]
        acquire_time, renew_time = (datetime.fromisoformat(fields[name]) for name in ("acquireTime", "renewTime"))
        assert acquire_time < renew_time
        assert renew_time.tzinfo is not None
        await only.release(grant)
        fields = json.loads(path.read_bytes())
        assert (fields["holder"], fields["token"]) == ("", 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("1.5s", 1.5),
        ("1m30s", 90),
        ("2h45m", 9900),
        ("1500ms", 1.5),
        (".5s", 0.5),
        ("1µs", 1e-6),
        ("15", None),
        ("", None),
        ("0s", None),
        ("-1s", None),
        ("15 s", None),
        ("1e3s", None),
        ("٣s", None),
        (15, None),
        (None, None),
        ("9" * 400 + "h", None),
    ],
)
def test_durations_are_gos(text, seconds):
    entry = _file_record.decode(json.dumps({"holder": "x", "leaseDuration": text}).encode())
    assert (None if entry is None else entry.lease_s) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("seconds", "text"), [(15.0, "15s"), (0.75, "0.75s"), (100.0, "100s"), (1e-12, "0.000000001s")]
)
def test_durations_are_written_as_go_reads_them(seconds, text):
    fields = json.loads(_file_record.encode(_file_record.Entry("x", 1, seconds)))
    assert fields["leaseDuration"] == text


JUNK = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\0" * 300,
    b"\xff\xfe",
    b"[" * 60000,
    b'{"holder": 1, "leaseDuration": "1s"}',
    b'{"holder": "x", "leaseDuration": "1s", "token": -1}',
    b'{"holder": "x", "leaseDuration": "1s", "token": true}',
    b'{"holder": "x", "leaseDuration": "1s", "token": 1e3}',
    b'{"holder": "x", "leaseDuration": "1s", "token": ' + b"9" * 5000 + b"}",
    b'{"holder": "x", "leaseDuration": "1s", "token": 9999999999999999999}',
]


@pytest.mark.parametrize("text", JUNK)
def test_whatever_cannot_be_read_is_unknown(text):
    assert _file_record.decode(text) is None


@pytest.mark.parametrize("text", [b"", b"{", b"\0" * 300])
async def test_an_unreadable_record_is_waited_out_for_a_whole_lease_and_kept(path, text):
    path.write_bytes(text)
    async with candidates(path, 1, lease_s=0.6) as (only,):
        holder = await only.holder()
        assert holder is not None
        assert holder.name == "(unreadable)"
        assert 0.6 <= await taken_over(only) < 2
    assert path.with_name("leader.json.unreadable").read_bytes() == text
    assert json.loads(path.read_bytes())["token"] == 1


async def test_record_that_is_too_long_for_readers_is_not_written(path):
    backend = open_backend(f"file://{path}", identity="x" * 70_000)
    with pytest.raises(LockError, match="the name of the candidate is too long"):
        await acquired(backend)
    await backend.close()
    async with candidates(path, 1) as (after,):
        await acquired(after)


async def test_a_record_of_another_program_is_waited_out_by_its_own_lease(path):
    path.write_text('{"holder": "go", "renewTime": "2020-01-01T00:00:00Z", "leaseDuration": "900ms"}')
    async with candidates(path, 1, lease_s=0.3) as (only,):
        assert await only.try_acquire() is None
        assert 0.85 <= await taken_over(only) < 2


async def test_a_leader_repairs_its_record_and_is_not_replaced_meanwhile(path):
    async with candidates(path, 1, lease_s=6) as (leader,), candidates(path, 1, lease_s=0.3) as (hasty,):
        grant = await acquired(leader)
        path.write_bytes(b"{")
        assert await hasty.try_acquire() is None
        await hasty.wait(0.7)  # its own lease is over twice; the leader's, which is in the term's file, is not
        assert await hasty.try_acquire() is None
        grant = await leader.renew(grant)
        assert json.loads(path.read_bytes())["holder"] == leader.identity
        path.unlink()
        assert await hasty.try_acquire() is None
        await leader.renew(grant)
        assert json.loads(path.read_bytes())["token"] == 0


async def test_reader_never_sees_half_a_record(path):
    with process(path, "while True: grant = await backend.renew(grant)", lease_s=15) as leader:
        leader.wait_for("leads")
        texts: set[bytes] = set()
        while len(texts) < 100:  # however long that takes: the time limit of all tests is enough of a bound
            texts.add(path.read_bytes())
        assert all(_file_record.decode(text) is not None for text in texts)


# --- Death and freezes -----------------------------------------------------------------------------------------------


async def test_leaders_that_are_killed_while_renewing_are_replaced_at_once(path):
    result = await kill_renewers(path, 12, seed=1)
    assert result.unreadable == result.too_early == 0
    assert result.tokens == sorted(set(result.tokens))
    assert sorted(result.took_s)[6] < 15 / 3  # some 3 ms on an idle machine, of a lease of 15 s
    assert names(path.parent) == ["leader.json", f"leader.json.live.{max(result.tokens)}"]


async def test_a_follower_that_waits_is_woken_by_the_leaders_death(path):
    async with candidates(path, 1, lease_s=30) as (follower,):
        with process(path, lease_s=30) as leader:
            leader.wait_for("leads")
            assert await follower.try_acquire() is None
            waiting = asyncio.create_task(follower.wait(60))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            start = time.monotonic()
            leader.signal(signal.SIGKILL)
            await waiting
            await acquired(follower)
            assert time.monotonic() - start < 15  # of a lease of 30 s


async def test_a_frozen_leader_is_replaced_after_its_lease_and_learns_of_it(path):
    async with candidates(path, 2) as (follower, third):
        with process(path, RENEW) as leader:
            leader.wait_for("leads 0")
            leader.signal(signal.SIGSTOP)
            assert LEASE_S * 0.8 < await taken_over(follower) < 2 * LEASE_S
            leader.signal(signal.SIGCONT)
            assert "in term 1" in leader.wait_for("lost")
            # Frozen just before it replaced the record, it does so now. That is known by its number.
            holder = await third.holder()
            assert holder is not None
            assert holder.name == follower.identity
            leader.signal(signal.SIGKILL)
        assert await third.try_acquire() is None


async def test_the_death_of_a_former_leader_says_nothing_about_its_successor(path):
    async with candidates(path, 3, lease_s=0.5) as (frozen, successor, third):
        await acquired(frozen)
        await taken_over(successor)
        assert await third.try_acquire() is None
        die(frozen)
        assert await third.try_acquire() is None
        die(successor)
        await acquired(third)


async def test_of_another_boot_only_the_lease_counts(path, monkeypatch):
    async with candidates(path, 2, lease_s=0.6) as (other, ours):
        with monkeypatch.context() as patched:
            patched.setattr(place, "boot_id", lambda: "another")
            await acquired(other)
        die(other)
        assert await ours.try_acquire() is None
        assert 0.5 <= await taken_over(ours) < 2


@pytest.mark.parametrize("which", ["leader.json", "leader.json.live.0"])
async def test_either_file_may_tell_of_another_boot(path, which):
    async with candidates(path, 2, lease_s=60) as (other, ours):
        await acquired(other)
        die(other)
        file = path.with_name(which)
        fields = json.loads(file.read_bytes())
        file.write_text(json.dumps({**fields, "boot_id": "another"}))
        assert await ours.try_acquire() is None


async def test_where_the_boot_is_unknown_only_the_lease_counts(path, monkeypatch):
    monkeypatch.setattr(place, "boot_id", lambda: None)
    async with candidates(path, 2, lease_s=60) as (other, ours):
        await acquired(other)
        die(other)
        assert await ours.try_acquire() is None


def test_this_boot_has_a_name():
    assert re.fullmatch(r"[0-9a-fA-F-]{36}", place.boot_id() or "")


async def test_the_next_leader_tidies_up(path):
    async with candidates(path, 2) as (first, second):
        await acquired(first)
        path.with_name("leader.json.tmp.0123456789abcdef").write_bytes(b"left by the dead")
        strange = ["leader.json.tmp.x", "leader.json.live.x", "leader.json.live.01", "leader.jsonx.live.7", "other"]
        for name in strange:
            path.with_name(name).write_bytes(b"not ours")
        die(first)
        await acquired(second)
        assert names(path.parent) == sorted(["leader.json", "leader.json.live.1", *strange])


async def test_a_leader_that_is_forgotten_keeps_nothing(path):
    async with candidates(path, 1, lease_s=60) as (follower,):
        forgotten = open_file(path, lease_s=60)
        await acquired(forgotten)
        assert await follower.try_acquire() is None
        del forgotten
        await acquired(follower)


# --- Two steps that cross --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collects", [True, False])
async def test_a_renewal_that_crosses_a_take_over_does_not_count(path, collects):
    async with candidates(path, 3, lease_s=0.4) as (old, new, third):
        grant = await acquired(old)
        assert await new.try_acquire() is None
        await asyncio.sleep(0.5)
        if not collects:  # it has not got that far: the late one's draft is still there
            folder: Any = store_of(new)._folder
            folder.collect = lambda newest: None
        before(old, "publish", lambda: now(new.try_acquire()))
        with pytest.raises(LeadershipLost, match="term 1"):
            await old.renew(grant)
        # At worst the record is the late one's; the term is not.
        assert json.loads(path.read_bytes())["token"] == int(collects)
        holder = await third.holder()
        assert holder is not None
        assert holder.name == new.identity
        assert await third.try_acquire() is None
        die(old)
        assert await third.try_acquire() is None
        die(new)
        await acquired(third)


async def test_a_take_over_that_crosses_a_renewal_does_not_count(path):
    async with candidates(path, 2, lease_s=0.4) as (old, new):
        grant = await acquired(old)
        assert await new.try_acquire() is None
        await asyncio.sleep(0.5)
        before(new, "claim", lambda: now(old.renew(grant)))
        assert await new.try_acquire() is None
        await old.renew(grant)
        assert names(path.parent) == ["leader.json", "leader.json.live.0"]


async def test_candidate_that_dies_during_a_takeover_does_not_count_as_a_sign_of_life_of_the_leader(path):
    async with candidates(path, 3, lease_s=0.4) as (old, new, third):
        grant = await acquired(old)
        assert await new.try_acquire() is None
        await asyncio.sleep(0.5)
        before(new, "claim", lambda: now(old.renew(grant)))
        folder: Any = store_of(new)._folder
        folder.remove = lambda live: None  # dead before it could take its term back
        assert await new.try_acquire() is None
        assert names(path.parent)[1:] == ["leader.json.live.0", "leader.json.live.1"]
        assert await third.try_acquire() is None  # the old one may still be valid
        with pytest.raises(LeadershipLost):
            await old.renew(grant)
        await old.close()
        await acquired(third)


async def test_a_candidate_that_slept_through_many_terms_takes_nothing(path):
    async with candidates(path, 3, lease_s=60) as (sleeper, first, second):

        def many_terms() -> None:
            for backend in (first, second, first):
                now(acquired(backend))
                die(backend)
            now(acquired(second))

        before(sleeper, "claim", many_terms)
        assert await sleeper.try_acquire() is None
        assert names(path.parent) == ["leader.json", "leader.json.live.3"]
        assert await sleeper.try_acquire() is None


async def test_a_draft_that_was_collected_is_a_race_that_was_lost(path):
    async with candidates(path, 2, lease_s=60) as (slow, quick):
        before(slow, "claim", lambda: store_of(quick)._folder.collect(0))
        assert await slow.try_acquire() is None
        grant = await acquired(slow)
        before(slow, "publish", lambda: store_of(quick)._folder.collect(0))
        await slow.renew(grant)


@pytest.mark.slow
def test_no_order_of_steps_makes_two_leaders():
    terms, overwritten, problems = simulate(range(1, 13))
    assert terms > 50
    assert overwritten > 50
    assert problems == []


# --- Names -----------------------------------------------------------------------------------------------------------


async def test_the_same_name_in_another_process_is_another(path):
    first, second = (open_file(path, lease_s=60, identity="web") for _ in range(2))
    grant = await acquired(first)
    assert await second.try_acquire() is None
    holder = await second.holder()
    assert holder is not None
    assert holder.name.startswith("web (pid ")
    await first.renew(grant)
    die(first)
    with pytest.raises(LeadershipLost):
        await first.renew(grant)
    await second.release(await acquired(second))
    await second.close()


@pytest.mark.parametrize("identity", ["", "a\nb", 5])
def test_a_name_is_printable(path, identity):
    with pytest.raises(ValueError, match="identity"):
        open_file(path, identity=identity)


# --- Forks -----------------------------------------------------------------------------------------------------------

_IN_CHILD = """
    child = os.fork()
    if child == 0:
        {deed}
        say("child done")
        time.sleep(30)
        os._exit(0)
    say("forked", child)
    time.sleep(60)
"""


def child_of(leader: Process) -> int:
    return int(leader.wait_for("forked").split()[1])


async def test_a_forked_child_does_not_keep_a_dead_leaders_lock(path):
    async with candidates(path, 1, lease_s=30) as (follower,):
        with process(path, _IN_CHILD.format(deed="pass"), lease_s=30) as leader:
            child = child_of(leader)
            try:
                assert await follower.try_acquire() is None
                leader.signal(signal.SIGKILL)
                assert await taken_over(follower) < 5
                os.kill(child, 0)  # it is still there
            finally:
                os.kill(child, signal.SIGKILL)


async def test_an_executed_program_does_not_keep_it_either(path):
    deed = """say("forked", subprocess.Popen(["sleep", "30"], close_fds=False).pid); time.sleep(60)"""
    async with candidates(path, 1, lease_s=30) as (follower,):
        with process(path, deed, lease_s=30) as leader:
            child = child_of(leader)
            try:
                leader.signal(signal.SIGKILL)
                assert await taken_over(follower) < 5
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)


async def test_a_forked_child_holds_nothing_and_takes_nothing_away(path):
    deed = """
        async def try_everything():
            for verb in (backend.renew, backend.release):
                try:
                    say("child was let", await verb(grant))
                except PgLeaderLockError as error:
                    say("child refused", type(error).__name__)
            await backend.close()
        sys.stdin.readline()
        asyncio.run(try_everything())
    """
    async with candidates(path, 1, lease_s=30) as (follower,):
        with process(path, _IN_CHILD.format(deed=deed.strip()), lease_s=30) as leader:
            child = child_of(leader)
            try:
                leader.say()
                assert "LeadershipLost" in leader.wait_for("child refused")
                assert "LockError" in leader.wait_for("child refused")
                leader.wait_for("child done")
                assert not any("was let" in line for line in leader.lines)
                assert await follower.try_acquire() is None
            finally:
                os.kill(child, signal.SIGKILL)


# --- News ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["inotify", "poll"])
def news(request, monkeypatch):
    if request.param == "poll":

        def refuse(self: Watch) -> None:
            raise OSError("too many inotify instances")

        monkeypatch.setattr(Watch, "_open", refuse)
    return request.param


@pytest.mark.slow
async def test_no_release_is_missed_however_close_to_the_wait(path, news):
    async with candidates(path, 2, lease_s=60) as (first, second):
        rounds = 60 if news == "inotify" else 6
        for number in range(rounds):
            grant = await acquired(first)
            assert await second.try_acquire() is None
            waiting = asyncio.create_task(second.wait(30))
            for _ in range(number % 6):
                await asyncio.sleep(0)
            if number % 3:  # else the release comes before the wait has begun
                await asyncio.sleep(0.0005 * (number % 5))
            await first.release(grant)
            async with asyncio.timeout(5):
                await waiting
            await second.release(await acquired(second))


@pytest.mark.slow
async def test_a_wait_sees_renewals_and_goes_on(path, news):
    async with candidates(path, 2) as (leader, follower):
        grant = await acquired(leader)
        assert await follower.try_acquire() is None
        waiting = asyncio.create_task(follower.wait(30))
        end = time.monotonic() + LEASE_S * 1.5
        while time.monotonic() < end:
            await asyncio.sleep(LEASE_S / 5)
            grant = await leader.renew(grant)
        assert not waiting.done()
        die(leader)
        async with asyncio.timeout(LEASE_S / 2):
            await waiting


async def test_waits_leave_no_thread_and_no_descriptor_behind(path):
    async with candidates(path, 2, lease_s=60) as (leader, follower):
        grant = await acquired(leader)
        assert await follower.try_acquire() is None
        await follower.wait(0.01)
        descriptors, threads = len(names(Path("/dev/fd"))), threading.active_count()
        for number in range(30):
            waiting = asyncio.create_task(follower.wait(60))
            await asyncio.sleep(0.001 * (number % 4))
            start = time.monotonic()
            waiting.cancel()
            await asyncio.wait({waiting})
            assert time.monotonic() - start < 0.2
            grant = await leader.renew(grant)
        assert len(names(Path("/dev/fd"))) == descriptors
        assert threading.active_count() == threads
        await follower.close()
        await follower.close()
        await leader.release(grant)
        assert len(names(Path("/dev/fd"))) == descriptors - 3  # the term, the record, and the news


@pytest.mark.slow
async def test_many_changes_of_leaders_leave_no_watch_behind(path):
    async with candidates(path, 3, lease_s=60) as (first, second, watcher):
        for _ in range(10):
            for backend in (first, second):
                grant = await acquired(backend)
                assert await watcher.try_acquire() is None
                await watcher.wait(0.005)
                await backend.release(grant)
        assert len(store_of(watcher)._watch._file_ids) <= 2


async def test_unrelated_changes_in_the_folder_wake_no_follower(path):
    async with candidates(path, 2, lease_s=60) as (leader, follower):
        await acquired(leader)
        assert await follower.try_acquire() is None
        waiting = asyncio.create_task(follower.wait(30))
        await asyncio.sleep(0.1)
        looks = 0
        view: Any = store_of(follower)._view
        original = view.look

        def count(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return original(*arguments)

        view.look = count
        for number in range(50):
            path.with_name(f"noise-{number}").write_bytes(b"x")
            path.with_name(f"noise-{number}").rename(path.with_name(f"noise-{number}.done"))
            assert not store_of(follower)._folder.is_free(0)  # as another follower asks
        await asyncio.sleep(0.1)
        waiting.cancel()
        assert looks == 0


async def test_a_folder_that_is_removed_or_moved_is_an_error_and_not_a_hang(tmp_path):
    folder = tmp_path / "locks"
    folder.mkdir()
    async with candidates(folder / "leader.json", 2, lease_s=60) as (leader, follower):
        grant = await acquired(leader)
        assert await follower.try_acquire() is None
        waiting = asyncio.create_task(follower.wait(30))
        await asyncio.sleep(0.1)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(ConnectionError, match="was removed meanwhile"):
            await asyncio.wait_for(waiting, 5)
        (tmp_path / "elsewhere").rename(folder)
        await leader.renew(grant)
        waiting = asyncio.create_task(follower.wait(30))
        await asyncio.sleep(0.1)
        await leader.release(grant)
        async with asyncio.timeout(5):
            await waiting
        await acquired(follower)


# --- Hands in the files ----------------------------------------------------------------------------------------------


async def test_a_leader_whose_files_were_removed_does_not_mistake_anothers_for_its_own(path):
    async with candidates(path, 2, lease_s=60) as (first, second):
        grant = await acquired(first)
        for each in path.parent.iterdir():
            each.unlink()
        again = await acquired(second)
        assert again.token == grant.token  # nothing was left to count from
        with pytest.raises(LeadershipLost):
            await first.renew(grant)
        await second.renew(again)


async def test_a_leader_whose_term_was_removed_learns_of_it(path):
    async with candidates(path, 2, lease_s=0.5) as (first, second):
        grant = await acquired(first)
        path.with_name("leader.json.live.0").unlink()
        assert await second.try_acquire() is None
        with pytest.raises(LeadershipLost):
            await first.renew(grant)
        with pytest.raises(LockError):
            await first.release(grant)
        await taken_over(second)


# --- Places that cannot keep a lock ----------------------------------------------------------------------------------

_MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /mnt rw - {kind} server:/export rw
41 40 0:51 / /mnt/local\\040disk rw - xfs /dev/vdb rw
42 27 0:52 / /mntx rw - tmpfs none rw
"""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "ceph", "virtiofs"])
def test_network_file_systems_are_recognised_and_the_nfs_backend_named(kind, tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTINFO.format(kind=kind).replace("/mnt rw", f"{tmp_path} rw"))
    monkeypatch.setattr(place, "_MOUNTS", mounts)
    with pytest.raises(ConnectionError, match=rf"network file system \({re.escape(kind)}\).*nfs://"):
        place.check_folder(tmp_path / "leader.json")


def test_the_nearest_mount_decides(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTINFO.format(kind="nfs"))
    monkeypatch.setattr(place, "_MOUNTS", mounts)
    found = {text: place._mount_of(Path(text))[0] for text in ("/", "/mnt", "/mnt/a", "/mnt/local disk/a", "/mntx/a")}
    assert list(found.values()) == ["ext4", "nfs", "nfs", "xfs", "tmpfs"]
    monkeypatch.setattr(place, "_MOUNTS", tmp_path / "missing")
    assert place._mount_of(tmp_path) == ("", "")


@pytest.mark.parametrize(
    "prepare",
    [
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.write_bytes(b"x" * 70000),
    ],
    ids=["link", "dangling link", "folder", "pipe", "large"],
)
async def test_something_else_in_place_of_the_record_is_refused_and_left_alone(path, prepare):
    prepare(path)
    status = path.lstat()
    backend = open_file(path, lease_s=0.2)
    for _ in range(2):
        with pytest.raises(ConnectionError, match=re.escape(str(path))):
            await backend.open()
        with pytest.raises(ConnectionError):
            await backend.try_acquire()
        await asyncio.sleep(0.2)
    assert path.lstat() == status
    assert names(path.parent) == ["leader.json"]


@pytest.mark.parametrize("prepare", [lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir()])
async def test_something_else_in_place_of_a_term_is_refused(path, prepare):
    prepare(path.with_name("leader.json.live.7"))
    backend = open_file(path, lease_s=0.2)
    with pytest.raises(ConnectionError, match=r"leader\.json\.live\.7: .*emove it"):
        await backend.try_acquire()


@pytest.mark.parametrize(("name", "what"), [("missing", "does not exist"), ("file", "is not a folder")])
async def test_a_place_that_is_no_folder_is_refused(tmp_path, name, what):
    (tmp_path / "file").write_bytes(b"")
    backend = open_file(tmp_path / name / "leader.json")
    with pytest.raises(ConnectionError, match=what):
        await backend.open()
    with pytest.raises(ConnectionError):
        await backend.try_acquire()
    (tmp_path / "missing").mkdir()
    if name == "missing":
        await backend.open()  # now it is there
        await acquired(backend)
    await backend.close()


_AS_ANOTHER = """
import asyncio, os, sys
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.errors import ConnectionError

async def main(path):
    backend = open_file(path, lease_s=0.3)
    for verb in (backend.open, backend.try_acquire):
        try:
            print(verb.__name__, await verb())
        except ConnectionError as error:
            print(verb.__name__, "ConnectionError", error)
    await asyncio.sleep(0.4)
    try:
        print("later", await backend.try_acquire())
    except ConnectionError as error:
        print("later", "ConnectionError", error)

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(main(sys.argv[1]))
"""


def as_another_user(path: Path) -> str:
    """Try to acquire as a user who is not root: root is not subject to permissions."""
    command = [sys.executable, "-c", _AS_ANOTHER, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def open_folder(server_folder_root: Path, request: pytest.FixtureRequest) -> Path:
    """A folder that other users can reach."""
    folder = server_folder_root / f"file-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    return folder


async def test_a_folder_that_may_not_be_written_to_is_refused(open_folder):
    open_folder.chmod(0o555)
    said = as_another_user(open_folder / "leader.json")
    assert "open ConnectionError the folder of the lock file" in said
    assert "read-only" in said
    assert "try_acquire ConnectionError cannot write" in said
    assert names(open_folder) == []


async def test_files_of_another_user_are_an_error_that_says_so_and_nothing_is_lost(open_folder):
    open_folder.chmod(0o1777)
    path = open_folder / "leader.json"
    async with candidates(path, 1, lease_s=60) as (leader,):
        await leader.release(await acquired(leader))
    before_it, files = path.read_bytes(), names(open_folder)
    if os.geteuid() == 0:  # else it is our own user
        said = as_another_user(path)
        assert "try_acquire ConnectionError cannot replace" in said
        assert "sticky bit" in said
        assert (path.read_bytes(), names(open_folder)) == (before_it, files)
        path.chmod(0o600)
        assert "open ConnectionError cannot read" in as_another_user(path)
        assert (path.read_bytes(), names(open_folder)) == (before_it, files)


_WITHOUT_ROOM = """
import asyncio, os, resource, sys
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.errors import PgLeaderLockError

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def tried(name, verb, *arguments):
    try:
        answer = await verb(*arguments)
        os.write(2, f"{name} {answer}\\n".encode())
        return answer
    except PgLeaderLockError as error:
        os.write(2, f"{name} {type(error).__name__} {error}\\n".encode())

async def main(path):
    backend = open_file(path, lease_s=1)
    room(10)
    await tried("full", backend.try_acquire)
    room(1 << 20)
    grant = await tried("acquired", backend.try_acquire)
    room(10)
    asyncio.get_running_loop().call_later(0.1, room, 1 << 20)
    grant = await tried("renewed", backend.renew, grant)
    room(10)
    await tried("not renewed", backend.renew, grant)
    await tried("released", backend.release, grant)
    await backend.close()

asyncio.run(main(sys.argv[1]))
"""


def test_without_room_nothing_is_lost_and_nothing_left(path):
    command = [sys.executable, "-c", _WITHOUT_ROOM, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr
    assert "full ConnectionError cannot write" in said
    assert "ulimit -f" in said
    assert "acquired Grant" in said
    assert "\nrenewed Grant" in said  # there was room again in time: below it, nothing can be written in place either
    assert "not renewed ConnectionError" in said
    assert "released ConnectionError" in said
    assert names(path.parent) == ["leader.json", "leader.json.live.0"]
    assert json.loads(path.read_bytes())["token"] == 0

    async def take_over() -> None:
        async with candidates(path, 1, lease_s=60) as (follower,):
            await acquired(follower)  # at once: the release left the term's file free

    asyncio.run(take_over())


# --- Paths and URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a b", "a\nb", "ä€", "%41", "a*[x](y)", "-", "…", "a.live", "\udcff\udcfe", "x" * 200]
)
async def test_odd_names_are_names(tmp_path, name):
    path = tmp_path / name
    async with candidates(path, 2) as (first, second):
        await first.release(await acquired(first))
        await acquired(second)
        assert names(tmp_path) == sorted([name, f"{name}.live.1"])
        assert str(first.labels["file"]) == str(path)


async def test_a_url_is_decoded(tmp_path):
    backend = open_file(f"file://{tmp_path}/a%20b%25%ff")
    await acquired(backend)
    await backend.close()
    assert os.fsencode(names(tmp_path)[0]) == b"a b%\xff"
    assert open_file(f"file://localhost{tmp_path}/x").labels == open_file(tmp_path / "x").labels


async def test_a_relative_path_is_made_absolute_when_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backend = open_file("leader.json")
    monkeypatch.chdir("/")
    await acquired(backend)
    await backend.close()
    assert "leader.json" in names(tmp_path)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "not the path"),
        ("a\0b", "not the path"),
        ("file:///tmp/a%00b", "not the path"),
        ("/tmp/", "names a folder"),
        ("/", "names a folder"),
        ("..", "names a folder"),
        ("file://", "not the path"),
        ("file:///", "names a folder"),
        ("file://tmp/leader", "third slash"),
        ("file:///tmp/a?lease=3", "%3F"),
        ("file:///tmp/a#b", "%23"),
        ("x" * 201, "longer than 200"),
        ("leader.json.live.3", "companion"),
        ("leader.json.tmp.0123456789abcdef", "companion"),
    ],
)
def test_what_is_no_path_is_refused_at_once(url, what):
    with pytest.raises(ValueError, match=what):
        open_file(url)


def test_bytes_are_no_path():
    with pytest.raises(TypeError, match="str or a Path"):
        open_file(b"/tmp/x")  # type: ignore[arg-type]


def test_a_lease_is_positive(path):
    with pytest.raises(ValueError, match="lease_s"):
        FileStore(path, lease_s=0)


def test_another_file_system_than_ours_says_what_is_missing(path, monkeypatch):
    def no_links(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConnectionError, match="hard links"):
        asyncio.run(open_file(path).try_acquire())
    assert names(path.parent) == []


def test_a_sync_that_fails_gives_the_term_up(path, monkeypatch):
    def broken(number: int) -> None:
        raise OSError(5, "Input/output error")

    async def attempt() -> None:
        async with candidates(path, 2, lease_s=60) as (first, second):
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", broken)
                with pytest.raises(ConnectionError, match="cannot sync"):
                    await first.try_acquire()
            grant = await acquired(second)
            assert grant.token == 1

    asyncio.run(attempt())


async def test_an_attempt_that_is_cancelled_while_the_disk_is_slow_gives_the_term_up(path, monkeypatch):
    go_on = threading.Event()
    original = Folder.make_durable

    def slowly(self: Folder, token: int) -> None:
        go_on.wait(10)
        original(self, token)

    async with candidates(path, 2, lease_s=60) as (first, second):
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "make_durable", slowly)
            attempt = asyncio.create_task(first.try_acquire())
            await asyncio.sleep(0.1)
            assert await second.try_acquire() is None
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=1)
            assert attempt.cancelled()
        await acquired(second)
        go_on.set()


# --- All at once -----------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_a_group_under_torture_never_has_two_leaders(tmp_path):
    group = Group(tmp_path, 8, seed=7)
    group.run(5)
    intervals = group.intervals()
    assert len({token for *_, token in intervals}) >= 2
    assert overlaps_in(intervals) == 0
    assert tokens_out_of_order(intervals) == 0


@pytest.mark.parametrize(
    ("intervals", "wrong"),
    [
        ([(1, 2, "a", 1), (2, 3, "b", 2), (4, 5, "b", 2), (6, 7, "a", 9)], 0),
        ([(1, 2, "a", 2), (2, 3, "b", 1)], 1),
        ([(1, 2, "a", 2), (2, 3, "b", 2)], 1),
    ],
)
def test_the_checker_sees_tokens_that_do_not_grow(intervals, wrong):
    assert tokens_out_of_order(intervals) == wrong
