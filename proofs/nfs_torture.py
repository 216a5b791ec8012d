"""Torture of the lock in a shared folder: real processes on a local disk, and a simulation of every other order.

    python -m proofs.nfs_torture                                     at least 50,000 possessions each, in some minutes
    python -m proofs.nfs_torture --seconds 10 --simulations 100      a little of everything

Four rounds, each of which can be had alone (``--only``):

- ``simulate``: candidates in threads that take turns at every single step; see ``proofs/nfs_simulation.py``.
- ``local``: so many processes, a few for each of some locks, which live for 0.3 to 1 s. Each locks, does next to
  nothing, and unlocks; now and then it overstays, drops its lock without a word, or naps between any two steps.
  Meanwhile processes are frozen and killed -9, those in possession in particular. No two may be valid holders of one
  lock at once, and tokens must grow in the order of time, over all possessions. In the end another process gets each.
- ``shared``: the same, but no process asks the kernel whether a holder is alive, and inotify notifies no process, as
  on a network's file system.
- ``flufl``: the same with flufl.lock instead, whose breaking of stale locks is not atomic. Here two **must** be found
  that have one lock: otherwise the other rounds prove nothing.
"""

import argparse
import contextlib
import json
import logging
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgleaderlock.stores.nfs import Lock
from pgleaderlock.stores.nfs._folder import Folder
from proofs.file_torture import kill, overlaps_in, say
from proofs.nfs_simulation import simulate
from proofs.nfs_torture_candidates import FLUFL_LIFETIME_S, NOTES_SIZE, RECORD, Note, Task, read_notes

LIFETIMES_S = (0.3, 1.0)
_HARM_EVERY_S = 0.05
_CALM_S = 10.0
_TURNS_TO_FALL = 15
_ENOUGH = {"flufl": 5_000}  # which is many times as often as it takes


