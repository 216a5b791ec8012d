"""Real terminals: a program, or an interactive shell with job control, as the leader of a session on one."""

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TIMEOUT_S = 40.0
_BASH = ("/bin/bash", "--norc", "--noprofile", "--noediting", "-i")


class Session:
    """A terminal, and the program that leads its session."""

    def __init__(self, *command: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)
        self._seen = ""

    def wait_for(self, text: str) -> str:
        """Return what was shown up to this text."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self._seen:
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self._seen!r}"
            self._seen += os.read(self.terminal, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait(self, options: int = 0) -> int:
        return os.waitpid(self.pid, options)[1]

    def close_terminal(self) -> None:
        """As by closing its window. Idempotent."""
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1

    @property
    def foreground(self) -> int:
        return os.tcgetpgrp(self.terminal)

    def end(self) -> None:
        self.close_terminal()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class Shell(Session):
    """An interactive bash, which says at once when a job stops."""

    def __init__(self) -> None:
        super().__init__(*_BASH)
        self.type("PS1=; set -b; stty -echo; echo shell-is-$((1 + 1))\n")
        self.wait_for("shell-is-2")

    def run(self, *command: str, background: bool = False) -> None:
        self.type(f"{shlex.join(command)}{' &' if background else ''}\n")

    def code(self) -> int:
        """Return the exit code of the job that was in the foreground, once it has ended."""
        until(lambda: self.foreground == os.getpgid(self.pid))  # Ctrl-C throws away what was typed too early
        self.type("echo code-$?-\n")
        self.wait_for("code-")
        return int(self.wait_for("-"))

    def stop(self, job: int) -> None:
        """Type Ctrl-Z until this job is stopped.

        Bash makes a job the foreground and then continues it, and SIGCONT discards a stop signal that came in between.
        """

        def is_stopped() -> bool:
            self.type("\x1a")
            time.sleep(0.2)
            return state(job) == "T"

        until(is_stopped)

    def job(self) -> int:
        """Return the process id of the job in the background."""
        self.type("echo pid-$!-\n")
        self.wait_for("pid-")
        return int(self.wait_for("-"))


@contextlib.contextmanager
def ended(session: Session) -> Iterator[None]:
    try:
        yield
    finally:
        session.end()


def state(pid: int) -> str:
    """Return the kernel's letter for a process: ``T`` is stopped, empty is gone.

    A zombie is gone: where this process adopts orphans, as after a test of a guardian, they wait for it to end.
    """
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if letter == "Z" else letter


def until(is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Terminal:
    """A child on a terminal of its own, and all that it writes there."""

    def __init__(self, *command: str, columns: int = 120) -> None:
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40", "NO_COLOR": "1"}
        self.child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""

    def read_until(self, text: str) -> None:
        seen = ""
        while text not in seen:
            piece = os.read(self.ours, 65536).decode(errors="replace")  # the test's own time-out ends it
            seen += piece
            self.text += piece

    def rest(self) -> str:
        with contextlib.suppress(OSError):  # as Linux ends a terminal
            while piece := os.read(self.ours, 65536):
                self.text += piece.decode(errors="replace")
        return self.text

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.ours)
