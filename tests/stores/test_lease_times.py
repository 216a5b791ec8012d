"""One rule for all that take a lease and an interval: what was not given follows from what was."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

import pgleaderlock
from pgleaderlock import sync
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.compat import consensus
from pgleaderlock.ops.config import Config
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores.times import USUAL_INTERVAL_S, choose_times, effective_interval_s
from tests.conftest import Postgres

DSN = "postgresql://127.0.0.1:1/none"


@pytest.mark.parametrize(
    ("lease_s", "interval_s", "times"),
    [
        (None, USUAL_INTERVAL_S, (15.0, 5.0)),
        (2.0, USUAL_INTERVAL_S, (2.0, 2 / 3)),
        (60.0, USUAL_INTERVAL_S, (60.0, 20.0)),
        (None, 1.0, (3.0, 1.0)),
        (None, 0.1, (1.5, 0.1)),
        (None, 20, (60.0, 20.0)),
        (60.0, 5.0, (60.0, 5.0)),
        (60, 30, (60.0, 30.0)),
    ],
)
def test_what_was_not_given_follows_from_what_was(lease_s: float | None, interval_s: float, times: tuple[float, float]):
    assert choose_times(lease_s, interval_s) == times


def test_an_interval_of_five_seconds_that_was_given_is_not_replaced():
    with pytest.raises(ValueError, match="health_interval_s=5 must be less than two thirds of lease_s=2"):
        choose_times(2.0, 5.0)


@pytest.mark.parametrize(("lease_s", "interval_s"), [(0, 5.0), (-1, 5.0), (float("nan"), 5.0), (None, 0), (9, -1)])
def test_neither_may_be_nonsense(lease_s: float | None, interval_s: float):
    with pytest.raises(ValueError, match=r"lease_s|health_interval_s"):
        choose_times(lease_s, interval_s)


@pytest.mark.parametrize("make", [pgleaderlock.LeaderLock, sync.LeaderLock])
def test_a_lock_takes_a_short_lease_alone_and_renews_three_times_in_it(make: type):
    lock = make(DSN, role="a", lease_s=2.0)
    engine = lock if isinstance(lock, pgleaderlock.Election) else lock._engine
    assert engine._health_interval_s == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="two thirds"):
        make(DSN, role="a", lease_s=2.0, health_interval_s=5.0)


def test_a_group_takes_a_short_lease_alone():
    pgleaderlock.LeaderGroup(DSN, ["a"], lease_s=2.0)
    with pytest.raises(ValueError, match="two thirds"):
        pgleaderlock.LeaderGroup(DSN, ["a"], lease_s=2.0, health_interval_s=5.0)


def test_a_manager_takes_a_short_lease_alone():
    assert consensus.Config("me", lease_duration_s=2.0).renew_interval_s == pytest.approx(2 / 3)
    assert consensus.Config("me").renew_interval_s == 5.0
    with pytest.raises(ValueError, match="renew_interval_s=5 must be less than two thirds of lease_duration_s=2"):
        consensus.Config("me", lease_duration_s=2.0, renew_interval_s=5.0)


def test_the_configuration_takes_a_short_lease_alone():
    settings = {"leader_election": {"lease_duration": "2s", "roles": ["a"]}}
    election = Config.model_validate({"cluster": settings}).election
    assert (election.lease_s, election.health_interval_s) == (2.0, pytest.approx(2 / 3))


@pytest.mark.parametrize("command", ["run", "acquire", "exec"])
def test_the_command_line_takes_a_short_lease_alone(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The store cannot be used, which is only found out when the times are good."""
    words = [command, "--url", f"file://{tmp_path}/none/lock", "--role", "a", "--lease", "2"]
    more = ["--wait", "0", "--", "true"] if command == "exec" else []
    assert invoke([*words, "--health-interval", "5", *more]) == exit_codes.USAGE
    assert "two thirds" in capsys.readouterr().err
    invoke([*words, *more])
    assert "two thirds" not in capsys.readouterr().err


