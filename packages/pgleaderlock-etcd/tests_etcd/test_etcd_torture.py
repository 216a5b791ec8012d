"""Real processes that are killed and frozen, on a real cluster whose members are killed and frozen too."""

import random
from collections.abc import Callable, Mapping

import pytest

from pgleaderlock.testing.torture import torture_store
from tests_etcd.server import Etcd

LEASE_S = 3.0


def _harm(cluster: Etcd) -> Mapping[str, Callable[[], object]]:
    """Return faults of one member at a time: the other two are a majority."""
    draw = random.Random(1)

    def member_restarts() -> None:
        cluster.restart(draw.choice(cluster.members))

    def member_freezes() -> None:
        member = draw.choice(cluster.members)
        with member.frozen_for(draw.uniform(0.1, 0.6) * LEASE_S):
            pass

    return {"member restarts": member_restarts, "member freezes": member_freezes}


@pytest.mark.slow
def test_one_leader_at_a_time_while_candidates_and_members_are_killed_and_frozen(make_etcd: Callable[..., Etcd]):
    cluster = make_etcd(3)
    url = f"etcd://{cluster.hosts}/torture"
    done = torture_store(url, seconds=20, seed=1, candidates=4, lease_s=LEASE_S, harm=_harm(cluster))
    assert done.problems() == []
    assert done.harm["freeze"]


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2, 5))
def test_one_leader_at_a_time_with_other_seeds(make_etcd: Callable[..., Etcd], seed: int):
    cluster = make_etcd(3)
    url = f"etcd://{cluster.hosts}/torture"
    done = torture_store(url, seconds=60, seed=seed, candidates=5, lease_s=LEASE_S, harm=_harm(cluster))
    assert done.problems() == []
