"""Candidates whose leader is killed, asked to go, or frozen and thawed; and what the followers cost meanwhile."""

import contextlib
import math
import os
import queue
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from candidates import Candidates, Command, SilentError
from peers.arithmetic import overlap_ms

__all__ = ["Cost", "Crew", "Freeze"]

_THAW_AFTER_S = 0.3  # so that the successor leads with certainty
_WATCH_S = 3.0
_SILENT_START_S = 1.0
_ACTING = re.compile(r"acting ([0-9]+\.[0-9]+)")
_OUT_OF_STEP_S = 1.0  # the longest interval of those who poll, but flufl.lock's, which is random by itself


@dataclass(frozen=True)
class Freeze:
    """What came of freezing a leader; infinite where it did not end while we looked."""

    took_ms: float
    overlap_ms: float | None
    """For how long after its thaw the old leader went on; None where no other candidate had taken over."""


@dataclass(frozen=True)
class Cost:
    """What a candidate that waits is using."""

    wakeups_per_s: float
    rss_mib: float


class Crew(Candidates):
    """As `Candidates`, with programs too that print nothing when they are queued, or when they cease to lead."""

    def __init__(self, command: Command, *, leads: str, patience_s: float, says_waiting: bool) -> None:
        super().__init__(command, leads=leads, patience_s=patience_s)
        self._says_waiting = says_waiting

    def settle(self) -> None:
        if self._says_waiting:
            super().settle()
        elif self._coming:
            time.sleep(_SILENT_START_S)
            self._coming.clear()

    def _settle_out_of_step(self) -> None:
        """Be in step with no candidate's polling: those that poll began at their start, and that was waited for."""
        self.settle()
        time.sleep(random.uniform(0, _OUT_OF_STEP_S))

    def replace(self, *, by_kill: bool) -> float:
        """Return the milliseconds until another led; infinite if no other did."""
        self._settle_out_of_step()
        try:
            return self.replace_leader(by_kill=by_kill)
        except SilentError:
            return math.inf

    def freeze_leader(self, *, acts: bool) -> Freeze:
        """Stop the leader, wait for the next, and thaw it: who acts then, acts beside its successor."""
        self._settle_out_of_step()
        old, began = self._leader, time.monotonic()
        os.kill(old.pid, signal.SIGSTOP)
        try:
            successor, at = self._wait_for_successor(old, began)
        except SilentError:
            os.kill(old.pid, signal.SIGCONT)
            return Freeze(math.inf, None)
        time.sleep(_THAW_AFTER_S)
        thawed = time.monotonic()
        os.kill(old.pid, signal.SIGCONT)
        ended = self._watch(old) if acts else _exit_time(old)
        stamps = ended if isinstance(ended, list) else [ended]
        overlap = overlap_ms(stamps, successor_at=at, thawed_at=thawed, watched_until=thawed + _WATCH_S)
        self._leader = successor
        self._replace_old(old)
        return Freeze((at - began) * 1e3, overlap)

    def followers_cost(self, seconds: float) -> Cost:
        """Look at the followers, for so long."""
        waiting = [child for child in self._children if child is not self._leader]
        before = sum(_wakeups(child.pid) for child in waiting)
        time.sleep(seconds)
        woken = sum(_wakeups(child.pid) for child in waiting) - before
        memory = sum(_rss_mib(child.pid) for child in waiting) / len(waiting)
        return Cost(woken / seconds / len(waiting), memory)

    def _wait_for_successor(self, old: subprocess.Popen[str], began: float) -> tuple[subprocess.Popen[str], float]:
        """Candidates that act are never silent: patience is counted here."""
        while time.monotonic() - began < self._patience_s:
            try:
                child, line, at = self._heard.get(timeout=0.5)
            except queue.Empty:
                continue
            if line.startswith(self._leads) and child is not old:
                return child, at
        raise SilentError("no other candidate took over")

    def _watch(self, old: subprocess.Popen[str]) -> list[float]:
        stamps, deadline = [], time.monotonic() + _WATCH_S
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                child, line, _ = self._heard.get(timeout=left_s)
            except queue.Empty:
                break
            if child is old and (stamp := _ACTING.match(line)):
                stamps.append(float(stamp[1]))
        return stamps

    def _replace_old(self, old: subprocess.Popen[str]) -> None:
        old.kill()
        old.wait()
        self._children.remove(old)
        self._add()


def _exit_time(old: subprocess.Popen[str]) -> float:
    """Return when it ended; a program that prints nothing more counts as leader for as long as it runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        old.wait(_WATCH_S)
    return time.monotonic()


def _wakeups(pid: int) -> int:
    """Count how often its threads began to run after waiting for something."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text(encoding="utf-8").splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
