"""Leader tasks in random profile, on virtual time: three nodes, the real engine, a store that fails at will.

Checked at every instant: the work of one node at most, unless that node has reported an overrun; never twice in one
node; and once the profile clears, one works. ``python -m tests.testing.test_work_simulation 5000`` runs so many seeds.
"""

import asyncio
import random
import sys

import pytest

from pgleaderlock import ConnectionError, Election, FixedInterval, LockState, PgLeaderLockError, Term
from pgleaderlock.models import Grant
from pgleaderlock.testing import VirtualTimeLoop
from tests.support.doubles import ScriptedBackend, until

LEASE_S, TRUST_S, LOSS_S = 12.0, 10.0, 8.0
PROFILE_S = 150.0


class Store:
    """A lock with a lease. A session that is closed frees it at once, one that is forgotten when the lease is over."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.holder: Node | None = None
        self.until = 0.0
        self.token = 0
        self.is_stormy = True

    def take(self, node: "Node") -> int | None:
        if self.holder not in (None, node) and now() < self.until:
            return None
        self.holder, self.until, self.token = node, now() + LEASE_S, self.token + 1
        return self.token

    def free(self, node: "Node") -> None:
        if self.holder is node:
            self.holder = None

    async def travel(self) -> None:
        """On the way there or back: mostly quick, sometimes slow, or for a lease and in vain, or an error."""
        draw = self.random.random() if self.is_stormy else 0.5
        if draw < 0.05:
            raise ConnectionError("lost on the way")
        if draw < 0.08:
            await asyncio.sleep(LEASE_S)  # beyond which no backend lets a call go on
            raise ConnectionError("no answer")
        await asyncio.sleep(self.random.uniform(0.5, 9) if draw < 0.15 else 0.01)


class Node(ScriptedBackend):
    """One candidate, its election and its work."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self.store, self.name = store, name
        self.inside: dict[str, int] = {"work": 0, "busy work": 0}
        self.election = Election(
            self,
            retry_strategy=FixedInterval(0.5),
            health_interval_s=2.0,
            reconnect_grace_s=store.random.choice([None, 3.0]),
            drain_s=store.random.choice([0.5, 5.0]),
            clock=now,
        )
        self.election.while_leader(name="work", drains=store.random.random() < 0.5)(self._work)
        self.election.while_leader(name="busy work", on_failure="step_down")(self._busy_work)
        self.election.on_lost(lambda: asyncio.sleep(store.random.choice([0, 0, 5])))

    @property
    def is_late(self) -> bool:
        """Whether an overrun was reported of what runs now. Callbacks are notified of it behind a slow ``on_lost``."""
        return any(stint.is_reported and not stint.is_over for stint in self.election._leader_tasks._runs)

    async def _work(self, term: Term) -> None:
        await self._be_inside("work", term, stops_in_s=self.store.random.choice([0, 0.1, 1.5, 4, 30]))

    async def _busy_work(self, term: Term) -> None:
        random_ = self.store.random
        if random_.random() < 0.1:
            raise ZeroDivisionError
        await self._be_inside("busy work", term, stops_in_s=random_.choice([0, 0.5]), lasts_s=random_.uniform(0, 60))

    async def _be_inside(self, what: str, term: Term, *, stops_in_s: float, lasts_s: float = 1e6) -> None:
        assert not term.is_ending, f"{what} of {self.name} began too late"
        self.inside[what] += 1
        try:
            await asyncio.wait_for(term.wait_until_ending(), lasts_s)
        except TimeoutError:
            pass
        finally:
            try:
                await asyncio.sleep(stops_in_s)
            finally:
                self.inside[what] -= 1

    async def open(self) -> None:
        await self.store.travel()

    async def try_acquire(self) -> Grant | None:
        sent = now()
        await self.store.travel()
        token = self.store.take(self)
        await self.store.travel()
        return None if token is None else Grant(token, sent + TRUST_S, sent + LOSS_S)

    async def renew(self, grant: Grant) -> Grant:
        sent = now()
        await self.store.travel()
        if self.store.holder is not self or now() >= self.store.until:
            raise ConnectionError("the lease is over")
        self.store.until = now() + LEASE_S
        await self.store.travel()
        return Grant(grant.token, sent + TRUST_S, sent + LOSS_S)

    async def release(self, grant: Grant) -> None:
        await self.store.travel()
        self.store.free(self)

    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def lost(self) -> PgLeaderLockError:
        await asyncio.sleep(self.store.random.expovariate(1 / 40) if self.store.is_stormy else 1e6)
        return ConnectionError("ended by the server")

    async def close(self) -> None:
        self.store.free(self)


def now() -> float:
    return asyncio.get_running_loop().time()


async def trouble(store: Store, node: Node) -> None:
    """People and shutdowns."""
    while store.is_stormy:
        await asyncio.sleep(store.random.expovariate(1 / 25))
        draw = store.random.random()
        if draw < 0.5:
            await node.election.step_down(store.random.choice([None, 1.0]))
        else:
            await node.election.shutdown(store.random.choice([None, 30.0]))
            await asyncio.sleep(store.random.uniform(0, 5))
        await node.election.start()


def check(seed: int, nodes: list[Node]) -> None:
    at_work = [node for node in nodes if any(node.inside.values())]
    assert all(count <= 1 for node in nodes for count in node.inside.values()), f"seed {seed}: twice in one node"
    punctual = [node for node in at_work if not node.is_late]
    if len(at_work) > 1:
        assert len(punctual) <= 1, f"seed {seed}: two at work at {now():.2f}: {[node.inside for node in nodes]}"


async def simulate(seed: int) -> int:
    store = Store(seed)
    nodes = [Node(store, name) for name in "abc"]
    terms = [0]
    for node in nodes:
        node.election.on_acquired(lambda: terms.__setitem__(0, terms[0] + 1))
        await node.election.start()
    troubles = [asyncio.ensure_future(trouble(store, node)) for node in nodes]
    while now() < PROFILE_S:
        await asyncio.sleep(0.02)
        check(seed, nodes)
    store.is_stormy = False
    for task in troubles:
        task.cancel()
    await asyncio.gather(*troubles, return_exceptions=True)
    for node in nodes:
        await node.election.start()
    await until(lambda: any(node.inside["work"] and node.election.is_leader for node in nodes), 120)
    for node in nodes:
        await node.election.shutdown(20)
        assert node.election.state is LockState.STOPPED
    return terms[0]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.virtual_time
async def test_never_two_at_work(seed: int, caplog):
    caplog.set_level("CRITICAL")
    assert await simulate(seed) > 1


def main() -> None:
    import logging

    logging.disable(logging.CRITICAL)
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    for seed in range(first, first + count):
        loop = VirtualTimeLoop()
        try:
            loop.run_until_complete(simulate(seed))
        finally:
            loop.close()
    sys.stdout.write(f"{count} seeds, {PROFILE_S * count / 3600:.1f} virtual hours: never two at work\n")


if __name__ == "__main__":
    main()
