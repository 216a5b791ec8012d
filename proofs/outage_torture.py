"""Outages in real time: a store is away for seconds or minutes, and a leader has to be back soon after its return.

    python -m proofs.outage_torture --seconds 5 34 120
    python tools/k8s_server.py run -- python -m proofs.outage_torture        with a real Kubernetes API server

Three candidates, as processes, on each of three stores at the same time: PostgreSQL, lease rows in PostgreSQL, and
Kubernetes (a real API server where $PGLEADERLOCK_K8S_SERVER names its kubeconfig, else the one of the tests). Each
store is behind a relay that falls silent: what is sent is lost, new connections get no answer, neither side receives
from the other, and what was silent stays so after the network is back. The stores themselves go on: a restart of
PostgreSQL costs a quiet period of one lease more, which is another matter.

Exit code 1 when a leader led later than a third of the lease and one second after the return. No allowance is made for
a busy machine; the load is printed beside the figures. In virtual time: ``tests/postgres/test_outages.py``.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from pgleaderlock.testing.torture._faulty_relay import Allowance, FaultyRelay, Target
from tests.conftest import free_port

__all__ = ["Return", "allowed_s", "main", "tell"]

_NODES = 3
_FIRST_S = 60.0
_LATEST_S = 60.0
_AT_REST_LEASES = 1.5
_ROLE = "outage"


@dataclass(frozen=True)
class Return:
    """A store that came back, and how long after that a leader led; infinite when none did."""

    store: str
    away_s: float
    led_after_s: float
    load: float


def allowed_s(lease_s: float) -> float:
    """Return how long after the return of its store a leader may take."""
    return lease_s / 3 + 1.0


class SilentNetwork(FaultyRelay):
    """A relay whose new connections do not reach the server while the network is silent."""

    async def _link(self, from_node: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        if not self.is_dropping:
            await super()._link(from_node, to_node)
            return
        with contextlib.closing(to_node), contextlib.suppress(ConnectionError):
            while await from_node.read(65536):
                pass


@dataclass
class Store:
    """One store, the network to it, and its candidates."""

    name: str
    network: SilentNetwork
    url: str
    environment: dict[str, str] = field(default_factory=dict)
    leaders: set[int] = field(default_factory=set)
    taking_part: set[int] = field(default_factory=set)
    began_at: float = 0.0
    """When a candidate last began to lead."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, node: int, line: dict[str, object]) -> None:
        self.taking_part.add(node)
        if line["says"] == "leads":
            self.leaders.add(node)
            self.began_at = float(str(line["at"]))
        else:
            self.leaders.discard(node)
        self.changed.set()

    async def wait_for_leader(self, timeout_s: float, *, all_take_part: bool = False) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.leaders or (all_take_part and len(self.taking_part) < _NODES):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    async def run_candidate(self, node: int, lease_s: float, log: Path) -> None:
        """Run one until it is cancelled."""
        words = json.dumps({"url": self.url, "role": _ROLE, "lease_s": lease_s})
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "proofs.outage_nodes",
                words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **self.environment},
            )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self.hear(node, json.loads(line))
            raise RuntimeError(f"candidate {node} on {self.name} has ended: see {log}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def network_to(port: int, folder: Path) -> AsyncIterator[SilentNetwork]:
    network = SilentNetwork(folder, Target(host="127.0.0.1", port=port), Allowance(10**6, 1e9, clock))
    await network.start()
    try:
        yield network
    finally:
        await network.close()


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[int]:
    port = free_port()
    server = Server(folder / "server", tcp_port=port, settings={"fsync": "off"})
    server.start()
    try:
        yield port
    finally:
        server.stop("immediate")


@contextlib.asynccontextmanager
async def kubernetes_server(folder: Path) -> AsyncIterator[Path]:
    """Yield the kubeconfig of a real API server, if there is one, or of a fake one."""
    if real := os.environ.get("PGLEADERLOCK_K8S_SERVER"):
        yield Path(real)
        return
    async with FakeKubernetes() as server:
        yield server.write_kubeconfig(folder / "kubeconfig")


@contextlib.asynccontextmanager
async def three_stores(folder: Path) -> AsyncIterator[list[Store]]:
    """Start PostgreSQL and an API server, each behind a network."""
    async with contextlib.AsyncExitStack() as stack:
        pg_port = stack.enter_context(postgres_server(folder))
        kubeconfig = await stack.enter_async_context(kubernetes_server(folder))
        text = kubeconfig.read_text(encoding="utf-8")
        found = re.search(r"(https?://127\.0\.0\.1):(\d+)", text)
        assert found is not None, f"{kubeconfig} names no API server on 127.0.0.1"
        ports = [pg_port, pg_port, int(found[2])]
        ways = [await stack.enter_async_context(network_to(port, folder)) for port in ports]
        relayed = kubeconfig.with_name("kubeconfig-relayed")  # beside the other: it names certificates by their paths
        relayed.write_text(text.replace(found[0], f"{found[1]}:{ways[2].port}"), encoding="utf-8")
        address = "postgres@127.0.0.1"
        yield [
            Store("postgresql", ways[0], f"postgresql://{address}:{ways[0].port}/postgres"),
            Store("lease rows", ways[1], f"postgresql+lease://{address}:{ways[1].port}/postgres"),
            Store("kubernetes", ways[2], f"k8s://default/{_ROLE}", {"KUBECONFIG": str(relayed)}),
        ]


async def be_away(stores: list[Store], away_s: float, lease_s: float) -> list[Return]:
    """Let all stores be away at once, and measure for each how long after its return a leader leads."""
    await asyncio.sleep(_AT_REST_LEASES * lease_s)
    for store in stores:
        store.network.drop()
    await asyncio.sleep(away_s)
    still = [store.name for store in stores if store.leaders]
    if still:
        raise RuntimeError(f"after {away_s:g} s without its store, more than a lease, a candidate still leads: {still}")
    back_at, load = clock(), os.getloadavg()[0]
    for store in stores:
        store.network.heal()
    led = await asyncio.gather(*(store.wait_for_leader(_LATEST_S) for store in stores))
    return [
        Return(store.name, away_s, store.began_at - back_at if has_leader else float("inf"), load)
        for store, has_leader in zip(stores, led, strict=True)
    ]


async def run(options: argparse.Namespace, folder: Path) -> list[Return]:
    """Start everything, let the stores be away for each of the lengths, and end everything."""
    async with three_stores(folder) as stores, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(store.run_candidate(node, options.lease, folder / f"{store.name}-{node}.log"))
            for store in stores
            for node in range(_NODES)
        ]
        found = []
        ready = await asyncio.gather(*(store.wait_for_leader(_FIRST_S, all_take_part=True) for store in stores))
        if not all(ready):
            raise RuntimeError(f"not every store has a leader and {_NODES} candidates after {_FIRST_S:g} s")
        for away_s in options.seconds:
            found += await be_away(stores, away_s, options.lease)
            say_lengths(found[-len(stores) :])
        for task in tasks:
            task.cancel()
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say_lengths(returns: list[Return]) -> None:
    figures = ", ".join(f"{each.store} {each.led_after_s:.2f} s" for each in returns)
    say(f"away for {returns[0].away_s:g} s, a leader after: {figures} (load {returns[0].load:.1f})")


def tell(returns: list[Return], lease_s: float) -> int:
    """Say whether all were back in time; return the exit code."""
    late = [each for each in returns if each.led_after_s > allowed_s(lease_s)]
    for each in late:
        say(f"TOO LATE: {each.store}, away for {each.away_s:g} s, led again after {each.led_after_s:.2f} s")
    say(f"{len(returns)} returns, {len(late)} later than {allowed_s(lease_s):.2f} s (lease {lease_s:g} s)")
    return 1 if late or not returns else 0


def main(arguments: list[str] | None = None) -> int:
    """Cut the stores off, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=[5.0, 34.0, 120.0], help="how long the outages are")
    parser.add_argument("--lease", type=float, default=3.0)
    options = parser.parse_args(arguments)
    if min(options.seconds) <= options.lease:
        parser.error("an outage has to be longer than the lease, or the leader leads on")
    with tempfile.TemporaryDirectory(prefix="pgll-outage-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        return tell(asyncio.run(run(options, folder)), options.lease)


if __name__ == "__main__":
    sys.exit(main())
