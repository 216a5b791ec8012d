"""What tests of file share with others."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from pgleaderlock.models import Grant
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.file.backend import open_file
from tests.support.processes import Process

LEASE_S = 1.5

_PROCESS = """
import asyncio, os, subprocess, sys, time
from pgleaderlock.stores import place
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.errors import PgLeaderLockError

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # in one piece, whoever else writes

async def acquired(backend):
    while (grant := await backend.try_acquire()) is None:
        await backend.wait(60)
    return grant

async def main(path, lease_s):
    backend = open_file(path, lease_s=float(lease_s))
    await backend.open()
    say("open")
    grant = await acquired(backend)
    say("leads", grant.token)
    {deed}

asyncio.run(main(*sys.argv[1:]))
"""

RENEW = """
    while True:
        try:
            grant = await backend.renew(grant)
        except PgLeaderLockError as error:
            say("lost", error)
            break
        await asyncio.sleep(float(lease_s) / 10)
    time.sleep(60)
"""


def process(path: Path, deed: str = "time.sleep(60)", lease_s: float = LEASE_S) -> Process:
    """A leader in a process of its own."""
    return Process(sys.executable, "-c", _PROCESS.replace("{deed}", deed.strip()), str(path), str(lease_s))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader.json"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system answer late: on a busy machine two thirds of a short lease are over before it does."""
    monkeypatch.setattr("pgleaderlock.stores.record.answer_bound_s", lambda _: 30.0)


@contextlib.asynccontextmanager
async def candidates(path: Path, number: int, lease_s: float = LEASE_S):
    backends = [open_file(path, lease_s=lease_s) for _ in range(number)]
    try:
        for backend in backends:
            await backend.open()
        yield backends
    finally:
        for backend in backends:
            await backend.close()


async def acquired(backend: Backend) -> Grant:
    grant = await backend.try_acquire()
    assert grant is not None
    return grant


async def taken_over(backend: Backend, timeout_s: float = 20) -> float:
    """Wait as a follower does, and return how long it took."""
    start = time.monotonic()
    while await backend.try_acquire() is None:
        assert time.monotonic() - start < timeout_s
        await backend.wait(timeout_s)
    return time.monotonic() - start


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())
