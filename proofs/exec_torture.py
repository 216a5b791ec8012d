"""Two wrappers of ``pgleaderlock exec`` around a family that will not end, and all that can happen to one of them.

    python -m proofs.exec_torture --rounds 10

In each round something is done to the leader or to its guardian, and the other wrapper's command must find no process
of the former family alive when it starts (:mod:`proofs.exec_family`). The leader's wrapper must have ended where it was
asked to, and be alive otherwise. Exit code 1 names what overlapped.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.exec import family
from tests.conftest import free_port
from tests.support.postgres import look_at_lock
from tests.support.silent_proxy import SilentProxy
from tests.support.terminals import until

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
    """One ``pgleaderlock exec`` as a process, with a way through the network that can be cut.

    On a terminal of its own it leads the session, and that terminal can be closed.
    """

    def __init__(self, dsn: str, role: str, folder: Path, *options: str, on_terminal: bool = False) -> None:
        self.folder, self.role = folder, role
        self.proxy = SilentProxy(dsn)
        words = ("--role", role, "--lease", str(LEASE_S), "--health-interval", str(LEASE_S / 3), "--settle", "0")
        command = (sys.executable, "-I", "-S", str(_FAMILY), str(folder))
        self.log = folder / f"log-{time.monotonic_ns()}"
        self.terminal: int | None = None
        stdin = os.open(os.devnull, os.O_RDONLY)
        if on_terminal:
            os.close(stdin)
            self.terminal, stdin = pty.openpty()
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
                stdin=stdin,
                stdout=subprocess.PIPE,  # which no process reads
                stderr=log,
                start_new_session=on_terminal,
                preexec_fn=_take_terminal if on_terminal else None,  # noqa: PLW1509 - no thread is here
            )
        os.close(stdin)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def guardian(self) -> int:
        """The only child of the wrapper, as long as all is well."""
        return next(member.pid for member in family.descendants(self.pid) if member.parent == self.pid)

    def close_terminal(self) -> None:
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

    @property
    def times_follower(self) -> int:
        """How often it has become a follower."""
        return self.log.read_text().count("to=follower")

    def wait_until_waiting(self, former_times: int = 0) -> None:
        until(lambda: self.process.poll() is not None or self.times_follower > former_times)
        assert self.process.poll() is None, "the wrapper has ended"

    def end(self) -> None:
        """Kill it; its guardian, if that can, kills the rest, and we do otherwise."""
        relatives = family.descendants(self.pid)
        self.process.kill()
        self.process.wait()
        for member in relatives:
            family.send(member, signal.SIGCONT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.close_terminal()
        self.proxy.__exit__()


def _take_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored, and the wrapper obey that
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def starts(folder: Path) -> list[Start]:
    try:
        lines = (folder / "ledger").read_text().splitlines()
    except FileNotFoundError:
        return []
    rows = [line.split() for line in lines]
    return [Start(int(token), int(pid), float(at), found) for token, pid, at, found in rows]


@contextlib.contextmanager
def wrapped(dsn: str, role: str, folder: Path, *options: str, on_terminal: bool = False) -> Iterator[Wrapper]:
    wrapper = Wrapper(dsn, role, folder, *options, on_terminal=on_terminal)
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


def freeze_guardian_at_its_start(leader: Wrapper, _dsn: str) -> None:
    """As soon as there is one: its command may not have been started yet."""
    until(lambda: bool(family.descendants(leader.pid)))
    os.kill(leader.guardian, signal.SIGSTOP)


def miss_one_renewal(leader: Wrapper, _dsn: str) -> None:
    """The guardian stands still for almost two intervals; later the wrapper dies, and it is needed."""
    guardian = leader.guardian
    os.kill(guardian, signal.SIGSTOP)
    time.sleep(1.9 * LEASE_S / 3)
    os.kill(guardian, signal.SIGCONT)
    time.sleep(LEASE_S)  # for a wrapper that gives up to do so
    assert leader.process.poll() is None, "a missed renewal ended the wrapper"
    leader.process.kill()


def ask_to_end(leader: Wrapper, _dsn: str) -> None:
    """The family ignores it."""
    leader.process.terminate()


def close_terminal(leader: Wrapper, _dsn: str) -> None:
    """The family ignores that, too."""
    leader.close_terminal()


@dataclass(frozen=True)
class Fault:
    """What is done to a leader, and what has to become of its wrapper."""

    strike: Callable[[Wrapper, str], None]
    ends_wrapper: bool = False
    freezes_wrapper: bool = False
    at_start: bool = False
    on_terminal: bool = False
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.strike.__name__


SOON = ("--kill-after", "1")
FAULTS = (
    Fault(kill, ends_wrapper=True),
    Fault(freeze, freezes_wrapper=True),
    Fault(cut_off),
    Fault(kill_guardian),
    Fault(freeze_guardian),
    Fault(freeze_guardian_and_cut_off),
    Fault(freeze_guardian_at_its_start, at_start=True),
    Fault(miss_one_renewal, ends_wrapper=True),
    Fault(end_session),
    Fault(ask_to_end, ends_wrapper=True, options=SOON),
    Fault(close_terminal, ends_wrapper=True, on_terminal=True, options=SOON),
)


def one_round(fault: Fault, dsn: str, folder: Path, role: str) -> tuple[Start, float]:
    """Let one lead and one wait, do it, and return how the second one's command found the world, and when."""
    with wrapped(dsn, role, folder, *fault.options, on_terminal=fault.on_terminal) as leader:
        times = 0
        if fault.at_start:
            fault.strike(leader, dsn)
            times = leader.times_follower
        else:
            until(lambda: len(starts(folder)) == 1)
        with wrapped(dsn, role, folder) as standby:
            standby.wait_until_waiting()
            began = time.clock_gettime(time.CLOCK_BOOTTIME)
            if not fault.at_start:
                times = leader.times_follower
                fault.strike(leader, dsn)
            until(lambda: _starts_of(standby) != [])
            second = _starts_of(standby)[0]
            if fault.ends_wrapper:
                until(lambda: leader.process.poll() is not None)
            elif not fault.freezes_wrapper:
                leader.wait_until_waiting(times)
    return second, second.at - began


def _starts_of(wrapper: Wrapper) -> list[Start]:
    below = {member.pid for member in family.descendants(wrapper.pid)}
    return [start for start in starts(wrapper.folder) if start.pid in below]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=[fault.name for fault in FAULTS])
    options = parser.parse_args()
    overlaps = 0
    with tempfile.TemporaryDirectory(prefix="pgll-") as name:
        root = Path(name)
        root.chmod(0o755)
        server = Server(root / "server", tcp_port=free_port())
        server.start()
        try:
            for fault in FAULTS:
                if options.only in (None, fault.name):
                    overlaps += _many_rounds(fault, server.tcp_dsn, root, options.rounds)
        finally:
            server.stop("immediate")
    return 1 if overlaps else 0


def _many_rounds(fault: Fault, dsn: str, root: Path, rounds: int) -> int:
    took, overlaps = [], 0
    for number in range(rounds):
        folder = root / f"{fault.name}-{number}"
        folder.mkdir()
        second, seconds = one_round(fault, dsn, folder, f"{fault.name}-{number}")
        took.append(seconds)
        overlaps += second.found != "alone"
    times = f"{min(took):.3f} to {max(took):.3f} s (lease {LEASE_S:g} s)"
    print(f"{fault.name:28} {rounds - overlaps} of {rounds} alone; taken over after {times}", flush=True)  # noqa: T201
    return overlaps


if __name__ == "__main__":
    sys.exit(main())
