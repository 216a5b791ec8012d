"""The lock in a shared folder: its API, and by name each hole that such locks have had."""

import asyncio
import contextlib
import copy
import errno
import gc
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgleaderlock import ConnectionError, open_backend
from pgleaderlock.stores import nfs, place
from pgleaderlock.stores.nfs import (
    AlreadyLockedError,
    Lock,
    LockError,
    LockState,
    NotLockedError,
    TimeOutError,
    _acquiring,
    _candidate,
    _host,
    _inspect,
    _lock,
)
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._claim import Claimant, decode, encode, encode_lifetime, is_name
from pgleaderlock.stores.nfs._folder import Folder
from pgleaderlock.stores.nfs._host import hostname
from pgleaderlock.stores.nfs._waiting import Turnstile
from tests.support.doubles import until
from tests.support.nfs_lock import LIFETIME_S, Clock, candidate, clock, names, path
from tests.support.programs import find_library, needs

__all__ = ["clock", "path"]  # fixtures

# --- The API ----------------------------------------------------------------------------------------------------------


def test_a_lock_is_locked_and_unlocked(path: Path):
    lock = Lock(str(path))
    assert lock.state is LockState.unlocked
    assert not lock.is_locked
    lock.lock()
    assert lock.is_locked
    assert lock.state is LockState.ours
    assert lock.details == (lock.hostname, os.getpid(), str(path))
    assert lock.token == 0
    assert Path(lock.claimfile).exists()
    lock.unlock()
    assert not lock.is_locked
    assert lock.token is None
    assert lock.state is LockState.unlocked
    assert names(path) == ["epoch.0", "released.0"]


def test_with_locks_and_unlocks_also_when_something_is_raised(path: Path):
    lock = Lock(path)
    with pytest.raises(ZeroDivisionError), lock as entered:
        assert entered is lock
        assert lock.is_locked
        raise ZeroDivisionError
    assert not lock.is_locked


async def test_async_with_does_the_same(path: Path):
    lock = Lock(path)
    async with lock:
        assert lock.is_locked
        await lock.refresh_async(30)
        assert lock.lifetime == timedelta(seconds=30)
    assert lock.state is LockState.unlocked


async def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_nothing_behind(path: Path):
    with Lock(path):
        waiting = asyncio.create_task(Lock(path).lock_async())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled()
    await until(lambda: not any(name.startswith("claim") for name in names(path)))
    Lock(path).lock(timeout=0)


async def test_a_lock_that_a_cancelled_coroutine_is_given_after_all_is_given_back(path: Path, monkeypatch):
    lock, begun = Lock(path), asyncio.Event()
    loop, take = asyncio.get_running_loop(), Candidate.take

    def slowly(self: Candidate, epoch: int) -> bool:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.2)
        return take(self, epoch)

    monkeypatch.setattr(Candidate, "take", slowly)
    waiting = asyncio.create_task(lock.lock_async())
    await begun.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    monkeypatch.undo()
    Lock(path).lock(timeout=5)


def test_a_lock_that_is_ours_is_not_locked_again(path: Path):
    lock = Lock(path)
    lock.lock()
    with pytest.raises(AlreadyLockedError, match="this Lock object already"):
        lock.lock()
    assert lock.is_locked


def test_two_objects_of_one_process_are_two_candidates(path: Path):
    first, second = Lock(path), Lock(path)
    first.lock()
    assert not second.is_locked
    with pytest.raises(TimeOutError):
        second.lock(timeout=0)
    with pytest.raises(NotLockedError):
        second.unlock()
    assert first.is_locked


def test_what_is_not_ours_cannot_be_unlocked_or_refreshed_unless_unconditionally(path: Path):
    lock = Lock(path)
    with pytest.raises(NotLockedError, match="cannot unlock"):
        lock.unlock()
    with pytest.raises(NotLockedError, match="cannot refresh"):
        lock.refresh()
    lock.unlock(unconditionally=True)
    lock.refresh(unconditionally=True)
    with pytest.raises(NotLockedError, match="no details"):
        _ = lock.details
    with pytest.raises(NotLockedError):
        _ = lock.expiration


def test_asking_whether_it_is_locked_begins_the_lifetime_anew(path: Path):
    lock = Lock(path, lifetime=1000)
    lock.lock()
    before = lock.expiration
    time.sleep(0.01)
    assert lock.is_locked
    assert lock.expiration > before
    assert abs(lock.expiration.timestamp() - time.time() - 1000) < 60


@pytest.mark.parametrize("lifetime", [3, 3.0, timedelta(seconds=3)])
def test_lifetimes_are_seconds_or_timedeltas(path: Path, lifetime: Any):
    assert Lock(path, lifetime).lifetime == timedelta(seconds=3)
    lock = Lock(path)
    assert lock.lifetime == timedelta(seconds=15)
    lock.lifetime = lifetime
    assert lock.lifetime == timedelta(seconds=3)
    lock.lock()
    text = (path / "epoch.0").read_bytes()
    assert json.loads(text)["lifetime_s"] == 3


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_float_time_outs_are_time_outs(path: Path, timeout: Any):
    with Lock(path):
        for lock in (Lock(path), Lock(path, default_timeout=timeout)):
            with pytest.raises(TimeOutError, match="not acquired within"):
                lock.lock() if lock._default_timeout_s is not None else lock.lock(timeout)
            assert not Path(lock.claimfile).exists()


@pytest.mark.parametrize("wrong", [-1, 0, float("nan"), "15", None.__class__, True])
def test_what_is_not_a_lifetime_is_refused(path: Path, wrong: Any):
    with pytest.raises((ValueError, TypeError)):
        Lock(path, lifetime=wrong)


@pytest.mark.parametrize("separator", ["", "/", "a/b", "\0"])
def test_a_separator_is_something_that_a_name_can_have(path: Path, separator: str):
    with pytest.raises(ValueError, match="separator"):
        Lock(path, separator=separator)


def test_repr_shows_path_state_and_lifetime(path: Path):
    lock = Lock(path)
    assert f"{path} [unlocked: 0:00:15]" in repr(lock)
    lock.lock()
    assert "[locked" in repr(lock)


def test_retry_errnos_are_a_list_that_can_be_set_and_deleted(path: Path):
    lock = Lock(path)
    lock.retry_errnos = [errno.EIO]
    assert lock.retry_errnos == [errno.EIO]
    lock.retry_errnos.append(1)
    assert lock.retry_errnos == [errno.EIO]
    del lock.retry_errnos
    assert lock.retry_errnos == []


