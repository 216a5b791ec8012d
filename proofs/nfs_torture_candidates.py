"""Candidates for ``proofs/nfs_torture.py``: a process that has everything imported, and forks one for each line.

    python -m proofs.nfs_torture_candidates

A line is a JSON object, the arguments of :class:`Task`; the answer is the number of the child. What a child had, and
when, it writes into a memory-mapped file, where it outlives a kill -9; what it did not expect, into a file beside.
"""

import ctypes
import itertools
import json
import logging
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import flufl.lock
from flufl.lock import _lockfile

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import Lock, NotLockedError, _acquiring, _candidate, _folder

RECORD = struct.Struct("dddq")  # a moment at which it was had lies between the first two; until when, and its token
NOTES_SIZE = 20_000 * RECORD.size
FLUFL_LIFETIME_S = 1.0  # it knows whole seconds only
_FLUFL_SLOP_S = 0.2
_PR_SET_PDEATHSIG = 1
# How often one works briefly, for long, overstays, and drops the lock without a word.
_WEIGHTS = (955, 15, 15, 15)
_STEPS = ("link", "listdir", "open", "utime", "rename", "unlink", "fstat", "stat")
_NAP = 0.0004


@dataclass(frozen=True)
class Task:
    """What a child is there for."""

    kind: str
    lockfile: str
    notes: str
    seed: int
    lifetime_s: float
    is_local: bool


@dataclass(frozen=True)
class Note:
    """One possession, as its holder recorded it."""

    before: float
    after: float
    end: float
    token: int

    @property
    def was_believed_in(self) -> bool:
        """False when its time was over before its owner could look."""
        return self.end > 0


class Notes:
    """What this process had.

    It looks whether it has the lock, and at the clock before and after. What was had, was so at a moment in between:
    it is counted from the later reading, until the earlier one of the last such look. As long as nothing is done to the
    lock, it is had in the meantime, too; and who looks too late knows that it had it until its time was over.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._at = -RECORD.size
        self._last: tuple[int, float] | None = None

    def take(self, user: "User") -> None:
        """Look, and note it."""
        before = clock()
        is_trusted = user.is_trusted
        after = clock()
        held = user.held
        if held is None:
            return
        token, until = held
        if held == self._last:
            self._set_end(before if is_trusted else until)
            return
        self._last = held
        self._at += RECORD.size
        RECORD.pack_into(self._memory, self._at, before, after, after if is_trusted else -1.0, 0)
        struct.pack_into("q", self._memory, self._at + 24, token + 1)  # last: without it, it does not count

    def _set_end(self, end: float) -> None:
        if end > self._end > 0:
            struct.pack_into("d", self._memory, self._at + 16, end)

    @property
    def _end(self) -> float:
        return float(struct.unpack_from("d", self._memory, self._at + 16)[0])


def read_notes(path: Path) -> Iterator[Note]:
    """Yield what a process had."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        for at in range(0, len(memory), RECORD.size):
            before, after, end, number = RECORD.unpack_from(memory, at)
            if number == 0:
                return
            yield Note(before, after, end, number - 1)


# --- Two locks of one kind ------------------------------------------------------------------------------------------


class User(ABC):
    """A lock as one of its users has it."""

    @property
    @abstractmethod
    def is_trusted(self) -> bool:
        """Whether the process considers itself the holder."""

    @property
    @abstractmethod
    def held(self) -> tuple[int, float] | None:
        """Its token, and until when it is valid unless it is renewed."""

    @abstractmethod
    def lock(self) -> None:
        """Wait for it."""

    @abstractmethod
    def refresh(self) -> None:
        """Have it for longer, if it is still to be had."""

    @abstractmethod
    def unlock(self) -> None:
        """Release it, if it is still held."""

    @abstractmethod
    def drop(self) -> None:
        """Forget it without a word."""


