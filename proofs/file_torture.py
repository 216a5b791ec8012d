"""Torture of the lock in a file: real processes, killed and frozen at random, and a simulation of every other order.

    python -m proofs.file_torture --processes 64 --seconds 30

Four rounds, each of which can be left out (``--only``):

- ``group``: so many candidates. Each samples its token about every millisecond in a thread of its own and writes the
  intervals in which it led into a memory-mapped file, where they outlive a kill -9. Meanwhile processes are killed and
  frozen, and the leader in particular. No two may lead at once, and tokens must grow from leader to leader.
- ``kills``: a leader that renews without a pause is killed -9 at a random instant, 300 times. The record is never
  unreadable, no candidate leads before the leader is dead, and the take-over is timed.
- ``simulate``: candidates in threads that take turns, at random, at every single step on the files and every look at
  the clock, which is virtual. So a candidate can be frozen between any two steps, for any time, and is killed there.
  The disk is full now and then.
- ``full``: a small group on a file system of a few pages (root mounts it), which is full most of the time. The same is
  looked for; and a process that leads when it becomes full, and is not harmed, leads until there is room again.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock.errors import ConnectionError, PgLeaderLockError
from pgleaderlock.models import Grant
from pgleaderlock.stores.file import _record as _file_record
from pgleaderlock.stores.file._folder import Draft, Live
from pgleaderlock.stores.file.backend import FileStore, open_file
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing._claim import make_claim_file, read_claims
from proofs.torture import find_overlaps

LEASE_S = 1.5

# A process that has everything imported, and forks a child for each line it is sent: starting is cheap then.
_NURSERY = """
import asyncio, ctypes, json, logging, os, signal, sys, threading, time
from pathlib import Path
from pgleaderlock import Election, FixedInterval
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.testing._claim import sample_forever

async def take_part(path, samples, lease_s):
    election = Election(open_file(path, lease_s=lease_s), health_interval_s=lease_s / 3,
                        retry_strategy=FixedInterval(0.5))
    watched = lambda: election.token, Path(samples), clock, 0.004
    threading.Thread(target=sample_forever, args=watched, daemon=True).start()
    async with election:
        while True:  # busy, as an application is: its event loop does not read the news at once
            time.sleep(0.004)
            await asyncio.sleep(0.04)

async def renew_without_a_pause(path):
    backend = open_file(path, lease_s=15)
    await backend.open()
    grant = await backend.try_acquire()
    os.write(1, f"{grant.token}\\n".encode())
    while True:
        grant = await backend.renew(grant)

logging.disable()  # losing is what they are here for
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while line := sys.stdin.readline():
    name, *arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # nobody outlives the nursery, and that nobody its own parent
        asyncio.run(globals()[name](*arguments))
    os.write(1, f"pid {child}\\n".encode())
"""


class Nursery:
    """Where candidates come from. They are not our children: what became of them is asked for."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _NURSERY]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def start(self, name: str, *arguments: object, lines: int = 1) -> list[str]:
        """Start a candidate, and return the lines that are said of it and by it, in any order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
        said = [self._process.stdout.readline().decode().strip() for _ in range(lines)]
        assert all(said), "the nursery died"
        return said

    def close(self) -> None:
        self._process.communicate()


def kill(pid: int) -> None:
    """Kill a candidate, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        while True:
            os.kill(pid, 0)
            time.sleep(0.0005)


# --- A group ---------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    """One candidate, and those before it in its place."""

    nursery: Nursery
    folder: Path
    record: Path
    name: str
    pid: int = 0
    files: list[Path] = field(default_factory=list)
    frozen_until: float = 0.0

    def start(self) -> None:
        path = self.folder / f"{self.name}-{len(self.files)}"
        make_claim_file(path)
        self.files.append(path)
        said = self.nursery.start("take_part", str(self.record), str(path), LEASE_S)
        self.pid = int(said[0].split()[1])

    def freeze(self, seconds: float) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen_until = time.monotonic() + seconds

    def thaw_in_time(self) -> None:
        if self.frozen_until and time.monotonic() > self.frozen_until:
            os.kill(self.pid, signal.SIGCONT)
            self.frozen_until = 0.0

    def kill(self) -> None:
        if self.pid:
            kill(self.pid)
        self.frozen_until = 0.0

    def intervals(self) -> list[tuple[float, float, str, int]]:
        return [
            (began_at, seen_at, path.name, token)
            for path in self.files
            for began_at, seen_at, token in read_claims(path)
        ]