def test_the_claim_is_named_after_lock_host_and_process(path: Path):
    lock = Lock(path, separator="^")
    kind, name, host, pid, number = Path(lock.claimfile).name.split("^")
    assert (kind, name, host, pid) == ("claim", path.name, lock.hostname, str(os.getpid()))
    assert number.isdigit()
    assert Path(lock.claimfile).parent == path
    assert lock.claimfile != Lock(path).claimfile


def test_names_that_are_too_long_for_a_claim_are_cut(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(_host, "hostname", lambda: "h" * 200)
    with Lock(tmp_path / ("n" * 200)) as lock:
        assert lock.is_locked


# --- What the state shows ---------------------------------------------------------------------------------------------


def test_the_state_of_a_dead_process_s_lock_is_stale(path: Path):
    with holder(path, lifetime=1000) as process:
        assert Lock(path).state is LockState.unknown
        process.kill()
        process.wait()
        assert Lock(path).state is LockState.stale


def test_the_state_of_an_expired_lock_says_whose_it_was(path: Path):
    lock = Lock(path, lifetime=0.05)
    lock.lock()
    time.sleep(0.06)
    assert lock.state is LockState.ours_expired
    with holder(path.with_name("other"), lifetime=0.05):
        time.sleep(0.06)
        assert Lock(path.with_name("other")).state is LockState.theirs_expired


def test_state_of_a_lock_that_is_held_on_another_host_is_unknown(path: Path):
    lock = Lock(path)
    lock.lock()
    (path / "epoch.0").write_bytes(encode(Claimant("x", "elsewhere", 1, str(path), 15.0)))
    assert lock.state is LockState.unknown
    (path / "epoch.0").write_bytes(b"\0\0\0")
    assert lock.state is LockState.unknown
    with pytest.raises(NotLockedError):
        _ = lock.details


# --- The holes, by name -----------------------------------------------------------------------------------------------


def test_a_breaker_that_pauses_between_its_check_and_the_break_breaks_nothing_live(path: Path, clock: Clock):
    dead, breaker, quick = (candidate(path, name, clock) for name in ("dead", "breaker", "quick"))
    assert dead.try_take()
    assert not breaker.may_take()
    assert not quick.may_take()
    clock.now += LIFETIME_S
    assert breaker.may_take()  # and now it pauses
    assert quick.try_take()
    assert not breaker.take_next()
    assert quick.is_trusted
    assert not breaker.is_trusted


def test_a_breaker_that_wakes_when_its_number_was_used_and_collected_gives_way(path: Path, clock: Clock):
    breaker, quick = candidate(path, "breaker", clock), candidate(path, "quick", clock)
    assert breaker.may_take()
    for _ in range(20):
        assert quick.try_take()
        assert quick.release()
    assert quick.try_take()
    assert "epoch.0" not in names(path)
    assert not breaker.take_next()
    assert "epoch.0" not in names(path)
    assert quick.renew()
    assert not breaker.renew()


def test_a_breaker_that_is_frozen_after_its_look_does_not_decide_by_it(path: Path, clock: Clock, monkeypatch):
    """What it has seen was true then. Its clock has gone on since, and so has the holder."""
    alive, breaker = candidate(path, "alive", clock), candidate(path, "breaker", clock)
    assert alive.try_take()
    assert not breaker.may_take()
    clock.now += LIFETIME_S * 0.5
    look = Folder.look

    def look_and_freeze(folder: Folder) -> Any:
        seen = look(folder)
        clock.now += LIFETIME_S * 0.2
        assert alive.renew()
        clock.now += LIFETIME_S * 0.5
        return seen

    monkeypatch.setattr(Folder, "look", look_and_freeze)
    assert not breaker.may_take()
    monkeypatch.undo()
    assert not breaker.may_take()
    assert alive.is_trusted


def test_unlocking_too_late_does_not_unlock_another_s(path: Path, clock: Clock):
    slow, next_one, third = (candidate(path, name, clock) for name in ("slow", "next", "third"))
    assert slow.try_take()
    assert not next_one.may_take()
    clock.now += LIFETIME_S
    assert next_one.try_take()
    assert not slow.release()
    assert not third.may_take()
    assert next_one.renew()


@pytest.mark.parametrize("error", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
def test_a_lost_answer_to_link_is_not_a_lost_lock(path: Path, monkeypatch, error: int):
    link = os.link

    def lose_the_answer(source: str, target: str) -> None:
        link(source, target)
        raise OSError(error, "the answer was lost, and this is the answer to the repeated request")

    monkeypatch.setattr(os, "link", lose_the_answer)
    with Lock(path) as lock:
        assert lock.is_locked
        assert lock.token == 0


def test_a_lost_answer_to_the_release_is_not_a_lock_that_stays(path: Path, monkeypatch):
    rename = os.rename

    def lose_the_answer(source: str, target: str) -> None:
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "the repeated request found nothing to rename")

    lock = Lock(path)
    lock.lock()
    monkeypatch.setattr(os, "rename", lose_the_answer)
    lock.unlock()
    assert Lock(path).state is LockState.unlocked


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_clocks_on_the_wall_are_compared_with_nothing(path: Path, clock: Clock, monkeypatch, step_s: int):
    """A holder an hour ahead or behind is broken after its lifetime, and not before."""
    alive, follower = candidate(path, "alive", clock), candidate(path, "follower", clock)
    wall = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: wall() + step_s * 10**9)
        assert alive.try_take()
        for _ in range(5):
            clock.now += LIFETIME_S / 2
            assert not follower.may_take()
            assert alive.renew()
    assert not follower.may_take()
    clock.now += LIFETIME_S * 0.99
    assert not follower.may_take()
    clock.now += LIFETIME_S * 0.02
    assert follower.try_take()


