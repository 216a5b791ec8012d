"""Ours beside client-go's elector: one real API server, in turns, in one run.

    make bench                                                  as its last part, where the server is built
    python tools/k8s_server.py run -- python bench/k8s.py       by itself

Each side has the times that it has by default, so this compares what one gets, not what could be tuned: client-go
polls, and a shorter period would buy it a quicker hand-over with more requests. On a server that lives on, the Leases
stay: ``pgleaderlock-bench-…`` in the namespace ``default``.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, repeat, takewhile
from pathlib import Path
from typing import Self, TypeVar

import k8s_idle
from candidates import Candidates, Command, our_command
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import read_kubeconfig
from reporting import report

T = TypeVar("T")

HAND_OVERS_S, KILLS_S = 22.0, 8.0
FOLLOWERS, IDLE_S = 10, 10.0
PEER_DEFAULTS = ("-duration", "15s", "-deadline", "10s", "-period", "2s")
SHORT_LEASE_S, SHORT_HEALTH_S = 2.0, 0.3
PEER_SHORT = ("-duration", "2s", "-deadline", "1500ms", "-period", "300ms")


def main() -> None:
    server, peer = os.environ["PGLEADERLOCK_K8S_SERVER"], os.environ.get("PGLEADERLOCK_K8S_PEER")
    if peer is None:
        print("Kubernetes: left out, $PGLEADERLOCK_K8S_PEER is not client-go's elector. `make test-k8s` builds one")
        return
    os.environ["KUBECONFIG"] = server  # where our own candidates look
    bench = Bench(server, peer)
    print("pgleaderlock beside client-go's leaderelection, on one API server (k8s_server.py's has etcd without fsync)")
    print("  2 followers, lease 15 s; ours watches and renews every 5 s; client-go has RetryPeriod 2 s, jitter 1.2 and")
    print("  RenewDeadline 10 s, its defaults, and ReleaseOnCancel; both are told to stop by SIGTERM", flush=True)
    bench.hand_over()
    bench.take_over()
    bench.idle()


def for_seconds(seconds: float, items: Iterable[T]) -> Iterator[T]:
    """Yield for so long: client-go now and then loses a release, which then costs a lease; `make bench` must not."""
    deadline = time.monotonic() + seconds
    return takewhile(lambda _: time.monotonic() < deadline, items)


class Request:
    """The least that a hand-over is made of: one request by our client, timed when asked."""

    def __init__(self, server: str, lease: str) -> None:
        self._client = HttpLeaseClient(read_kubeconfig(Path(server)))
        self._lease = lease
        self._loop = asyncio.Runner()

    def __enter__(self) -> Self:
        self.time()  # connects
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._client.close())
        self._loop.close()

    def time(self) -> float:
        """Return the milliseconds that it took."""
        began = time.perf_counter()
        self._loop.run(self._client.get("default", self._lease))
        return (time.perf_counter() - began) * 1e3


class Bench:
    """The rows, each with Leases of its own."""

    def __init__(self, server: str, peer: str) -> None:
        self._server = server
        self._peer = peer

    def hand_over(self) -> None:
        """Time what a rolling update costs.

        A poller that just started has not polled for just as long. So client-go has three elections, and each is left
        alone for two rounds after its newcomer's start.
        """
        with ExitStack() as stack:
            ours = stack.enter_context(Candidates(our_command(_url("hand-over"))))
            theirs = [
                stack.enter_context(Candidates(self._peer_command(f"hand-over-peer-{n}", *PEER_DEFAULTS)))
                for n in range(3)
            ]
            request = stack.enter_context(Request(self._server, _name("hand-over")))
            times, floor = [], []
            for peers in for_seconds(HAND_OVERS_S, cycle(theirs)):
                floor.append(request.time())
                times.append((ours.replace_leader(by_kill=False), peers.replace_leader(by_kill=False)))
                peers.settle()
        _report(f"hand-over by release, median of {len(times)}", times)
        mine = statistics.median(pair[0] for pair in times)
        report("  beside one GET, on an open connection", mine, statistics.median(floor), "ms")

    def take_over(self) -> None:
        """Time what a crash costs: about a lease on either side, so both wait for theirs at the same time."""
        with (
            Candidates(our_command(_url("take-over"), SHORT_LEASE_S, SHORT_HEALTH_S)) as ours,
            Candidates(self._peer_command("take-over-peer", *PEER_SHORT)) as theirs,
            ThreadPoolExecutor() as pool,
        ):
            times = []
            for _ in for_seconds(KILLS_S, repeat(None)):
                ours.settle()
                theirs.settle()
                mine, other = (pool.submit(side.replace_leader, by_kill=True) for side in (ours, theirs))
                times.append((mine.result(), other.result()))
        _report(f"take-over after kill -9, median of {len(times)}", times, "; lease 2 s, renewed every 0.3 s")

    def idle(self) -> None:
        """Count what the server has to do for followers, of both sides on one Lease that is ours."""
        command = self._peer_command("idle", *PEER_DEFAULTS)
        try:
            ours, theirs = k8s_idle.requests_per_s(Path(self._server), _url("idle"), command, FOLLOWERS, IDLE_S)
        except k8s_idle.CannotCountError as error:
            print(f"  requests of an idle follower: left out, {error}")
        else:
            note = f"{FOLLOWERS} followers for {IDLE_S:g} s"
            report("requests of an idle follower", ours, theirs, "/s", note, against="client-go")

    def _peer_command(self, what: str, *times: str) -> Command:
        arguments = [self._peer, "-kubeconfig", self._server, "-lease", _name(what), *times]
        return lambda number: [*arguments, "-identity", f"peer-{number}"]


def _name(what: str) -> str:
    """On a server that lives on, the Leases of an earlier run are not ours."""
    return f"pgleaderlock-bench-{what}-{os.getpid()}"


def _url(what: str) -> str:
    return f"k8s://default/{_name(what)}"


def _report(what: str, times: list[tuple[float, float]], note: str = "") -> None:
    ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
    mine, other = (f"{min(side):.0f} to {max(side):.0f}" for side in zip(*times, strict=True))
    report(what, ours, theirs, "ms", f"{mine} and {other} ms{note}", against="client-go")


if __name__ == "__main__":
    main()