class OurUser(User):
    """Of :class:`pgleaderlock.stores.nfs.Lock`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.drop()

    def drop(self) -> None:
        self._lock = Lock(self._task.lockfile, lifetime=self._task.lifetime_s)

    @property
    def is_trusted(self) -> bool:
        assert self._lock._made is not None
        return self._lock._made[0].is_trusted

    @property
    def held(self) -> tuple[int, float] | None:
        assert self._lock._made is not None
        held = self._lock._made[0]._possession
        return None if held is None else (held.epoch, held.trusted_until)

    def lock(self) -> None:
        self._lock.lock()

    def refresh(self) -> None:
        self._lock.refresh(unconditionally=True)

    def unlock(self) -> None:
        self._lock.unlock(unconditionally=True)


class _QuickFluflLock(flufl.lock.Lock):
    def _sleep(self) -> None:
        time.sleep(random.uniform(0.0005, 0.01))


class FluflUser(User):
    """Of :class:`flufl.lock.Lock`, which has no tokens. Each counts as valid for as long as its own claim says."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers = itertools.count()
        self.drop()

    def drop(self) -> None:
        self._lock = _QuickFluflLock(self._task.lockfile, lifetime=int(FLUFL_LIFETIME_S))
        self._held: tuple[int, float] | None = None

    @property
    def is_trusted(self) -> bool:
        return self._held is not None and clock() < self._held[1]

    @property
    def held(self) -> tuple[int, float] | None:
        return self._held

    def lock(self) -> None:
        self._held = None
        self._lock.lock()
        self._note()

    def _note(self) -> None:
        now, of_day = clock(), time.time()  # in this order: rather too short than too long
        try:
            until = now + Path(self._lock.claimfile).stat().st_mtime - of_day
        except FileNotFoundError:
            return
        self._held = next(self._numbers), until

    def refresh(self) -> None:
        self._held = None
        self._lock.refresh()
        self._note()

    def unlock(self) -> None:
        self._held = None
        self._lock.unlock(unconditionally=True)


_USERS: dict[str, Callable[[Task], User]] = {"ours": OurUser, "flufl": FluflUser}


# --- One candidate --------------------------------------------------------------------------------------------------


class Candidate:
    """Takes a lock, does something with it, and releases it or not; again and again."""

    def __init__(self, task: Task) -> None:
        self._rng = random.Random(task.seed)
        self._lifetime_s = task.lifetime_s
        self._user = _USERS[task.kind](task)
        self._notes = Notes(task.notes)

    def run(self) -> NoReturn:
        deeds = [self._work_briefly, self._work_long, self._overstay, self._drop]
        while True:
            self._user.lock()
            self._notes.take(self._user)
            self._rng.choices(deeds, _WEIGHTS)[0]()

    def _work_briefly(self) -> None:
        time.sleep(self._rng.uniform(0.0, 0.0005))
        self._unlock()

    def _work_long(self) -> None:
        for _ in range(self._rng.randrange(1, 4)):
            time.sleep(self._rng.uniform(0.1, 0.6) * self._lifetime_s)
            self._refresh()
        self._unlock()

    def _overstay(self) -> None:
        time.sleep(self._rng.uniform(0.8, 1.5) * self._lifetime_s)
        if self._rng.random() < 0.5:
            self._refresh()
        self._unlock()

    def _drop(self) -> None:
        self._notes.take(self._user)
        self._user.drop()

    def _refresh(self) -> None:
        self._notes.take(self._user)
        self._user.refresh()
        self._notes.take(self._user)

    def _unlock(self) -> None:
        self._notes.take(self._user)
        self._user.unlock()


def make_hesitant(task: Task) -> None:
    """Have this process pause now and then between looking, deciding and doing, as if it was frozen there."""
    rng = random.Random(~task.seed)

    def hesitating(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any, **options: Any) -> Any:
            if rng.random() < _NAP:
                time.sleep(rng.uniform(0.0, 1.5) * task.lifetime_s)
            return step(*arguments, **options)

        return take

    for name in _STEPS:
        setattr(os, name, hesitating(getattr(os, name)))


def make_hasty() -> None:
    """Have happen in seconds what takes minutes: claims of living processes are sometimes removed as those of dead."""
    vars(_folder)["_LEFTOVER_S"] = 3.0
    vars(_acquiring)["_TOUCH_EVERY_S"] = 1.0
    vars(_candidate)["_TIDY_EVERY_S"] = 1.0
    vars(_lockfile)["CLOCK_SLOP"] = timedelta(seconds=_FLUFL_SLOP_S)


def live(task: Task) -> NoReturn:
    """Try to lock until killed. flufl.lock fails in ways of its own, which are not what is looked for here."""
    make_hesitant(task)
    if not task.is_local:
        vars(place)["is_local"] = lambda _: False
    candidate = Candidate(task)
    while True:
        try:
            candidate.run()
        except (OSError, flufl.lock.LockError, NotLockedError):
            if task.kind == "ours":
                raise
            candidate._user.drop()


def main() -> None:
    logging.disable()  # losing is what they are here for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    make_hasty()
    while line := sys.stdin.readline():
        task = Task(**json.loads(line))
        child = os.fork()
        if child == 0:
            try:
                if sys.platform == "linux":
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no process outlives the nursery
                live(task)
            except BaseException:
                Path(f"{task.notes}.error").write_text(traceback.format_exc())
            os._exit(1)
        os.write(1, f"{child}\n".encode())


if __name__ == "__main__":
    main()
