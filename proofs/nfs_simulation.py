"""Every other order: candidates for one lock that take turns at each single step on its folder, on a virtual clock.

Each lives in a thread that runs only when it is its turn, and it waits for its turn before every system call and every
look at the clock. So it can be frozen between any two of them for any time, and killed there. What happens in which
order is decided by a seed, and by nothing else.

The folder is real, and what a file system may do to its users is done to them by :class:`Host`:

- an answer is lost: link(2) and rename(2) are performed, and fail;
- a listing is torn: what comes or goes while it is read is in it or is not;
- on a network, a listing is an old one, without limit, until its reader changes the folder itself (NFS version 3);
- on a network, what was removed is stale rather than gone, and fstat(2) may show what was true when the file was opened
  - and nothing older, which is what all rests on.

After every step at most one holder may be valid, and a token is greater than all before it. When the profile has
cleared, a candidate gets the lock within three lifetimes, and the next candidate after that finds no leftover files.
"""

import contextlib
import errno
import fcntl
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pgleaderlock._base.files import descriptor
from pgleaderlock.stores.nfs import _folder
from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._claim import Claimant
from pgleaderlock.stores.nfs._folder import Folder

LIFETIMES_S = (6.0, 10.0, 15.0)
_LEFTOVER_S = 40.0  # often less than a freeze lasts: claims of the living are removed too
_ROUNDS = 9
_MOST_STEPS = 300  # for one deed
_RETRIED = (errno.ENOENT, errno.ESTALE)
_STEPS = (
    "link",
    "listdir",
    "open",
    "utime",
    "rename",
    "unlink",
    "fstat",
    "read",
    "pread",
    "write",
    "mkdir",
    "fsync",
    "stat",
)
_CLOCK = "clock"
_TRAPS = ("link", "utime", "rename", "unlink", "write", "open", "listdir", "fstat", "read", "fsync", _CLOCK, _CLOCK)
_REAL: Any = SimpleNamespace(flock=fcntl.flock, **{name: getattr(os, name) for name in _STEPS})
_here = threading.local()
"""Whose thread this is; others make their system calls as ever."""