class Group:
    """Does harm at random to a group of members, and counts what it did."""

    def __init__(self, folder: Path, members: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self.record = folder / "locks" / "leader.json"
        self.record.parent.mkdir()
        self.record.with_name("leader.json.live.999999999999999999").touch()  # a stray file, which must stop nothing
        (folder / "samples").mkdir()
        self._nursery = Nursery()
        self.members = [
            Member(self._nursery, folder / "samples", self.record, f"m{number}") for number in range(members)
        ]
        self.harm: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        try:
            for member in self.members:
                member.start()
            while not self.record.exists():
                time.sleep(0.01)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self._rng.expovariate(1 / 0.15))
                for member in self.members:
                    member.thaw_in_time()
                self._harm()
        finally:
            for member in self.members:
                member.kill()
            self._nursery.close()

    def _harm(self) -> None:
        deed = self._rng.choices(
            ["kill", "freeze", "kill leader", "freeze leader", "freeze and kill"], [2, 3, 3, 3, 1]
        )[0]
        member: Member | None = self._rng.choice(self.members)
        if "leader" in deed or "and" in deed:
            pid = self._leader_pid()
            member = next((each for each in self.members if each.pid == pid), None)
        if member is None or (member.frozen_until and "freeze" in deed):
            return
        if "freeze" in deed:
            member.freeze(self._rng.uniform(0.2, 1.6) * LEASE_S)
        if deed == "freeze and kill":  # a moment later: another may have begun to lead
            time.sleep(self._rng.uniform(0.9, 1.3) * LEASE_S)
        if "kill" in deed:
            member.kill()
            member.start()
        self.harm[deed] = self.harm.get(deed, 0) + 1

    def _leader_pid(self) -> int:
        try:
            return int(json.loads(self.record.read_bytes())["pid"])
        except FileNotFoundError:
            return -1

    def intervals(self) -> list[tuple[float, float, str, int]]:
        return sorted(interval for member in self.members for interval in member.intervals())


def overlaps_in(intervals: list[tuple[float, float, str, int]]) -> int:
    return len(find_overlaps([(start, end, name) for start, end, name, _ in intervals]))


def tokens_out_of_order(intervals: Iterable[tuple[float, float, str, int]]) -> int:
    """Count the intervals whose token is not greater than every earlier leader's, or not the same leader's own."""
    newest, owner, wrong = -1, "", 0
    for _, _, name, token in sorted(intervals):
        wrong += token < newest or (token == newest and name != owner)
        newest, owner = max((newest, owner), (token, name))
    return wrong


def torture_group(members: int, seconds: float, seed: int) -> Group:
    with tempfile.TemporaryDirectory(prefix="pgll-file-") as folder:
        group = Group(Path(folder), members, seed)
        group.run(seconds)
        intervals = group.intervals()
        terms = len({token for *_, token in intervals})
        problems = overlaps_in(intervals), tokens_out_of_order(intervals)
        left = sorted(path.name for path in group.record.parent.iterdir())
        say(f"group of {members} seed={seed}: {terms} terms, {len(intervals)} intervals, harm {group.harm}, ")
        say(f"  {problems[0]} overlaps, {problems[1]} tokens out of order, {len(left)} files left")
        if not terms or any(problems):
            sys.exit("two leaders at once, or none at all")
        return group


