"""Torture of locks and elections between two hosts over real NFS: killed, frozen, cut off, and left behind.

    python -m proofs.nfs_hosts_torture --seconds 30                 each of two rounds, with a minute around them
    python -m proofs.nfs_hosts_torture --seconds 900 --only locks   more than 10,000 possessions

It starts ``tools/nfs_hosts.py`` around itself. Each round has three locks: one is used over NFSv3 by all candidates,
one over NFSv4.2, and one, for longer, over either. Each has candidates on both hosts (``proofs/nfs_candidates.py``).

- ``locks``: :class:`pgleaderlock.stores.nfs.Lock`, taken for a moment, or for several lifetimes of one to two seconds;
  some are never unlocked, some too late.
- ``elections``: ``nfs://`` in an :class:`~pgleaderlock.Election`; leaders step down after a while.

Meanwhile processes are killed -9 and frozen, those in possession in particular, and a host's cable is pulled for a few
seconds. No two may have a lock at once, and numbers must grow from possession to possession. When all that is over,
each lock must still be got.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proofs.file_torture import overlaps_in, say, tokens_out_of_order
from proofs.nfs_candidates import KINDS, NOTES_SIZE, read_notes
from tests.support.nfs_guest import EXPORT, HOSTS, V3, V4, cut, restore

HARNESS = Path(__file__).resolve().parents[1] / "tools" / "nfs_hosts.py"
CALM_S = 10.0  # within which, without harm, each lock must have been acquired
LONGEST_CUT_S = 4.0
HARM_EVERY_S = 0.5  # in each set of locks, in the mean
_ROOTS = {"v3": (V3, V3), "v4": (V4, V4), "slow": (V3, V4)}

Interval = tuple[float, float, str, int]


class Nursery:
    """Where a host's candidates come from. They are not our children: what became of them is asked for."""

    def __init__(self, host: str) -> None:
        command = ["nfs-on", host, sys.executable, "-m", "proofs.nfs_candidates"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.host = host

    def start(self, *arguments: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@dataclass
class Member:
    """One candidate for one lock, and those before it in its place."""

    nursery: Nursery
    kind: str
    lock: str
    path: str
    folder: Path
    rng: random.Random
    pid: int = 0
    files: list[Path] = field(default_factory=list)
    frozen_until: float = 0.0

    def start(self) -> None:
        path = self.folder / f"{self.lock}-{self.nursery.host}-{self.rng.randrange(10**12)}"
        path.touch()
        os.truncate(path, NOTES_SIZE)
        self.files.append(path)
        self.frozen_until = 0.0
        self.pid = self.nursery.start(self.kind, self.path, str(path), self.rng.randrange(10**6))

    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def freeze(self, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            self.frozen_until = time.monotonic() + seconds

    def thaw_in_time(self) -> None:
        if self.frozen_until and time.monotonic() > self.frozen_until:
            self.frozen_until = 0.0
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Without waiting for the end: a process that waits for a file server that is cut off may take its time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def intervals(self) -> list[Interval]:
        return [(start, end, path.name, token) for path in self.files for start, end, token in read_notes(path)]

    def errors(self) -> list[str]:
        paths = [path.with_name(f"{path.name}.error") for path in self.files]
        return [path.read_text(encoding="utf-8") for path in paths if path.exists()]


class Group:
    """Does harm at random to the candidates of all locks, and to their hosts, and counts what it did."""

    def __init__(self, kind: str, folder: Path, sets: int, members_per_host: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._kind, self._sets = kind, sets
        self.locks = {f"{name}-{number}": roots for number in range(sets) for name, roots in _ROOTS.items()}
        self._restore_at: dict[str, float] = {}
        self._nurseries = [Nursery(host) for host in HOSTS]
        self.members = [
            Member(nursery, kind, lock, f"{roots[number % 2]}/{kind}-{lock}", folder, random.Random(self._rng.random()))
            for lock, roots in self.locks.items()
            for nursery in self._nurseries
            for number in range(members_per_host)
        ]
        self.harm: dict[str, int] = {}
        self.calm_from = 0.0

    def run(self, seconds: float) -> None:
        try:
            for member in self.members:
                member.start()
            self._be_patient(seconds, does_harm=True)
            self._end_harm()
            self.calm_from = time.clock_gettime(time.CLOCK_BOOTTIME)
            while self.is_stuck() and time.clock_gettime(time.CLOCK_BOOTTIME) < self.calm_from + CALM_S:
                self._be_patient(0.5, does_harm=False)
        finally:
            for member in self.members:
                member.kill()
            for nursery in self._nurseries:
                nursery.close()

    def _be_patient(self, seconds: float, *, does_harm: bool) -> None:
        end = time.monotonic() + seconds
        next_harm = time.monotonic() + 2.0
        while time.monotonic() < end:
            time.sleep(0.05)
            for member in self.members:
                member.thaw_in_time()
                if not member.is_alive():
                    self._count("left")
                    member.start()
            for host in [host for host, at in self._restore_at.items() if time.monotonic() > at]:
                restore(host)
                del self._restore_at[host]
            if does_harm and time.monotonic() > next_harm:
                next_harm = time.monotonic() + self._rng.expovariate(self._sets / HARM_EVERY_S)
                self._harm()

    def _end_harm(self) -> None:
        for host in self._restore_at:
            restore(host)
        self._restore_at.clear()
        for member in self.members:
            member.frozen_until = min(member.frozen_until, 1.0)

    def _harm(self) -> None:
        deeds = ["kill", "freeze", "kill holder", "freeze holder", "cut"]
        deed = self._rng.choices(deeds, [2, 3, 3, 3, 1 / self._sets])[0]  # a cut affects all locks
        if deed == "cut":
            self._cut()
            return
        member: Member | None = self._rng.choice(self.members)
        if "holder" in deed and member is not None:
            member = self._holder_of(member.lock)
        if member is None or member.frozen_until:
            return
        if "freeze" in deed:
            member.freeze(self._rng.uniform(0.2, 3.0))
        else:
            member.kill()
            member.start()
        self._count(deed)

    def _cut(self) -> None:
        host = self._rng.choice(HOSTS)
        if host not in self._restore_at:
            cut(host)
            self._restore_at[host] = time.monotonic() + self._rng.uniform(0.3, LONGEST_CUT_S)
            self._count("cut")

    def _count(self, deed: str) -> None:
        self.harm[deed] = self.harm.get(deed, 0) + 1

    def _holder_of(self, lock: str) -> Member | None:
        """Ask the server itself, which nothing keeps waiting."""
        folder = Path(EXPORT, f"{self._kind}-{lock}")
        try:
            newest = max(int(path.suffix[1:]) for path in folder.glob("epoch.*"))
            pid = json.loads((folder / f"epoch.{newest}").read_bytes().splitlines()[0])["pid"]
        except (OSError, ValueError, IndexError):
            return None
        return next((member for member in self.members if member.pid == pid), None)

    def is_stuck(self) -> bool:
        """Whether there is a lock that has not been acquired since the harm ended."""
        return not all(any(start > self.calm_from for start, *_ in self.intervals(lock)) for lock in self.locks)

    def intervals(self, lock: str) -> list[Interval]:
        return sorted(each for member in self.members if member.lock == lock for each in member.intervals())

    def errors(self) -> list[str]:
        return [error for member in self.members for error in member.errors()]


def repeated_tokens(intervals: Sequence[Interval]) -> int:
    """Count the possessions whose number is not their own."""
    owners = {(name, token) for _, _, name, token in intervals}
    return len(owners) - len({token for _, token in owners})


def judge(group: Group, kind: str, lock: str) -> int:
    """Say what is to be said about one lock, and return how many things are wrong with it."""
    intervals = group.intervals(lock)
    trusted = [interval for interval in intervals if interval[1] > interval[0]]
    overlaps, disorder = overlaps_in(trusted), tokens_out_of_order(trusted) + repeated_tokens(intervals)
    tokens = {token for *_, token in intervals}
    late = {token for start, *_, token in intervals if start > group.calm_from}
    of_host = {host: len({token for _, _, name, token in intervals if host in name}) for host in HOSTS}
    left = sum(1 for _ in Path(EXPORT, f"{kind}-{lock}").iterdir())
    say(
        f"{kind} {lock}: {len(tokens)} possessions ({', '.join(f'{n} on {host}' for host, n in of_host.items())}), "
        f"{overlaps} overlaps, {disorder} numbers out of order, {len(late)} after the harm, {left} files left"
    )
    if overlaps or disorder:
        show(intervals)
    return overlaps + disorder + (not late)


def show(intervals: Sequence[Interval]) -> None:
    """Say what was around the first thing that is wrong."""
    ends = list(itertools.accumulate((end for _, end, *_ in intervals), max))
    tokens = list(itertools.accumulate((token for *_, token in intervals), max))
    wrong = [
        at for at in range(1, len(intervals)) if intervals[at][0] < ends[at - 1] or intervals[at][3] <= tokens[at - 1]
    ]
    for start, end, name, token in intervals[max(0, wrong[0] - 5) : wrong[0] + 5]:
        say(f"  {token:6} from {start:.4f} to {end:.4f} {name}")


def torture(kind: str, seconds: float, sets: int, members_per_host: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pgll-nfs-", dir="/dev/shm") as folder:
        group = Group(kind, Path(folder), sets, members_per_host, seed)
        group.run(seconds)
        wrong = sum(judge(group, kind, lock) for lock in group.locks)
        say(f"{kind} seed={seed}: {len(group.members)} candidates, {seconds:g} s, harm {group.harm}")
        errors = group.errors()
    if errors:
        sys.exit(f"{len(errors)} candidates failed, the first with:\n{errors[0]}")
    if wrong:
        sys.exit("two had a lock at once, or a number came twice or too late, or a lock was not to be had any more")


def run_inside(options: argparse.Namespace, rounds: int) -> int:
    """Start this program again, among the hosts."""
    timeout_s = 60 + rounds * (options.seconds + CALM_S + 20 * options.sets)
    command = [sys.executable, str(HARNESS), "run", "--timeout-s", f"{timeout_s:g}", "--", sys.executable, "-m"]
    command += ["proofs.nfs_hosts_torture", *sys.argv[1:], "--seed", str(options.seed)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each round (%(default)s)")
    parser.add_argument("--sets", type=int, default=1, help="how often there are these three locks (%(default)s)")
    parser.add_argument("--members", type=int, default=2, help="candidates for each lock on each host (%(default)s)")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    rounds = [options.only] if options.only else list(KINDS)
    if not HOSTS:
        return run_inside(options, len(rounds))
    for kind in rounds:
        torture(kind, options.seconds, options.sets, options.members, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
