"""The lock in a file on a full disk: a leader renews and releases all the same, and others learn the cause."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from pgleaderlock.errors import ConnectionError, LeadershipLost
from pgleaderlock.stores.file import _record as _file_record
from pgleaderlock.stores.file._folder import Folder, Live
from pgleaderlock.stores.file.backend import FileStore, open_file
from pgleaderlock.stores.record import Claim
from proofs.file_torture import fill, free, simulate, tiny_disk
from tests.support.file import RENEW, acquired, candidates, names, patient, process, taken_over
from tests.support.programs import skip_without

__all__ = ["patient"]  # the fixture


@pytest.fixture(params=["size=16k", "size=64k,nr_inodes=8"], ids=["no pages", "no inodes"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    skip_without("the right to mount")
    with tiny_disk(tmp_path / "tiny", request.param):
        yield tmp_path / "tiny"


def without_ballast(folder: Path) -> list[str]:
    return [name for name in names(folder) if not name.startswith("ballast")]


@pytest.mark.slow
async def test_a_leader_renews_on_a_full_disk(disk):
    path = disk / "leader.json"
    async with candidates(path, 2, lease_s=0.6) as (leader, follower):
        grant = await acquired(leader)
        fill(disk)
        seen = {path.read_bytes()}
        end = time.monotonic() + 2.0
        while time.monotonic() < end:  # three leases
            grant = await leader.renew(grant)
            seen.add(path.read_bytes())
            assert await follower.try_acquire() is None
            await asyncio.sleep(0.05)
        assert len(seen) > 10  # every renewal changes what followers look at
        assert len({len(text) for text in seen}) == 1
        times = [json.loads(text)["renewTime"] for text in seen]
        assert len(set(times)) == len(times)
        assert without_ballast(disk) == ["leader.json", "leader.json.live.0"]


async def test_a_full_disk_is_an_error_that_says_so_and_is_over_when_there_is_room(disk):
    path = disk / "leader.json"
    async with candidates(path, 2, lease_s=0.6) as (first, second):
        fill(disk)
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r"No space left.*df -i"):
                await first.try_acquire()
        assert without_ballast(disk) == []
        free(disk)
        grant = await acquired(first)
        fill(disk)
        await first.release(grant)
        with pytest.raises(ConnectionError, match=r"No space left.*df -i"):  # it is free, and cannot be taken
            await second.try_acquire()
        free(disk)
        assert (await acquired(second)).token == 1


async def test_a_release_on_a_full_disk_frees_the_lock_for_other_boots_too(disk, monkeypatch):
    """Of another host's locks the kernel knows nothing: there the record alone says that the term is over."""
    path = disk / "leader.json"
    async with candidates(path, 2, lease_s=3) as (leader, follower):
        grant = await acquired(leader)
        assert await follower.try_acquire() is None
        fill(disk)
        await leader.release(grant)
        assert json.loads(path.read_bytes())["holder"] == ""
        monkeypatch.setattr(FileStore, "is_abandoned", lambda *_: False)
        free(disk)
        assert (await acquired(follower)).token == 1


@pytest.mark.slow
async def test_a_leader_that_is_frozen_on_a_full_disk_is_replaced_once_there_is_room(disk):
    path = disk / "leader.json"
    async with candidates(path, 1, lease_s=0.6) as (follower,):
        with process(path, RENEW, lease_s=0.6) as leader:
            leader.wait_for("leads 0")
            fill(disk)
            assert await follower.try_acquire() is None
            await follower.wait(1.5)  # the leader renews in place, and is not taken for silent
            assert await follower.try_acquire() is None
            leader.signal(signal.SIGSTOP)
            free(disk)
            took_s = await taken_over(follower)
            leader.signal(signal.SIGCONT)
            assert "in term 1" in leader.wait_for("lost")
        assert took_s < 1.6  # a lease, and the third of one after which a follower looks without news


# --- Without root: the same steps, with a disk that only says that it is full ---------------------------------------


