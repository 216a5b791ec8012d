"""What the simulation and the torture of the lock in a shared folder have found, by name; and that they can find it."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock.stores.nfs import Lock, _candidate
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._folder import Folder
from proofs.nfs_simulation import simulate
from proofs.nfs_torture import Group, intervals_of, tokens_out_of_order
from proofs.nfs_torture_candidates import Note
from tests.support.nfs_lock import LIFETIME_S, Clock, candidate, names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.lck"


@pytest.fixture
def clock() -> Clock:
    return Clock()


# --- The simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "network"])
def test_in_every_order_that_is_tried_at_most_one_holder_is_valid(is_local: bool):
    had, problems = simulate(range(12), is_local=is_local)
    assert problems == []
    assert had > 100


def test_the_simulation_is_decided_by_its_seed_alone():
    assert simulate([7], is_local=False) == simulate([7], is_local=False)


def test_simulation_finds_a_holder_that_considers_itself_valid_for_too_long(monkeypatch):
    monkeypatch.setattr(_candidate, "TRUST_SHARE", 1.3)
    found = (problem for seed in range(100) for problem in simulate([seed], is_local=False)[1])
    assert any("several believe" in problem for problem in found)


def test_a_number_that_is_given_out_twice_is_found(monkeypatch):
    def take(self: Folder, epoch: int, claim: str) -> bool:
        return self.begin(epoch, claim)

    def begin(self: Folder, epoch: int, claim: str) -> bool:
        Path(self.epoch_path(epoch)).unlink(missing_ok=True)
        os.link(claim, self.epoch_path(epoch))
        return True

    monkeypatch.setattr(Folder, "take", take)
    monkeypatch.setattr(Folder, "begin", begin)
    found = (problem for seed in range(100) for problem in simulate([seed], is_local=False)[1])
    assert any("has token" in problem for problem in found)


# --- What it found ----------------------------------------------------------------------------------------------------


def test_lock_that_took_too_long_to_acquire_is_released_at_once(path: Path, clock: Clock, monkeypatch):
    """Otherwise all processes wait for a waiting one, itself included, and for ever if it sends heartbeats."""
    slow, link = candidate(path, "slow", clock), os.link

    def be_long_on_the_way(source: str, target: str) -> None:
        link(source, target)
        clock.now += LIFETIME_S

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", be_long_on_the_way)
        assert not slow.try_take()
    assert names(path) == ["epoch.0", "released.0"]
    assert candidate(path, "next", clock).try_take()


def test_follower_sends_no_heartbeat_for_an_epoch_that_it_does_not_know_to_be_its_own(path: Path, clock: Clock):
    waiting = candidate(path, "waiting", clock)
    waiting.lay_claim()
    (path / "epoch.0").hardlink_to(waiting._claimfile)
    before = waiting.heartbeat
    waiting.stay()
    assert waiting.heartbeat == before


def test_expired_lock_whose_claim_was_removed_is_lost_without_an_error(path: Path, clock: Clock):
    slow = candidate(path, "slow", clock)
    assert slow.try_take()
    Path(slow._claimfile).unlink()
    clock.now += LIFETIME_S
    assert not slow.renew()
    assert slow.epoch is None


def show_until_changed(old: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """List the folder as it was, as NFS version 3 may without limit, until its reader changes it."""
    listdir, utime, listings = os.listdir, os.utime, [old]

    def change(target: Any, **times: Any) -> None:
        utime(target, **times)
        if not isinstance(target, int):
            listings.clear()

    monkeypatch.setattr(os, "listdir", lambda folder: listings[0] if listings else listdir(folder))
    monkeypatch.setattr(os, "utime", change)


@pytest.mark.slow
def test_reader_sees_the_newest_epoch_although_the_server_keeps_returning_an_old_listing(
    path: Path, clock: Clock, monkeypatch
):
    quick, late = candidate(path, "quick", clock), Folder(path)
    assert quick.try_take()
    old = names(path)
    assert quick.release()
    for _ in range(20):
        assert quick.try_take()
        assert quick.release()
    show_until_changed(old, monkeypatch)
    assert late.look()[0].newest == 20


def test_release_that_is_too_late_reports_it_although_the_holder_reads_an_old_listing(
    path: Path, clock: Clock, monkeypatch
):
    slow, quick = candidate(path, "slow", clock), candidate(path, "quick", clock)
    assert slow.try_take()
    assert not quick.may_take()
    clock.now += LIFETIME_S
    old = names(path)
    assert quick.try_take()
    show_until_changed(old, monkeypatch)
    assert not slow.release()
    assert "released.0" not in names(path)


def test_follower_sees_the_release_although_it_reads_an_old_listing(path: Path, clock: Clock, monkeypatch):
    """On NFS version 3 it would wait for the whole lifetime, and then again."""
    first, waiting = candidate(path, "first", clock), candidate(path, "waiting", clock)
    assert first.try_take()
    assert not waiting.may_take()
    old = names(path)
    assert first.release()
    show_until_changed(old, monkeypatch)
    clock.now += 0.3
    assert waiting.may_take()


def test_the_mark_of_a_release_that_came_late_is_collected_with_the_others(path: Path):
    lock = Lock(path)
    for _ in range(20):
        with lock:
            pass
    Folder(path).release(3, f"{path}/claim|that|is|gone")
    assert "released.3" in names(path)
    with lock:
        pass
    for _ in range(4):
        with lock:
            pass
    assert "released.3" not in names(path)


@pytest.mark.parametrize("is_local", [True, False])
def test_claims_of_dead_processes_are_removed_also_by_a_holder_without_competitors(
    path: Path, monkeypatch, is_local: bool
):
    monkeypatch.setattr("pgleaderlock.stores.place.is_local", lambda _: is_local)
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._YOUNG_S", -1.0)
    monkeypatch.setattr("pgleaderlock.stores.nfs._folder._LEFTOVER_S", -1.0)
    path.mkdir()
    (path / "claim|lock|dead|1|1").write_bytes(b"")
    with Lock(path) as lock:
        assert sorted(names(path)) == sorted([Path(lock.claimfile).name, "epoch.0"])


def test_holder_keeps_the_lock_when_old_files_cannot_be_removed(path: Path, monkeypatch):
    def fail(self: Folder, **options: Any) -> list[str]:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(Folder, "tidy", fail)
    path.mkdir()
    (path / "claim|lock|dead|1|1").write_bytes(b"")
    with Lock(path) as lock:
        assert lock.is_locked


def test_a_claim_that_did_not_reach_the_file_server_is_not_used(path: Path, clock: Clock, monkeypatch):
    """A claim that cannot be read counts as valid for as long as its reader decides, not its holder."""

    def fail(number: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on the server")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        candidate(path, "holder", clock).try_take()
    assert names(path) == []


def test_file_server_that_does_not_answer_blocks_neither_open_nor_fork_in_other_threads(path: Path, clock, monkeypatch):
    begun, answered, real = threading.Event(), threading.Event(), os.open

    def be_silent(target: str, flags: int, mode: int = 0o777) -> int:
        if "claim" in str(target):
            begun.set()
            answered.wait(10)
        return real(target, flags, mode)

    monkeypatch.setattr(os, "open", be_silent)
    waiting: Candidate = candidate(path, "waiting", clock)
    thread = threading.Thread(target=waiting.lay_claim)
    thread.start()
    assert begun.wait(10)
    other = threading.Thread(target=lambda: Descriptor(lambda: real(path.parent, os.O_RDONLY)).close())
    other.start()
    other.join(5)
    is_stuck = other.is_alive()
    answered.set()
    thread.join()
    other.join()
    waiting.withdraw()
    assert not is_stuck


# --- The torture ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notes", "wrong"),
    [
        ([], 0),
        ([("a", Note(1.0, 1.1, 1.2, 0)), ("b", Note(2.0, 2.1, 2.2, 1))], 0),
        ([("a", Note(1.0, 1.1, 1.2, 1)), ("b", Note(2.0, 2.1, 2.2, 0))], 1),
        ([("a", Note(1.0, 9.0, 9.1, 1)), ("b", Note(2.0, 2.1, 2.2, 0))], 0),  # which was first is unknown
        ([("a", Note(1.0, 1.1, 1.2, 0)), ("b", Note(2.0, 2.1, 2.2, 0))], 1),
        ([("a", Note(1.0, 1.1, 1.2, 0)), ("a", Note(2.0, 2.1, 2.2, 0))], 0),  # it was refreshed
        ([("a", Note(1.0, 1.1, 1.2, 1)), ("b", Note(2.0, 2.1, -1.0, 0))], 0),  # it was over before it was seen
    ],
)
def test_tokens_are_compared_where_the_order_is_certain(notes, wrong):
    assert tokens_out_of_order(notes) == wrong


def test_term_that_ended_before_its_holder_could_check_it_does_not_count_as_valid():
    notes = [("a", Note(1.0, 1.1, 5.0, 0)), ("b", Note(2.0, 2.1, -1.0, 1))]
    assert intervals_of(notes) == [(1.1, 5.0, "a", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "shared"])
def test_a_few_processes_under_torture_never_have_one_lock_at_once(tmp_path: Path, is_local: bool):
    verdict = Group(tmp_path, 6, 2, 1, kind="ours", is_local=is_local).run(10_000, 2.0)
    assert (verdict.overlaps, verdict.disordered, verdict.errors) == (0, 0, [])
    assert verdict.possessions > 0
