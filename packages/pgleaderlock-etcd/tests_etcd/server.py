"""A real etcd for tests: one member, or several that make a cluster."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.conftest import free_port
from tests.support.programs import find_program

_START_S = 60.0
_LOOK_S = 0.05


class Member:
    """One server process. Its data stays when it is killed, and it finds them when it is started again."""

    def __init__(self, folder: Path, name: str, words: tuple[str, ...] = ()) -> None:
        self._program = find_program("etcd")
        self._folder = folder
        self._words = words
        self.name = name
        self._is_tls = any(word.startswith("--cert-file") for word in words)
        self.port, self.peer = free_port(), f"http://127.0.0.1:{free_port()}"
        self._health = f"http://127.0.0.1:{free_port()}"  # without TLS and users
        self.process: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._is_tls else 'http'}://{self.address}"

    def start(self, cluster: str) -> None:
        # It does not wait for the disk: the servers of a test need not survive a power failure.
        words = (
            *(self._program, "--name", self.name, "--data-dir", str(self._folder / self.name), "--unsafe-no-fsync"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--log-level", "error"),
            *(
                "--listen-peer-urls",
                self.peer,
                "--initial-advertise-peer-urls",
                self.peer,
                "--initial-cluster",
                cluster,
            ),
            *("--listen-metrics-urls", self._health, *self._words),
        )
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def is_healthy(self) -> bool:
        try:
            answer = httpx.get(f"{self._health}/health", timeout=5, trust_env=False).json()
            return bool(answer.get("health") == "true")
        except (httpx.HTTPError, ValueError):
            return False

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            self._signal(signal.SIGCONT)
        self._is_frozen = False

    @contextlib.contextmanager
    def frozen_for(self, seconds: float) -> Iterator[None]:
        """Freeze the member for the block, and for so many seconds at least: a fault, not a wait for something."""
        self.freeze()
        try:
            yield
            time.sleep(seconds)
        finally:
            self.thaw()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self._is_frozen = None, False

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


class Etcd:
    """A cluster."""

    def __init__(self, folder: Path, members: int = 1, words: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.members = [Member(folder, f"m{number}", words) for number in range(1, members + 1)]
        self._cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)

    @property
    def hosts(self) -> str:
        """As in a URL."""
        return ",".join(each.address for each in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start(self._cluster)
        for member in self.members:
            self.wait_for(member)

    def restart(self, member: Member) -> None:
        member.kill()
        member.start(self._cluster)
        self.wait_for(member)

    def wait_for(self, member: Member) -> None:
        """Return when the member answers, and has a majority."""
        deadline = time.monotonic() + _START_S
        while not member.is_healthy():
            logs = "".join(path.read_text(errors="replace")[-800:] for path in self._folder.glob("*.log"))
            assert time.monotonic() < deadline, f"etcd did not start: {logs}"
            time.sleep(_LOOK_S)

    def ctl(self, *words: str) -> str:
        """Run etcdctl, as an operator does."""
        command = (find_program("etcdctl"), "--endpoints", self.members[0].address, *words)
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"}
        )
        return done.stdout

    def stop(self) -> None:
        for member in self.members:
            member.kill()
