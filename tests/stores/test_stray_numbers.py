"""Files that only look like a term or an epoch: a huge or odd number stops no election, and raises no token."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from pgleaderlock.cli.commands import invoke
from pgleaderlock.errors import ConnectionError, LeadershipLost
from pgleaderlock.stores.file._folder import Folder as TermFolder
from pgleaderlock.stores.file._record import Entry, decode, encode
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.stores.nfs import Lock, LockError
from pgleaderlock.stores.nfs._claim import Claimant
from pgleaderlock.stores.nfs._claim import encode as claim_text
from pgleaderlock.stores.nfs._folder import Folder as EpochFolder
from pgleaderlock.stores.nfs.backend import open_nfs
from pgleaderlock.stores.record import RecordBackend
from tests.support.file import acquired, names, patient, taken_over

__all__ = ["patient"]  # the fixture

LARGEST_SIGNED = 2**63 - 1
FAR = [10**18 - 1, 2**62, LARGEST_SIGNED, 2**63, 10**40, 10**230]
ODD = ["-1", "+7", "007", "٣", "7" + "٣" * 5]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader"


def touch(path: Path) -> None:
    path.touch()


async def two_terms(first: RecordBackend, second: RecordBackend, stray: Path) -> tuple[int, int]:
    """Lead, meet a stray file, renew, hand over, and return the tokens."""
    grant = await acquired(first)
    touch(stray)
    grant = await first.renew(grant)
    assert await second.try_acquire() is None
    await first.release(grant)
    after = await acquired(second)
    await second.renew(after)
    assert grant.token is not None
    assert after.token is not None
    return grant.token, after.token


# --- file:// ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [10**15 + 1, 10**17, 10**18 - 2, *FAR, *ODD])
async def test_a_stray_file_of_a_file_lock_is_ignored_and_named_once(path, number, caplog):
    first, second = (open_file(path, lease_s=60) for _ in range(2))
    stray = path.with_name(f"leader.live.{number}")
    assert await two_terms(first, second, stray) == (0, 1)
    assert stray.exists()  # it may belong to another program
    await first.close()
    await first.open()
    await first.open()
    said = [line for line in caplog.messages if "stray_file_ignored" in line]
    assert len([line for line in said if stray.name in line]) <= 2  # once for each of the two
    assert said
    await first.close()
    await second.close()


async def test_a_copy_of_a_term_is_no_term(path):
    first, second = (open_file(path, lease_s=60) for _ in range(2))
    grant = await acquired(first)
    shutil.copy(path.with_name("leader.live.0"), path.with_name(f"leader.live.{10**18 - 1}"))
    await first.renew(grant)
    await first.release(grant)
    assert (await acquired(second)).token == 1
    await second.close()


@pytest.mark.parametrize("what", ["folder", "link", "pipe", "large"])
async def test_a_far_number_of_anything_but_a_text_is_ignored(path, what):
    stray = path.with_name(f"leader.live.{10**16}")
    if what == "folder":
        stray.mkdir()
    elif what == "link":
        stray.symlink_to("leader.live.0")
    elif what == "pipe":
        os.mkfifo(stray)
    else:
        stray.write_bytes(b"x" * 70_000)
    backend = open_file(path, lease_s=60)
    grant = await acquired(backend)
    assert grant.token == 0
    await backend.renew(grant)
    await backend.close()


async def test_a_near_number_counts_whatever_is_in_it_and_costs_one_lease(path):
    """A term whose text was lost in a power cut looks like that, and its number must never come again."""
    backend = open_file(path, lease_s=0.4)
    grant = await acquired(backend)
    path.with_name(f"leader.live.{10**15}").touch()
    with pytest.raises(LeadershipLost):
        await backend.renew(grant)
    await backend.close()
    await taken_over(backend)
    assert decode(path.read_bytes()).token == 10**15 + 1  # type: ignore[union-attr]
    held = backend._held
    assert held is not None
    await backend.close()
    assert (await acquired(backend)).token == 10**15 + 2  # it goes on from there: those are terms
    await backend.close()


async def test_far_number_in_the_record_is_accepted_only_with_the_file_of_its_term(path):
    path.write_text(json.dumps({"holder": "", "leaseDuration": "1s", "token": 10**18 - 1}))
    backend = open_file(path, lease_s=0.3)
    assert 0.3 <= await taken_over(backend) < 3
    assert decode(path.read_bytes()).token == 1  # type: ignore[union-attr]
    assert path.with_name("leader.unreadable").exists()
    await backend.close()


async def test_a_forged_last_term_is_an_error_that_names_its_file(path):
    last = path.with_name(f"leader.live.{10**18 - 1}")
    last.write_bytes(encode(Entry("x", 10**18 - 1, 0.1)))
    backend = open_file(path, lease_s=0.1)
    with pytest.raises(ConnectionError, match=rf"no term can follow .*{last.name}.*remove"):
        await taken_over(backend)
    await backend.close()


async def test_a_stray_in_the_place_of_the_next_far_term_is_an_error_that_names_it(path):
    for number in (10**15, 10**15 + 1):
        path.with_name(f"leader.live.{number}").touch()
    backend = open_file(path, lease_s=0.1)
    with pytest.raises(ConnectionError, match=rf"leader\.live\.{10**15 + 1} is not a term.*remove it"):
        await taken_over(backend)
    await backend.close()


async def test_far_file_is_an_error_for_a_candidate_without_permission_to_read_it(path, monkeypatch):
    """To ignore it would be another rule than that of the candidates that may read it."""
    stray = path.with_name(f"leader.live.{10**16}")
    stray.write_bytes(encode(Entry("x", 10**16, 0.1)))
    original = os.open

    def refuse(name, *arguments, **settings):
        if Path(name) == stray:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(name, *arguments, **settings)

    monkeypatch.setattr(os, "open", refuse)
    backend = open_file(path, lease_s=60)
    with pytest.raises(ConnectionError, match=r"cannot read .*leader\.live\.1.*Permission denied"):
        await backend.try_acquire()
    await backend.close()


def once_gone(monkeypatch: pytest.MonkeyPatch, gone: Path, becomes: Path) -> None:
    """When this file is opened, it has just been collected by the next."""
    original = os.open

    def collect(name, *arguments, **settings):
        if Path(name) == gone and gone.exists():
            gone.rename(becomes)
        return original(name, *arguments, **settings)

    monkeypatch.setattr(os, "open", collect)


def test_a_far_term_that_is_collected_while_we_look_hides_none(path, monkeypatch):
    old, new = (path.with_name(f"leader.live.{number}") for number in (10**16, 10**16 + 1))
    old.write_bytes(encode(Entry("x", 10**16 + 1, 60.0)))
    once_gone(monkeypatch, old, new)
    assert TermFolder(path).terms() == [10**16 + 1]


def test_a_far_epoch_that_is_collected_while_we_look_hides_none(path, monkeypatch):
    path.mkdir()
    old, new = (path / f"epoch.{number}" for number in (10**18, 10**18 + 1))
    old.write_bytes(claim_text(Claimant("x", "host", 1, str(path), 60.0)))
    once_gone(monkeypatch, old, new)
    assert EpochFolder(path).listing().newest == 10**18 + 1


def test_a_far_epoch_that_cannot_be_read_is_an_error(path, monkeypatch):
    path.mkdir()
    (path / f"epoch.{10**18}").touch()

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        EpochFolder(path).listing()


# --- nfs:// and nfs.Lock ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["epoch", "released"])
@pytest.mark.parametrize("number", [*FAR, *ODD])
async def test_a_stray_file_of_an_election_in_a_folder_is_ignored_and_named_once(path, number, kind, caplog):
    first, second = (open_nfs(path, lease_s=60) for _ in range(2))
    stray = path / f"{kind}.{number}"
    assert await two_terms(first, second, stray) == (0, 1)
    await first.close()
    await second.close()
    assert stray.exists()
    if kind == "epoch" or number not in FAR[:3]:
        said = [line for line in caplog.messages if "stray_file_ignored" in line and stray.name in line]
        assert 1 <= len(said) <= 2  # once for each of the two


@pytest.mark.parametrize("number", [*FAR, *ODD])
def test_a_stray_file_of_a_lock_is_ignored(path, number):
    lock, other = Lock(path, lifetime=60), Lock(path, lifetime=60)
    lock.lock()
    (path / f"epoch.{number}").touch()
    assert lock.is_locked
    lock.refresh()
    with pytest.raises(LockError):
        other.lock(timeout=0.1)
    lock.unlock()
    with other:
        assert other.is_locked
    assert "epoch.1" in names(path)


@pytest.mark.parametrize("number", [10**17, 10**18 - 2])
def test_a_number_that_0_1_0_would_count_counts_and_costs_one_lifetime(path, number):
    """Candidates of both versions take the same next number, and so exclude each other."""
    with Lock(path):
        pass
    (path / f"epoch.{number}").touch()
    lock = Lock(path, lifetime=0.3)
    for follower in (1, 2):
        lock.lock(timeout=10)
        lock.unlock()
        assert f"epoch.{number + follower}" in names(path)


def test_a_stray_in_a_folder_that_is_no_locks_is_refused_as_before(path):
    path.mkdir()
    (path / "epoch.0001").touch()  # as a training program calls its checkpoints
    with pytest.raises(LockError, match=r"holds other things \('epoch.0001'\)"):
        Lock(path).lock(timeout=1)
    assert names(path) == ["epoch.0001"]


def test_a_forged_last_epoch_is_an_error_that_names_its_file(path):
    path.mkdir()
    (path / f"epoch.{LARGEST_SIGNED}").write_bytes(claim_text(Claimant("x", "host", 1, str(path), 0.1)))
    with pytest.raises(LockError, match=rf"no epoch can follow epoch\.{LARGEST_SIGNED}.*remove"):
        Lock(path, lifetime=0.1).lock(timeout=5)


def test_a_stray_in_the_place_of_the_next_far_epoch_is_an_error_that_names_it(path):
    path.mkdir()
    for number in (10**18 - 2, 10**18 - 1):
        (path / f"epoch.{number}").touch()
    with pytest.raises(LockError, match=rf"epoch\.{10**18 - 1} is not an epoch.*remove it"):
        Lock(path, lifetime=0.1).lock(timeout=5)


@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_a_far_epoch_that_is_no_text_is_ignored(path, what):
    with Lock(path):
        pass
    stray = path / f"epoch.{10**18}"
    if what == "folder":
        stray.mkdir()
    elif what == "link":
        stray.symlink_to("epoch.0")
    else:
        os.mkfifo(stray)
    with Lock(path) as lock:
        assert lock.is_locked
    assert "epoch.1" in names(path)


def test_status_names_strays(path, capsys):
    with Lock(path):
        pass
    (path / f"epoch.{2**63}").touch()
    (path / "epoch.007").touch()
    assert invoke(["nfs", "status", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strays"] == ["epoch.007", f"epoch.{2**63}"]
    assert invoke(["nfs", "status", str(path)]) == 0
    assert "2 ignored, not epochs (remove them): epoch.007, epoch.9223372036854775808" in capsys.readouterr().out