# --- A full disk -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tiny_disk(folder: Path, options: str = "size=64k") -> Iterator[str]:
    """Mount a file system of a few pages or inodes. The string says why not, where it cannot be: only root may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    is_mounted = mounted.returncode == 0
    try:
        yield "" if is_mounted else f"only root may mount a file system of a few pages: {mounted.stderr.strip()}"
    finally:
        if is_mounted:
            subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> None:
    """Use up every page and every inode that is left."""
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    with contextlib.suppress(OSError):
        for number in range(1000):
            (folder / f"ballast.{number}").touch(exist_ok=False)


def free(folder: Path) -> None:
    for path in folder.glob("ballast*"):
        path.unlink()


class FullDisk(Group):
    """A group whose disk is full most of the time. Harm comes then as much as later."""

    led_on = fillings = unreadable = 0

    def run(self, seconds: float) -> None:
        try:
            for member in self.members:
                member.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._wait_for_renewal(end)
                fill(self.record.parent)
                self._watch_leader()
                for _ in range(2):
                    self._harm()
                    time.sleep(self._rng.uniform(0, LEASE_S))
                free(self.record.parent)
                for member in self.members:
                    member.thaw_in_time()
        finally:
            for member in self.members:
                member.kill()
            self._nursery.close()

    def _wait_for_renewal(self, end: float) -> None:
        """Wait until a leader renews."""
        before = self._term()
        while before == (now := self._term()) or now is None:
            if time.monotonic() > end:
                return
            time.sleep(0.01)

    def _watch_leader(self) -> None:
        """See whether it goes on renewing, for longer than its lease."""
        before = self._term()
        time.sleep(1.5 * LEASE_S)
        after = self._term()
        self.fillings += 1
        self.led_on += before is not None and after is not None and before[0] == after[0] and before < after

    def _term(self) -> tuple[int, str] | None:
        if not self.record.exists():
            return None
        text = self.record.read_bytes()
        if _file_record.decode(text) is None:
            self.unreadable += 1
            return None
        fields = json.loads(text)
        return fields["token"], fields["renewTime"]


def torture_full_disk(members: int, seconds: float, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pgll-file-") as folder:
        group = FullDisk(Path(folder), members, seed)
        with tiny_disk(group.record.parent) as why_not:
            if why_not:
                say(f"a full disk was NOT tried: {why_not}")
                if os.environ.get("CI") == "true":
                    sys.exit("nothing is left out in CI")
                return
            group.run(seconds)
        intervals = group.intervals()
        problems = overlaps_in(intervals), tokens_out_of_order(intervals), group.unreadable
        terms = len({token for *_, token in intervals})
        say(f"full disk, {members} seed={seed}: {terms} terms, filled {group.fillings} times, harm {group.harm},")
        say(f"  leader led on in {group.led_on}, {problems[0]} overlaps, {problems[1]} tokens out of order,")
        say(f"  {problems[2]} unreadable records")
        if not terms:
            sys.exit("no leader was seen")
        # Not in all of them: a machine that is too busy for a lease of 1.5 s ends a term too.
        if any(problems):
            sys.exit("two leaders at once, a token out of order, or an unreadable record")
        if group.led_on * 2 < group.fillings:
            sys.exit("a full disk ended the term")


# --- Kills -----------------------------------------------------------------------------------------------------------


@dataclass
class Kills:
    """What became of so many killed leaders."""

    took_s: list[float] = field(default_factory=list)
    unreadable: int = 0
    too_early: int = 0
    tokens: list[int] = field(default_factory=list)


async def kill_renewers(record: Path, times: int, seed: int) -> Kills:
    """Kill a leader that does nothing but renew, again and again, and take over from it each time."""
    rng, result = random.Random(seed), Kills()
    follower = open_file(record, lease_s=15)
    await follower.open()
    nursery = Nursery()
    try:
        for _ in range(times):
            said = sorted(nursery.start("renew_without_a_pause", str(record), lines=2))
            result.tokens.append(int(said[0]))
            await _take_over_from(int(said[1].split()[1]), follower, record, rng, result)
    finally:
        nursery.close()
        await follower.close()
    return result


async def _take_over_from(
    leader: int, follower: RecordBackend, record: Path, rng: random.Random, result: Kills
) -> None:
    taking = None
    try:
        result.too_early += await follower.try_acquire() is not None
        end = time.perf_counter() + rng.uniform(0, 0.01)
        while time.perf_counter() < end:
            result.unreadable += _is_unreadable(record)
        taking = asyncio.create_task(_acquire(follower))
        await asyncio.sleep(rng.uniform(0.001, 0.005))
        result.too_early += taking.done()
    finally:
        killed_at = time.perf_counter()
        os.kill(leader, signal.SIGKILL)
    grant = await taking
    result.took_s.append(time.perf_counter() - killed_at)
    assert grant.token is not None
    result.tokens.append(grant.token)
    result.unreadable += _is_unreadable(record)
    await follower.release(grant)


def _is_unreadable(record: Path) -> bool:
    return _file_record.decode(record.read_bytes()) is None


async def _acquire(backend: RecordBackend) -> Grant:
    while (grant := await backend.try_acquire()) is None:
        await backend.wait(60)
    return grant


def torture_by_kills(times: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pgll-file-") as folder:
        result = asyncio.run(kill_renewers(Path(folder) / "leader.json", times, seed))
    took_ms = sorted(took_s * 1e3 for took_s in result.took_s)
    say(
        f"{times} kills seed={seed}: take-over {statistics.median(took_ms):.1f} ms in the median, "
        f"{took_ms[int(len(took_ms) * 0.95)]:.1f} ms for 95 %, {took_ms[-1]:.1f} ms at most; "
        f"{result.unreadable} unreadable records, {result.too_early} taken too early"
    )
    if result.unreadable or result.too_early or result.tokens != sorted(set(result.tokens)):
        sys.exit("a record was unreadable, or a leader was replaced before it died")


# --- A simulation ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Where a candidate ended."""


