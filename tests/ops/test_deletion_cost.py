"""The annotation by which a ReplicaSet ends the leader's pod last: it comes and goes with the label."""

import pytest

from pgleaderlock.ops.pod_label._pods import COST, COST_KEY
from pgleaderlock.testing._pod_api import PodApi
from tests.support.doubles import until
from tests.support.pod_candidate import Candidate, settled

pytestmark = pytest.mark.virtual_time


def cost(candidate: Candidate) -> str | None:
    value: str | None = candidate.metadata.get("annotations", {}).get(COST_KEY)
    return value


async def test_the_pod_of_the_leader_is_expensive_to_end_for_as_long_as_it_leads():
    one = Candidate(PodApi())
    assert cost(one) is None
    await one.lead()
    assert cost(one) == COST
    await one.election.shutdown()
    assert cost(one) is None


async def test_a_cost_that_an_operator_gave_the_pod_stays():
    api = PodApi()
    api.create("default", "a", {"app": "worker"})
    api.patch("default", "a", {"metadata": {"annotations": {COST_KEY: "-5"}}})
    one = Candidate(api)
    await one.lead()
    assert cost(one) == "-5"
    await one.election.shutdown()
    assert cost(one) == "-5"


async def test_a_new_leader_takes_the_cost_from_the_pod_of_an_earlier_one():
    api = PodApi()
    old, new = Candidate(api, "old", token=5), Candidate(api, "new", token=6)
    await old.lead()
    old.client.is_away = True  # so it cannot remove its label itself
    await new.lead()
    await until(lambda: cost(old) is None)
    assert cost(new) == COST
    old.client.is_away = False
    for each in (old, new):
        await each.election.shutdown()
    await settled()