def _barred() -> threading.Lock:
    """Return what lets one pass for each time that it is released. Much quicker than a semaphore."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Killed(BaseException):
    """Where a candidate ended."""


@dataclass
class FaultProfile:
    """What goes wrong, and how often."""

    lost_answers: float
    torn_listings: float
    freezes: float
    """Anywhere. Most happen in a few places only, because a race needs several at once: see the next."""
    traps: tuple[str, ...]
    """Before which steps one is likely to be frozen."""
    thaws: float
    """Of the candidates that are frozen, when another is."""
    kills: float
    jumps: float
    old_listings: float
    """Of the nature of the file system: they do not clear up."""
    perseverance: float
    """How likely it is that the holder keeps the lock a little longer."""
    pace_s: float
    """How long a step takes at most."""

    @classmethod
    def of(cls, rng: random.Random, *, is_local: bool) -> "FaultProfile":
        """Draw what a simulation is about: what one kind of bug needs keeps another from showing."""
        return cls(
            lost_answers=rng.choice([0.0, 0.05, 0.2]),
            torn_listings=rng.choice([0.0, 0.2, 0.5]),
            freezes=rng.choice([0.0, 0.01]),
            traps=tuple(rng.sample(_TRAPS, rng.randint(1, 3))),
            thaws=rng.choice([0.0, 0.5]),
            kills=rng.choice([0.0, 0.002, 0.006]),
            jumps=rng.choice([0.0, 0.0, 0.01]),
            old_listings=0.0 if is_local else rng.choice([0.0, 0.5, 1.0]),
            perseverance=rng.choice([0.2, 0.8, 0.95]),
            pace_s=rng.choice([0.02, 0.1, 0.5]),
        )

    def clear(self) -> None:
        """Let nothing go wrong that need not."""
        self.lost_answers = self.torn_listings = self.perseverance = 0.0
        self.freezes = self.kills = self.jumps = 0.0
        self.traps = ()


class Simulation:
    """Candidates that take turns at every step, in an order that the seed decides, on a virtual clock."""

    def __init__(self, path: Path, seed: int, *, is_local: bool) -> None:
        self.path = path
        self.strays = {"epoch.999999999999999999", f"epoch.{2**63}"} if seed % 2 else set()
        if self.strays:  # files that are called like the greatest epoch there could be, and like one beyond
            path.mkdir()
        for name in self.strays:
            (path / name).touch()
        self.is_local = is_local
        self.rng = random.Random(seed)
        self.profile = FaultProfile.of(self.rng, is_local=is_local)
        self.now = 1000.0
        self.changed_at: dict[int, float] = {}
        """When the file server saw each file change, by its own clock."""
        self.back = _barred()
        self.owners: dict[int, Actor] = {}
        self.problems: list[str] = []
        self._born = 0
        self._asleep: dict[Actor, float] = {}
        self._frozen: dict[Actor, float] = {}
        self._step = 0
        self.actors = [self._new_actor() for _ in range(self.rng.choice([2, 2, 2, 3, 3, 4]))]

    @property
    def time_of_server(self) -> float:
        """What the file server's clock shows, which no host compares with its own."""
        return self.now - 500.0

    def run(self, steps: int) -> None:
        """Have a storm, and see what it leaves behind."""
        with _stepwise():
            for actor in self.actors:
                actor.start()
            while self._step < steps:
                self._disturb()
                self._give_a_turn()
            self._clear_up()
            for actor in self.actors:
                actor.kill()
            self._tidy_up()

    def _disturb(self) -> None:
        if self.rng.random() < self.profile.kills:
            index = self.rng.randrange(len(self.actors))
            self.actors[index].kill()
            self.actors[index] = self._new_actor()
            self.actors[index].start()

    def _give_a_turn(self) -> None:
        """Some get on with a few steps in a row, which is also quicker than to take turns for each."""
        ready = [actor for actor in self.actors if self._ready_at(actor) <= self.now]
        if ready:
            self.rng.choice(ready).take_steps(self.rng.choice([1, 1, 3, 10]))
        else:
            self.now = min(map(self._ready_at, self.actors))
        self.pass_time()

    def _ready_at(self, actor: "Actor") -> float:
        return max(self._asleep.get(actor, 0.0), self._frozen.get(actor, 0.0))

    def put_to_sleep(self, actor: "Actor", lifetimes: float) -> None:
        self._asleep[actor] = self.now + lifetimes * self.rng.choice(LIFETIMES_S)

    def freeze(self, actor: "Actor", step: str) -> bool:
        """Whether this one is kept from a step that it was about to take, and perhaps those go on who were so too."""
        chance = self.profile.freezes
        if step in self.profile.traps:
            chance = 0.08 if step == _CLOCK else 0.3  # which is looked at all the time
        if self.rng.random() >= chance:
            return False
        if self.rng.random() < self.profile.thaws:
            self._frozen.clear()
        lifetimes = self.rng.choice([0.1, 1.0, 1.0, 10.0])
        self._frozen[actor] = self.now + self.rng.uniform(0.2, 1.5) * lifetimes * self.rng.choice(LIFETIMES_S)
        return True

    def pass_time(self) -> None:
        """What is between two steps."""
        self._step += 1
        self.now += self.profile.pace_s * self.rng.choice([0.0, 0.02, 0.2, 1.0])
        if self.rng.random() < self.profile.jumps:
            self.now += self.rng.uniform(0.1, 1.2) * self.rng.choice(LIFETIMES_S)
        self._check()

    def _new_actor(self) -> "Actor":
        self._born += 1
        return Actor(self, self._born)

    def _check(self) -> None:
        believers = [actor for actor in self.actors if actor.believes]
        if len(believers) > 1:
            self._complain(f"several believe: {[(actor.number, actor.token) for actor in believers]}")
        for actor in believers:
            self._check_token(actor)

    def _check_token(self, actor: "Actor") -> None:
        newest = max(self.owners, default=-1)
        if actor.token > newest:
            self.owners[actor.token] = actor
        elif actor.token < newest or self.owners[newest] is not actor:
            self._complain(f"{actor.number} has token {actor.token} after {newest}")

    def _complain(self, problem: str) -> None:
        self.problems.append(f"step {self._step}: {problem}")

    def note_error(self, actor: "Actor", deed: str, error: BaseException) -> None:
        """Whatever leaves a deed that nothing can have gone wrong with."""
        self._complain(f"{actor.number} cannot {deed}: {error!r}")

    def _clear_up(self) -> None:
        """When the profile is fine, a candidate gets the lock within three lifetimes."""
        self.profile.clear()
        self._frozen.clear()
        newest, deadline = max(self.owners, default=-1), self.now + 3 * max(LIFETIMES_S)
        while max(self.owners, default=-1) == newest:
            if self.now > deadline:
                self._complain("no candidate gets the lock")
                return
            self._give_a_turn()

    def _tidy_up(self) -> None:
        """A candidate that comes after all of them have died leaves the folder as it should be."""
        actor = self._new_actor()
        newest = -1
        self.profile.pace_s = 0.02  # where steps take long, it removes leftovers a little at a time
        with actor.at_work():
            for _ in range(_ROUNDS):
                self.now += _LEFTOVER_S + max(LIFETIMES_S)
                newest = actor.lock_and_unlock()
        kept = range(newest - _ROUNDS, newest + 1)
        wanted = {f"{kind}.{number}" for kind in ("epoch", "released") for number in kept} | self.strays
        if not wanted.issuperset(names := _REAL.listdir(self.path)):
            self._complain(f"this is left: {sorted(set(names) - wanted)}")


