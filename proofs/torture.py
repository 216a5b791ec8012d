"""Torture: real processes, killed, frozen and cut off at random, and a checker that looks for two leaders at once.

    python -m proofs.torture --mode fast --seconds 300

``pgleaderlock torture`` is the same for all users; here are the modes that must fail, or that only we need. Each member
records when it claims to lead (``pgleaderlock/testing/_claim.py``), and the judge of that command reads it.

Modes:

- ``fast``: as people run it; never both sessions of one process are killed within a lease. No overlap is allowed.
- ``strict``: ``takeover="strict"``, and both sessions of the leader may be killed at once. No overlap is allowed.
- ``alone``: ``witness=False``, and no look at the socket. Overlaps must be found: it shows that this harness can fail.
- ``group``: as ``fast``, but each process has a :class:`LeaderGroup` of three roles. No overlap is allowed.
- ``rows``: lease rows through a PgBouncer in transaction mode, which is restarted now and then. No overlap is allowed.
- ``double``: as ``fast``, and both sessions of the leader may be killed at once. Overlaps are allowed only after that.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pgleaderlock import LockKey
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.testing import torture as proof
from pgleaderlock.testing._claim import make_claim_file, read_claims
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture import Claim, Overlap
from tests.conftest import free_port
from tests.support.pooler import Pooler

__all__ = ["Overlap", "Torture", "find_overlaps", "torture"]

KEY = LockKey.pair(666, 1)
LEASE_S = 1.5

_MEMBER = """
import asyncio, math, sys, threading
from pathlib import Path
from pgleaderlock import Election, FixedInterval, LeaderGroup, LeaderLock, LockKey, open_backend
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.testing._claim import sample_forever
from pgleaderlock.testing.demo._node import be_busy

class GroupOfThree:  # as if it were the lock that the others look at
    def __init__(self, dsn, key, lease_s):
        key = LockKey.parse(key)
        self.group = LeaderGroup(dsn, [key, "a", "b"], lease_s=lease_s, health_interval_s=lease_s / 3, settle_s=0)
        self.role = self.group[str(key)]

    @property
    def token(self):
        return self.role.token

    async def __aenter__(self):
        await self.group.start()

    async def __aexit__(self, *_):
        await self.group.shutdown()

def make_lock(dsn, key, lease_s, mode):
    if mode == "group":
        return GroupOfThree(dsn, key, float(lease_s))
    if mode == "rows":
        return Election(open_backend(dsn, role="torture", lease_s=float(lease_s)), health_interval_s=float(lease_s) / 3,
                        retry_strategy=FixedInterval(0.5))
    return LeaderLock(dsn, key=LockKey.parse(key), lease_s=float(lease_s), health_interval_s=float(lease_s) / 3,
                      retry_strategy=FixedInterval(0.5), settle_s=0, witness=mode != "alone",
                      term_table=mode == "strict", takeover="strict" if mode == "strict" else "fast")

def trust_without_a_look(pair, validity):
    return validity.until if validity is pair.validity else -math.inf

async def main(dsn, key, lease_s, path, mode):
    if mode == "alone":
        SessionPair.valid_until = trust_without_a_look
    lock = make_lock(dsn, key, lease_s, mode)
    threading.Thread(target=sample_forever, args=(lambda: lock.token, Path(path), clock), daemon=True).start()
    async with lock:
        await be_busy()

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Member:
    """One process, and those before it in its place."""

    folder: Path
    arguments: list[str]
    name: str
    process: subprocess.Popen[bytes] | None = None
    files: list[Path] = field(default_factory=list)
    frozen_until: float = 0.0

    def start(self) -> None:
        path = self.folder / f"{self.name}-{len(self.files)}"
        make_claim_file(path)
        self.files.append(path)
        dsn, mode = self.arguments
        command = [sys.executable, "-c", _MEMBER, dsn, str(KEY), str(LEASE_S), str(path), mode]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.frozen_until = 0.0

    def intervals(self) -> list[Claim]:
        return [
            Claim(self.name, number, token, began_at, seen_at)
            for number, path in enumerate(self.files)
            for began_at, seen_at, token in read_claims(path)
        ]


def find_overlaps(intervals: Iterable[tuple[float, float, str]]) -> list[Overlap[Claim]]:
    """Compare intervals of other things than claims to lead: of processes, or of jobs that run."""
    return proof.find_overlaps(Claim(name, 0, 0, start, end) for start, end, name in intervals)


