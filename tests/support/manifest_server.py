"""An API server that is shown manifests: it says what it would store, and stores nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.pods import RealPods, real_pods

__all__ = ["PATHS", "has_policy_v1", "opened", "show"]

PATHS = {
    "Deployment": "apis/apps/v1/namespaces/default/deployments",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "Service": "api/v1/namespaces/default/services",
    "ServiceAccount": "api/v1/namespaces/default/serviceaccounts",
}


@asynccontextmanager
async def opened(kubeconfig: str) -> AsyncIterator[RealPods]:
    async with real_pods(kubeconfig) as (_, pods):
        yield pods


async def has_policy_v1(server: RealPods) -> bool:
    return (await server.http.get("/apis/policy/v1", headers=server.headers)).status_code == 200


async def show(server: RealPods, objects: list[dict[str, Any]]) -> None:
    """Have the server check them all, without storing any."""
    is_old = not await has_policy_v1(server)
    for each in objects:
        kind, path = each["kind"], PATHS[each["kind"]]
        if is_old and kind == "PodDisruptionBudget":  # the same fields, under the name of before 1.21
            each["apiVersion"], path = "policy/v1beta1", path.replace("policy/v1", "policy/v1beta1")
        assert_kept(each, await server.ask("POST", f"/{path}?dryRun=All", each), kind)


def assert_kept(sent: Any, stored: Any, where: str) -> None:
    """Every field that was sent is there; the server adds others."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            if value not in ({}, None):
                assert name in stored, f"{where}.{name} was dropped"
                assert_kept(value, stored[name], f"{where}.{name}")
    elif isinstance(sent, list):
        assert len(sent) == len(stored), where
        for number, value in enumerate(sent):
            assert_kept(value, stored[number], f"{where}[{number}]")
    else:
        assert sent == stored, where
