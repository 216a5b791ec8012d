"""Candidates as real processes, spoken to line by line."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Self

_CANDIDATE = """
import asyncio, sys
from pgleaderlock import FixedInterval, LeaderLock, LockKey

async def main(dsn, key, interval_s, lease_s):
    timing = {"lease_s": float(lease_s), "health_interval_s": float(lease_s) / 3} if lease_s else {}
    retry = FixedInterval(float(interval_s))
    lock = LeaderLock(dsn, key=LockKey.parse(key), retry_strategy=retry, settle_s=0, **timing)
    lock.on_acquired(lambda: print("acquired", flush=True))
    lock.on_lost(lambda: print("lost", flush=True))
    lock.on_acquire_failed(lambda: print("refused", flush=True))
    await lock.start()
    print("started", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await lock.shutdown()
    print("stopped", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Process:
    """A child whose output lines are waited for, never slept for, and which never outlives its block."""

    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._incoming: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._incoming.put(line.rstrip("\n"))
        self._incoming.put(None)

    def wait_for(self, text: str, timeout_s: float = 20.0) -> str:
        """Return the next line that holds this text."""
        while True:
            try:
                line = self._incoming.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} came; there were: {self.lines}") from None
            assert line is not None, f"the process ended without a line with {text!r}; there were: {self.lines}"
            self.lines.append(line)
            if text in line:
                return line

    def drain(self) -> None:
        """Leave out the lines that came until now."""
        with contextlib.suppress(queue.Empty):
            while (line := self._incoming.get_nowait()) is not None:
                self.lines.append(line)

    def say(self, line: str = "") -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self, timeout_s: float = 20.0) -> int:
        return self._child.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._reader.join()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def candidate(dsn: str, key: object, retry_interval_s: float = 0.05, lease_s: float | str = "") -> Process:
    """Start a process that takes part in the election until it reads a line that ends it."""
    return Process(sys.executable, "-c", _CANDIDATE, dsn, str(key), str(retry_interval_s), str(lease_s))
