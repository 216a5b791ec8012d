"""What tests of nfs lock share with others."""

import os
from pathlib import Path

import pytest

from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._claim import Claimant
from pgleaderlock.stores.nfs._folder import Folder

LIFETIME_S = 10.0


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.lck"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def candidate(
    path: Path, name: str, clock: Clock, *, lifetime_s: float = LIFETIME_S, is_local: bool = False
) -> Candidate:
    claimfile = f"{path}/claim|lock|{name}|1|1"
    claimant = Claimant(name, "host", os.getpid(), str(path), lifetime_s, claimfile=claimfile)
    return Candidate(Folder(path), claimfile, claimant, clock, is_local=is_local)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())
