"""What each store costs beside the least that it can: hand-over, failover, and the wake-ups of idle candidates.

    make bench ARGS=--only-stores                               these rows alone
    python tools/k8s_server.py run -- python bench/stores.py --kubernetes

A hand-over is the time from SIGTERM at the leader to the next one's ``on_acquired``, a failover that from SIGKILL. Its
floor (``bare_candidate.py``) is what the store itself needs: a flock and a synced record; an UPDATE, a NOTIFY and an
UPDATE; a PUT, a watch event and a PUT. There is none for memory, and none for a dead leader where only its lease ends.

A wake-up is a voluntary context switch of any thread of the process (``ru_nvcsw``): a thread that waited for an event,
a timer or an answer, and then ran. It counts more than the event loop's returns from its selector. An event loop that
only waits for a signal is measured beside them.

Each candidate is a process of its own, as in production, except in memory.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from candidates import (
    Candidates,
    Command,
    bare_command,
    bare_store_command,
    our_command,
    replace_in_turns,
    url_of,
    waits_per_s,
)
from pgleaderlock import Election, open_backend
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import read_kubeconfig
from reporting import report

__all__ = ["bench_stores"]

FOLLOWERS = 2
SHORT_LEASE_S = 2.0
LEASE_S, INTERVAL_S = 15.0, 5.0  # as by default
RETRY_S = 30.0  # to which the default back-off of a follower grows within a minute


class Side:
    """One store: how to run a candidate of ours, and the least that one can be."""

    def __init__(self, name: str, url: str, floor: Command | None) -> None:
        self.name = name
        self.url = url
        self.floor = floor


def bench_stores(dsn: str, rounds: int, idle_s: float) -> None:
    """Print the rows of the stores that need no Kubernetes."""
    with tempfile.TemporaryDirectory(prefix="pgll-bench-") as folder:
        sides = [
            Side("postgresql://", url_of("postgresql", dsn), bare_command(dsn)),
            Side("postgresql+lease://", url_of("postgresql+lease", dsn), bare_store_command("rows", dsn)),
            Side("file://", (Path(folder) / "lock").as_uri(), bare_store_command("file", f"{folder}/bare")),
            Side("nfs://, one host", f"nfs://{folder}/shared", bare_store_command("file", f"{folder}/bare-shared")),
        ]
        bench_sides(sides, rounds, idle_s)
    taken = asyncio.run(in_memory(rounds))
    report("hand-over, memory://", statistics.median(taken), 0.0, "ms", _spread(taken))


def bench_sides(sides: list[Side], rounds: int, idle_s: float) -> None:
    print(f"hand-over of stores, {FOLLOWERS} followers, median of {rounds}")
    bench_hand_over(sides, rounds)
    print(f"failover by kill -9, {FOLLOWERS} followers, lease {SHORT_LEASE_S:g} s where only its end shows a death")
    bench_failover(sides, min(rounds, 7))
    print(f"wake-ups of idle candidates, for {idle_s:g} s, lease {LEASE_S:g} s")
    bench_wake_ups(sides, idle_s)


def bench_hand_over(sides: list[Side], rounds: int) -> None:
    with ExitStack() as stack:
        ours = [stack.enter_context(Candidates(our_command(side.url), 1 + FOLLOWERS)) for side in sides]
        floors = [
            stack.enter_context(Candidates(side.floor, 1 + FOLLOWERS)) for side in sides if side.floor is not None
        ]
        times = replace_in_turns([*ours, *floors], rounds, by_kill=False)
    for side, mine, floor in zip(sides, times, times[len(sides) :], strict=False):
        median, least = statistics.median(mine), statistics.median(floor)
        report(f"hand-over, {side.name}", median, least, "ms", _spread(mine))


def bench_failover(sides: list[Side], rounds: int) -> None:
    with ExitStack() as stack:
        ours = [
            stack.enter_context(Candidates(our_command(side.url, SHORT_LEASE_S, SHORT_LEASE_S / 3), 1 + FOLLOWERS))
            for side in sides
        ]
        times = replace_in_turns(ours, rounds, by_kill=True)
    for side, mine in zip(sides, times, strict=True):
        report(
            f"failover, {side.name}", statistics.median(mine), SHORT_LEASE_S * 1e3, "ms", _spread(mine), against="lease"
        )


def bench_wake_ups(sides: list[Side], seconds: float) -> None:
    """Count all at once: they are idle. In 30 s, each follower makes one attempt besides."""
    with ExitStack() as stack:
        command = [our_command(side.url, LEASE_S, INTERVAL_S, RETRY_S) for side in sides]
        ours = [stack.enter_context(Candidates(each, 2)) for each in command]
        floor = stack.enter_context(_Empty())
        time.sleep(2.0)  # the first attempts of a new follower are not idle
        *rates, (least,) = waits_per_s([*ours, floor], seconds)
    for side, (leader, follower) in zip(sides, rates, strict=True):
        report(f"wake-ups of a follower, {side.name}", follower, least, "/s", "bound: 2", against="empty")
        report(f"wake-ups of a leader, {side.name}", leader, least, "/s", against="empty")


class _Empty(Candidates):
    """One process without an election."""

    def __init__(self) -> None:
        super().__init__(bare_store_command("empty"), 1, leads="waiting")


def _spread(taken: list[float]) -> str:
    return f"{min(taken):.3f} to {max(taken):.3f} ms"


async def in_memory(rounds: int) -> list[float]:
    """Three elections on one event loop; a leader that hands over comes back as a follower."""
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


@contextmanager
def bare_lease(name: str) -> Iterator[None]:
    """Make a free Lease for the floor, and delete nothing: ``k8s_server.py`` has a server of its own."""
    lease = {"metadata": {"name": name}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 15}}

    async def make() -> None:
        client = HttpLeaseClient(read_kubeconfig(Path(os.environ["KUBECONFIG"])))
        await client.create("default", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
        await client.close()

    asyncio.run(make())
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    options = parser.parse_args()
    os.environ["KUBECONFIG"] = os.environ["PGLEADERLOCK_K8S_SERVER"]
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors", flush=True)
    name = f"pgleaderlock-bench-bare-{os.getpid()}"
    with bare_lease(name):
        side = Side(
            "k8s://", f"k8s://default/pgleaderlock-bench-{os.getpid()}", bare_store_command("lease", "default", name)
        )
        bench_sides([side], options.rounds, options.idle_seconds)


if __name__ == "__main__":
    main()
