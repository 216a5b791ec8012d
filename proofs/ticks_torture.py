"""Torture of the tick ledger: real processes with scheduled jobs, killed with -9 and frozen, and a strict accountant.

    python -m proofs.ticks_torture --kills 100

Each member runs four jobs, and each run writes a line when it begins and one when it ends into a file that is only ever
appended to, so that it outlives a kill: what was really run, whatever the ledger says. One job marks its slots as done
in the transaction of its effect. The leader is killed again and again at random moments; now and then it is frozen
for longer than its lease, and comes back to find out.

Afterwards the ledger is compared with the files. What must hold:

- no slot was begun twice, but for repetitions that the ledger shows, each begun at most once;
- every slot of every job, from the first to the last, has a row: none is unclaimed;
- every run that began and did not end is in the ledger as killed or repeated; every end that the ledger shows was one;
- no two runs of one job overlapped in a process, and none began after one of a newer term (unless its process was
  frozen just then, which it cannot notice);
- an effect is there exactly once for every slot that is done, and for no other.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from pgleaderlock import LockKey
from pgleaderlock.testing.embedded import Server
from tests.conftest import free_port

KEY = LockKey.pair(667, 1)
LEASE_S = 1.5
INTERVALS = {"once": "100ms", "repeat": "130ms", "all": "170ms", "effect": "110ms"}
_INTERVAL = {name: timedelta(milliseconds=int(text[:-2])) for name, text in INTERVALS.items()}
_FROZEN_EACH = 10  # one in so many deeds is a freeze

MEMBER = """
import asyncio, os, random, sys, time
import psycopg
from pgleaderlock import FixedInterval, LeaderLock, LockKey, Tick

dsn, key, lease_s, path = sys.argv[1:]
file = os.open(path, os.O_WRONLY | os.O_APPEND)

def note(what, tick):
    now = f"{time.clock_gettime(time.CLOCK_BOOTTIME):.6f}"
    line = " ".join([now, what, tick.job, tick.slot.isoformat(), str(tick.attempt), str(tick.token)])
    os.write(file, (line + "\\n").encode())

lock = LeaderLock(dsn, key=LockKey.parse(key), lease_s=float(lease_s), health_interval_s=float(lease_s) / 3,
                  retry_strategy=FixedInterval(0.5), settle_s=0, term_table=True)

@lock.every("100ms", name="once")
async def once(tick: Tick):
    note("begin", tick)
    await asyncio.sleep(random.uniform(0, 0.08))
    note("end", tick)

@lock.every("130ms", name="repeat", if_killed="repeat", max_attempts=100)
def repeat(tick: Tick):
    note("begin", tick)
    time.sleep(random.uniform(0, 0.1))
    note("end", tick)

@lock.every("170ms", name="all", if_missed="all", max_missed=1000)
async def all_of_them(tick: Tick):
    note("begin", tick)
    await asyncio.sleep(random.uniform(0, 0.02))
    note("end", tick)

@lock.every("110ms", name="effect", if_killed="repeat", max_attempts=100)
async def effect(tick: Tick):
    note("begin", tick)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("INSERT INTO effects VALUES (%s, %s)", (tick.slot, tick.token))
        await asyncio.sleep(random.uniform(0, 0.05))
        await tick.done_in(connection)
        await asyncio.sleep(random.uniform(0, 0.02))
    note("end", tick)

async def main():
    async with lock:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