class Simulation:
    """Candidates that take turns at every step, in an order that the seed decides, on a virtual clock."""

    STEPS = (
        *("read", "terms", "is_free", "is_in_place", "draft", "claim", "publish", "overwrite", "_is_at", "remove"),
        *("collect", "_remove"),
    )

    def __init__(self, record: Path, seed: int, candidates: int = 4) -> None:
        self.record = record
        if seed % 2:
            record.with_name("leader.json.live.999999999999999999").touch()  # a stray file, which must stop nothing
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.candidates = [Candidate(self, number) for number in range(candidates)]
        self.back = threading.Semaphore(0)
        self.terms: list[int] = []
        self.overlaps: list[str] = []
        self.frozen: dict[Candidate, int] = {}
        self.is_full = False
        self.overwritten = 0

    def run(self, steps: int) -> None:
        for candidate in self.candidates:
            candidate.start()
        for step in range(steps):
            self._disturb(step)
            ready = [each for each in self.candidates if self.frozen.get(each, 0) <= step]
            if ready:
                self.rng.choice(ready).take_a_step()
            self._check(step)
        for candidate in self.candidates:
            candidate.kill()

    def _disturb(self, step: int) -> None:
        chance = self.rng.random()
        self.now += self.rng.choice([0.0, 0.0, 0.001, 0.02]) * LEASE_S
        if chance < 0.03:
            self.now += self.rng.uniform(0.1, 1.2) * LEASE_S
        elif chance < 0.06:
            self.frozen[self.rng.choice(self.candidates)] = step + self.rng.randrange(5, 100)
        elif chance < 0.07:
            self.is_full = not self.is_full
        elif chance < 0.075:
            self._replace(self.rng.choice(self.candidates))

    def _replace(self, candidate: "Candidate") -> None:
        candidate.kill()
        index = self.candidates.index(candidate)
        self.candidates[index] = Candidate(self, candidate.number + len(self.candidates))
        self.candidates[index].start()

    def _check(self, step: int) -> None:
        leaders = [each for each in self.candidates if each.believes(self.now)]
        if len(leaders) > 1:
            self.overlaps.append(f"step {step}: {[(each.number, each.grant) for each in leaders]}")