class Host:
    """The system calls of one candidate, whose turn it is; and what its file system makes of them."""

    def __init__(self, simulation: Simulation, wait_for_turn: Callable[[], None]) -> None:
        self._simulation = simulation
        self._rng = simulation.rng
        self._wait_for_turn = wait_for_turn
        self._listed: list[str] | None = None
        self._opened: dict[int, SimpleNamespace] = {}
        self.unanswered: str | None = None
        """What was made by a link(2) whose answer was lost."""

    def listdir(self, path: Path) -> list[str]:
        if self._listed is None or not self._happens(self._simulation.profile.old_listings):
            self._listed = self._read_folder(path)
        return list(self._listed)

    def _read_folder(self, path: Path) -> list[str]:
        first = last = set(_REAL.listdir(path))
        while self._happens(self._simulation.profile.torn_listings):
            self._wait_for_turn()
            last = set(_REAL.listdir(path))
        return [name for name in sorted(first | last) if name in first & last or self._happens(0.5)]

    def link(self, source: str, target: str) -> None:
        _REAL.link(source, target)
        self._note_change(_REAL.stat(target).st_ino)
        if self._happens(self._simulation.profile.lost_answers):
            self.unanswered = target
            raise OSError(self._rng.choice([errno.EEXIST, errno.EIO]), "performed, but the answer was lost")
        self._listed = None

    def rename(self, source: str, target: str) -> None:
        inode = _REAL.stat(source).st_ino
        _REAL.rename(source, target)
        self._note_change(inode)
        if self._happens(self._simulation.profile.lost_answers):
            raise FileNotFoundError(errno.ENOENT, "performed, but the answer was lost")
        self._listed = None

    def unlink(self, path: str) -> None:
        _REAL.unlink(path)
        self._listed = None

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        try:
            number = int(_REAL.open(path, flags, mode))
        except FileNotFoundError as error:
            if self._simulation.is_local or flags & os.O_CREAT or self._happens(0.5):
                raise
            raise OSError(errno.ESTALE, "it was there a moment ago") from error
        if flags & os.O_CREAT:
            self._listed = None
            self._note_change(_REAL.fstat(number).st_ino)
            self._opened.pop(number, None)
        else:
            self._opened[number] = self._attributes(number)
        return number

    def fstat(self, number: int) -> SimpleNamespace:
        at_opening = self._opened.get(number)
        if at_opening is not None and not self._simulation.is_local and self._happens(0.5):
            return at_opening
        return self._attributes(number)

    def utime(self, target: Any, **times: Any) -> None:
        _REAL.utime(target, **times)
        if isinstance(target, int):
            self._note_change(_REAL.fstat(target).st_ino)
        else:
            self._listed = None

    def write(self, number: int, text: bytes) -> int:
        self._note_change(_REAL.fstat(number).st_ino)
        return int(_REAL.write(number, text))

    def stat(self, path: Any, **options: Any) -> Any:
        """Of the folder, which was touched a moment ago."""
        if path != self._simulation.path:
            return _REAL.stat(path, **options)
        return SimpleNamespace(st_ctime=self._simulation.time_of_server, st_mode=0)

    def fsync(self, number: int) -> None:
        """Of no consequence here."""

    def _attributes(self, number: int) -> SimpleNamespace:
        found = _REAL.fstat(number)
        names = ("st_ino", "st_dev", "st_nlink", "st_size", "st_mtime", "st_mtime_ns")
        shown = {name: getattr(found, name) for name in names}
        return SimpleNamespace(st_ctime=self._simulation.changed_at.get(found.st_ino, 0.0), **shown)

    def _note_change(self, inode: int) -> None:
        self._simulation.changed_at[inode] = self._simulation.time_of_server

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance


