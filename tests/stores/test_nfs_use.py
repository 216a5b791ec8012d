"""What users do to a lock in a shared folder, beside locking it: by name, each thing that one of them stumbled over."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgleaderlock import LeadershipLost
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import AlreadyLockedError, Lock, LockError, LockState, NotLockedError, TimeOutError, _host
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._folder import Folder
from pgleaderlock.stores.nfs._inspect import break_lock
from pgleaderlock.stores.nfs._texts import lost, not_acquired
from pgleaderlock.stores.nfs._waiting import Turnstile
from pgleaderlock.stores.nfs.backend import open_nfs
from tests.support.doubles import until
from tests.support.nfs_lock import LIFETIME_S, Clock, candidate, names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.lck"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[True, False], ids=["local", "shared"])
def is_local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(place, "is_local", lambda _: request.param)
    return bool(request.param)


def claims(path: Path) -> list[str]:
    return [name for name in names(path) if name.startswith("claim")] if path.exists() else []


# --- One object, two users --------------------------------------------------------------------------------------------

OWN = "is being acquired by another task or thread through the same Lock object: give each its own Lock"


@pytest.mark.usefixtures("is_local")
async def test_a_second_task_that_locks_through_one_object_is_refused_at_once_and_the_first_is_undisturbed(path: Path):
    lock, holder = Lock(path), Lock(path)
    holder.lock()
    first = asyncio.create_task(lock.lock_async())
    await until(lambda: Path(lock.claimfile).exists())
    began = time.monotonic()
    with pytest.raises(AlreadyLockedError, match=OWN):
        await lock.lock_async()
    with pytest.raises(AlreadyLockedError, match=OWN):
        lock.lock(timeout=5)
    assert time.monotonic() - began < 1
    holder.unlock()
    await first
    assert lock.token == 1
    assert lock.is_locked
    await lock.unlock_async()
    assert not claims(path)


async def test_of_many_tasks_that_begin_at_once_with_one_object_exactly_one_has_it(path: Path):
    lock = Lock(path)
    outcomes = await asyncio.gather(*(lock.lock_async() for _ in range(20)), return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadyLockedError) for outcome in outcomes) == 19
    assert lock.token == 0
    lock.unlock()
    with lock:
        assert lock.token == 1


def test_of_many_threads_that_begin_at_once_with_one_object_exactly_one_has_it(path: Path):
    lock, outcomes, ready = Lock(path), [], threading.Barrier(8)

    def take() -> None:
        ready.wait()
        try:
            lock.lock(timeout=10)
            outcomes.append("locked")
        except Exception as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["AlreadyLockedError"] * 7 + ["locked"]
    assert lock.token == 0
    lock.unlock()


def test_a_child_forked_while_a_thread_was_acquiring_can_lock_through_its_own_copy(path: Path):
    lock, holder = Lock(path), Lock(path)
    holder.lock()
    waiting = threading.Thread(target=lock.lock)
    waiting.start()
    while not claims_of(lock):
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        verdict = 1
        try:
            lock.lock(timeout=0)
        except LockError as error:
            verdict = 0 if type(error).__name__ == "TimeOutError" else 2
        finally:
            os._exit(verdict)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    holder.unlock()
    waiting.join()
    lock.unlock()


def claims_of(lock: Lock) -> bool:
    return Path(lock.claimfile).exists()


# --- Cancelled, or interrupted ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("is_local")
async def test_when_a_cancelled_coroutine_has_ended_neither_lock_nor_claim_is_left(path: Path, monkeypatch):
    monkeypatch.setattr(
        "pgleaderlock.stores.nfs._lock._UNDONE_WITHIN_S", 40.0
    )  # a busy machine is no silent file server
    for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1):
        for is_held in (False, True):
            lock, holder = Lock(path, lifetime=600), Lock(path)
            if is_held:
                holder.lock()
            attempt = asyncio.create_task(lock.lock_async())
            await asyncio.sleep(delay_s)
            attempt.cancel()
            await asyncio.wait({attempt})
            holder.unlock(unconditionally=True)
            if attempt.cancelled():
                assert not lock.is_locked
                assert not lock._is_acquiring.locked()
            else:
                lock.unlock()
            assert not claims(path)  # on uvloop a task may be cancelled before its first step
            Lock(path).lock(timeout=0)
            shutil.rmtree(path)


@pytest.mark.usefixtures("is_local")
async def test_work_that_was_cancelled_begins_no_other_step(path: Path, monkeypatch):
    """Which might succeed."""
    holder, lock, waits = Lock(path), Lock(path), threading.Event()

    def wait(*_: Any, is_cancelled: threading.Event, **__: Any) -> None:
        waits.set()
        is_cancelled.wait(30)

    monkeypatch.setattr(Turnstile, "wait", wait)  # or it might be within a step, which goes on
    holder.lock()
    attempt = asyncio.create_task(lock.lock_async())
    await until(waits.is_set)
    taken: list[str] = []
    monkeypatch.setattr(Candidate, "take", lambda self, epoch: taken.append(self._claimfile))
    attempt.cancel()
    await asyncio.sleep(0)  # so that it was received
    holder.unlock()
    await asyncio.wait({attempt})
    assert taken == []


async def test_a_file_server_that_does_not_answer_keeps_a_cancelled_coroutine_for_a_while_only(path: Path, monkeypatch):
    monkeypatch.setattr("pgleaderlock.stores.nfs._lock._UNDONE_WITHIN_S", 0.1)
    lock, answers, begun, link = Lock(path), threading.Event(), threading.Event(), os.link

    def be_silent(source: str, target: str) -> None:
        begun.set()
        answers.wait(10)
        link(source, target)

    monkeypatch.setattr(os, "link", be_silent)
    attempt = asyncio.create_task(lock.lock_async())
    await until(begun.is_set)
    attempt.cancel()
    began = time.monotonic()
    await asyncio.wait({attempt})
    assert 0.05 < time.monotonic() - began < 2
    with pytest.raises(AlreadyLockedError, match=OWN):  # its thread is at it still
        lock.lock(timeout=0)
    answers.set()
    await until(lambda: not lock._is_acquiring.locked())
    assert names(path) == ["epoch.0", "released.0"]
    lock.lock(timeout=0)


_RUN_AND_CANCEL = """
import asyncio, sys
from pgleaderlock.stores.nfs import Lock, _lock
_lock._UNDONE_WITHIN_S = 40.0  # a busy machine is no silent file server
async def main():
    task = asyncio.create_task(Lock(sys.argv[1], lifetime=600).lock_async())
    await asyncio.sleep(float(sys.argv[2]))
    return task