@needs("libfaketime")
@pytest.mark.slow
def test_a_host_in_another_time_zone_breaks_nothing_at_the_change_of_the_clocks(path: Path):
    """At 01:00 UTC of that day, clocks in Berlin go from 03:00 back to 02:00. Others do not know."""
    faked = {"LD_PRELOAD": str(find_library()), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME": "@2026-10-25 00:59:58"}
    with holder(path, lifetime=5, refreshes=True, env={**faked, "TZ": "Europe/Berlin"}):
        for zone in ("America/New_York", "UTC", "Europe/Berlin"):
            command = [sys.executable, "-c", _TRY_FOR, str(path), "1"]
            env = {**os.environ, **faked, "TZ": zone}
            tried = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            assert tried.stdout.strip() == "TimeOutError"


def test_a_dead_holder_s_lock_is_broken_after_its_lifetime_without_a_slop_for_clocks(path: Path, clock: Clock):
    dead, follower = candidate(path, "dead", clock, lifetime_s=1.0), candidate(path, "follower", clock)
    assert dead.try_take()
    assert not follower.may_take()
    clock.now += 1.0
    assert follower.try_take()


def test_a_forked_child_has_nothing_of_its_parent_s_lock(path: Path):
    lock = Lock(path)
    lock.lock()
    child = os.fork()
    if child == 0:
        verdict = 1
        with contextlib.suppress(BaseException):
            assert not lock.is_locked
            assert lock.token is None
            with pytest.raises(NotLockedError):
                lock.unlock()
            with pytest.raises(NotLockedError):
                lock.refresh()
            lock.unlock(unconditionally=True)
            with pytest.raises(TimeOutError):
                lock.lock(timeout=0.05)
            verdict = 0
        os._exit(verdict)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.is_locked
    lock.unlock()


@pytest.mark.parametrize("name", ["with|separator", "a|b|c|d", "^", "with space", "ünï", "new\nline"])
def test_path_with_any_characters_can_be_locked_read_and_broken(tmp_path: Path, name: str):
    path = tmp_path / name
    with holder(path, lifetime=0.3) as process:
        assert Lock(path).details[1:] == (process.pid, str(path))
        process.send_signal(signal.SIGSTOP)
        Lock(path).lock(timeout=10)
        process.send_signal(signal.SIGCONT)


def test_a_relative_path_stays_where_it_was_after_chdir(path: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = Lock(path.name)
    monkeypatch.chdir("/")
    lock.lock()
    assert lock.lockfile == path.name
    with pytest.raises(TimeOutError):
        Lock(path).lock(timeout=0)
    lock.unlock()
    assert names(path) == ["epoch.0", "released.0"]


def test_expired_lock_that_no_follower_broke_is_taken_again_by_its_holder_under_a_new_number(path: Path, clock: Clock):
    """Not refreshed: another process may be breaking it at this very moment."""
    slow, breaker = candidate(path, "slow", clock), candidate(path, "breaker", clock)
    assert slow.try_take()
    assert not breaker.may_take()
    clock.now += LIFETIME_S
    assert breaker.may_take()
    assert slow.renew()
    assert slow.epoch == 1
    assert not breaker.take_next()


def test_a_heartbeat_that_was_answered_too_late_does_not_count(path: Path, clock: Clock, monkeypatch):
    """It may have arrived after a follower had looked for it in vain."""
    slow, breaker = candidate(path, "slow", clock), candidate(path, "breaker", clock)
    assert slow.try_take()
    assert not breaker.may_take()
    clock.now += LIFETIME_S * 0.8
    utime = os.utime

    def be_long_on_the_way(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        clock.now += LIFETIME_S * 0.2
        assert breaker.may_take()  # looks, and will break, a little later
        utime(*arguments, **options)

    monkeypatch.setattr(os, "utime", be_long_on_the_way)
    assert not slow.renew_in_time()
    assert not slow.is_trusted
    assert breaker.take_next()
    assert not slow.renew()


@pytest.mark.parametrize("step", ["take", "renew"])
def test_trust_counts_from_before_the_step_and_not_from_its_answer(path: Path, clock: Clock, monkeypatch, step: str):
    slow, utime = candidate(path, "slow", clock), os.utime

    def be_a_while_on_the_way(*arguments: Any, **options: Any) -> None:
        utime(*arguments, **options)
        clock.now += LIFETIME_S * 0.5

    if step == "renew":
        assert slow.try_take()
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", be_a_while_on_the_way)
        began = clock.now
        assert slow.renew_in_time() if step == "renew" else slow.take(0)
    clock.now = began + LIFETIME_S * 0.89
    assert slow.is_trusted
    clock.now = began + LIFETIME_S * 0.91
    assert not slow.is_trusted


def test_on_a_file_system_with_whole_seconds_every_heartbeat_shows(path: Path, clock: Clock, monkeypatch):
    holder_, follower = candidate(path, "holder", clock), candidate(path, "follower", clock)
    utime = os.utime

    def rounded(target: Any, ns: tuple[int, int] | None = None) -> None:
        if ns is None:
            utime(target)
        else:
            utime(target, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9))

    monkeypatch.setattr(os, "utime", rounded)
    assert holder_.try_take()
    assert not follower.may_take()
    for _ in range(10):
        clock.now += LIFETIME_S * 0.6
        assert holder_.renew()
        assert not follower.may_take()


def test_longer_lifetime_is_visible_to_followers_before_the_holder_relies_on_it(path: Path, clock: Clock):
    holder_, follower = candidate(path, "holder", clock), candidate(path, "follower", clock)
    assert holder_.try_take()
    assert not follower.may_take()
    holder_.change_lifetime(50.0)
    assert holder_.renew()
    clock.now += 44.0
    assert holder_.is_trusted
    assert not follower.may_take()
    clock.now += 44.0
    assert not holder_.is_trusted
    assert not follower.may_take()  # it has seen the change only now, or a moment ago
    clock.now += 50.0
    assert follower.may_take()


def test_shorter_lifetime_binds_the_holder_before_followers_can_see_it(path: Path, clock: Clock, monkeypatch):
    """Also when we are frozen in between."""
    holder_, follower = candidate(path, "holder", clock, lifetime_s=50.0), candidate(path, "follower", clock)
    assert holder_.try_take()
    assert not follower.may_take()
    holder_.change_lifetime(5.0)
    assert not follower.may_take()
    clock.now += 5.0
    assert not holder_.is_trusted
    assert follower.may_take()


def test_a_lock_that_is_broken_by_force_is_noticed_at_the_next_refresh(path: Path):
    lock = Lock(path)
    lock.lock()
    (path / "epoch.1").write_bytes(b"")
    assert not lock.is_locked
    with pytest.raises(NotLockedError):
        lock.unlock()
    assert "claim" not in "".join(names(path))


def test_a_path_that_flufl_lock_uses_is_refused(path: Path):
    path.write_text(f"{path}|host|123|456")
    for attempt in (Lock(path).lock, lambda: Lock(path).state):
        with pytest.raises(LockError, match=r"perhaps of flufl\.lock.*choose another path"):
            attempt()
    assert path.read_text() == f"{path}|host|123|456"


def test_a_folder_of_something_else_is_refused(path: Path):
    path.mkdir()
    (path / "report.txt").write_text("important")
    for attempt in (Lock(path).lock, lambda: Lock(path).state):
        with pytest.raises(LockError, match=r"holds other things \('report\.txt'\): name a path in it, such") as raised:
            attempt()
        assert f"{path}/name.lock" in str(raised.value)
        assert "remove" not in str(raised.value)
    assert names(path) == ["report.txt"]


@pytest.mark.parametrize(
    "name", [".nfs000000000001", ".fuse_hidden0000000100000001", ".smbdeleteAAA00000001", ".DS_Store"]
)
def test_what_a_file_server_keeps_for_itself_is_none_of_our_business(path: Path, name: str):
    with Lock(path):
        pass
    (path / name).write_bytes(b"")
    with Lock(path) as lock:
        assert lock.token == 1


@pytest.mark.parametrize("error", [LockError, FileNotFoundError])
def test_missing_folder_is_reported_at_once(path: Path, error: type[Exception]):
    with pytest.raises(error, match="does not exist: create it"):
        Lock(path / "x" / "y").lock()


@pytest.mark.parametrize("timeout", [-1, -0.5, timedelta(seconds=-1), 0])
def test_a_timeout_that_is_over_before_it_begins_is_for_one_try(path: Path, timeout: Any):
    with Lock(path):
        other = Lock(path)
        with pytest.raises(TimeOutError):
            other.lock(timeout)
    other.lock(timeout)
    other.unlock()
    with pytest.raises(ValueError, match="timeout"):
        other.lock(float("-inf"))


# --- A time-out that is shorter than the lifetime, on a network's file system ---------------------------------------


@pytest.fixture
def on_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgleaderlock.stores.nfs._lock.place.is_local", lambda _: False)


def notes_in(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.name.startswith("claim|seen|")]


def tried_once(path: Path) -> Lock | None:
    """What a cron job does that does not wait: each time another object."""
    lock = Lock(path)
    try:
        lock.lock(timeout=0)
    except TimeOutError:
        return None
    return lock


@pytest.mark.usefixtures("on_a_network")
def test_a_job_that_never_waits_takes_over_from_a_dead_holder_in_the_end(path: Path):
    dead = Lock(path, lifetime=2)
    began = time.monotonic()
    dead.lock()
    deadline = began + 30
    while (taken := tried_once(path)) is None and time.monotonic() < deadline:
        assert notes_in(path)
        time.sleep(0.05)
    assert taken is not None
    assert taken.token == 1
    assert time.monotonic() - began > 2
    assert notes_in(path) == []
    assert not dead.is_locked


@pytest.mark.usefixtures("on_a_network")
def test_a_note_is_worth_nothing_after_a_sign_of_life_or_on_another_boot(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pgleaderlock.stores.nfs._candidate.suspend_aware_clock", clock)
    monkeypatch.setattr("pgleaderlock.stores.nfs._lock.suspend_aware_clock", clock)
    holder = Lock(path, lifetime=10)
    holder.lock()
    assert tried_once(path) is None
    clock.now += 8.0
    holder.refresh()
    assert tried_once(path) is None
    clock.now += 8.0  # 16 s after the first look
    assert tried_once(path) is None
    with monkeypatch.context() as patch:
        patch.setattr("pgleaderlock.stores.nfs._notes.place.boot_id", lambda: "01234567-89ab-cdef-0123-456789abcdef")
        clock.now += 8.0
        assert tried_once(path) is None
    (note,) = (each for each in notes_in(path) if "01234567-89ab" not in each.name)
    text = note.read_text()
    for torn in (
        text[: len(text) // 2],
        text.replace('"since": ', '"since": 1'),
        "[]",
        text.replace("boottime 0", "boottime 900000"),
    ):
        note.write_text(torn)
        if torn != text:
            assert tried_once(path) is None
            note.unlink(missing_ok=True)
    note.write_text(text)
    assert tried_once(path) is not None


def test_weird_link_counts_are_logged_and_do_no_harm(path: Path, caplog):
    caplog.set_level(logging.ERROR, logger="pgleaderlock")
    lock = Lock(path)
    link = os.link

    def and_another(source: str, target: str) -> None:
        link(source, target)
        link(source, path.with_name("weird"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", and_another)
        lock.lock()
    assert lock.is_locked
    assert "weird_link_count" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EIO])
def test_errors_that_pass_are_tried_again(path: Path, monkeypatch, number: int):
    lock = Lock(path)
    lock.retry_errnos = [errno.EIO]
    link, failures = os.link, [number] * 3

    def fail(source: str, target: str) -> None:
        if failures:
            raise OSError(failures.pop(), "not yet")
        link(source, target)

    monkeypatch.setattr(os, "link", fail)
    lock.lock(timeout=10)
    assert lock.is_locked
    assert failures == []


def test_any_other_error_is_logged_and_raised_at_once_and_the_claim_removed(path: Path, monkeypatch, caplog):
    def fail(source: str, target: str) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "link", fail)
    lock = Lock(path)
    with pytest.raises(OSError, match="the disk is broken"):
        lock.lock()
    assert not Path(lock.claimfile).exists()
    assert "the disk is broken" in caplog.text


def test_claim_that_another_process_removed_is_written_again(path: Path):
    with Lock(path):
        waiting = Lock(path)
        patience = waiting._retry_policy(None)
        candidate_, _ = waiting._ready()
        candidate_.lay_claim()
        Path(waiting.claimfile).unlink()
    assert patience.attempt(candidate_.try_take) or patience.attempt(candidate_.try_take)


def test_a_lifetime_is_known_to_others_however_often_it_was_changed_before(path: Path, clock: Clock):
    """Each change is a line, because a file of the same size may be shown as it was."""
    holder_, follower = candidate(path, "holder", clock), candidate(path, "follower", clock)
    assert holder_.try_take()
    holder_.change_lifetime(1.0)
    with Path(holder_._claimfile).open("ab") as claim:
        claim.write(encode_lifetime(1.0) * (70_000 // len(encode_lifetime(1.0))))
    os.lseek(holder_._claim.number, 0, os.SEEK_END)  # type: ignore[union-attr]
    holder_.change_lifetime(60.0)
    assert holder_.renew()
    assert not follower.may_take()
    clock.now += 50.0
    assert holder_.is_trusted
    assert not follower.may_take()


def test_of_a_long_claim_the_last_complete_line_counts(path: Path, clock: Clock):
    holder_ = candidate(path, "holder", clock)
    assert holder_.try_take()
    with Path(holder_._claimfile).open("ab") as claim:
        for size in range(65_500, 65_580):
            claim.truncate(size)
            claim.write(b"\n" + encode_lifetime(float(size)) + encode_lifetime(1.0)[:5])
            claim.flush()
            seen = Folder(path).see(0)
            assert seen is not None
            assert seen.claimant is not None
            assert seen.claimant.lifetime_s == size


def test_claim_that_is_too_long_for_readers_is_refused(path: Path, clock: Clock):
    with pytest.raises(LockError, match="too long"):
        candidate(path, "n" * 70_000, clock).lay_claim()


@pytest.mark.parametrize("step", ["write", "fsync"])
@pytest.mark.parametrize("change", [(1.0, 60.0), (60.0, 1.0)])
def test_holder_does_not_rely_on_a_lifetime_that_could_not_be_written(
    path: Path, clock: Clock, monkeypatch, step: str, change: tuple[float, float]
):
    """A full disk takes a part of it. Others may have read the old one, or the new."""
    before_s, after_s = change
    holder_, follower = candidate(path, "holder", clock, lifetime_s=before_s), candidate(path, "follower", clock)
    assert holder_.try_take()
    assert not follower.may_take()
    real = os.write

    def fail(number: int, text: bytes = b"") -> int:
        if step == "write":
            return real(number, text[:-5])
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match=r"[Nn]o space left"):
            holder_.change_lifetime(after_s)
    assert holder_.renew()
    clock.now += 0.95
    assert not holder_.is_trusted
    clock.now -= 0.95
    holder_.change_lifetime(after_s)
    assert holder_.renew()
    clock.now += 0.8 * after_s
    assert holder_.is_trusted
    seen = Folder(path).see(0)
    assert seen is not None
    assert seen.claimant is not None
    assert seen.claimant.lifetime_s == after_s


def test_a_claim_that_was_written_in_part_is_not_used(path: Path, clock: Clock, monkeypatch):
    monkeypatch.setattr(os, "write", lambda number, text: len(text) - 1)
    with pytest.raises(OSError, match="No space left"):
        candidate(path, "holder", clock).try_take()
    assert names(path) == []


def clamp_times(latest_s: float, monkeypatch: pytest.MonkeyPatch, grain_ns: int = 1) -> None:
    """Keep no time that is later than that, as some file systems do, nor one that is finer."""
    utime = os.utime

    def clamped(target: Any, ns: tuple[int, int] | None = None) -> None:
        if ns is None:
            utime(target)
        else:
            at_ns = min(ns[1], round(latest_s * 10**9)) // grain_ns * grain_ns
            utime(target, ns=(at_ns, at_ns))

    monkeypatch.setattr(os, "utime", clamped)


@pytest.mark.parametrize("grain_ns", [1, 10**9])
def test_where_times_end_in_2038_every_heartbeat_shows(path: Path, clock: Clock, monkeypatch, grain_ns: int):
    """And shows something that was never shown before: a follower that looks rarely must not take it for an old one."""
    clamp_times(time.time() + 3600, monkeypatch, grain_ns)
    holder_ = candidate(path, "holder", clock, lifetime_s=30 * 365 * 86400.0)
    assert holder_.try_take()
    shown = [holder_.heartbeat]
    for lifetime_s in (None, None, 2.0, None, None, 10 * 365 * 86400.0, None, None):
        if lifetime_s is not None:
            holder_.change_lifetime(lifetime_s)
        assert holder_.renew()
        shown.append(holder_.heartbeat)
        seen = Folder(path).see(0)
        assert seen is not None
        assert seen.claimant is not None
        if lifetime_s is None:
            assert min(3500, seen.claimant.lifetime_s / 2) < seen.expires_at - time.time()
    assert len(set(shown)) == len(shown)


def test_a_heartbeat_that_does_not_show_is_an_error(path: Path, clock: Clock, monkeypatch):
    holder_ = candidate(path, "holder", clock)
    assert holder_.try_take()
    clamp_times(time.time() - 3600, monkeypatch)
    assert holder_.renew()
    with pytest.raises(OSError, match="stores no time that shows a heartbeat"):
        holder_.renew()


def test_two_dots_behind_a_link_lead_where_the_system_says(tmp_path: Path):
    (tmp_path / "releases" / "5").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/5")
    with Lock(f"{tmp_path}/current/../work.lck"), pytest.raises(TimeOutError):
        Lock(tmp_path / "releases" / "work.lck").lock(timeout=0)


def test_a_lock_whose_object_was_dropped_lasts_until_it_expires(path: Path):
    Lock(path, lifetime=600).lock()
    gc.collect()
    with pytest.raises(TimeOutError):
        Lock(path).lock(timeout=0)


def test_of_locks_that_are_over_nothing_is_kept(path: Path):
    lock = Lock(path, lifetime=600)
    with lock:
        assert lock._made is not None
        assert lock._made[0] in _lock._held
    assert lock._made[0] not in _lock._held
    lock.lifetime = 0.05
    lock.lock()
    time.sleep(0.05)
    with Lock(path.with_name("other")):
        assert lock._made[0] not in _lock._held
    assert lock.is_locked  # taken anew
    assert lock._made[0] in _lock._held
    (path / f"epoch.{lock.token + 1}").write_bytes(b"")  # type: ignore[operator]
    assert not lock.is_locked
    assert lock._made[0] not in _lock._held


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_another_candidate_that_holds_nothing(path: Path, tmp_path: Path, monkeypatch, copied: Any):
    monkeypatch.chdir(tmp_path)
    lock = Lock(path.name, lifetime=30, separator="^", default_timeout=0)
    lock.retry_errnos = [errno.EIO]
    with lock:
        monkeypatch.chdir("/")
        other = copied(lock)
        assert (other.lockfile, other.lifetime, other.retry_errnos) == (path.name, timedelta(seconds=30), [errno.EIO])
        assert other.claimfile != lock.claimfile
        assert Path(other.claimfile).name.startswith("claim^")
        assert not other.is_locked
        with pytest.raises(TimeOutError):
            other.lock()
        del other
        gc.collect()
        lock.refresh(60)
        assert lock.is_locked
        other = copied(lock)
    with other:
        assert other.token == 1


def test_a_descriptor_is_not_copied(path: Path):
    with Lock(path) as lock:
        assert lock._made is not None
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(lock._made[0])


@pytest.fixture
def long_hostname(monkeypatch) -> Iterator[str]:
    """One character longer than DNS, and so Python's look-up of it, allows."""
    name = "h" * 64
    monkeypatch.setattr("socket.gethostname", lambda: name)
    hostname.cache_clear()
    yield name
    hostname.cache_clear()


async def test_names_are_cut_by_bytes_and_between_characters(tmp_path: Path, long_hostname):
    assert hostname() == long_hostname
    path = tmp_path / ("日" * 66)
    lock = Lock(path)
    lock.lock()
    os.fsencode(lock.claimfile).decode()
    assert "日" * 26 + "|" in lock.claimfile
    assert _inspect.break_lock(path) == 0
    backend = open_backend(f"nfs://{path}")
    await backend.open()
    assert await backend.try_acquire() is not None
    await backend.close()


@pytest.mark.parametrize(
    "name", ["claim", "claim-2024-001.pdf", "claims.sqlite", "claimants.csv", "claim|7", "claim|a|7|8"]
)
def test_a_folder_of_files_that_only_begin_like_ours_is_refused_and_left_alone(path: Path, monkeypatch, name: str):
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
    path.mkdir()
    (path / name).write_text("precious")
    for attempt in (Lock(path).lock, lambda: _inspect.tidy(path)):
        with pytest.raises(LockError, match=re.escape(f"({name!r})")):
            attempt()
    assert names(path) == [name]


@pytest.mark.parametrize("text", ["precious", '{"names": []}', "\n"])
def test_a_file_that_is_called_like_a_claim_and_is_none_is_never_removed(path: Path, monkeypatch, text: str):
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._LEFTOVER_S", -1.0)
    path.mkdir()
    (path / "claim-of-2024-11-05").write_text(text)
    (path / "claim|lock|dead|1|2").write_bytes(encode(CLAIMANT)[:20])
    with Lock(path):
        assert _inspect.tidy(path) == []
    assert names(path) == ["claim-of-2024-11-05", "epoch.0", "released.0"]


@pytest.mark.parametrize("separator", ["|", "^", "::", "a", "7", " ", "|1|"])
@pytest.mark.parametrize("name", ["work.lck", "with|separator", "7", "a a", "new\nline", "日" * 60])
def test_a_claim_is_known_by_its_name_whatever_its_parts_are(tmp_path: Path, separator: str, name: str):
    lock = Lock(tmp_path / name, separator=separator)
    assert is_name(Path(lock.claimfile).name)


def test_a_lock_that_was_lost_and_is_locked_again_is_nothing_weird(path: Path, caplog):
    caplog.set_level(logging.ERROR, logger="pgleaderlock")
    lock = Lock(path, lifetime=0.05)
    lock.lock()
    time.sleep(0.06)
    with Lock(path), pytest.raises(NotLockedError):
        lock.refresh()
    with lock:
        assert lock.token == 2
    assert caplog.text == ""
    assert not [name for name in names(path) if name.startswith("claim")]


@pytest.mark.parametrize("failure", [("utime", errno.ESTALE), ("utime", errno.ENOENT), ("write", errno.ESTALE)])
@pytest.mark.parametrize("is_late", [True, False])
def test_whose_claim_is_gone_with_all_its_names_has_lost_the_lock(
    path: Path, clock: Clock, monkeypatch, failure: tuple[str, int], is_late: bool
):
    step, number = failure
    slow = candidate(path, "slow", clock)
    assert slow.try_take()
    clock.now += LIFETIME_S if is_late else 0.0
    real = getattr(os, step)

    def fail(target: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(target, int):
            raise OSError(number, os.strerror(number))
        return real(target, *arguments, **options)

    monkeypatch.setattr(os, step, fail)
    if step == "write":
        slow.change_lifetime(2 * LIFETIME_S)
    assert not slow.renew()
    assert slow.epoch is None
    monkeypatch.undo()
    clock.now += LIFETIME_S
    assert not slow.renew()


@pytest.mark.parametrize("when", ["made", "removed"])
def test_an_interruption_while_a_claim_is_made_or_removed_breaks_nothing(path: Path, monkeypatch, when: str):
    lock, step = Lock(path), {"made": "lay_claim", "removed": "begin"}[when]
    real = getattr(Folder, step)

    def be_interrupted(*arguments: Any, **options: Any) -> None:
        if when == "made":
            real(*arguments, **options)
        else:
            monkeypatch.setattr(_candidate, "remove", be_interrupted_again)
        raise KeyboardInterrupt

    def be_interrupted_again(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Folder, step, be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.lock()
    monkeypatch.undo()
    with lock:
        assert lock.token == 0
    assert names(path) == ["epoch.0", "released.0"]


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("step", ["listing", "collect"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "the disk is broken")])
def test_an_interruption_after_an_epoch_was_made_gives_it_back(
    path: Path, clock: Clock, step: str, is_late: bool, error: BaseException
):
    """Otherwise all would wait for it, and no process would know that it holds the lock."""
    interrupted, link = candidate(path, "interrupted", clock), os.link
    if is_late:
        assert interrupted.try_take()
        clock.now += LIFETIME_S

    def link_and_be_interrupted(source: str, target: str) -> None:
        link(source, target)
        patch.setattr(Folder, step, fail)

    def fail(*_: Any) -> None:
        patch.undo()
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", link_and_be_interrupted)
        with pytest.raises(type(error)):
            interrupted.renew() if is_late else interrupted.take(0)
    assert f"released.{int(is_late)}" in names(path)
    assert interrupted.epoch is None
    assert candidate(path, "next", clock).try_take()


def test_an_interruption_after_the_lock_was_taken_releases_it(path: Path, monkeypatch):
    def be_interrupted(self: Candidate) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Candidate, "tidy", be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lock(path, lifetime=600).lock()
    assert names(path) == ["epoch.0", "released.0"]


def test_new_holder_removes_old_files_for_a_fraction_of_its_lifetime_only(path: Path, clock: Clock, monkeypatch):
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._LEFTOVER_S", -1.0)
    path.mkdir()
    for number in range(100):
        (path / f"claim|lock|dead|1|{number}").write_bytes(b"")
    taker, real = candidate(path, "taker", clock), os.open

    def slowly(target: Any, *arguments: Any) -> int:
        clock.now += LIFETIME_S * 0.02 if "dead" in str(target) else 0.0
        return real(target, *arguments)

    assert taker.try_take()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", slowly)
        assert taker.settle()
    assert 90 < len(names(path)) < 101
    clock.now += LIFETIME_S
    assert taker.renew()
    assert taker.settle()
    assert len(names(path)) < 75
    assert len(_inspect.tidy(path)) > 60


def test_lock_that_expired_during_the_cleanup_is_not_returned_as_held(path: Path, clock: Clock, monkeypatch):
    lock, tidy, slow = Lock(path, lifetime=10), Candidate.tidy, [15.0]

    def slowly(self: Candidate) -> None:
        tidy(self)
        clock.now += slow.pop() if slow else 0.0

    monkeypatch.setattr(_lock, "suspend_aware_clock", clock)
    monkeypatch.setattr(Candidate, "tidy", slowly)
    lock.lock()
    assert "[locked" in repr(lock)
    assert lock.token == 1
    assert "released.0" in names(path)


@pytest.mark.parametrize("how", ["mount point", "link"])
def test_it_is_the_folder_itself_that_is_local_or_not(path: Path, tmp_path: Path, monkeypatch, how: str):
    """Not the one that it is in, on whose disk it may not be."""
    shared = path if how == "mount point" else tmp_path / "shared" / "lock"
    shared.mkdir(parents=True)
    if how == "link":
        path.symlink_to(shared)
    mounts = tmp_path / "mountinfo"
    lines = (
        f"1 1 8:0 / / rw - ext4 x rw\n2 1 0:1 / {shared if how != 'link' else shared.parent} rw - nfs4 x:/ rw,nocto\n"
    )
    mounts.write_text(lines)
    monkeypatch.setattr(place, "_MOUNTS", mounts)
    lock, asked = Lock(path), []
    assert not lock._ready()[0]._is_local
    assert Lock(path.with_name("other"))._ready()[0]._is_local
    with pytest.raises(ConnectionError, match="mounted with nocto"):
        place.check_shared_folder(path)
    monkeypatch.setattr(Folder, "tidy", lambda _, is_local: asked.append(is_local))
    _inspect.tidy(path)
    assert asked == [False]


@pytest.mark.parametrize("is_a_group_s", [True, False])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_in_a_folder_of_a_group_the_lock_is_the_group_s_whatever_the_umask(path: Path, is_a_group_s: bool, umask: int):
    path.parent.chmod(0o2775 if is_a_group_s else 0o775)
    before = os.umask(umask)
    try:
        lock = Lock(path)
        lock.lock()
    finally:
        os.umask(before)
    folder, claim = path.stat().st_mode & 0o7777, Path(lock.claimfile).stat().st_mode & 0o7777
    if is_a_group_s:
        assert folder & 0o2070 == 0o2070
        assert claim & 0o060 == 0o060
    else:
        assert (folder, claim) == (0o777 & ~umask, 0o664 & ~umask)
    assert not claim & 0o111


@pytest.mark.parametrize("wrong", [1e-7, 0.0009, 3.2e9, 1e15, timedelta.max, timedelta(microseconds=1)])
def test_lifetime_out_of_range_is_refused_and_the_error_names_the_range(path: Path, wrong: Any):
    lock = Lock(path)
    for attempt in (lambda: Lock(path, wrong), lambda: lock.refresh(wrong, unconditionally=True)):
        with pytest.raises(ValueError, match="lifetime must be between a millisecond and a hundred years, got"):
            attempt()
    assert lock.lifetime == timedelta(seconds=15)
    if not isinstance(wrong, timedelta):
        with pytest.raises(ValueError, match="lease_s must be between a millisecond and a hundred years"):
            open_backend(f"nfs://{path}", lease_s=wrong)


def test_holder_that_claims_an_infinite_lifetime_is_treated_as_an_unknown_holder(path: Path, clock: Clock):
    path.mkdir()
    text = encode(CLAIMANT).replace(b"15.0", b"1" + b"0" * 400)
    (path / "epoch.0").write_bytes(text)
    follower = candidate(path, "follower", clock)
    assert not follower.may_take()
    clock.now += LIFETIME_S
    assert follower.try_take()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named_as_such(path: Path, monkeypatch, number: int):
    def fail(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(LockError, match=r"has no hard links .*choose a path on one that has"):
        Lock(path).lock(timeout=0)
    assert names(path) == []


def test_full_disk_does_not_prevent_a_heartbeat(path: Path, monkeypatch):
    with Lock(path, lifetime=600) as lock:
        assert lock._made is not None
        before = lock._made[0].heartbeat
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda number, text: 0)
            with pytest.raises(OSError, match="No space left"):
                lock.refresh(700)
        assert lock._made[0].heartbeat != before
        assert lock.is_locked


# --- Waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_follower_is_woken_by_the_release(path: Path):
    with holder(path, lifetime=600) as process:
        assert process.stdin is not None
        lock, began = Lock(path), time.monotonic()
        process.stdin.write(b"unlock in 0.3\n")
        process.stdin.flush()
        lock.lock(timeout=10)
        assert time.monotonic() - began < 5


def test_on_a_local_disk_the_death_of_a_holder_is_seen_at_once(path: Path):
    with holder(path, lifetime=600) as process:
        process.kill()
        process.wait()
        lock = Lock(path)
        lock.lock(timeout=5)
        assert lock.token == 1


def test_on_another_boot_only_the_lifetime_counts(path: Path, clock: Clock, monkeypatch):
    dead = candidate(path, "dead", clock, is_local=True)
    assert dead.try_take()
    dead.drop()
    monkeypatch.setattr(place, "boot_id", lambda: "another")
    assert not candidate(path, "follower", clock, is_local=True).may_take()
    monkeypatch.undo()
    assert candidate(path, "follower", clock, is_local=True).may_take()


@pytest.mark.parametrize("boot_id", ["this boot", None])
def test_of_a_claim_that_was_never_locked_the_kernel_knows_nothing(path: Path, clock: Clock, monkeypatch, boot_id):
    """Such as one that was made through a mount of this very folder, where locks may be local to a host."""
    monkeypatch.setattr(place, "boot_id", lambda: boot_id)
    alive = candidate(path, "alive", clock, is_local=False)
    assert alive.try_take()
    assert not candidate(path, "follower", clock, is_local=True).may_take()


@pytest.mark.slow
def test_of_four_that_ask_again_and_again_none_starves(path: Path):
    """Each asks until all have had it twenty times: how often the quickest had it meanwhile depends on the machine."""
    done = path.with_name("done")
    done.mkdir()
    command = [sys.executable, "-c", _COUNT_LOCKS, str(path), str(done), "20", "4"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_waiting_follower_polls_often_where_no_notifications_arrive(path: Path, monkeypatch):
    monkeypatch.setattr(place, "is_local", lambda _: False)
    first, second = Lock(path), Lock(path)
    first.lock()
    releasing = threading.Timer(0.2, first.unlock)
    releasing.start()
    second.lock(timeout=10)
    releasing.join()
    assert second.token == 1


@pytest.mark.parametrize("is_local", [True, False])
def test_last_holder_lets_waiting_followers_go_first(path: Path, monkeypatch, is_local: bool):
    monkeypatch.setattr(place, "is_local", lambda _: is_local)
    last, waiting = Lock(path), Lock(path)
    last.lock()
    candidate, step_back = waiting._ready()[0], Turnstile.step_back
    candidate.lay_claim()
    last.unlock()

    def be_overtaken(*args: Any) -> None:
        assert candidate.try_take()
        step_back(*args)

    monkeypatch.setattr(Turnstile, "step_back", be_overtaken)
    with pytest.raises(TimeOutError):
        last.lock(timeout=0.5)
    assert waiting.token == 1


def test_waiting_follower_sees_in_time_that_the_lifetime_was_shortened(path: Path, monkeypatch):
    monkeypatch.setattr(_acquiring, "_LOOK_EVERY_S", 0.1)
    first, second = Lock(path, lifetime=600), Lock(path)
    first.lock()

    def shorten() -> None:
        with contextlib.suppress(NotLockedError):  # on a busy machine the lifetime may be over before this returns
            first.refresh(0.1)

    shortening = threading.Timer(0.2, shorten)
    shortening.start()
    second.lock(timeout=60)
    shortening.join()
    assert second.token is not None
    assert second.token >= 1


def test_waiting_follower_checks_again_before_long(path: Path, monkeypatch):
    waits: list[float] = []

    def wait(self: Any, at_most_s: float, others: int, **options: Any) -> None:
        waits.append(at_most_s)
        first.unlock()

    first = Lock(path, lifetime=600)
    first.lock()
    monkeypatch.setattr("pgleaderlock.stores.nfs._waiting.Turnstile.wait", wait)
    Lock(path).lock()
    assert waits[0] <= 2.0


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOSPC])
def test_between_attempts_that_fail_there_is_a_rest_that_grows(path: Path, monkeypatch, number: int):
    now, rests = [1000.0], []

    def sleep(rest_s: float) -> None:
        rests.append(rest_s)
        now[0] += rest_s

    def fail(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    for module in (_lock, _acquiring):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    lock = Lock(path)
    lock.retry_errnos = [errno.ENOSPC]
    with pytest.raises(TimeOutError):
        lock.lock(timeout=1)
    assert 5 <= len(rests) < 15
    assert all(0.005 <= rest_s <= 0.25 for rest_s in rests[:-1])
    assert rests[3] > rests[2] > rests[1] > rests[0]


# --- Tidiness ---------------------------------------------------------------------------------------------------------


def test_old_epochs_are_collected(path: Path):
    lock = Lock(path)
    for _ in range(50):
        with lock:
            pass
    assert len(names(path)) <= 20
    assert "epoch.49" in names(path)


def test_claims_of_dead_processes_are_removed_and_those_of_living_ones_are_not(path: Path, monkeypatch):
    folder = Folder(path)
    with Lock(path) as held:
        waiting = Lock(path)
        waiting._ready()[0].lay_claim()
        (path / "claim|lock|dead|1|1").write_bytes(b"")
        monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
        assert folder.tidy(is_local=True) == ["claim|lock|dead|1|1"]
        assert Path(held.claimfile).exists()
        assert Path(waiting.claimfile).exists()


def test_elsewhere_claims_are_leftovers_when_untouched_for_long_by_the_server_s_clock(path: Path, monkeypatch):
    folder = Folder(path)
    folder.make()
    (path / "claim|lock|old|1|1").write_bytes(b"")
    time.sleep(2.1)
    assert folder.tidy(is_local=False) == []
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._LEFTOVER_S", 2.0)
    (path / "claim|lock|new|1|1").write_bytes(b"")
    assert folder.tidy(is_local=False) == ["claim|lock|old|1|1"]


# --- What is written --------------------------------------------------------------------------------------------------

CLAIMANT = Claimant("n", "h", 7, "/x", 15.0, "boot", "/x/claim")


def test_a_claim_is_read_as_it_was_written():
    assert decode(encode(CLAIMANT)) == CLAIMANT
    changed = decode(encode(CLAIMANT) + encode_lifetime(30.0))
    assert changed is not None
    assert changed.lifetime_s == 30.0


def test_a_line_that_is_still_being_written_does_not_count_yet():
    assert decode(encode(CLAIMANT) + encode_lifetime(30.0)[:-1]) == CLAIMANT
    assert decode(encode(CLAIMANT)[:-1]) is None


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"{}\n", b"[]\n", b"\xff\n", b"7\n", b'{"name": 1}\n', b"[" * 5000 + b"\n"]
    + [
        json.dumps({**json.loads(encode(CLAIMANT)), "lifetime_s": wrong}).encode() + b"\n"
        for wrong in (0, -1, True, None, "15", float("inf"), float("nan"), 1e300, 10**400)
    ],
)
def test_claim_that_cannot_be_decoded_is_an_unknown_holder(text: bytes):
    assert decode(text) is None


def test_follower_waits_its_own_lifetime_for_an_unknown_holder(path: Path, clock: Clock):
    path.mkdir()
    (path / "epoch.7").write_bytes(b"\0\0")
    follower = candidate(path, "follower", clock)
    assert not follower.may_take()
    clock.now += LIFETIME_S
    assert follower.try_take()
    assert follower.epoch == 8


def test_the_public_names_are_those_that_users_know():
    assert {"Lock", "LockState", "LockError", "AlreadyLockedError", "NotLockedError", "TimeOutError", "SEP"} == set(
        nfs.__all__
    )
    assert [state.value for state in LockState] == [1, 2, 3, 4, 5, 6]
    assert nfs.SEP == "|"


# --- Other processes --------------------------------------------------------------------------------------------------

_HOLD = """
import select, sys, time
from pgleaderlock.stores.nfs import Lock
lock = Lock(sys.argv[1], lifetime=float(sys.argv[2]))
lock.lock(timeout=10)
print("locked", flush=True)
if sys.argv[3] == "True":
    while True:
        select.select([], [], [], 0.2)  # libfaketime has its difficulties with time.sleep
        lock.refresh()
words = sys.stdin.readline().split()
if words:
    time.sleep(float(words[-1]))
    lock.unlock()
"""

_TRY_FOR = """
import sys
from pgleaderlock.stores.nfs import Lock, TimeOutError
try:
    Lock(sys.argv[1], lifetime=5).lock(timeout=float(sys.argv[2]))
    print("locked")
except TimeOutError:
    print("TimeOutError")
"""

_COUNT_LOCKS = """
import os, sys, time
from pgleaderlock.stores.nfs import Lock
lock, count, (done, wanted, processes) = Lock(sys.argv[1]), 0, sys.argv[2:]
while len(os.listdir(done)) < int(processes):
    with lock:
        count += 1
        time.sleep(0.001)
    if count == int(wanted):
        open(os.path.join(done, str(os.getpid())), "x").close()
"""


@contextlib.contextmanager
def holder(
    path: Path, *, lifetime: float, refreshes: bool = False, env: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has the lock."""
    command = [sys.executable, "-c", _HOLD, str(path), str(lifetime), str(refreshes)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()