@dataclass(eq=False)
class Actor:
    """A candidate that acquires the lock, holds it for a while, and gives it up in one way or another."""

    simulation: Simulation
    number: int
    is_killed: bool = False
    _is_leaving: bool = False
    _steps_left: int = 0
    _steps_of_deed: int = 0
    _lives: int = 0
    _turn: threading.Lock = field(default_factory=_barred)

    def __post_init__(self) -> None:
        self.host = Host(self.simulation, self.wait_for_turn)
        self._rng = self.simulation.rng
        self._candidate = self._new_candidate()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def _new_candidate(self) -> Candidate:
        self._lives += 1
        path, name = self.simulation.path, f"a{self.number}.{self._lives}"
        claimfile, lifetime_s = f"{path}/claim|lock|{name}|1|1", self._rng.choice(LIFETIMES_S)
        claimant = Claimant(name, "host", self.number, str(path), lifetime_s, claimfile=claimfile)
        # On a local disk there may be an election nfs:// beside the locks, which goes by lifetimes alone.
        is_local = self.simulation.is_local and self._rng.random() < 0.7
        return Candidate(Folder(path), claimfile, claimant, self._read_clock, is_local=is_local)

    @property
    def believes(self) -> bool:
        """What is_trusted says, without a reading of the clock for which another actor would get a turn."""
        held = self._candidate._possession
        if held is None or self.is_killed or self._is_leaving or not self._candidate._has_claim:
            return False
        return self.simulation.now < held.trusted_until

    @property
    def token(self) -> int:
        token = self._candidate.epoch
        assert token is not None
        return token

    # --- Turns ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def take_steps(self, steps: int) -> None:
        self._steps_left = steps - 1
        self._turn.release()
        self.simulation.back.acquire()

    def kill(self) -> None:
        """As the kernel does: nothing more is done, and what was open is closed."""
        self.is_killed = True
        if self._thread.is_alive():
            self.take_steps(1)
            self._thread.join()

    def wait_for_turn(self, step: str = "") -> None:
        self._steps_of_deed += 1
        if self._steps_of_deed == _MOST_STEPS:
            self.simulation.note_error(self, step, RecursionError("again and again"))
        if self.simulation.freeze(self, step):
            self._steps_left = 0
        if self._steps_left:
            self._steps_left -= 1
            self.simulation.pass_time()
        elif not self.is_killed:
            self.simulation.back.release()
            self._turn.acquire()
        if self.is_killed:
            raise Killed  # again and again: the dead do not tidy up

    def sleep(self, lifetimes: float) -> None:
        """Do nothing for up to so many lifetimes."""
        self.simulation.put_to_sleep(self, self._rng.uniform(0.0, lifetimes))
        self._steps_left = 0
        self.wait_for_turn()

    def _read_clock(self) -> float:
        self.wait_for_turn(_CLOCK)
        return self.simulation.now

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """In the thread of the caller, and without any other actor."""
        _here.actor, self._steps_left = self, sys.maxsize
        try:
            yield
        finally:
            del _here.actor

    def _live(self) -> None:
        self._turn.acquire()
        _here.actor = self
        try:
            while True:
                self._lock_and_let_go()
                self.sleep(0.1)
        except Killed:
            pass
        except BaseException as error:
            self.simulation.note_error(self, "live", error)
        finally:
            self.is_killed = True
            self._candidate.drop()
            self.simulation.back.release()

    # --- What one does -------------------------------------------------------------------------------------------

    def lock_and_unlock(self) -> int:
        """Without a mishap, and without a hurry; return the token."""
        while not self._takes():
            self.simulation.now += 1.0
        token = self.token
        self._do("release", self._candidate.release)
        return token

    def _lock_and_let_go(self) -> None:
        if not self._takes():
            self._wait()
            return
        while self._rng.random() < self.simulation.profile.perseverance and self._keeps():
            pass
        self._leave()

    def _takes(self) -> bool:
        is_ours = bool(self._do("take", self._candidate.try_take))
        if is_ours:
            self._candidate.tidy()
        return is_ours

    def _wait(self) -> None:
        chance = self._rng.random()
        if chance < 0.05:  # out of patience
            self._candidate.withdraw()
        elif chance < 0.3:
            self._candidate.stay()
        self.sleep(0.3)

    def _keeps(self) -> bool:
        chance = self._rng.random()
        if chance < 0.3:
            lifetime_s = self._rng.choice(LIFETIMES_S)
            self._do("change the lifetime", lambda: self._candidate.change_lifetime(lifetime_s))
        if 0.15 < chance < 0.8:
            self.sleep(1.0)
        return bool(self._do("renew", self._candidate.renew))

    def _leave(self) -> None:
        chance = self._rng.random()
        if chance < 0.15:
            self.sleep(2.0)
        self._is_leaving = True
        if 0.15 < chance < 0.25:
            self._candidate.drop()
            self._candidate = self._new_candidate()
        else:
            self._do("release", self._candidate.release)
        self._is_leaving = False

    def _do(self, deed: str, do: Callable[[], object]) -> object:
        """Do something that may fail because the files changed meanwhile, or because an answer was lost."""
        self.host.unanswered, self._steps_of_deed, result = None, 0, None
        try:
            result = do()
        except OSError as error:
            if error.errno not in (_RETRIED if deed == "take" else ()) and self.host.unanswered is None:
                self.simulation.note_error(self, deed, error)
        if self.host.unanswered is not None and not result:
            self._check_lost_answer(deed)
        return result

    def _check_lost_answer(self, deed: str) -> None:
        """An epoch that is ours is known to be ours, unless its file or our claim was removed meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            inodes = {_REAL.stat(path).st_ino for path in (self.host.unanswered, self._candidate._claimfile)}
            if len(inodes) == 1 and self.host.unanswered != f"{self.simulation.path}/epoch.{self._candidate.epoch}":
                self.simulation.note_error(self, deed, OSError("a lost answer was accepted"))


def _taking_turns(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        actor: Actor | None = getattr(_here, "actor", None)
        if actor is None:
            return real(*arguments, **options)
        actor.wait_for_turn(name)
        return getattr(actor.host, name, real)(*arguments, **options)

    return step


@contextlib.contextmanager
def _stepwise() -> Iterator[None]:
    """Whatever a candidate asks of the system, it waits for its turn, and its host answers."""
    with contextlib.ExitStack() as patches:
        for name in _STEPS:
            patches.enter_context(mock.patch.object(os, name, _taking_turns(name, getattr(_REAL, name))))
        patches.enter_context(mock.patch.object(fcntl, "flock", _taking_turns("flock", _REAL.flock)))
        patches.enter_context(mock.patch.object(_folder, "_LEFTOVER_S", _LEFTOVER_S))
        # Held while a file is opened: here that is a turn of its own, and the next actor may want it too.
        patches.enter_context(mock.patch.object(descriptor, "_guard", contextlib.nullcontext()))
        yield


def simulate(seeds: Iterable[int], *, is_local: bool, steps: int = 1500) -> tuple[int, list[str]]:
    """Return how often the lock was had, and what went wrong."""
    had, problems = 0, []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="pgll-nfs-", dir=_memory_folder()) as folder:
            simulation = Simulation(Path(folder) / "lock", seed, is_local=is_local)
            simulation.run(steps)
        had += len(simulation.owners)
        problems += [f"seed {seed} {problem}" for problem in simulation.problems[:2]]
    return had, problems


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
