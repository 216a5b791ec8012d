"""Back soon after an outage: a leader within a third of a lease and one second of the store's return, on every store.

In virtual time, on the real engine and the real backends over modelled servers, with the default retry strategy and
with one that is slower still. Two kinds of outage: the network swallows everything (requests hang until their
time-outs), and the server itself is gone (requests fail at once).
"""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from pgleaderlock import Election, ExponentialBackoff, FixedInterval, LeaderLock, RetryStrategy
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease_table import LeaseRowStore
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.simulation.fault_profiles import CALM
from pgleaderlock.testing.simulation.simulation import Simulation, quiet
from tests.support.sweeps import sweep

LEASE_S = 3.0
SOON_S = LEASE_S / 3 + 1.0
AWAY = pytest.mark.parametrize("away_s", sweep([5.0, 34.0, 120.0], 34.0))
SETTINGS = pytest.mark.parametrize(
    ("strategy", "grace_s"),
    [
        pytest.param(ExponentialBackoff(), None, id="default"),
        pytest.param(FixedInterval(30.0), None, id="slow"),
        pytest.param(ExponentialBackoff(), 200.0, id="grace"),
    ],
)
SEEDS = range(3)  # phases: how long before the outage the last renewal was, which candidate tried when


class Outage:
    """One cluster that had a leader, and the store that goes away and comes back."""

    def __init__(self, store: str, seed: int, strategy: RetryStrategy, grace_s: float | None) -> None:
        settings: dict[str, object] = {
            "retry_strategy": strategy,
            "health_interval_s": LEASE_S / 3,
            "reconnect_grace_s": grace_s,
        }
        self.simulation = Simulation(seed, profile=CALM, store=store, lease_s=LEASE_S, settings=settings)
        self.simulation.start()
        self.simulation.run(20 + seed / 7)
        assert self.simulation.checker.is_led

    def pass_time(self, seconds: float) -> None:
        """Let the outage last; the checker learns that no leader is expected."""
        for _ in range(round(seconds)):
            self.simulation.checker.disturb()
            self.simulation.run(1.0)

    def cut_all_cables(self, away_s: float) -> None:
        for node in self.simulation.nodes:
            node.cable.pull()
        self.pass_time(away_s)
        assert not self.simulation.checker.is_led
        for node in self.simulation.nodes:
            node.cable.plug_in()

    def leaderless_s(self, at_most_s: float) -> float:
        """Return how long after the return a leader came; more than ``at_most_s`` when none did."""
        world, checker = self.simulation.world, self.simulation.checker
        back_at = world.now
        world.run(back_at + at_most_s, unless=lambda: checker.is_led)
        checker.raise_failure()
        return world.now - back_at if checker.is_led else float("inf")


@contextlib.contextmanager
def outage_of(
    store: str, seed: int, strategy: RetryStrategy | None = None, grace_s: float | None = None
) -> Iterator[Outage]:
    """Yield a cluster of this seed, and end it."""
    with quiet(seed):
        outage = Outage(store, seed, strategy or ExponentialBackoff(), grace_s)
        try:
            yield outage
        finally:
            outage.simulation.end()


@AWAY
@SETTINGS
@pytest.mark.parametrize("store", ["postgres", "postgres-poll", "kubernetes", "records"])
def test_a_leader_is_back_soon_after_the_network(
    store: str, away_s: float, strategy: RetryStrategy, grace_s: float | None
) -> None:
    for seed in SEEDS:
        with outage_of(store, seed, strategy, grace_s) as outage:
            outage.cut_all_cables(away_s)
            assert outage.leaderless_s(SOON_S) <= SOON_S, f"seed {seed}"


@AWAY
def test_each_role_of_a_group_is_led_soon_after_the_network_is_back(away_s: float) -> None:
    with outage_of("group", 1) as outage:  # a group has a strategy of its own
        outage.cut_all_cables(away_s)
        assert outage.leaderless_s(SOON_S) <= SOON_S


@AWAY
@SETTINGS
@pytest.mark.parametrize("store", ["kubernetes", "records"])
def test_a_leader_is_back_soon_after_the_server(
    store: str, away_s: float, strategy: RetryStrategy, grace_s: float | None
) -> None:
    for seed in SEEDS:
        with outage_of(store, seed, strategy, grace_s) as outage:
            server = outage.simulation.server
            server.go_down(away_s)  # type: ignore[attr-defined]
            outage.pass_time(away_s)
            assert server.is_up
            assert outage.leaderless_s(SOON_S) <= SOON_S, f"seed {seed}"


@AWAY
@SETTINGS
@pytest.mark.parametrize("store", ["postgres", "postgres-poll"])
def test_after_a_restart_of_postgresql_a_leader_comes_with_the_end_of_the_quiet_period(
    store: str, away_s: float, strategy: RetryStrategy, grace_s: float | None
) -> None:
    """A server that has just started is not led on for one lease: a leader of its former life may still be valid."""
    for seed in SEEDS:
        with outage_of(store, seed, strategy, grace_s) as outage:
            outage.simulation.server.restart(away_s)  # type: ignore[attr-defined]
            outage.pass_time(away_s)
            took_s = outage.leaderless_s(LEASE_S + SOON_S)
            assert 0.9 * LEASE_S <= took_s <= LEASE_S + SOON_S, f"seed {seed}"


# --- A real server ----------------------------------------------------------------------------------------------------

SLOW_S = 60.0
"""What the retry strategy asks for; the bound of these tests is far below it and far above what is expected."""
BOUND_S = 25.0


def on_session(dsn: str, key: LockKey) -> Election:
    interval_s = LEASE_S / 3
    return LeaderLock(
        dsn, *key.numbers, lease_s=LEASE_S, health_interval_s=interval_s, retry_strategy=FixedInterval(SLOW_S)
    )


def on_row(dsn: str, key: LockKey) -> Election:
    store = LeaseRowStore(dsn, f"job-{key.numbers[1]}", lease_s=LEASE_S)
    backend = RecordBackend(store, lease_s=LEASE_S)
    return Election(backend, health_interval_s=LEASE_S / 3, retry_strategy=FixedInterval(SLOW_S))


@pytest.mark.parametrize("make", [on_session, on_row])
@pytest.mark.slow
async def test_a_leader_is_back_soon_after_a_real_server_was_stopped_for_5_s(own_server: Server, key: LockKey, make):
    async with make(own_server.tcp_dsn, key) as election:
        assert await election.wait_for_leadership(BOUND_S)
        await asyncio.to_thread(own_server.stop)
        await asyncio.sleep(5)
        assert not election.is_leader
        await asyncio.to_thread(own_server.start)
        assert await election.wait_for_leadership(BOUND_S)