@contextlib.contextmanager
def no_room(number: int) -> Iterator[None]:
    """Let no file grow, as a disk or a quota does. What is overwritten does not."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", refuse)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader.json"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE])
async def test_a_leader_renews_and_releases_where_no_file_can_grow(path, number, caplog):
    async with candidates(path, 2, lease_s=3) as (leader, follower):
        grant = await acquired(leader)
        next_term = Claim(follower.identity, 1, 3.0, is_new_term=True)
        with no_room(number):
            before = path.read_bytes()
            for _ in range(3):
                grant = await leader.renew(grant)
            after = path.read_bytes()
            assert before != after
            assert len(before) == len(after)
            with pytest.raises(ConnectionError, match="cannot write"):
                await follower._store.write(next_term, await follower._store.read())
            await leader.release(grant)
        fields = json.loads(path.read_bytes())
        assert (fields["holder"], fields["token"]) == ("", 0)
        assert datetime.fromisoformat(fields["renewTime"]) > datetime.fromisoformat(fields["acquireTime"])
        assert (await acquired(follower)).token == 1
    said = [line for line in caplog.messages if "record_written_in_place" in line]
    assert len(said) == 1  # not at each renewal
    assert os.strerror(number) in said[0]


async def test_a_record_that_is_not_ours_any_more_is_not_touched_without_room(path):
    """Overwriting goes to the file that we published; another's, under the same name, stays as it is."""
    async with candidates(path, 1, lease_s=0.3) as (leader,), candidates(path, 1, lease_s=0.3) as (other,):
        grant = await acquired(leader)
        await asyncio.sleep(0.1)
        another = path.with_name("another")
        another.write_bytes(b'{"holder": "go", "leaseDuration": "1s", "renewTime": "2020-01-01T00:00:00Z"}')
        another.replace(path)
        text = path.read_bytes()
        with no_room(errno.ENOSPC), pytest.raises(ConnectionError, match="cannot write"):
            await leader.renew(grant)
        assert path.read_bytes() == text
        await taken_over(other)
        with no_room(errno.ENOSPC), pytest.raises(LeadershipLost):
            await leader.renew(grant)


async def test_leader_repairs_a_record_with_appended_bytes_on_a_full_disk(path):
    async with candidates(path, 1, lease_s=60) as (leader,):
        grant = await acquired(leader)
        with path.open("ab") as file:
            file.write(b"garbage")
        with no_room(errno.ENOSPC):
            await leader.renew(grant)
        assert json.loads(path.read_bytes())["holder"] == leader.identity


def test_any_mixture_of_two_renewals_is_a_record_that_says_the_same():
    """A reader may see the beginning of one text and the end of another: overwriting is not one step for it."""
    entry = _file_record.Entry('wör|ker\\"', 7, 1.5, "2026-01-01T00:00:00.000000Z", "boot", 5, "host")
    one, other = _file_record.encode(entry), _file_record.encode(entry)
    assert len(one) == len(other)
    assert one != other
    for place in range(len(one)):
        for mixture in (one[:place] + other[place:], other[:place] + one[place:]):
            assert _file_record.decode(mixture) == entry


@pytest.mark.proof
def test_the_simulation_finds_a_renewal_without_room_that_followers_cannot_see(monkeypatch):
    """The mend, mutilated: the leader counts a renewal on a full disk, and the record does not change."""
    monkeypatch.setattr(Folder, "overwrite", lambda self, live, text: text)
    assert any(simulate([seed])[2] for seed in range(1, 400))


def test_the_simulation_finds_a_renewal_in_place_that_does_not_look_where_it_wrote(monkeypatch):
    """Another's record has the name by now: what is written into our own file is seen by no candidate."""

    def overwrite(self: Folder, live: Live, text: bytes) -> bytes | None:
        record = live.record
        if record is None or not record.is_open:
            return None
        text = _file_record.padded(text, os.fstat(record.number).st_size)
        os.pwrite(record.number, text, 0)
        return text

    monkeypatch.setattr(Folder, "overwrite", overwrite)
    with (
        tempfile.TemporaryDirectory(prefix="pgll-file-") as folder,
        pytest.raises(AssertionError, match="two leaders"),
    ):
        asyncio.run(be_replaced_late(Path(folder) / "leader.json"))


def test_a_leader_whose_record_was_replaced_late_is_not_taken_for_silent(path):
    asyncio.run(be_replaced_late(path))


async def be_replaced_late(path: Path) -> None:
    """A thawed candidate puts its old record over the leader's, on a disk that is full for the leader from then on."""
    now = [1000.0]
    leader, follower = (open_file(path, lease_s=1.0, clock=lambda: now[0]) for _ in range(2))
    await acquired(leader)
    renewal, renewed_at = Claim(leader.identity, 0, 1.0, is_new_term=False), now[0]
    late = path.with_name("late")
    late.write_bytes(_file_record.encode(_file_record.Entry("late", 0, 1.0)))
    late.replace(path)
    while await follower.try_acquire() is None:
        assert now[0] < 1010, "no leader"
        now[0] += 0.1
        with no_room(errno.ENOSPC), contextlib.suppress(ConnectionError):
            if await leader._store.write(renewal, None) is not None:
                renewed_at = now[0]
    assert now[0] >= renewed_at + 0.9, "two leaders"
    await leader.close()
    await follower.close()
