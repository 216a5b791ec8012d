"""Two Celery beats under `pgleaderlock exec`, with a real Redis: the one that is alive is killed again and again.

    python -m proofs.beat_torture --seconds 60

Killed with -9 is in turn the beat itself and the wrapper around it, which is a host that dies. Afterwards the lives of
all beats are laid over each other: no two may overlap. And the ticks are counted: one for each slot of the wall clock
is due. For each failover one may be late or missing, and none may be there twice.
"""

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture import Claim, Overlap
from proofs.torture import find_overlaps
from tests.conftest import free_port

SLOT_S = 5.0
LATE_S = 0.5
KILL_EVERY_S = 6.5  # after the new beat came to life; with what that takes, kills wander through the slots
LEASE_S = 3.0
_HERE = Path(__file__).parent


class Host:
    """A wrapper and the beat in it, and those before them."""

    def __init__(self, environment: dict[str, str], command: list[str]) -> None:
        self._environment = environment
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)

    def restart_if_dead(self) -> None:
        """As a supervisor would: exec has passed on that its command was killed."""
        if self.process is not None and self.process.poll() is not None:
            self.start()


@dataclass
class Verdict:
    """What came of it."""

    beats: int = 0
    failovers: int = 0
    slots: int = 0
    on_time: int = 0
    late: int = 0
    missing: int = 0
    twice: int = 0
    in_broker: int = 0
    sent: int = 0
    overlaps: list[Overlap[Claim]] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        gaps = f"{min(self.gaps_s):.2f} to {max(self.gaps_s):.2f} s without a beat" if self.gaps_s else "no gaps"
        return (
            f"beat: {self.failovers} failovers, {self.beats} beats, {len(self.overlaps)} overlaps, {gaps}; "
            f"{self.slots} ticks due, {self.on_time} on time, {self.late} late, {self.missing} missing, "
            f"{self.twice} twice; {self.sent} sent, {self.in_broker} in the broker"
        )

    @property
    def is_good(self) -> bool:
        is_counted = self.slots > 0 and self.failovers > 0 and self.sent == self.in_broker
        return is_counted and not self.overlaps and not self.twice and self.late + self.missing <= self.failovers


def read_lives(lines: list[str]) -> list[tuple[float, float, str]]:
    """Return from when to when each beat was alive."""
    lives: dict[str, list[float]] = {}
    for line in lines:
        at, pid, *_ = line.split()
        lives.setdefault(pid, [float(at), float(at)])[1] = float(at)
    return sorted((first, last, pid) for pid, (first, last) in lives.items())


def judge(lines: list[str], verdict: Verdict, first_slot: int, last_slot: int) -> None:
    lives = read_lives(lines)
    verdict.beats = len(lives)
    verdict.overlaps = find_overlaps(lives)
    verdict.gaps_s = [later[0] - former[1] for former, later in itertools.pairwise(lives)]
    sends = [float(line.split()[3]) for line in lines if line.split()[2] == "sent"]
    verdict.sent = len(sends)
    for slot in range(first_slot, last_slot):
        inside = [at - slot * SLOT_S for at in sends if slot <= at / SLOT_S < slot + 1]
        verdict.slots += 1
        verdict.twice += len(inside) > 1
        verdict.missing += not inside
        verdict.late += bool(inside) and inside[0] > LATE_S
        verdict.on_time += bool(inside) and inside[0] <= LATE_S


def _lines(journal: Path) -> list[str]:
    return journal.read_text(encoding="ascii").splitlines()


def _wait_for_news(journal: Path, hosts: list[Host], since: int, timeout_s: float = 60.0) -> int:
    """Return the process that writes now, which is another than at this line."""
    ends_at = time.monotonic() + timeout_s
    while len(_lines(journal)) <= since:
        if time.monotonic() > ends_at:
            raise TimeoutError("no beat came to life")
        for host in hosts:
            host.restart_if_dead()
        time.sleep(0.02)
    return int(_lines(journal)[-1].split()[1])


def torture(folder: Path, dsn: str, broker: str, seconds: float, exec_words: list[str]) -> Verdict:
    """Kill the living one for so long, and count."""
    journal = folder / "journal"
    journal.touch()
    environment = {**os.environ, "PG_DSN": dsn, "BROKER": broker, "JOURNAL": str(journal), "SLOT_S": str(SLOT_S)}
    timing = f"--lease {LEASE_S} --health-interval {LEASE_S / 3} --settle 0 --quiet".split()
    # In memory: what a schedule file says of the last run is one host's alone, and would send a tick twice.
    beat = "-m celery -A beat_app beat --scheduler celery.beat:Scheduler --max-interval 1 --loglevel error --pidfile="
    command = [*exec_words, "exec", "--role", "beat", *timing, "--", sys.executable, *beat.split()]
    hosts = [Host({**environment, "PYTHONPATH": str(_HERE)}, command) for _ in range(2)]
    verdict = Verdict()
    try:
        for host in hosts:
            host.start()
        _wait_for_news(journal, hosts, 0)
        time.sleep(SLOT_S)
        first_slot = int(time.time() // SLOT_S) + 1
        ends_at = time.monotonic() + seconds
        for kills_beat in itertools.cycle([True, False]):
            time.sleep(KILL_EVERY_S)
            if time.monotonic() >= ends_at:
                break
            _fail_over(hosts, journal, kills_beat=kills_beat)
            verdict.failovers += 1
        last_slot = int(time.time() // SLOT_S)
    finally:
        for host in hosts:
            host.stop(signal.SIGTERM)
    with redis.Redis.from_url(broker) as client:
        verdict.in_broker = int(client.llen("celery"))
    judge(_lines(journal), verdict, first_slot, last_slot)
    return verdict


def _fail_over(hosts: list[Host], journal: Path, *, kills_beat: bool) -> None:
    pid = int(_lines(journal)[-1].split()[1])
    if kills_beat:
        os.kill(pid, signal.SIGKILL)
    else:
        _wrapper_of(pid, hosts).stop()
    time.sleep(0.3)  # whatever it wrote last is written
    for host in hosts:
        host.restart_if_dead()
    _wait_for_news(journal, hosts, len(_lines(journal)))


def _wrapper_of(pid: int, hosts: list[Host]) -> Host:
    """Climb from the beat to the wrapper that it descends from."""
    wrappers = {host.process.pid: host for host in hosts if host.process is not None}
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        if pid in wrappers:
            return wrappers[pid]
    raise LookupError("the beat that lives descends from no wrapper")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pgleaderlock", help="the program to be tried, by default this one's")
    options = parser.parse_args()
    words = [options.pgleaderlock] if options.pgleaderlock else [sys.executable, "-m", "pgleaderlock.cli"]
    program = shutil.which("redis-server")
    if program is None:
        sys.stderr.write("beat: there is no redis-server: apt-get install redis-server\n")
        return 2
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pgll-beat-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the embedded server's account must get in
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", name]
        broker = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
        server = Server(folder / "pg", tcp_port=free_port())
        try:
            server.start()
            verdict = torture(folder, server.dsn, f"redis://127.0.0.1:{port}/0", options.seconds, words)
        finally:
            server.stop("immediate")
            broker.terminate()
            broker.wait()
    sys.stdout.write(f"{verdict}\n")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
