"""Locks in files, side by side: ours, flufl.lock and filelock, in turns in one run.

Each lock is used by processes of its own, as it is in production; times are taken on the machine's monotonic clock.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["bench_file_locks"]

LIBRARIES = ("pgleaderlock.stores.nfs", "flufl.lock", "filelock")

# A process that executes the commands it reads, and confirms each.
_WORKER = """
import json, sys, time

def make(library, path, lifetime):
    if library == "filelock":
        import filelock
        lock = filelock.FileLock(path)
        return lock, lock.acquire, lock.release
    if library == "flufl.lock":
        from flufl.lock import Lock
        lock = Lock(path, lifetime=max(1, round(lifetime)))
    else:
        from pgleaderlock.stores.nfs import Lock
        lock = Lock(path, lifetime=lifetime)
    return lock, lock.lock, lock.unlock

library, path, lifetime = sys.argv[1], sys.argv[2], float(sys.argv[3])
_, lock, unlock = make(library, path, lifetime)

def pairs(number):
    for _ in range(int(number)):
        lock()
        unlock()

def compete(seconds):
    end, waits = time.monotonic() + float(seconds), []
    while time.monotonic() < end:
        began = time.monotonic()
        lock()
        waits.append(time.monotonic() - began)
        time.sleep(0.001)
        unlock()
    return [len(waits), max(waits)]

for line in sys.stdin:
    word, *arguments = line.split()
    began = time.monotonic()
    result = {"lock": lock, "unlock": unlock, "pairs": pairs, "compete": compete}[word](*arguments)
    print(json.dumps([began, time.monotonic(), result if isinstance(result, list) else None]), flush=True)
"""

_Answer = tuple[float, float, list[float]]


class Worker:
    """One process with one lock object."""

    def __init__(self, library: str, path: Path, lifetime_s: float = 15.0) -> None:
        command = [sys.executable, "-c", _WORKER, library, str(path), str(lifetime_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def hear(self) -> _Answer:
        """Return when it began, when it was done, and what came of it."""
        assert self._process.stdout is not None
        answer: _Answer = json.loads(self._process.stdout.readline())
        return answer

    def do(self, words: str) -> _Answer:
        self.tell(words)
        return self.hear()

    def kill(self) -> float:
        """End it without a word, and return when."""
        at = time.monotonic()
        self._process.kill()
        self._process.communicate()
        return at


@contextmanager
def workers(library: str, number: int, lifetime_s: float = 15.0) -> Iterator[list[Worker]]:
    with tempfile.TemporaryDirectory(prefix="pgll-bench-") as folder:
        found = [Worker(library, Path(folder) / "lock", lifetime_s) for _ in range(number)]
        try:
            yield found
        finally:
            for worker in found:
                worker.kill()


def bench_file_locks(rounds: int) -> None:
    """Print a table with a column for each library."""
    print("locks in files, on a local disk, in turns        " + "".join(f"{library:>20}" for library in LIBRARIES))
    show("uncontended lock and unlock, per second", pairs_per_s(1000, rounds=5), "{:.0f}")
    show(f"hand-over to a waiting process, median of {rounds}, ms", hand_overs_ms(rounds), "{:.2f}")
    show("a dead holder's lock, lifetime 1 s, is had after, ms", after_death_ms(), "{:.0f}")
    counts, waits = fairness(5.0)
    show("4 processes for 5 s: fewest locks / most locks", counts, "{:.2f}")
    show("4 processes for 5 s: longest wait, ms", waits, "{:.0f}")


def show(what: str, figures: dict[str, float], form: str) -> None:
    print(f"  {what:<48}" + "".join(f"{form.format(figures[library]):>20}" for library in LIBRARIES), flush=True)


def pairs_per_s(number: int, rounds: int) -> dict[str, float]:
    """The best of several rounds: what disturbs them is not ours to measure."""
    best = dict.fromkeys(LIBRARIES, 0.0)
    with ExitStack() as stack:
        crews = {library: stack.enter_context(workers(library, 1))[0] for library in LIBRARIES}
        for _ in range(rounds):
            for library, worker in crews.items():
                began, ended, _ = worker.do(f"pairs {number}")
                best[library] = max(best[library], number / (ended - began))
    return best


def hand_overs_ms(rounds: int) -> dict[str, float]:
    """From the release to the acquisition by a process that waits for it."""
    times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    with ExitStack() as stack:
        crews = {library: stack.enter_context(workers(library, 2)) for library in LIBRARIES}
        for crew in crews.values():
            crew[0].do("lock")
        for _ in range(rounds):
            for library, crew in crews.items():
                crew[1].tell("lock")
                time.sleep(random.uniform(0.1, 0.2))  # until it waits, and in step with no candidate's polling
                released, _, _ = crew[0].do("unlock")
                _, had, _ = crew[1].hear()
                times[library].append((had - released) * 1e3)
                crew.reverse()
    return {library: statistics.median(each) for library, each in times.items()}


def after_death_ms() -> dict[str, float]:
    """From kill -9 at the holder to the acquisition by the waiting process."""
    found = {}
    with ExitStack() as stack:
        crews = {library: stack.enter_context(workers(library, 2, lifetime_s=1.0)) for library in LIBRARIES}
        killed = {}
        for holder, waiter in crews.values():
            holder.do("lock")
            waiter.tell("lock")
        time.sleep(0.3)
        for library, (holder, _) in crews.items():
            killed[library] = holder.kill()
        for library, (_, waiter) in crews.items():
            found[library] = (waiter.hear()[1] - killed[library]) * 1e3
    return found


def fairness(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Whether all of four processes that ask again and again get their share."""
    shares, waits = {}, {}
    for library in LIBRARIES:
        with workers(library, 4) as crew:
            for worker in crew:
                worker.tell(f"compete {seconds}")
            answers = [worker.hear()[2] for worker in crew]
        counts = [count for count, _ in answers]
        shares[library] = min(counts) / max(counts)
        waits[library] = max(wait for _, wait in answers) * 1e3
    return shares, waits


if __name__ == "__main__":
    bench_file_locks(20)
