"""Pods as objects, on the fake or on a real API server: no kubelet runs them, and none is needed for their labels."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.config import read_kubeconfig
from pgleaderlock.stores.kubernetes.pods import HttpPodClient
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes

PODS = "/api/v1/namespaces/default/pods"
_numbers = count(1)


def pod_name() -> str:
    return f"pod-{os.getpid()}-{next(_numbers)}"


class Pods:
    """What an operator does with pods, past the code that is tested."""

    async def create(self, name: str | None = None, **labels: str) -> str:
        """Make a pod, and return its name. Labels are written as ``app="worker"``."""
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        raise NotImplementedError

    async def metadata(self, name: str) -> dict[str, Any]:
        raise NotImplementedError

    async def patch(self, name: str, **metadata: Any) -> None:
        """Merge this into the metadata."""
        raise NotImplementedError

    async def labelled(self, label: str) -> list[str]:
        """Return the names of the pods with this label, sorted."""
        raise NotImplementedError


class FakePods(Pods):
    def __init__(self, server: FakeKubernetes) -> None:
        self._api = server.pods

    async def create(self, name: str | None = None, **labels: str) -> str:
        return str(self._api.create("default", name or pod_name(), labels)["metadata"]["name"])

    async def delete(self, name: str) -> None:
        self._api.delete("default", name)

    async def metadata(self, name: str) -> dict[str, Any]:
        return dict(self._api.get("default", name)["metadata"])

    async def patch(self, name: str, **metadata: Any) -> None:
        self._api.patch("default", name, {"metadata": metadata})

    async def labelled(self, label: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self._api.listing("default", label)["items"])


class RealPods(Pods):
    def __init__(self, http: httpx.AsyncClient, headers: Mapping[str, str]) -> None:
        self.http = http
        self.headers = dict(headers)

    async def ask(self, method: str, path: str, content: Any = None, **headers: str) -> dict[str, Any]:
        answer = await self.http.request(method, path, json=content, headers={**self.headers, **headers})
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def create(self, name: str | None = None, **labels: str) -> str:
        name = name or pod_name()
        spec = {"containers": [{"name": "worker", "image": "none"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        await self.ask("POST", PODS, pod)
        return name

    async def delete(self, name: str) -> None:
        await self.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    async def metadata(self, name: str) -> dict[str, Any]:
        return dict((await self.ask("GET", f"{PODS}/{name}"))["metadata"])

    async def patch(self, name: str, **metadata: Any) -> None:
        change = {"metadata": metadata}
        await self.ask("PATCH", f"{PODS}/{name}", change, **{"Content-Type": "application/merge-patch+json"})

    async def labelled(self, label: str) -> list[str]:
        listing = await self.ask("GET", f"{PODS}?labelSelector={label.replace('=', '%3D')}")
        return sorted(item["metadata"]["name"] for item in listing["items"])


@asynccontextmanager
async def real_pods(kubeconfig: str) -> AsyncIterator[tuple[Cluster, RealPods]]:
    """Yield a cluster that is really there, and its pods."""
    cluster = read_kubeconfig(Path(kubeconfig))
    credential = await cluster.credentials.get()
    client = HttpPodClient(cluster)
    yield cluster, RealPods(await client._connected(credential), {"Authorization": f"Bearer {credential.token}"})
    await client.close()


def as_user(kubeconfig: str, user: str) -> Cluster:
    """Return the cluster as another user of that kubeconfig."""
    path = Path(kubeconfig)
    text = path.read_text(encoding="utf-8").replace("current-context: admin", f"current-context: {user}")
    path.with_name(user).write_text(text, encoding="utf-8")
    return read_kubeconfig(path.with_name(user))