# --- Renewing at that interval ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_s", "lease_s", "effective_s"),
    [(3.0, 6.0, 3.0), (30.0, 60.0, 30.0), (5.0, 15.0, 5.0), (3.9, 6.0, 3.6), (5.0, None, 5.0)],
)
def test_an_interval_is_kept_as_long_as_a_renewal_can_be_repeated(
    given_s: float, lease_s: float | None, effective_s: float
):
    assert effective_interval_s(given_s, lease_s) == pytest.approx(effective_s)
    if lease_s is not None:
        assert choose_times(lease_s, given_s).health_interval_s == pytest.approx(effective_s)
        assert pgleaderlock.LeaderLock(DSN, role="a", lease_s=lease_s, health_interval_s=given_s).health_interval_s == (
            pytest.approx(effective_s)
        )


@dataclass
class Flaky:
    """A backend of three verbs that notes when it is renewed, and fails on command."""

    renewed_at: list[float]
    fails: list[str]

    async def try_acquire(self, identity: str, lease_s: float) -> bool:
        return True

    async def renew(self, identity: str, lease_s: float) -> bool:
        self.renewed_at.append(asyncio.get_running_loop().time())
        how = self.fails.pop(0) if self.fails else ""
        if how == "raises":
            raise OSError("not now")
        if how == "hangs":
            await asyncio.sleep(1000)
        return True

    async def release(self, identity: str) -> None:
        pass


async def times_of_renewals(flaky: Flaky, interval_s: float, *, lasts_s: float) -> list[float]:
    config = consensus.Config("me", lease_duration_s=6.0, renew_interval_s=interval_s)
    loop = asyncio.get_running_loop()
    manager = consensus.Manager(flaky, config, clock=loop.time)
    lost: list[object] = []
    manager.election.on_lost(lambda: lost.append(loop.time()))
    async with manager as lease:
        assert await lease.wait_for_leadership(5)
        began = loop.time()
        await asyncio.sleep(lasts_s)
        assert lost == []
        assert lease.is_leader()
    return [at - began for at in flaky.renewed_at]


@pytest.mark.virtual_time
@pytest.mark.parametrize("interval_s", [1.0, 2.0, 3.0, 3.5])
async def test_a_leader_renews_at_the_interval_that_was_given(interval_s: float):
    at = await times_of_renewals(Flaky([], []), interval_s, lasts_s=4.5 * interval_s)
    assert at == pytest.approx([interval_s * number for number in (1, 2, 3, 4)])


@pytest.mark.virtual_time
@pytest.mark.parametrize("interval_s", [2.0, 3.0, 3.6, 3.99])
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_one_failed_renewal_never_ends_a_term(interval_s: float, how: str):
    at = await times_of_renewals(Flaky([], [how, "", how, ""]), interval_s, lasts_s=20.0)
    assert len(at) >= 6


@pytest.mark.virtual_time
async def test_several_failed_renewals_end_a_term():
    with pytest.raises(AssertionError):
        await times_of_renewals(Flaky([], ["raises"] * 100), 3.0, lasts_s=5.0)


async def test_a_group_renews_at_the_interval_that_was_given(postgres: Postgres, key: LockKey):
    group = pgleaderlock.LeaderGroup(postgres.dsn, {"a": key}, lease_s=60.0, health_interval_s=0.2, settle_s=0)
    renewed = asyncio.Semaphore(0)
    group._group.renewal_listeners.append(lambda _: renewed.release())
    async with group:
        for _ in range(4):  # a third of the lease would be 20 s
            await asyncio.wait_for(renewed.acquire(), 15)


@pytest.mark.virtual_time
@pytest.mark.parametrize("interval_s", [2.0, 3.0, 3.6])
async def test_a_leader_renews_earlier_where_answers_take_long(interval_s: float):
    class Slow(Flaky):
        async def try_acquire(self, identity: str, lease_s: float) -> bool:
            await asyncio.sleep(1.2)
            return True

        async def renew(self, identity: str, lease_s: float) -> bool:
            await asyncio.sleep(1.2)  # a fifth of the lease
            return await super().renew(identity, lease_s)

    assert len(await times_of_renewals(Slow([], []), interval_s, lasts_s=60.0)) > 15
