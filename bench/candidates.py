"""Candidates in processes of their own, whose leader is ended again and again, and the next one's time taken.

What they print is timed when it is read here: on one clock for all, whatever language they are written in.
"""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

__all__ = [
    "Candidates",
    "Command",
    "SilentError",
    "bare_command",
    "bare_store_command",
    "our_command",
    "replace_in_turns",
    "url_of",
    "waits_per_s",
]

Command = Callable[[int], Sequence[str]]
"""What to run as candidate number n; client-go's need a name each."""

_CANDIDATE = Path(__file__).with_name("candidate.py")
_BARE_STORES = Path(__file__).with_name("bare_candidate.py")
_QUEUED = ("waiting", "attempting to acquire")  # ours, client-go's
_PATIENCE_S = 30.0  # longer than any lease here
_PAUSE_S = 0.2  # between a first refusal and queueing


def our_command(url: str, *times_s: float) -> Command:
    return lambda _: [sys.executable, str(_CANDIDATE), url, *map(str, times_s)]


def url_of(scheme: str, dsn: str) -> str:
    """Make a URL of a connection string in whatever form: each of its settings may be a parameter there."""
    return f"{scheme}:///?{urlencode(conninfo_to_dict(dsn), quote_via=quote)}"


def bare_command(dsn: str) -> Command:
    return lambda _: [sys.executable, str(_CANDIDATE), "--bare", dsn]


def bare_store_command(*arguments: str) -> Command:
    return lambda _: [sys.executable, str(_BARE_STORES), *arguments]


class SilentError(SystemExit):
    """No candidate came to lead, or to queue, within the time limit."""


class Candidates:
    """Three processes for one lock, from one end of a block to the other. Every new one is queued before it counts."""

    def __init__(
        self, command: Command, number: int = 3, *, leads: str = "acquired", patience_s: float = _PATIENCE_S
    ) -> None:
        self._command = command
        self._number = number
        self._leads = leads
        self._patience_s = patience_s
        self._numbers = count()
        self._heard: queue.Queue[tuple[subprocess.Popen[str], str, float]] = queue.Queue()
        self._children: list[subprocess.Popen[str]] = []
        self._coming: set[subprocess.Popen[str]] = set()
        self._last_line = ""

    def __enter__(self) -> Self:
        try:
            self._add()
            self._leader, _ = self._next_leader()
            self._coming.clear()
            for _ in range(self._number - 1):
                self._add()
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def settle(self) -> None:
        """Return when newcomers are queued: their start would disturb whatever is timed meanwhile."""
        if not self._coming:
            return
        while self._coming:
            child, line, _ = self._hear()
            if any(words in line for words in _QUEUED):
                self._coming.discard(child)
        time.sleep(_PAUSE_S)

    def replace_leader(self, *, by_kill: bool) -> float:
        """End the leader, by SIGTERM or SIGKILL, and return the milliseconds until another led. Start a new one."""
        self.settle()
        old = self._leader
        began = time.monotonic()
        if by_kill:
            old.kill()
        else:
            old.terminate()
        self._leader, at = self._next_leader()
        old.wait()
        self._children.remove(old)
        self._add()
        return (at - began) * 1e3

    def waits(self) -> list[int]:
        """Return how often the threads of each process have waited so far: of the leader, then of the followers."""
        self.settle()
        processes = [self._leader, *(child for child in self._children if child is not self._leader)]
        for process in processes:
            process.send_signal(signal.SIGUSR1)
        counted: dict[subprocess.Popen[str], int] = {}
        while len(counted) < len(processes):
            child, line, _ = self._hear()
            if line.startswith("waits "):
                counted[child] = int(line.split()[1])
        return [counted[process] for process in processes]

    def _next_leader(self) -> tuple[subprocess.Popen[str], float]:
        while True:
            child, line, at = self._hear()
            if line.startswith(self._leads):
                return child, at

    def _hear(self) -> tuple[subprocess.Popen[str], str, float]:
        try:
            child, self._last_line, at = self._heard.get(timeout=self._patience_s)
        except queue.Empty:
            raise SilentError(
                f"candidates are silent for {self._patience_s:g} s. The last word was: {self._last_line}"
            ) from None
        return child, self._last_line, at

    def _add(self) -> None:
        child = subprocess.Popen(
            self._command(next(self._numbers)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._children.append(child)
        self._coming.add(child)
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                self._heard.put((child, line, time.monotonic()))


def replace_in_turns(sides: Sequence[Candidates], rounds: int, *, by_kill: bool) -> list[list[float]]:
    """Return each side's times. A noisy moment affects all of them, and no process starts while another is timed."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, taken in zip(sides, times, strict=True):
            for each in sides:
                each.settle()
            taken.append(side.replace_leader(by_kill=by_kill))
    return times


def waits_per_s(sides: Sequence[Candidates], seconds: float) -> list[list[float]]:
    """Return for each side how often a second its leader and its followers wait, all of them at the same time."""
    before = [side.waits() for side in sides]
    time.sleep(seconds)
    after = [side.waits() for side in sides]
    # Less one: the second question interrupts a wait too.
    return [
        [(now - then - 1) / seconds for then, now in zip(*counts, strict=True)]
        for counts in zip(before, after, strict=True)
    ]
