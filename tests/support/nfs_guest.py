"""The hosts of ``tools/nfs_hosts.py`` as a test inside sees them: a process on each, and cables that can be pulled."""

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

V3, V4 = os.environ.get("PGLEADERLOCK_NFS_V3", ""), os.environ.get("PGLEADERLOCK_NFS_V4", "")
EXPORT = os.environ.get("PGLEADERLOCK_NFS_EXPORT", "")
EATER = os.environ.get("PGLEADERLOCK_NFS_EATER", "")
HOSTS = os.environ.get("PGLEADERLOCK_NFS_HOSTS", "").split()
FAULTY_HOST = os.environ.get("PGLEADERLOCK_NFS_FAULTY_HOST", "")

# Evaluates a line at a time, in a process that is warm: starting one takes most of a second here.
_AGENT = """
import base64, ctypes, fcntl, json, os, pickle, signal, socket, sys, time
names = {**globals()}

for line in sys.stdin:
    source = json.loads(line)
    value = error = None
    began = time.perf_counter()
    try:
        if "\\n" in source:
            exec(source, names)
        else:
            value = eval(source, names)
    except Exception as raised:
        error = raised
    took_s = time.perf_counter() - began
    print(base64.b64encode(pickle.dumps((value, error, took_s))).decode(), flush=True)
"""


class Host:
    """A Python process on a host. Call it with an expression; what that raises is raised here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.took_s = 0.0  # the last answer, by the process's own clock
        self._child = subprocess.Popen(
            ["nfs-on", name, sys.executable, "-c", _AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    def __call__(self, source: str) -> Any:
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        """Have it begin; the answer is for :meth:`receive`."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(source) + "\n")
        self._child.stdin.flush()

    def receive(self) -> Any:
        """Return the value of what was sent, or raise what it raised."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the process on {self.name} has ended: {self._child.wait()}")
        value, error, self.took_s = pickle.loads(base64.b64decode(line))
        if error is not None:
            raise error
        return value


def cut(host: str) -> None:
    """Pull its cable."""
    subprocess.run(["nfs-cut", host], check=True)


def restore(host: str) -> None:
    """Put it back."""
    subprocess.run(["nfs-restore", host], check=True)


@contextlib.contextmanager
def cut_off(host: str) -> Iterator[None]:
    """Keep it without a network for the length of a block."""
    cut(host)
    try:
        yield
    finally:
        restore(host)


def errno_of(host: Host, source: str) -> int:
    """Return the errno that it fails with, or 0."""
    try:
        host(source)
    except OSError as error:
        return error.errno or 0
    return 0


def seconds_until(host: Host, source: str, limit_s: float, pause_s: float = 0.02) -> float | None:
    """Return how long it takes until the expression is true, or None when it is not within the limit."""
    began = time.monotonic()
    while time.monotonic() < began + limit_s:
        if host(source):
            return time.monotonic() - began
        time.sleep(pause_s)
    return None
