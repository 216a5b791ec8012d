"""Lock files that a disk, an editor, another version or an enemy has been at.

Three things must be true of them, whatever they hold. While a holder is valid, no other candidate is granted the lock.
A holder whose lock was taken over learns of it. And no number of a term comes twice.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.file import _record as _file_record
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.stores.nfs import _claim
from pgleaderlock.stores.nfs._inspect import inspect
from tests.support.fuzzing import (
    LEASE_S,
    Clock,
    asked,
    check_words,
    damaged,
    fuzzed,
    opened,
    play,
    refused_in_words,
    texts,
)

pytestmark = pytest.mark.proof

ENTRY = _file_record.Entry("me", 7, LEASE_S, "2026-01-01T00:00:00Z", "boot", 5, "host")
CLAIMANT = _claim.Claimant("me", "host", 5, "/srv/lock", LEASE_S, "boot", "claim|a|b|1|2")


# --- What one text says -----------------------------------------------------------------------------------------------


@fuzzed(damaged(_file_record.encode(ENTRY)), examples=100)
def test_any_record_is_an_entry_that_makes_sense_or_is_unreadable(text: bytes) -> None:
    entry = _file_record.decode(text)
    if entry is not None:
        assert isinstance(entry.holder, str)
        assert 0 <= entry.token <= _file_record.LARGEST_TOKEN
        assert 0 < entry.lease_s < float("inf")
        assert isinstance(entry.pid, int | None)
        assert {type(entry.host), type(entry.acquire_time), type(entry.boot_id or "")} == {str}


@fuzzed(damaged(_claim.encode(CLAIMANT)), damaged(_claim.encode_lifetime(5.0)), examples=100)
def test_any_claim_decodes_to_a_valid_claimant_or_to_none(first: bytes, second: bytes) -> None:
    for text in (first, first + b"\n" + second, _claim.encode(CLAIMANT) + second + b"\n"):
        claimant = _claim.decode(text)
        if claimant is not None:
            assert 0 < claimant.lifetime_s < 1e11
            assert isinstance(claimant.pid, int)
            assert {type(claimant.name), type(claimant.host), type(claimant.boot_id or "")} == {str}


# --- What candidates make of it ---------------------------------------------------------------------------------------


class Scene:
    """One lock, its holder and a follower that has seen it, on a clock that stands still."""

    def __init__(self, folder: Path, scheme: str) -> None:
        self.clock = Clock()
        self.path = folder / "lock"
        self._url = f"{scheme}://{self.path}"

    def candidate(self) -> Backend:
        return open_backend(self._url, lease_s=LEASE_S, clock=self.clock)

    def damage(self, which: str, text: bytes) -> None:
        """Write this over the files, as they are: their inodes and locks remain."""
        for path in self.files():
            if which in path.name:
                path.write_bytes(text)

    def files(self) -> list[Path]:
        return sorted(self.path.iterdir()) if self.path.is_dir() else sorted(self.path.parent.glob("lock*"))


def says_something(text: bytes) -> bool:
    """Whether it reads as a record. Then it is no damage but a forgery, by a user who may write there anyway."""
    return _file_record.decode(text) is not None or _claim.decode(text) is not None


FILE_HARM = damaged(_file_record.encode(ENTRY)).filter(lambda text: not says_something(text))
NFS_HARM = damaged(_claim.encode(CLAIMANT)).filter(lambda text: not says_something(text))


@fuzzed(st.sampled_from(["lock", "live", "lock.live.0"]), FILE_HARM, examples=30)
def test_a_lock_file_that_is_damaged_while_it_is_held_is_neither_free_nor_ours(which: str, text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), "file")
        asyncio.run(play(scene.candidate, scene.clock, lambda: scene.damage(which, text)))


@fuzzed(st.sampled_from(["epoch", "claim"]), NFS_HARM, examples=20)
def test_a_shared_lock_that_is_damaged_while_it_is_held_is_neither_free_nor_ours(which: str, text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), "nfs")
        asyncio.run(play(scene.candidate, scene.clock, lambda: scene.damage(which, text)))


@fuzzed(
    st.sampled_from(["file", "nfs"]),
    st.dictionaries(
        st.sampled_from(["lock", "lock.live.7", "epoch.7", "released.7", "claim|a|b|1|2", "lock.live.x", "epoch.x"]),
        damaged(_file_record.encode(ENTRY)) | damaged(_claim.encode(CLAIMANT)),
        min_size=1,
        max_size=4,
    ),
    examples=30,
)
def test_candidate_waits_for_or_refuses_what_a_dead_one_left_and_no_number_comes_twice(
    scheme: str, files: dict[str, bytes]
) -> None:
    async def come_after_them(scene: Scene) -> None:
        async with contextlib.AsyncExitStack() as stack:
            heir = await opened(stack, scene.candidate)
            for _ in range(4):
                grant = await asked(heir.try_acquire())
                with refused_in_words():
                    await heir.holder()
                if grant is not None:
                    assert grant.token is not None
                    assert grant.token > 7 or not any(".7" in path.name for path in left)
                    return
                scene.clock.now += LEASE_S * 1.01

    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), scheme)
        home = scene.path if scheme == "nfs" else scene.path.parent
        home.mkdir(exist_ok=True)
        for name, text in files.items():
            (home / name).write_bytes(text)
        left = [path for path in scene.files() if path.name.startswith(("lock.live.7", "epoch.7"))]
        with refused_in_words():
            asyncio.run(come_after_them(scene))
        if scheme == "nfs":
            with refused_in_words():
                inspect(scene.path)


# --- Who is named -----------------------------------------------------------------------------------------------------


@fuzzed(texts(), texts(), examples=30)
def test_a_holder_of_any_name_is_an_answer_and_never_us(holder: str, other: str) -> None:
    """A name with escapes in it reaches log lines and terminals in the words of an error."""

    async def look(path: Path) -> None:
        clock = Clock()
        first, second = (open_file(path, lease_s=LEASE_S, identity=name, clock=clock) for name in ("me", "you"))
        async with contextlib.AsyncExitStack() as stack:
            for backend in (first, second):
                stack.push_async_callback(backend.close)
            grant = await first.try_acquire()
            assert grant is not None
            entry: Any = _file_record.Entry(holder or "x", 8, LEASE_S, other)
            for written in (path, path.with_name("lock.live.8")):
                written.write_bytes(_file_record.encode(entry))
            assert await asked(second.try_acquire()) is None
            with pytest.raises(PgLeaderLockError) as caught:
                await first.renew(grant)
            check_words(caught.value)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(look(Path(folder, "lock")))
