"""What the registry says is true, on the page, in a shell and in metrics: leases, dead leaders, roles all have left."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pgleaderlock import LeaderLock, LockKey
from pgleaderlock.ops.dashboard._exposition import exposition
from pgleaderlock.ops.registry import Registry
from pgleaderlock.ops.registry._pending_rows import Standing
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.operators import Hand, file_of, hand, records, run_beside
from tests.support.registry import Node, eventually, leader_of, reading, schema
from tests.support.registry_truth import alert, page_of

__all__ = ["file_of", "hand", "schema"]  # the fixtures


# --- A healthy leader -------------------------------------------------------------------------------------------------


async def test_the_lease_of_a_healthy_leader_is_written_long_before_the_next_heartbeat(
    postgres: Postgres, schema: str, key: LockKey
):
    """With a lease of 5 s, and a heartbeat of as much, a healthy leader was shown as "silent, lease over"."""
    registry = Registry(postgres.dsn, node="one", schema=schema, heartbeat_s=1000)
    lock = LeaderLock(postgres.dsn, key=key, lease_s=1.5, health_interval_s=0.5, settle_s=0)
    registry.attach(lock, role="scheduler")
    async with registry, lock:
        await lock.wait_for_leadership()
        async with reading(postgres.dsn, schema) as reader:
            first = await eventually(lambda: leader_of(reader))

            async def is_another_lease_later() -> bool:
                leader = await leader_of(reader)
                return leader is not None and leader.lease_until > first.lease_until + 1.5

            await eventually(is_another_lease_later)


@pytest.mark.slow
@pytest.mark.parametrize(("lease_s", "health_s"), [(5.0, 1.5), (5.0, 3.3), (15.0, 5.0), (1.5, 0.5), (30.0, 19.9)])
def test_what_is_shown_of_a_lease_is_written_every_third_of_it_and_never_runs_out(lease_s: float, health_s: float):
    election = SimpleNamespace(lease_s=lease_s, is_leader=True, trusted_until=0.0)
    standing = Standing("l", "role", None, election)  # type: ignore[arg-type]
    for phase in range(10):  # between the renewals and the writing
        now = phase * health_s / 10
        for _ in range(100):
            election.trusted_until = now // health_s * health_s + 0.9 * lease_s
            standing.shown_at, standing.shown_until = now, election.trusted_until
            assert standing.due_at - now <= lease_s / 3 + 1e-9
            now = standing.due_at
            assert now < standing.shown_until, "shown as over, while it was renewed"


# --- A leader that was killed -----------------------------------------------------------------------------------------


def kill_the_only_leader(hand: Hand) -> None:
    """It led for 80 s with a lease of 5 s, and was killed 20 s ago."""
    hand.line("acquired", 100)
    hand.node("web-1", seen_ago_s=20, heartbeat_s=5 / 3)
    hand.candidate("web-1")
    hand.leader("web-1", ago_s=100, renewed_ago_s=20, left_s=-15.5)


async def test_a_killed_sole_leader_is_shown_as_dead_once_its_lease_is_over(hand: Hand):
    kill_the_only_leader(hand)
    board = await page_of(hand)
    (role,) = board.roles
    assert (role["leader"], role["last_leader"]["node"]) == (None, "web-1")
    assert alert(board, "no_leader")["state"] == "firing"
    assert role["leaderless_s"] == pytest.approx(20, abs=5)
    assert role["availability"] == pytest.approx(0.8, abs=0.05)
    assert b'pgleaderlock_dashboard_led{role="scheduler"} 0.0' in exposition(board)[0]
    (status,) = records(await run_beside("status", *hand.options, "--json"))
    assert (status["leader"], status["last_leader"]["node"]) == (None, "web-1")
    assert "no leader (web-1 silent for 2" in (await run_beside("status", *hand.options)).stdout


async def test_a_leader_whose_node_writes_more_rarely_than_its_lease_lasts_is_judged_by_its_heartbeat(hand: Hand):
    """As 0.1.0 did: while nodes are upgraded, a healthy one is not called dead."""
    hand.node("web-1", seen_ago_s=4, heartbeat_s=5)
    hand.leader("web-1", ago_s=100, renewed_ago_s=4, left_s=-1)
    (role,) = (await page_of(hand)).roles
    assert role["leader"]["node"] == "web-1"


async def test_a_leader_that_signed_off_with_its_lock_is_not_missed(hand: Hand):
    hand.line("acquired", 100)
    hand.line("unwatched", 50)
    hand.leader("web-1", ago_s=100, renewed_ago_s=50, left_s=-40)
    assert alert(await page_of(hand), "no_leader")["state"] == "ok"


# --- Roles that all have left -----------------------------------------------------------------------------------------


async def test_a_role_stays_visible_when_all_its_nodes_have_left_in_order(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
    hand = await asyncio.to_thread(Hand, postgres.dsn, schema)
    with hand.connection:
        board = await page_of(hand)
        (role,) = board.roles
        assert (role["role"], role["leader"], role["is_closed"]) == ("scheduler", None, True)
        assert role["terms"][-1]["end"] == "released"
        assert alert(board, "no_leader")["state"] == "ok"
        (status,) = records(await run_beside("status", *hand.options, "--json"))
        assert (status["role"], status["is_closed"]) == ("scheduler", True)
        missed = await page_of(hand, expected=["scheduler"])
        assert alert(missed, "no_leader")["state"] == "firing", "a configuration names it: it should be led"


async def test_a_role_that_a_configuration_names_is_shown_before_any_node_was_there(hand: Hand, file_of: Any):
    board = await page_of(hand, expected=["never-led"])
    assert [(role["role"], role["leader"]) for role in board.roles] == [("never-led", None)]
    assert alert(board, "no_leader")["role"] == "never-led"
    (status,) = records(await run_beside("status", "--config", file_of('["never-led"]'), "--json"))
    assert (status["role"], status["leader"]) == ("never-led", None)
