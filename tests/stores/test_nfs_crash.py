"""A candidate for a lock in a shared folder may die at any step: the next gets the lock, and removes its leftovers."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import Lock, TimeOutError, _acquiring, _folder, _lock, _waiting

LIFETIME_S = 10.0
KEPT = {f"{kind}.{number}" for kind in ("epoch", "released") for number in range(100)}
_STEPS = (
    "link",
    "listdir",
    "open",
    "utime",
    "rename",
    "unlink",
    "fstat",
    "stat",
    "read",
    "pread",
    "write",
    "mkdir",
    "fsync",
)


class Died(BaseException):
    """Where the process ended. No code of ours can catch it: nothing that it would do after that is done."""


class Mortal:
    """Makes system calls until it dies, at its n-th, before that is done or just after."""

    def __init__(self, patch: pytest.MonkeyPatch, dies_at: int, *, is_done: bool) -> None:
        self.steps = 0
        self._dies_at = dies_at
        self._is_done = is_done
        for name in _STEPS:
            patch.setattr(os, name, self._mortal(getattr(os, name)))
        patch.setattr(fcntl, "flock", self._mortal(fcntl.flock))

    @property
    def is_dead(self) -> bool:
        return self.steps >= self._dies_at

    def _mortal(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any, **options: Any) -> Any:
            was_dead = self.is_dead
            self.steps += 1
            if self.is_dead and (was_dead or not self._is_done):
                raise Died
            answer = step(*arguments, **options)
            if not self.is_dead:
                return answer
            if step.__name__ == "open":
                os.close(answer)
            raise Died

        return take


class World:
    """A folder, a clock that goes on when a process sleeps, and whether the kernel reports dead processes."""

    def __init__(self, path: Path, *, is_local: bool) -> None:
        self.path = path
        self.is_local = is_local
        self.now = 1000.0

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "is_local", lambda _: self.is_local)
            patch.setattr(_lock, "suspend_aware_clock", clock.monotonic)
            for module in (_lock, _waiting, _acquiring):
                patch.setattr(module, "time", clock)
            for patience in ("_LEFTOVER_S", "_YOUNG_S"):
                patch.setattr(_folder, patience, -1.0)
            yield

    def _sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)

    def lock(self) -> Lock:
        return Lock(self.path, lifetime=LIFETIME_S)

    def names(self) -> set[str]:
        return {each.name for each in self.path.iterdir()}

    def let_die(self, lock: Lock, deed: Callable[[Lock], object], dies_at: int, *, is_done: bool) -> bool:
        """Return whether it died of that. What it had open is closed, as by the kernel."""
        with pytest.MonkeyPatch.context() as patch:
            mortal = Mortal(patch, dies_at, is_done=is_done)
            with contextlib.suppress(Died):
                deed(lock)
        if lock._made is not None:
            lock._made[0].drop()
        return mortal.is_dead


def lock_in_vain(lock: Lock) -> None:
    with contextlib.suppress(TimeOutError):
        lock.lock(timeout=0)


DEEDS: dict[str, Callable[[Lock], object]] = {
    "lock": lambda lock: lock.lock(timeout=0),
    "lock in vain": lock_in_vain,
    "refresh": lambda lock: lock.refresh(),
    "refresh for longer": lambda lock: lock.refresh(2 * LIFETIME_S),
    "refresh too late": lambda lock: lock.refresh(),
    "unlock": lambda lock: lock.unlock(),
    "unlock too late": lambda lock: lock.unlock(),
}


@pytest.mark.proof
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "shared"])
@pytest.mark.parametrize("deed", DEEDS)
def test_candidate_that_dies_at_any_step_is_succeeded_and_its_files_are_removed(
    tmp_path: Path, deed: str, is_local: bool
):
    """With a history of so many epochs that the holder after the next collects some of them."""
    number = 0
    for is_done in (False, True):
        died, dies_at = True, 0
        while died:
            dies_at, number = dies_at + 1, number + 1
            world = World(tmp_path / str(number), is_local=is_local)
            with world.made():
                died = live_and_die(world, deed, dies_at, is_done=is_done)
    assert number >= 4


def live_and_die(world: World, deed: str, dies_at: int, *, is_done: bool) -> bool:
    newest: int | None = None
    for _ in range(7):
        with world.lock() as lock:
            newest = lock.token
    mortal, holder = world.lock(), None
    if deed == "lock in vain":
        holder = world.lock()
        holder.lock()
        newest = holder.token
    elif deed != "lock":
        mortal.lock()
        newest = mortal.token
    if "too late" in deed:
        world.now += 1.5 * LIFETIME_S
    died = world.let_die(mortal, DEEDS[deed], dies_at, is_done=is_done)
    if holder is not None:
        holder.unlock()
    assert newest is not None
    follow(world, newest)
    return died


def follow(world: World, newest: int) -> None:
    """Get the lock, under a greater number: at once where the kernel reports deaths, elsewhere after a lifetime."""
    died_at, follower = world.now, world.lock()
    follower.lock(timeout=0 if world.is_local else None)
    assert world.now - died_at <= (0.0 if world.is_local else 2.5 * LIFETIME_S)
    assert follower.token is not None
    assert follower.token > newest
    follower.unlock()
    for _ in range(2):
        with world.lock() as last:
            assert last.token is not None
            assert last.token > newest
    assert world.names() <= KEPT
    assert len(world.names()) <= 2 * 10