print(not asyncio.run(main()).cancelled())  # uvloop turns once more before it cancels, and the task may end well
"""


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("delay_s", ["0", "0.0005", "0.05"])
def test_a_program_that_ends_while_a_task_locks_leaves_neither_lock_nor_claim(path: Path, delay_s: str, is_held: bool):
    holder = Lock(path)
    if is_held:
        holder.lock()
    command = [sys.executable, "-c", _RUN_AND_CANCEL, str(path), delay_s]
    was_locked = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout == b"True\n"
    holder.unlock(unconditionally=True)
    if not was_locked:  # which is an end without a message, of which others learn from the kernel
        assert not claims(path)
        assert Lock(path).state is LockState.unlocked


def interrupt_after(step: Callable[..., Any]) -> Callable[..., Any]:
    def take(*arguments: Any, **options: Any) -> Any:
        step(*arguments, **options)
        raise KeyboardInterrupt

    return take


@pytest.mark.usefixtures("is_local")
@pytest.mark.parametrize("step", ["link", "utime", "listdir", "fstat"])
def test_process_interrupted_while_locking_leaves_neither_lock_nor_claim(path: Path, monkeypatch, step: str):
    """Also just after it got the lock, of which it did not come to know."""
    lock = Lock(path, lifetime=600)
    real, interrupts = getattr(os, step), iter([True])

    def once(*arguments: Any, **options: Any) -> Any:
        return (interrupt_after(real) if next(interrupts, False) else real)(*arguments, **options)

    monkeypatch.setattr(os, step, once)
    with pytest.raises(KeyboardInterrupt):
        lock.lock()
    monkeypatch.undo()
    assert not claims(path)
    assert Lock(path).state is LockState.unlocked
    lock.lock(timeout=0)


@pytest.mark.usefixtures("is_local")
def test_process_interrupted_just_after_locking_leaves_neither_lock_nor_claim(path: Path, monkeypatch):
    lock = Lock(path, lifetime=600)
    with monkeypatch.context() as patch:
        patch.setattr(Turnstile, "close", interrupt_after(Turnstile.close))
        with pytest.raises(KeyboardInterrupt):
            lock.lock()
    assert names(path) == ["epoch.0", "released.0"]
    lock.lock(timeout=0)


def test_ctrl_c_while_waiting_leaves_no_claim(path: Path):
    script = "import sys\nfrom pgleaderlock.stores.nfs import Lock\nLock(sys.argv[1]).lock()"
    with Lock(path) as holder:
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stderr=subprocess.PIPE)
        while len(claims(path)) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=20)[1]
        assert claims(path) == [Path(holder.claimfile).name]


# --- Files that another process removed -------------------------------------------------------------------------------


@pytest.mark.usefixtures("is_local")
@pytest.mark.parametrize("deed", ["is_locked", "refresh", "unlock", "unlock too late"])
def test_whose_folder_was_removed_has_lost_the_lock_and_leaves_the_next_holder_s_alone(path: Path, deed: str):
    first, second = Lock(path, lifetime=0.3 if "late" in deed else 600), Lock(path)
    first.lock()
    shutil.rmtree(path)
    second.lock(timeout=0)
    assert first.token == second.token == 0
    if "late" in deed:
        time.sleep(0.35)
    before = names(path)
    if deed == "is_locked":
        assert not first.is_locked
    else:
        with pytest.raises(NotLockedError):
            first.refresh() if deed == "refresh" else first.unlock()
    assert first.token is None
    assert names(path) == before
    assert second.is_locked
    first.unlock(unconditionally=True)
    assert names(path) == before
    with pytest.raises(TimeOutError):
        first.lock(timeout=0)
    second.unlock()
    first.lock(timeout=0)
    assert first.token == 1


@pytest.mark.usefixtures("is_local")
def test_whose_folder_was_removed_and_not_made_again_has_lost_the_lock(path: Path):
    lock = Lock(path)
    lock.lock()
    shutil.rmtree(path)
    assert not lock.is_locked
    with pytest.raises(NotLockedError):
        lock.unlock()
    assert not path.exists()


@pytest.mark.parametrize("deed", ["renew", "release"])
def test_a_client_that_remembers_a_removed_file_is_not_misled_by_the_number(
    path: Path, clock: Clock, monkeypatch, deed: str
):
    """On NFS fstat(2) may show what was true before."""
    first, second = candidate(path, "first", clock), candidate(path, "second", clock)
    assert first.try_take()
    shutil.rmtree(path)
    assert second.try_take()
    assert first._claim is not None
    fstat, ours = os.fstat, first._claim.number

    def remembered(number: int) -> Any:
        found = fstat(number)
        if number != ours:
            return found
        shown = {name: getattr(found, name) for name in ("st_ino", "st_dev", "st_size", "st_mtime_ns")}
        return SimpleNamespace(st_nlink=2, **shown)

    monkeypatch.setattr(os, "fstat", remembered)
    before = names(path)
    assert not (first.renew() if deed == "renew" else first.release())
    assert names(path) == before
    assert second.renew()


@pytest.mark.parametrize("step", ["utime", "fstat"])
def test_a_file_that_the_server_does_not_know_any_more_is_a_lost_lock_and_not_an_error(
    path: Path, monkeypatch, step: str
):
    lock = Lock(path)
    lock.lock()
    real = getattr(os, step)

    def fail(target: Any, **options: Any) -> Any:
        if isinstance(target, int):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(NotLockedError):
            lock.refresh()


def test_holder_can_unlock_although_the_folder_contains_unrelated_files(path: Path):
    lock = Lock(path)
    lock.lock()
    (path / "data.csv").write_bytes(b"")
    lock.unlock()
    assert names(path) == ["data.csv", "epoch.0", "released.0"]


@pytest.mark.usefixtures("is_local")
def test_holder_whose_claim_was_removed_keeps_the_lock_as_long_as_its_epoch_is_there(path: Path):
    lock = Lock(path)
    lock.lock()
    Path(lock.claimfile).unlink()
    assert lock.is_locked
    lock.refresh()
    lock.unlock()
    assert names(path) == ["epoch.0", "released.0"]


async def test_a_leader_whose_folder_was_removed_has_lost_and_leaves_the_next_one_s_alone(path: Path):
    first, second = open_nfs(path, lease_s=600), open_nfs(path, lease_s=600)
    grants = []
    for backend in (first, second):
        await backend.open()
        grants.append(await backend.try_acquire())
        if backend is first:
            shutil.rmtree(path)
    assert None not in grants
    with pytest.raises(LeadershipLost):
        await first.renew(grants[0])  # type: ignore[arg-type]
    await first.close()
    assert "released.0" not in names(path)
    await second.renew(grants[1])  # type: ignore[arg-type]
    await second.close()


# --- Links, and other places that are none ----------------------------------------------------------------------------


def test_a_link_to_nothing_is_refused_at_once_and_says_where_it_points(path: Path):
    path.symlink_to("/nowhere/at/all")
    for attempt in (Lock(path).lock, lambda: Lock(path).state):
        with pytest.raises(LockError, match="a link to /nowhere/at/all, which does not exist"):
            attempt()


def test_a_link_to_a_folder_is_as_good_as_the_folder(path: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to("elsewhere")
    with Lock(path), pytest.raises(TimeOutError):
        Lock(tmp_path / "elsewhere").lock(timeout=0)


@pytest.mark.parametrize("below", ["x.lock", "a/b/x.lock"])
def test_a_file_in_place_of_a_folder_above_is_named(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    for attempt in (Lock(tmp_path / "file" / below).lock, lambda: Lock(tmp_path / "file" / below).state):
        with pytest.raises(LockError, match=f"{tmp_path}/file is a file, not a folder"):
            attempt()


# --- A shorter lifetime -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("is_local")
@pytest.mark.parametrize("is_held", [True, False])
def test_a_shorter_lifetime_shows_its_own_end_and_not_the_old_one_s(path: Path, is_held: bool):
    lock = Lock(path, lifetime=3600)
    lock.lock()
    if is_held:
        lock.refresh(60)
    else:
        lock.unlock()
        lock.lifetime = timedelta(seconds=60)
        lock.lock()
    assert 50 < lock.expiration.timestamp() - time.time() < 61
    lock.refresh()
    assert 50 < lock.expiration.timestamp() - time.time() < 61


@pytest.mark.parametrize("resolution_ns", [1, 10**9])
@pytest.mark.parametrize("ahead_s", [0.0, 5.0, 50.0, 3600.0, -3600.0])
def test_no_heartbeat_is_like_any_before_it_also_when_lifetimes_change(
    path: Path, clock: Clock, monkeypatch, resolution_ns: int, ahead_s: float
):
    """Though the base begins anew, and the server, whose clock differs, sets the time when something is written."""
    holder, seen = candidate(path, "holder", clock), []
    utime, write = os.utime, os.write

    def rounded(target: Any, ns: tuple[int, int] | None = None) -> None:
        if ns is None:
            utime(target)
        else:
            utime(target, ns=(ns[0] // resolution_ns * resolution_ns, ns[1] // resolution_ns * resolution_ns))

    def stamped(number: int, text: bytes) -> int:
        written = write(number, text)
        at_ns = (time.time_ns() + round(ahead_s * 10**9)) // resolution_ns * resolution_ns
        utime(number, ns=(at_ns, at_ns))
        return written

    monkeypatch.setattr(os, "utime", rounded)
    monkeypatch.setattr(os, "write", stamped)
    assert holder.try_take()
    for lifetime_s in (5.0, 50.0, 5.0, 50.0, 10.0):
        holder.change_lifetime(lifetime_s)
        seen.append(holder.heartbeat)
        for _ in range(3):
            assert holder.renew()
            seen.append(holder.heartbeat)
    assert len(set(seen)) == len(seen)


def test_holder_with_a_shorter_lifetime_keeps_the_lock_as_long_as_it_sends_heartbeats(path: Path, clock: Clock):
    holder, follower = candidate(path, "holder", clock, lifetime_s=3600.0), candidate(path, "follower", clock)
    assert holder.try_take()
    assert not follower.may_take()
    holder.change_lifetime(LIFETIME_S)
    for _ in range(5):
        assert holder.renew()
        assert not follower.may_take()
        clock.now += LIFETIME_S * 0.8
        assert holder.is_trusted
    clock.now += LIFETIME_S * 0.3
    assert follower.may_take()


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_a_time_out_says_who_has_it_and_for_how_long_it_was_waited_for(path: Path):
    with Lock(path) as holder:
        with pytest.raises(TimeOutError) as raised:
            Lock(path).lock(timeout=0.1)
        who = f"pid {os.getpid()} on {holder.hostname} holds it (epoch 0)"
        said = str(raised.value)
        assert said.startswith(f"{path} was not acquired within 0.")
        assert f" s: {who}, the last heartbeat was 0." in said
        assert not_acquired(Folder(path), 0.1, timeout_s=16.0) == f"was not acquired within 0.1 s: {who}"


def test_time_out_shorter_than_the_holder_s_lifetime_says_that_it_never_takes_over_from_a_dead_holder(
    path: Path, monkeypatch
):
    monkeypatch.setattr(place, "is_local", lambda _: False)
    with Lock(path, lifetime=3):
        time.sleep(0.3)
        with pytest.raises(TimeOutError, match=r"holds it \(epoch 0\), the last heartbeat was 0\.[3-9] s ago: "):
            Lock(path).lock(timeout=0)
        advice = "to take over from a dead holder, wait longer than its lifetime, 3 s$"
        with pytest.raises(TimeOutError, match=advice):
            Lock(path, lifetime=60).lock(timeout=0)


def test_a_time_out_names_also_those_who_cannot_be_named(path: Path):
    path.mkdir()
    (path / "epoch.7").write_bytes(b"\0")
    with pytest.raises(TimeOutError, match=r"it is held \(epoch 7\), and its holder's claim cannot be read"):
        Lock(path).lock(timeout=0)


class _BrokenFolder(Folder):
    """One whose server answers with an error."""

    def look(self) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    listing = look


def test_texts_about_a_lock_whose_server_fails_say_so_instead_of_failing_too(path: Path):
    folder = _BrokenFolder(path)
    path.mkdir()
    assert not_acquired(folder, 2.0, 3.0).endswith("its holder cannot be determined ([Errno 5] Input/output error)")
    late = SimpleNamespace(silent_s=20.0, lifetime_s=15.0, epoch=None, was_in_time=False)
    assert lost(folder, late, 7) == "was lost: its files cannot be read ([Errno 5] Input/output error)"  # type: ignore[arg-type]
    late.epoch = 7
    assert lost(folder, late, 7).startswith("was lost: the file server took too long to answer")  # type: ignore[arg-type]


def test_error_distinguishes_a_lock_that_was_never_locked_from_one_that_was_unlocked(path: Path):
    lock = Lock(path)
    for deed, do in (("unlock", lock.unlock), ("refresh", lock.refresh)):
        with pytest.raises(NotLockedError, match=f"cannot {deed} .*: it was never locked by this object"):
            do()
    with lock:
        pass
    for deed, do in (("unlock", lock.unlock), ("refresh", lock.refresh)):
        with pytest.raises(NotLockedError, match=f"cannot {deed} .*: it was already unlocked"):
            do()


@pytest.mark.usefixtures("is_local")
@pytest.mark.parametrize("deed", ["unlock", "refresh"])
def test_a_lock_that_was_lost_by_silence_says_how_long_and_to_whom_and_says_it_again(path: Path, deed: str):
    slow, quick = Lock(path, lifetime=0.2), Lock(path)
    slow.lock()
    quick.lock(timeout=5)
    lost = (
        r"was lost: 0\.[2-9] s without refresh\(\), its lifetime is 0\.2 s, and another process holds it \(epoch 1\): "
        "refresh more often or choose a longer lifetime"
    )
    with pytest.raises(NotLockedError, match=lost):
        slow.unlock() if deed == "unlock" else slow.refresh()
    quick.unlock()
    with pytest.raises(NotLockedError, match=lost):
        slow.unlock()
    with slow:
        pass
    with pytest.raises(NotLockedError, match="already unlocked"):
        slow.unlock()


def test_a_lock_that_was_broken_by_force_or_whose_files_were_removed_says_so(path: Path):
    lock = Lock(path)
    lock.lock()
    assert break_lock(path) == 0
    with pytest.raises(NotLockedError, match=r"broken by force, and another process held it \(epoch 1\)"):
        lock.unlock()
    lock.lock()
    shutil.rmtree(path)
    with pytest.raises(NotLockedError, match=r"was lost: its files were removed from .*`pgleaderlock nfs break`"):
        lock.refresh()


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exception_under_way_is_not_replaced_by_the_loss_of_the_lock_which_is_logged(
    path: Path, caplog, is_async: bool
):
    lock = Lock(path)
    with pytest.raises(ZeroDivisionError):
        if is_async:
            async with lock:
                break_lock(path)
                raise ZeroDivisionError
        else:
            with lock:
                break_lock(path)
                raise ZeroDivisionError
    assert caplog.text.count("was lost: it was broken by force") == 1
    with pytest.raises(NotLockedError, match="broken by force"):  # and it is not hidden when it is all there is
        if is_async:
            async with lock:
                break_lock(path)
        else:
            with lock:
                break_lock(path)


@pytest.mark.parametrize(("step", "below"), [("mkdir", ""), ("link", "/work.lck"), ("listdir", "/work.lck")])
async def test_a_permission_that_is_missing_stays_a_permission_error_says_what_to_do_and_is_logged_once(
    path: Path, monkeypatch, caplog, step: str, below: str
):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(arguments[0]))

    advice = rf"must be able to create and remove files in {path.parent}{below} \(uid {os.geteuid()} cannot\)"
    lock = Lock(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, refuse)
        with pytest.raises(PermissionError, match=advice) as raised:
            lock.lock()
        assert raised.value.errno == errno.EACCES
        assert str(raised.value).count("must be able") == 1
        assert len([record for record in caplog.records if "must be able" in record.getMessage()]) == 1
        with pytest.raises(PermissionError, match=advice):
            await lock.lock_async()
    with lock:
        monkeypatch.setattr(os, "listdir", refuse)
        with pytest.raises(PermissionError, match="must be able to create"):
            lock.refresh()
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("/mnt/x.lock/", "leave out the slash at the end, as in /mnt/x.lock$"),
        ("/", r"name a path in it, such as /name\.lock, and leave out the slash at the end"),
        (".", r"such as \./name\.lock, and leave out the slash at the end"),
        ("..", r"such as \.\./name\.lock"),
        ("nfs:///mnt/shared/x", "this is a URL: Lock takes a path"),
        ("file:///mnt/shared/x", "this is a URL: Lock takes a path"),
        ("", "not the path"),
    ],
)
def test_what_is_no_path_is_refused_with_one_that_is(text: str, advice: str):
    with pytest.raises(ValueError, match=advice):
        Lock(text)


def test_a_colon_in_a_path_is_no_url(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Lock("nfs:x"):
        assert names(tmp_path) == ["nfs:x"]


@pytest.mark.parametrize("url", ["nfs://server/export/x", "nfs://server:/export/x"])
def test_the_address_of_a_share_is_not_its_path(url: str):
    with pytest.raises(ValueError, match="name the path where it is mounted, as in nfs:///mnt/shared/name"):
        open_nfs(url)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"lockfile": None}, "lockfile must be a str or a Path, not NoneType"),
        ({"lockfile": b"/tmp/x"}, "lockfile must be a str or a Path, not bytes"),
        ({"default_timeout": "3"}, "default_timeout must be a number of seconds, not str"),
        ({"lifetime": "3"}, "lifetime must be a number of seconds, not str"),
        ({"separator": 3}, "separator must be a str, not int"),
    ],
)
def test_wrong_types_are_named_with_the_parameter(path: Path, settings: dict[str, Any], complaint: str):
    with pytest.raises(TypeError, match=complaint):
        Lock(**{"lockfile": path, **settings})
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not str"):
        Lock(path).lock(timeout="3")  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", ["localhost", "localhost.localdomain", "localhost4", "ip6-localhost"])
def test_a_host_has_its_own_name_and_not_that_of_the_loop(monkeypatch, loop: str):
    monkeypatch.setattr(socket, "getfqdn", lambda: loop)
    monkeypatch.setattr(socket, "gethostname", lambda: "db7")
    assert _host.hostname.__wrapped__() == "db7"
    monkeypatch.setattr(socket, "getfqdn", lambda: "db7.example.org")
    assert _host.hostname.__wrapped__() == "db7.example.org"


def test_a_process_that_cannot_be_asked_about_is_taken_to_run():
    assert _host.is_running(os.getpid())
    assert _host.is_running(2**80)  # a number that no system has, but a claim of another's may