class Torture:
    """Does harm at random to a group of members, and counts what it did."""

    def __init__(
        self, dsn: str, folder: Path, mode: str, seed: int, *, members: int = 5, pooler: Pooler | None = None
    ) -> None:
        self._rng = random.Random(seed)
        self._dsn = dsn
        self._pooler = pooler
        self._mode = mode
        self._kills_both = mode in {"strict", "double"}
        arguments = [dsn if pooler is None else pooler.dsn.replace("postgresql://", "postgresql+lease://"), mode]
        self.members = [Member(folder, arguments, f"m{number}") for number in range(members)]
        self.harm: dict[str, int] = {}
        self.session_kills: list[tuple[float, str]] = []
        self.terms_seen = self.unexplained_seen = self.overlaps_seen = 0

    def run(self, seconds: float) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for member in self.members:
                member.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self._rng.expovariate(1 / 0.3))
                self._thaw()
                self._harm(connection)
        for member in self.members:
            member.kill()

    def _thaw(self) -> None:
        for member in self.members:
            if member.frozen_until and time.monotonic() > member.frozen_until:
                member.frozen_until = 0.0
                member.signal(signal.SIGCONT)

    def _harm(self, connection: psycopg.Connection) -> None:
        deed = self._choose_deed()
        if self._do(deed, connection):
            self.harm[deed] = self.harm.get(deed, 0) + 1

    def _do(self, deed: str, connection: psycopg.Connection) -> bool:
        """Do it, or return False where it must not or cannot be done now."""
        member = self._rng.choice(self.members)
        if deed == "both" and not self._kills_both:
            return False
        if deed == "pooler" and self._pooler is not None:
            self._pooler.kill()
            time.sleep(self._rng.uniform(0.0, 0.5) * LEASE_S)
            self._pooler.start()
        elif deed == "kill":
            member.kill()
            member.start()
        elif deed == "freeze" and not member.frozen_until:
            member.frozen_until = time.monotonic() + self._rng.uniform(0.2, 1.6) * LEASE_S
            member.signal(signal.SIGSTOP)
        elif deed == "ambush":
            return self._ambush(connection)
        elif deed in {"lock", "witness", "both"}:
            return self._end_sessions(connection, deed)
        return True

    def _choose_deed(self) -> str:
        if self._pooler is not None:
            return self._rng.choices(["kill", "freeze", "pooler"], [3, 6, 1])[0]
        weights = [2, 4, 3, 2, 2, 20 if self._mode == "alone" else 4]
        return self._rng.choices(["kill", "freeze", "lock", "witness", "both", "ambush"], weights)[0]

    def _end_sessions(self, connection: psycopg.Connection, deed: str) -> bool:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        is_gentle = deed != "both" and self._mode != "alone"
        if is_gentle and any(now - at < LEASE_S for at, _ in self.session_kills):
            return False  # two kills within a lease could be both sessions of one process
        keys = {"lock": [KEY], "witness": [witness_key(KEY)], "both": [KEY, witness_key(KEY)]}[deed]
        for key in keys:
            connection.execute(_END_HOLDER, lock_columns(key))
        self.session_kills.append((now, deed))
        return True

    def _ambush(self, connection: psycopg.Connection) -> bool:
        """Freeze the leader, end one of its sessions (or both), and thaw it while it would still claim to lead."""
        row = connection.execute(_NAME_HOLDER, lock_columns(KEY)).fetchone()
        pid = int(row[0].rpartition(":")[2].split()[0]) if row else 0
        leader = next((each for each in self.members if each.process and each.process.pid == pid), None)
        if leader is None or leader.frozen_until:
            return False
        leader.signal(signal.SIGSTOP)
        leader.frozen_until = time.monotonic() + self._rng.uniform(0.02, 0.9) * LEASE_S
        deed = self._rng.choice(["lock", "both"] if self._kills_both else ["lock"])
        self._end_sessions(connection, deed)
        return True

    def overlaps(self) -> list[Overlap[Claim]]:
        return proof.find_overlaps(claim for member in self.members for claim in member.intervals())

    def unexplained(self) -> list[Overlap[Claim]]:
        """Return the overlaps that no double kill within the lease before them explains."""
        kills = [at for at, deed in self.session_kills if deed == "both" and self._mode == "double"]
        return [
            overlap
            for overlap in self.overlaps()
            if not any(0 <= overlap.began_at + overlap.lasted_s - at < 2 * LEASE_S for at in kills)
        ]

    def terms(self) -> int:
        return sum(len(member.intervals()) for member in self.members)


_END_HOLDER = """
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objid::text::bigint = %s AND objsubid = %s
"""


_NAME_HOLDER = """
SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objid::text::bigint = %s AND objsubid = %s
"""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def torture(mode: str, seconds: float, seed: int) -> Torture:
    """Run one round on a server of its own."""
    with tempfile.TemporaryDirectory(prefix="pgll-torture-") as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder) / "server", tcp_port=free_port())  # which a pooler needs
        server.start()
        pooler = Pooler(server, "transaction") if mode == "rows" else None
        try:
            if pooler is not None:
                pooler.start()
            group = Torture(server.dsn, Path(folder), mode, seed, pooler=pooler)
            group.run(seconds)
            overlaps = group.overlaps()
            unexplained = group.unexplained()
            group.terms_seen, group.unexplained_seen = group.terms(), len(unexplained)
            group.overlaps_seen = len(overlaps)
            say(f"{mode} seed={seed}: {group.terms_seen} intervals, harm {group.harm}, {len(overlaps)} overlaps")
            for overlap in overlaps:
                mark = "UNEXPLAINED " if overlap in unexplained else ""
                say(f"  {mark}{overlap.lasted_s * 1e3:.2f} ms {overlap.first.node} {overlap.second.node}")
            return group
        finally:
            if pooler is not None:
                pooler.kill()
            server.stop("immediate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", choices=["fast", "strict", "alone", "double", "group", "rows"], default="fast")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    group = torture(options.mode, options.seconds, options.seed)
    if not group.terms_seen:
        sys.exit("no process ever led: nothing was tortured")
    if options.mode == "alone" and not group.overlaps_seen:
        sys.exit("no overlap without a witness: this harness cannot see one")
    if options.mode != "alone" and group.unexplained_seen:
        sys.exit(f"two leaders at once: replay with --mode {options.mode} --seed {options.seed}")


if __name__ == "__main__":
    main()