"""


@dataclass
class Member:
    """One process, and those before it in its place."""

    dsn: str
    folder: Path
    name: str
    process: subprocess.Popen[bytes] | None = None
    files: list[Path] = field(default_factory=list)
    frozen_until: float = 0.0
    frozen_files: set[Path] = field(default_factory=set)

    def start(self) -> None:
        path = self.folder / f"{self.name}-{len(self.files)}"
        path.touch()
        self.files.append(path)
        command = [sys.executable, "-c", MEMBER, self.dsn, str(KEY), str(LEASE_S), str(path)]
        log = self.folder / f"{self.name}.log"
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)

    def thaw(self) -> None:
        if self.frozen_until and time.monotonic() > self.frozen_until:
            self.frozen_until = 0.0
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._reap()
        self.frozen_until = 0.0

    def stop(self) -> None:
        """In order: what runs comes to its end."""
        if self.process is None:
            return
        if self.frozen_until:
            self.signal(signal.SIGCONT)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.kill()

    def read(self, path: Path) -> "list[Begun]":
        return [replace(run, was_frozen=path in self.frozen_files) for run in read_runs(path)]

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None


@dataclass(frozen=True)
class Begun:
    """One run, as the file of its process has it."""

    job: str
    slot: datetime
    attempt: int
    token: int
    began_at: float
    ended_at: float | None
    member: str
    was_frozen: bool = False
    """Whether its process was, at any time."""

    @property
    def identity(self) -> tuple[str, datetime, int]:
        return self.job, self.slot, self.attempt


def read_runs(path: Path) -> Iterator[Begun]:
    """Pair the lines of one process. Its last may be torn off."""
    begun: dict[tuple[str, ...], list[float]] = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 6:
            begun.setdefault(tuple(words[2:]), []).append(float(words[0]))
    for (job, slot, attempt, token), times in begun.items():
        ended_at = times[1] if len(times) > 1 else None
        yield Begun(job, datetime.fromisoformat(slot), int(attempt), int(token), times[0], ended_at, path.name)
        if len(times) > 2:  # begun again under the same claim
            yield Begun(job, datetime.fromisoformat(slot), int(attempt), int(token), times[2], None, path.name)


@dataclass(frozen=True)
class Row:
    """One row of the ledger."""

    job: str
    slot: datetime
    attempt: int
    state: str
    token: int
    skipped_from: datetime | None

    @property
    def identity(self) -> tuple[str, datetime, int]:
        return self.job, self.slot, self.attempt


def find_faults(runs: list[Begun], rows: list[Row], effects: list[datetime]) -> list[str]:
    """Compare what was run with what the ledger says, and return all that must not be."""
    return [
        *_begun_twice(runs),
        *_unclaimed(rows),
        *_unaccounted(runs, rows),
        *_overlapping(runs),
        *_wrong_effects(rows, effects),
    ]


def _begun_twice(runs: list[Begun]) -> Iterator[str]:
    for identity, number in Counter(run.identity for run in runs).items():
        if number > 1:
            yield f"begun {number} times: {identity}"
    for (job, slot), number in Counter((run.job, run.slot) for run in runs).items():
        if number > 1 and job in {"once", "all"}:
            yield f"a slot that is not to be repeated was begun {number} times: {job} {slot}"


def _unclaimed(rows: list[Row]) -> Iterator[str]:
    for job, interval in _INTERVAL.items():
        mine = sorted((row for row in rows if row.job == job and row.attempt == 1), key=lambda row: row.slot)
        for before, row in pairwise(mine):
            since = row.skipped_from or row.slot
            if since - before.slot > interval:
                yield f"unclaimed: {job} between {before.slot} and {row.slot}"


def _unaccounted(runs: list[Begun], rows: list[Row]) -> Iterator[str]:
    by_identity = {row.identity: row for row in rows}
    by_run = {run.identity: run for run in runs}
    for run in runs:
        row = by_identity.get(run.identity)
        if row is None:
            yield f"run, and not in the ledger: {run}"
        elif row.token != run.token:
            yield f"run by token {run.token}, claimed by {row.token}: {row}"
        elif run.ended_at is None and row.state == "done" and row.job != "effect":
            yield f"done in the ledger, and never ended: {row}"
    for row in rows:
        if row.state == "running":
            yield f"left running by all processes: {row}"
        if row.state == "done" and row.identity not in by_run:
            yield f"done in the ledger, and never run: {row}"
        if row.state == "skipped" and row.identity in by_run:
            yield f"skipped in the ledger, and run: {row}"
        if row.state == "repeated" and (row.job, row.slot, row.attempt + 1) not in by_identity:
            yield f"to be repeated, and never was: {row}"


def _overlapping(runs: list[Begun]) -> Iterator[str]:
    """Of runs in one process, and of terms: a process that was not frozen knows when its term is over."""
    for job in _INTERVAL:
        mine = sorted((run for run in runs if run.job == job), key=lambda run: run.began_at)
        for run, later in pairwise(mine):
            if run.ended_at is not None and later.began_at < run.ended_at and run.member == later.member:
                yield f"two runs at once: {run} and {later}"
            if later.token < run.token and not later.was_frozen:
                yield f"begun after a newer term had begun: {later} after {run}"


def _wrong_effects(rows: list[Row], effects: list[datetime]) -> Iterator[str]:
    done = {row.slot for row in rows if row.job == "effect" and row.state == "done"}
    for slot, number in Counter(effects).items():
        if number > 1:
            yield f"{number} effects of the slot {slot}"
        if slot not in done:
            yield f"an effect of a slot that is not done: {slot}"
    for slot in done - set(effects):
        yield f"done, and without an effect: {slot}"


class Torture:
    """Harms the leader, and counts it."""

    def __init__(self, dsn: str, folder: Path, seed: int, members: int = 4) -> None:
        self._rng = random.Random(seed)
        self._dsn = dsn
        self.members = [Member(dsn, folder, f"m{number}") for number in range(members)]
        self.kills = self.freezes = self.killed_running = 0

    def run(self, kills: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE effects (slot timestamptz, token bigint)")
            for member in self.members:
                member.start()
            try:
                while self.kills < kills:
                    self._harm(connection)
                self._let_one_lead_in_peace(connection)
            finally:
                for member in self.members:
                    member.stop()

    def _harm(self, connection: psycopg.Connection[Any]) -> None:
        leader = self._working_leader(connection)
        time.sleep(self._rng.uniform(0, 0.2))
        if self._rng.randrange(_FROZEN_EACH) == 0:
            leader.signal(signal.SIGSTOP)
            leader.frozen_files.add(leader.files[-1])
            leader.frozen_until = time.monotonic() + self._rng.uniform(0.5, 1.6) * LEASE_S
            self.freezes += 1
            return
        leader.kill()
        self.kills += 1
        leader.start()

    def _working_leader(self, connection: psycopg.Connection[Any]) -> Member:
        """Wait until one leads that has claimed something in its term, and is not frozen."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for member in self.members:
                member.thaw()
            row = connection.execute(_CLAIMER, (str(KEY),)).fetchone() if _has_ledger(connection) else None
            pid = int(row[0].rpartition(":")[2].split()[0]) if row else 0
            for member in self.members:
                if member.process is not None and member.process.pid == pid and not member.frozen_until:
                    return member
            time.sleep(0.01)
        raise RuntimeError("no process led and claimed anything for a minute")

    def _let_one_lead_in_peace(self, connection: psycopg.Connection[Any]) -> None:
        """Until everything that was killed has been found, and a round of slots was run."""
        self._working_leader(connection)
        for member in self.members:
            if member.frozen_until:
                member.signal(signal.SIGCONT)
                member.frozen_until = 0.0
        time.sleep(3 * LEASE_S)
        self._working_leader(connection)

    def runs(self) -> list[Begun]:
        return [run for member in self.members for path in member.files for run in member.read(path)]


