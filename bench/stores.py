"""How long a hand-over takes on each store: from SIGTERM at the leader to the next one's ``on_acquired``.

Each candidate is a process of its own, as in production, except in memory. Kubernetes is in ``k8s.py``.
"""

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from candidates import Candidates, our_command, replace_in_turns, url_of
from pgleaderlock import Election, open_backend

__all__ = ["bench_stores"]


def bench_stores(dsn: str, rounds: int) -> None:
    """Print a row for each store, the quickest and slowest hand-over too: the spread is the machine's noise."""
    print(f"hand-over by store, 2 followers, median of {rounds}")
    times = between_processes(dsn, rounds)
    times["memory://"] = asyncio.run(in_memory(rounds))
    first = statistics.median(times["postgresql://"])
    for store, taken in times.items():
        median = statistics.median(taken)
        spread = f"{min(taken):.3f} to {max(taken):.3f} ms"
        print(f"  {store:<46} {median:9.3f} ms       {median / first:5.2f}x of postgresql://  ({spread})", flush=True)


def between_processes(dsn: str, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="pgll-bench-") as folder, ExitStack() as stack:
        urls = {
            "postgresql://": url_of("postgresql", dsn),
            "postgresql+lease://, by NOTIFY": url_of("postgresql+lease", dsn),
            "file://": (Path(folder) / "lock").as_uri(),
            "nfs://, on a local disk": f"nfs://{folder}/shared",
        }
        sides = [stack.enter_context(Candidates(our_command(url))) for url in urls.values()]
        return dict(zip(urls, replace_in_turns(sides, rounds, by_kill=False), strict=True))


async def in_memory(rounds: int) -> list[float]:
    """Three elections on one event loop; whoever hands over comes back as a follower."""
    acquired: asyncio.Queue[tuple[Election, float]] = asyncio.Queue()

    def candidate() -> Election:
        election = Election(open_backend("memory://bench"))
        election.on_acquired(lambda: acquired.put_nowait((election, time.perf_counter())))
        return election

    times: list[float] = []
    async with candidate() as first, candidate(), candidate():
        leader = first
        await acquired.get()
        for _ in range(rounds):
            await asyncio.sleep(0.01)  # until the others wait
            began = time.perf_counter()
            ending = asyncio.create_task(leader.shutdown())
            successor, at = await acquired.get()
            times.append((at - began) * 1e3)
            await ending
            await leader.start()
            leader = successor
    return times