class Candidate:
    """A candidate in a thread that runs only when it is its turn."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self._simulation = simulation
        self.number = number
        self.grant: Grant | None = None
        self._turn = threading.Semaphore(0)
        self._is_killed = False
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._store = FileStore(simulation.record, lease_s=LEASE_S, identity=f"c{number}")
        self._backend = RecordBackend(self._store, identity=f"c{number}", lease_s=LEASE_S, clock=self._read_clock)
        self._descriptors: list[Descriptor] = []
        folder: Any = self._store._folder
        for name in Simulation.STEPS:
            setattr(folder, name, self._with_turns(getattr(folder, name)))
        folder.draft = self._noting_drafts(folder.draft)
        folder.overwrite = self._counting(folder.overwrite)

    def start(self) -> None:
        self._thread.start()

    def believes(self, now: float) -> bool:
        grant = self.grant
        return grant is not None and now < grant.trusted_until

    def take_a_step(self) -> None:
        self._turn.release()
        self._simulation.back.acquire()

    def kill(self) -> None:
        """As the kernel does: nothing more is done, and what was open is closed."""
        self.grant = None
        self._is_killed = True
        if self._thread.is_alive():
            self._turn.release()
            self._simulation.back.acquire()
            self._thread.join()

    def _wait_for_turn(self) -> None:
        if not self._is_killed:
            self._simulation.back.release()
            self._turn.acquire()
        if self._is_killed:
            raise Killed  # again and again: the dead do not tidy up

    def _with_turns(self, step: Any) -> Any:
        def take(*arguments: Any) -> Any:
            self._wait_for_turn()
            return step(*arguments)

        return take

    def _noting_drafts(self, draft: Any) -> Any:
        @contextlib.contextmanager
        def noted(text: bytes) -> Iterator[Draft]:
            if self._simulation.is_full:
                raise ConnectionError("cannot write: the disk is full")
            with draft(text) as made:
                self._descriptors.append(made.descriptor)
                yield made

        return noted

    def _counting(self, overwrite: Any) -> Any:
        def counted(live: Live, text: bytes) -> bytes | None:
            written: bytes | None = overwrite(live, text)
            self._simulation.overwritten += written is not None
            return written

        return counted

    def _read_clock(self) -> float:
        self._wait_for_turn()
        return self._simulation.now

    def _live(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_killed:
                with asyncio.Runner() as runner:
                    runner.run(self._contend())
        except Killed:
            pass
        finally:
            self._is_killed = True
            for descriptor in self._descriptors:
                descriptor.close()
            self._simulation.back.release()

    async def _contend(self) -> None:
        while True:
            try:
                await self._lead_for_a_while()
            except PgLeaderLockError:
                self.grant = None
                await self._backend.close()
            self._wait_for_turn()

    async def _lead_for_a_while(self) -> None:
        grant = await self._backend.try_acquire()
        if grant is None:
            return
        self._simulation.terms.append(grant.token or 0)
        self.grant = grant
        while self._simulation.rng.random() > 0.1:  # late or not: what counts is up to the store
            grant = self.grant = await self._backend.renew(grant)
        self.grant = None
        await self._backend.release(grant)


def simulate(seeds: Iterable[int], steps: int = 1500) -> tuple[int, int, list[str]]:
    """Return how many terms and renewals in place there were, and the moments at which two acted as leader."""
    terms, overwritten, problems = 0, 0, []
    for seed in seeds:
        with (
            tempfile.TemporaryDirectory(prefix="pgll-file-", dir=_memory_folder()) as folder,
            mock.patch.object(asyncio, "to_thread", _without_a_thread),
        ):
            simulation = Simulation(Path(folder) / "leader.json", seed)
            simulation.run(steps)
        terms += len(simulation.terms)
        overwritten += simulation.overwritten
        problems += [f"seed {seed} {overlap}" for overlap in simulation.overlaps[:1]]
        if len(set(simulation.terms)) != len(simulation.terms):
            problems.append(f"seed {seed}: a token was given out twice")
    return terms, overwritten, problems


async def _without_a_thread(step: Any, *arguments: Any) -> None:
    step(*arguments)


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def torture_by_simulation(seeds: int, first: int) -> None:
    terms, overwritten, problems = simulate(range(first, first + seeds))
    say(f"{seeds} simulations from seed={first}: {terms} terms, {overwritten} in place, {len(problems)} problems")
    if problems:
        sys.exit("\n".join(problems[:5]))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--only", choices=["group", "kills", "simulate", "full"])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    logging.disable()  # losing, and a full disk, are what they are here for
    if options.only in (None, "simulate"):
        torture_by_simulation(options.simulations, options.seed)
    if options.only in (None, "kills"):
        torture_by_kills(options.kills, options.seed)
    if options.only in (None, "group"):
        torture_group(options.processes, options.seconds, options.seed)
    if options.only in (None, "full"):
        torture_full_disk(min(8, options.processes), min(30.0, options.seconds), options.seed)


if __name__ == "__main__":
    main()