_CLAIMER = """
SELECT ticks.holder FROM pgleaderlock.ticks JOIN pgleaderlock.terms USING (lock, token)
 WHERE lock = %s AND job = 'once' AND ticks.state <> 'skipped' LIMIT 1
"""


def _has_ledger(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT to_regclass('pgleaderlock.ticks') IS NOT NULL").fetchone()
    return bool(row and row[0])


def read_rows(dsn: str) -> tuple[list[Row], list[datetime]]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT job, slot, attempt, state, token, skipped_from FROM pgleaderlock.ticks WHERE lock = %s",
            (str(KEY),),
        ).fetchall()
        effects = connection.execute("SELECT slot FROM effects").fetchall()
    return [Row(*row) for row in rows], [slot for (slot,) in effects]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def torture(kills: int, seed: int) -> list[str]:
    """Run on a server of its own; return what was wrong."""
    with tempfile.TemporaryDirectory(prefix="pgll-ticks-") as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder) / "server", tcp_port=free_port())
        server.start()
        try:
            began = time.monotonic()
            group = Torture(server.dsn, Path(folder), seed)
            group.run(kills)
            rows, effects = read_rows(server.dsn)
            runs = group.runs()
            faults = find_faults(runs, rows, effects)
            _report(group, runs, rows, effects, time.monotonic() - began)
            return faults
        finally:
            server.stop("immediate")


def _report(group: Torture, runs: list[Begun], rows: list[Row], effects: list[datetime], took_s: float) -> None:
    states = Counter(row.state for row in rows)
    begun = {run.identity: run for run in runs}
    cut_off = [row for row in rows if row.state in {"killed", "repeated"}]
    unbegun = sum(row.identity not in begun for row in cut_off)
    half_way = sum(row.identity in begun and begun[row.identity].ended_at is None for row in cut_off)
    say(
        f"{group.kills} kills and {group.freezes} freezes in {took_s:.0f} s: {len({row.token for row in rows})} terms, "
        f"{len(rows)} rows {dict(sorted(states.items()))}, {len(runs)} runs, {len(effects)} effects"
    )
    say(
        f"killed runs: {len(cut_off)} in the ledger; of those {half_way} had begun and not ended, {unbegun} had not "
        f"begun, {len(cut_off) - half_way - unbegun} had ended and not said so; "
        f"{sum(run.ended_at is None for run in runs)} runs began and did not end"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    faults = torture(options.kills, options.seed)
    for fault in faults:
        say(f"  {fault}")
    if faults:
        sys.exit(f"{len(faults)} faults: replay with --kills {options.kills} --seed {options.seed}")
    say("no slot was claimed twice, none is unclaimed, and every killed run is accounted for")


if __name__ == "__main__":
    main()
