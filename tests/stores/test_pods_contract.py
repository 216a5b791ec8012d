"""What a Kubernetes API server answers about pods, asked of the fake always and of a real one where there is one."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from pgleaderlock.stores.kubernetes import ApiError
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.pods import HttpPodClient
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.pods import FakePods, Pods, pod_name, real_pods

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

REAL = os.environ.get("PGLEADERLOCK_K8S_SERVER")
KEY, TOKEN = "pgleaderlock/leader", "pgleaderlock/leader-token"


@dataclass
class Server:
    pods: Pods
    client: HttpPodClient


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "real":
        assert REAL is not None
        async with real_pods(REAL) as (cluster, pods):
            client = HttpPodClient(cluster)
            yield Server(pods, client)
            await client.close()
        return
    async with FakeKubernetes() as fake:
        client = HttpPodClient(Cluster(fake.url))
        yield Server(FakePods(fake), client)
        await client.close()


def patch(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata}


async def refused(call: Any) -> int:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value.status


async def test_a_pod_is_read_with_its_metadata_alone(server: Server):
    name = await server.pods.create(app="worker")
    pod = await server.client.get("default", name)
    assert pod["kind"] == "PartialObjectMetadata"
    assert "spec" not in pod
    assert (pod["metadata"]["name"], pod["metadata"]["labels"]) == (name, {"app": "worker"})
    assert pod["metadata"]["uid"]
    assert pod["metadata"]["resourceVersion"]


async def test_a_merge_patch_adds_labels_and_annotations_and_null_removes_them(server: Server):
    name = await server.pods.create(app="worker")
    done = await server.client.patch("default", name, patch(labels={KEY: "billing"}, annotations={TOKEN: "7"}))
    assert done["metadata"]["labels"] == {"app": "worker", KEY: "billing"}
    assert done["metadata"]["annotations"] == {TOKEN: "7"}
    done = await server.client.patch("default", name, patch(labels={KEY: None}, annotations={TOKEN: None}))
    assert done["metadata"]["labels"] == {"app": "worker"}
    assert not done["metadata"].get("annotations")


async def test_a_patch_of_what_is_not_there_changes_nothing(server: Server):
    name = await server.pods.create(app="worker")
    version = (await server.pods.metadata(name))["resourceVersion"]
    done = await server.client.patch("default", name, patch(labels={KEY: None}, annotations={TOKEN: None}))
    assert done["metadata"]["resourceVersion"] == version


async def test_a_patch_with_an_outdated_version_is_a_conflict(server: Server):
    name = await server.pods.create()
    old = (await server.pods.metadata(name))["resourceVersion"]
    first = await server.client.patch("default", name, patch(resourceVersion=old, labels={KEY: "a"}))
    assert first["metadata"]["resourceVersion"] != old
    assert await refused(server.client.patch("default", name, patch(resourceVersion=old, labels={KEY: "b"}))) == 409
    assert (await server.pods.metadata(name))["labels"] == {KEY: "a"}


async def test_a_pod_that_is_not_there_is_not_found(server: Server):
    assert await refused(server.client.get("default", pod_name())) == 404
    assert await refused(server.client.patch("default", pod_name(), patch(labels={KEY: "a"}))) == 404


@pytest.mark.parametrize(
    "labels", [{KEY: "-a"}, {KEY: "a b"}, {KEY: "a" * 64}, {"a/b/c": "x"}, {"A.b/c": "x"}, {"-a": "x"}, {"a" * 64: "x"}]
)
async def test_a_label_that_is_none_is_refused(server: Server, labels: dict[str, str]):
    assert await refused(server.client.patch("default", await server.pods.create(), patch(labels=labels))) == 422


@pytest.mark.parametrize("labels", [{KEY: ""}, {"a" * 63: "b" * 63}, {f"{'a.' * 126}a/x_y.z": "A-1"}])
async def test_the_longest_and_the_emptiest_labels_are_taken(server: Server, labels: dict[str, str]):
    name = await server.pods.create()
    await server.client.patch("default", name, patch(labels=labels))
    assert (await server.pods.metadata(name))["labels"] == labels


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("value", ["billing", ""])
async def test_pods_are_listed_by_one_label(server: Server, value: str, *, cached: bool):
    key, name = f"pgleaderlock/{pod_name()}", await server.pods.create()
    await server.pods.patch(name, labels={key: value})
    await server.pods.patch(await server.pods.create(), labels={key: "other"})
    listing: dict[str, Any] = {}
    for _ in range(100):  # the server's memory is a moment behind
        listing = await server.client.list("default", f"{key}={value}", cached=cached)
        if listing["items"]:
            break
    assert listing["kind"] == "PartialObjectMetadataList"
    (item,) = listing["items"]
    assert (item["metadata"]["name"], item["metadata"]["labels"]) == (name, {key: value})
    assert item["metadata"]["resourceVersion"] == (await server.pods.metadata(name))["resourceVersion"]
