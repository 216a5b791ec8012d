"""A rolling update costs one hand-over: real sidecars, and the order in which a ReplicaSet ends its pods."""

import pytest

from pgleaderlock.ops.pod_label._pods import COST, COST_KEY
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from proofs.rolling_update import deployed, handovers, until_labelled, update_once
from tests.support.rolling_update import LABEL

pytestmark = pytest.mark.slow
FIRST = 2  # the place of the leader among the pods that became ready: the controller ends the latest first


async def test_the_leader_ends_last_and_its_successor_is_a_new_pod():
    async with FakeKubernetes() as server, deployed(server, "--pod-label", LABEL) as deployment:
        leader = await deployment.start()
        deployment.make_ready_at(leader, FIRST)
        old = set(deployment.running)

        async def settled() -> None:
            name = await until_labelled(deployment)
            pods = {pod: await deployment.pods.metadata(pod) for pod in deployment.running}
            assert [pod for pod, each in pods.items() if each.get("annotations", {}).get(COST_KEY) == COST] == [name]

        await deployment.update(settled)
        assert handovers(server) == 1
        assert deployment.leaders[0] == leader
        assert len(deployment.leaders) == 2
        assert deployment.leaders[1] not in old


async def test_without_the_label_the_leader_may_end_first_and_hand_over_to_a_pod_that_ends_too():
    assert 1 <= await update_once(FIRST, is_labelled=False) <= 3
