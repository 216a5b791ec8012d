"""Two wrappers of ``pgleaderlock exec`` around a family that will not end, and all that can happen to one of them.

    python -m tests.exec_torture --rounds 10

In each round something is done to the leader or to its guardian, and the other wrapper's command must find nobody of
the former family alive when it starts (:mod:`tests.exec_family`). Exit code 1 names what overlapped.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from pgleaderlock.backends._pg_status import look_at_lock
from pgleaderlock.embedded import Server
from pgleaderlock.keys import LockKey
from pgleaderlock.supervise import family
from tests.conftest import free_port
from tests.silent_proxy import SilentProxy
from tests.terminals import until

LEASE_S = 1.5
_FAMILY = Path(__file__).with_name("exec_family.py")


@dataclass(frozen=True)
class Start:
    """One line of the ledger."""

    token: int
    pid: int
    at: float
    found: str


class Wrapper:
    """One ``pgleaderlock exec`` as a process, with a way through the network that can be cut."""

    def __init__(self, dsn: str, role: str, folder: Path, *options: str) -> None:
        self.folder, self.role = folder, role
        self.proxy = SilentProxy(dsn, free_port())
        words = ("--role", role, "--lease", str(LEASE_S), "--health-interval", str(LEASE_S / 3), "--settle", "0")
        command = (sys.executable, "-I", "-S", str(_FAMILY), str(folder))
        self.log = folder / f"log-{time.monotonic_ns()}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pgleaderlock.cli",
                    "exec",
                    "--dsn",
                    self.proxy.dsn,
                    *words,
                    *options,
                    "--",
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # which nobody reads
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def guardian(self) -> int:
        """The only child of the wrapper, as long as all is well."""
        return next(member.pid for member in family.descendants(self.pid) if member.parent == self.pid)

    def wait_until_waiting(self) -> None:
        until(lambda: "from=stopped to=follower" in self.log.read_text())

    def end(self) -> None:
        """Kill it; its guardian, if that can, kills the rest, and we do otherwise."""
        relatives = family.descendants(self.pid)
        self.process.kill()
        self.process.wait()
        for member in relatives:
            family.send(member, signal.SIGCONT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.proxy.__exit__()


def starts(folder: Path) -> list[Start]:
    try:
        lines = (folder / "ledger").read_text().splitlines()
    except FileNotFoundError:
        return []
    rows = [line.split() for line in lines]
    return [Start(int(token), int(pid), float(at), found) for token, pid, at, found in rows]


@contextlib.contextmanager
def wrapped(dsn: str, role: str, folder: Path, *options: str) -> Iterator[Wrapper]:
    wrapper = Wrapper(dsn, role, folder, *options)
    try:
        yield wrapper
    finally:
        wrapper.end()


def kill(leader: Wrapper, _dsn: str) -> None:
    leader.process.kill()


def freeze(leader: Wrapper, _dsn: str) -> None:
    leader.process.send_signal(signal.SIGSTOP)


def cut_off(leader: Wrapper, _dsn: str) -> None:
    leader.proxy.mute()


def kill_guardian(leader: Wrapper, _dsn: str) -> None:
    os.kill(leader.guardian, signal.SIGKILL)


def freeze_guardian(leader: Wrapper, _dsn: str) -> None:
    """It is of no use, and the wrapper has to notice by itself."""
    os.kill(leader.guardian, signal.SIGSTOP)


def freeze_guardian_and_cut_off(leader: Wrapper, _dsn: str) -> None:
    """It is needed at once, and of no use."""
    os.kill(leader.guardian, signal.SIGSTOP)
    leader.proxy.mute()


def end_session(leader: Wrapper, dsn: str) -> None:
    """The server ends the session that holds the lock, and leaves the witness's."""
    (holder,) = [one.holder for one in asyncio.run(look_at_lock(dsn, LockKey.named(leader.role))) if one.granted]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (holder.pid,))


FAULTS: tuple[Callable[[Wrapper, str], None], ...] = (
    kill,
    freeze,
    cut_off,
    kill_guardian,
    freeze_guardian,
    freeze_guardian_and_cut_off,
    end_session,
)


def one_round(fault: Callable[[Wrapper, str], None], dsn: str, folder: Path, role: str) -> tuple[Start, float]:
    """Let one lead and one wait, do it, and return how the second one's command found the world, and when."""
    with wrapped(dsn, role, folder) as leader:
        until(lambda: len(starts(folder)) == 1)
        with wrapped(dsn, role, folder) as standby:
            standby.wait_until_waiting()
            began = time.clock_gettime(time.CLOCK_BOOTTIME)
            fault(leader, dsn)
            until(lambda: len(starts(folder)) == 2)
            second = starts(folder)[1]
    return second, second.at - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=[fault.__name__ for fault in FAULTS])
    options = parser.parse_args()
    overlaps = 0
    with tempfile.TemporaryDirectory(prefix="pgll-") as name:
        root = Path(name)
        root.chmod(0o755)
        server = Server(root / "server", tcp_port=free_port())
        server.start()
        try:
            for fault in FAULTS:
                if options.only in (None, fault.__name__):
                    overlaps += _many_rounds(fault, server.tcp_dsn, root, options.rounds)
        finally:
            server.stop("immediate")
    return 1 if overlaps else 0


def _many_rounds(fault: Callable[[Wrapper, str], None], dsn: str, root: Path, rounds: int) -> int:
    took, overlaps = [], 0
    for number in range(rounds):
        folder = root / f"{fault.__name__}-{number}"
        folder.mkdir()
        second, seconds = one_round(fault, dsn, folder, f"{fault.__name__}-{number}")
        took.append(seconds)
        overlaps += second.found != "alone"
    times = f"{min(took):.3f} to {max(took):.3f} s (lease {LEASE_S:g} s)"
    print(f"{fault.__name__:28} {rounds - overlaps} of {rounds} alone; taken over after {times}", flush=True)  # noqa: T201
    return overlaps


if __name__ == "__main__":
    sys.exit(main())
