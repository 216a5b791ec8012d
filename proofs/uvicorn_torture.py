"""Four uvicorn workers of the FastAPI example, killed with -9 in turn under HTTP load.

    python -m proofs.uvicorn_torture --seconds 30

The leader task of the example writes a stamped line when it begins and at each beat. Afterwards the runs of all workers
are laid over each other: no two may overlap, and from the last beat of one to the first line of the next it must be
less than 100 ms in the median.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture import Claim, Overlap
from proofs.torture import find_overlaps
from tests.conftest import free_port
from tests.support import event_loops

WORKERS = 4
KILL_EVERY_S = 0.7
MEDIAN_S = 0.1
_EXAMPLES = Path(__file__).parent.parent / "examples"


class Worker:
    """One uvicorn process, and those before it in its place, on one port."""

    def __init__(self, dsn: str, journal: Path) -> None:
        self.port = free_port()
        self._env = {**os.environ, "PG_DSN": dsn, "JOURNAL": str(journal)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        loop = os.environ.get(event_loops.VARIABLE, "asyncio")  # uvicorn's own choice is uvloop, wherever there is one
        words = f"-m uvicorn --loop {loop} --app-dir {_EXAMPLES} --port {self.port} --log-level error fastapi_app:app"
        self._process = subprocess.Popen([sys.executable, *words.split()], env=self._env)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass
class Verdict:
    """What came of it."""

    kills: int = 0
    requests: int = 0
    led: int = 0
    stints: int = 0
    overlaps: list[Overlap[Claim]] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    @property
    def median_gap_s(self) -> float:
        return statistics.median(self.gaps_s) if self.gaps_s else float("inf")

    def __str__(self) -> str:
        longest_s = max(self.gaps_s, default=float("inf"))
        return (
            f"uvicorn: {self.kills} kills, {self.requests} answers ({self.led} from a leader), {self.stints} stints, "
            f"{len(self.overlaps)} overlaps, {len(self.gaps_s)} gaps, median {self.median_gap_s * 1000:.1f} ms, "
            f"longest {longest_s * 1000:.1f} ms"
        )


def read_stints(journal: Path) -> list[tuple[float, float, str]]:
    """Return when each run of the task began, when it last wrote a line, and which worker ran it."""
    stints: list[list[float]] = []
    names: list[str] = []
    open_stint: dict[str, int] = {}
    for line in journal.read_text(encoding="ascii").splitlines():
        at, pid, what = line.split(maxsplit=2)
        if what.startswith("begin"):
            open_stint[pid] = len(stints)
            stints.append([float(at), float(at)])
            names.append(f"{pid}-{len(stints)}")
        elif what in {"beat", "end"}:
            stints[open_stint[pid]][1] = float(at)
    return [(first, last, name) for (first, last), name in zip(stints, names, strict=True)]


def judge(journal: Path, verdict: Verdict) -> None:
    stints = sorted(read_stints(journal))
    verdict.stints = len(stints)
    verdict.overlaps = find_overlaps(stints)
    verdict.gaps_s = [later[0] - former[1] for former, later in itertools.pairwise(stints)]


async def _ask(port: int, path: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = await reader.readline()
        await reader.read()
        return status
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _load(port: int, verdict: Verdict) -> None:
    """Ask again and again; while a worker is being started there is no answer."""
    for path in itertools.cycle((b"/", b"/leader", b"/readyz")):
        with contextlib.suppress(OSError):
            status = await _ask(port, path)
            verdict.requests += bool(status)
            verdict.led += path == b"/leader" and b" 200 " in status
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def _started(workers: list[Worker]) -> Iterator[None]:
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.kill()


async def torture(dsn: str, folder: Path, seconds: float) -> Verdict:
    """Kill workers in turn for so long, and judge what they wrote."""
    journal = folder / "journal"
    journal.touch()
    workers = [Worker(dsn, journal) for _ in range(WORKERS)]
    verdict = Verdict()
    with _started(workers):
        async with asyncio.timeout(60):
            while b"beat" not in journal.read_bytes():  # noqa: ASYNC110 - other processes write it
                await asyncio.sleep(0.05)
            for worker in workers:
                await _until_answering(worker.port)
        load = [asyncio.create_task(_load(worker.port, verdict)) for worker in workers]
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            worker = _leader(workers, journal)
            await asyncio.to_thread(worker.kill)
            worker.start()
            verdict.kills += 1
            await asyncio.sleep(KILL_EVERY_S)
            await _until_answering(worker.port)  # what is measured is the election, not how fast Python starts
        for task in load:
            task.cancel()
        await asyncio.wait(load)
    judge(journal, verdict)
    return verdict


def _leader(workers: list[Worker], journal: Path) -> Worker:
    """Return the worker that wrote last. The workers queue, so that this takes them in turn."""
    pid = int(journal.read_text(encoding="ascii").splitlines()[-1].split()[1])
    return next((worker for worker in workers if worker.pid == pid), workers[0])


async def _until_answering(port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            await _ask(port, b"/healthz")
            return
        await asyncio.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgll-uvicorn-") as folder:
        Path(folder).chmod(0o755)  # the embedded server's account must get in
        server = Server(Path(folder) / "pg", tcp_port=free_port())
        server.start()
        try:
            verdict = asyncio.run(torture(server.dsn, Path(folder), options.seconds))
        finally:
            server.stop("immediate")
    sys.stdout.write(f"{verdict}\n")
    return 1 if verdict.overlaps or verdict.median_gap_s >= MEDIAN_S or not verdict.led else 0


if __name__ == "__main__":
    sys.exit(main())