class Nursery:
    """Where candidates come from. They are not our children: what became of them is asked for."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "proofs.nfs_torture_candidates"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def start(self, task: Task) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@dataclass
class Member:
    """One candidate, and those before it in its place."""

    nursery: Nursery
    kind: str
    lockfile: Path
    folder: Path
    name: str
    lifetime_s: float
    is_local: bool
    pid: int = 0
    files: list[Path] = field(default_factory=list)
    frozen_until: float = 0.0

    def start(self, seed: int) -> None:
        path = self.folder / f"{self.name}-{len(self.files)}"
        with path.open("wb") as file:
            file.truncate(NOTES_SIZE)
        self.files.append(path)
        task = Task(self.kind, str(self.lockfile), str(path), seed, self.lifetime_s, self.is_local)
        self.pid = self.nursery.start(task)

    def freeze(self, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        self.frozen_until = time.monotonic() + seconds

    def thaw_in_time(self) -> None:
        if self.frozen_until and time.monotonic() > self.frozen_until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.frozen_until = 0.0

    def kill(self) -> None:
        if self.pid:
            kill(self.pid)
        self.frozen_until = 0.0

    def notes(self) -> Iterator[tuple[str, Note]]:
        for path in self.files:
            for note in read_notes(path):
                yield path.name, note

    def errors(self) -> list[str]:
        paths = [Path(f"{path}.error") for path in self.files]
        return [path.read_text() for path in paths if path.exists()]


class Count:
    """How many possessions were noted so far, read from where they are noted."""

    def __init__(self) -> None:
        self._known: dict[Path, int] = {}

    def of(self, members: Iterable[Member]) -> int:
        for member in members:
            for path in member.files[-2:]:  # one may have been replaced since the last look
                self._known[path] = self._count(path, self._known.get(path, 0))
        return sum(self._known.values())

    @staticmethod
    def _count(path: Path, known: int) -> int:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            while known * RECORD.size < len(memory) and RECORD.unpack_from(memory, known * RECORD.size)[-1]:
                known += 1
        return known


@dataclass
class Verdict:
    """What became of all that."""

    possessions: int
    overlaps: int
    disordered: int
    errors: list[str]
    harm: dict[str, int]
    took_s: float


class Group:
    """Does harm at random to a group of members, and counts what it did."""

    def __init__(self, folder: Path, processes: int, locks: int, seed: int, *, kind: str, is_local: bool) -> None:
        self._rng = random.Random(seed)
        self._kind = kind
        self._nursery = Nursery()
        self._harm_done: dict[str, int] = {}
        for name in ("locks", "notes"):
            (folder / name).mkdir()
        self.lockfiles = [folder / "locks" / f"{number}.lck" for number in range(locks)]
        for lockfile in self.lockfiles if kind == "ours" else []:
            lockfile.mkdir()
            (lockfile / "epoch.999999999999999999").touch()  # a stray file, which must stop nothing
        self.members = [
            Member(
                self._nursery,
                kind,
                self.lockfiles[number % locks],
                folder / "notes",
                f"m{number}",
                self._rng.uniform(*LIFETIMES_S) if kind == "ours" else FLUFL_LIFETIME_S,
                is_local,
            )
            for number in range(processes)
        ]

    def run(self, possessions: int, seconds: float) -> Verdict:
        count, began, reached = Count(), time.monotonic(), 0
        try:
            for member in self.members:
                member.start(self._rng.getrandbits(32))
            while reached < possessions and time.monotonic() < began + seconds:
                self._harm_for(0.5)
                reached = count.of(self.members)
        finally:
            for member in self.members:
                member.kill()
            self._nursery.close()
        return self._verdict(time.monotonic() - began)

    def _harm_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._rng.expovariate(1 / _HARM_EVERY_S))
            for member in self.members:
                member.thaw_in_time()
            self._harm()

    def _harm(self) -> None:
        deed = self._rng.choices(["kill", "freeze", "kill holder", "freeze holder"], [1, 4, 1, 4])[0]
        member: Member | None = self._rng.choice(self.members)
        if "holder" in deed:
            pid = self._holder_of(self._rng.choice(self.lockfiles))
            member = next((each for each in self.members if each.pid == pid), None)
        if member is None or member.frozen_until:
            return
        if "freeze" in deed:
            member.freeze(self._rng.uniform(0.2, 1.6) * member.lifetime_s)
        else:
            member.kill()
            member.start(self._rng.getrandbits(32))
        self._harm_done[deed] = self._harm_done.get(deed, 0) + 1

    def _holder_of(self, lockfile: Path) -> int:
        """Return its number; -1 when it is unknown, or there is none."""
        if self._kind == "ours":
            seen = Folder(lockfile).look()[1]
            return -1 if seen is None or seen.claimant is None else seen.claimant.pid
        try:
            return int(lockfile.read_text().split("|")[2])
        except (OSError, IndexError, ValueError):
            return -1

    def _verdict(self, took_s: float) -> Verdict:
        verdict = Verdict(0, 0, 0, [], self._harm_done, took_s)
        for lockfile in self.lockfiles:
            members = [member for member in self.members if member.lockfile == lockfile]
            notes = [note for member in members for note in member.notes()]
            verdict.possessions += len(notes)
            verdict.overlaps += overlaps_in(intervals_of(notes))
            verdict.errors += [error for member in members for error in member.errors()]
            if self._kind == "ours":
                verdict.disordered += tokens_out_of_order(notes)
                verdict.errors += self._errors_of_the_next(lockfile, notes)
        return verdict

    def _errors_of_the_next(self, lockfile: Path, notes: list[tuple[str, Note]]) -> list[str]:
        """When all of them are dead, a new candidate gets the lock, under a greater number."""
        lock, newest = Lock(lockfile, lifetime=600), max((note.token for _, note in notes), default=-1)
        lock.lock(timeout=_CALM_S)
        assert lock.token is not None
        return [] if lock.token > newest else [f"{lock.token} comes after {newest}"]


def intervals_of(notes: Iterable[tuple[str, Note]]) -> list[tuple[float, float, str, int]]:
    return [(note.after, note.end, name, note.token) for name, note in notes if note.was_believed_in]


def tokens_out_of_order(notes: list[tuple[str, Note]]) -> int:
    """Count the tokens that two had, and those that are not greater than one that was had before for certain."""
    owners: dict[int, str] = {}
    wrong = sum(owners.setdefault(note.token, name) != name for name, note in notes)
    believed = [note for _, note in notes if note.was_believed_in]
    earlier = iter(sorted(believed, key=lambda note: note.after))
    newest, next_one = -1, next(earlier, None)
    for note in sorted(believed, key=lambda note: note.before):
        while next_one is not None and next_one.after < note.before:
            newest, next_one = max(newest, next_one.token), next(earlier, None)
        wrong += note.token < newest
    return wrong


# --- The rounds -----------------------------------------------------------------------------------------------------


def torture(options: argparse.Namespace, round_: str) -> None:
    """Ours must stand one round. Theirs must fall in one of several: a short one may be luck."""
    if round_ != "flufl":
        verdict = one_round(options, round_, options.seed)
        if not verdict.possessions or verdict.overlaps or verdict.disordered or verdict.errors:
            what = "two had one lock at once" if verdict.overlaps else "no process had a lock, or an error occurred"
            sys.exit("\n".join([what, *verdict.errors[:3]]))
        return
    for turn in range(_TURNS_TO_FALL):
        if one_round(options, round_, options.seed + turn).overlaps:
            return
    sys.exit("no two had one lock of flufl.lock: this torture finds nothing")


def one_round(options: argparse.Namespace, round_: str, seed: int) -> Verdict:
    kind = "flufl" if round_ == "flufl" else "ours"
    with tempfile.TemporaryDirectory(prefix="pgll-nfs-") as folder:
        group = Group(Path(folder), options.processes, options.locks, seed, kind=kind, is_local=round_ == "local")
        verdict = group.run(min(options.possessions, _ENOUGH.get(kind, options.possessions)), options.seconds)
    say(
        f"{round_}: {options.processes} processes on {options.locks} locks, seed={seed}: "
        f"{verdict.possessions} possessions in {verdict.took_s:.0f} s, harm {verdict.harm}, "
        f"{verdict.overlaps} overlaps, {verdict.disordered} tokens out of order, {len(verdict.errors)} errors"
    )
    return verdict


def torture_by_simulation(options: argparse.Namespace) -> None:
    seeds = range(options.seed, options.seed + options.simulations)
    for is_local in (True, False):
        began = time.monotonic()
        had, problems = simulate(seeds, is_local=is_local)
        where = "local disk" if is_local else "network"
        say(
            f"{len(seeds)} simulations of a {where} from seed={options.seed}: {had} possessions in "
            f"{time.monotonic() - began:.0f} s, {len(problems)} problems"
        )
        if problems:
            sys.exit("\n".join(problems[:5]))


def main() -> None:
    rounds = ["simulate", "local", "shared", "flufl"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--locks", type=int, default=8)
    parser.add_argument("--possessions", type=int, default=50_000, help="after so many, a round is over")
    parser.add_argument("--seconds", type=float, default=900.0, help="or after so long")
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--only", choices=rounds, action="append")
    parser.add_argument("--flufl", dest="only", action="append_const", const="flufl", help="the same as --only flufl")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    logging.disable()
    for round_ in options.only or rounds:
        if round_ == "simulate":
            torture_by_simulation(options)
        else:
            torture(options, round_)


if __name__ == "__main__":
    main()
