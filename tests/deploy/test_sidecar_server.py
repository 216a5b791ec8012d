"""Sidecars on a real API server: both answers, a hand-over, and a whole rolling update."""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator

import pytest

from proofs.rolling_update import OPTIONS, until_labelled
from tests.support.manifest_server import opened
from tests.support.pods import RealPods
from tests.support.rolling_update import LABEL, Deployment
from tests.support.sidecars import WAIT_S, ask, sidecar, until_answer

SERVER = os.environ["PGLEADERLOCK_K8S_SERVER"]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ENV = {"KUBECONFIG": SERVER, "POD_NAMESPACE": "default"}


@pytest.fixture
async def server() -> AsyncIterator[RealPods]:
    async with opened(SERVER) as pods:
        yield pods


async def test_a_follower_names_the_leader_and_leads_when_that_is_asked_to_end():
    options = ("--url", f"k8s:///sidecar-{uuid.uuid4().hex}", "--lease", "15", "--address", "http://10.0.0.7:80")
    async with sidecar(*options, pod="pod-1", **ENV) as first:
        own = await until_answer(first.url, "leader", 200)
        async with sidecar(*options, pod="pod-2", **ENV) as second:
            seen = await until_answer(second.url, "election", 200, leadership="led")
            assert seen["leader"]["name"] == own["leader"]["name"]
            assert seen["leader"]["token"] == own["token"] == 0
            assert await ask(second.url, "") == await ask(first.url, "") == (200, {"name": "pod-1"})
            first.signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait, WAIT_S) == 0
            assert (await until_answer(second.url, "leader", 200))["token"] == 1
            assert await ask(second.url, "") == (200, {"name": "pod-2"})


async def test_a_rolling_update_costs_one_hand_over(server: RealPods):
    lease = f"rolling-{uuid.uuid4().hex}"
    options = tuple(f"k8s:///{lease}" if word.startswith("k8s:") else word for word in OPTIONS)
    async with contextlib.AsyncExitStack() as stack:
        deployment = Deployment((*options, "--pod-label", LABEL), server, stack, ENV)
        leader = await deployment.start()
        deployment.make_ready_at(leader, 2)  # the controller would end it first
        old = set(deployment.running)
        await deployment.update(lambda: until_labelled(deployment))
        stored = await server.ask("GET", f"{LEASES}/{lease}")
        assert stored["spec"]["leaseTransitions"] == 1
        assert deployment.leaders[-1] not in old
        for name in list(deployment.running):
            await deployment.end_pod(name)
