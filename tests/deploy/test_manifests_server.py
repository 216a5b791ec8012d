"""The kustomize base and the example, shown to a real API server. ``test_chart_server.py`` shows it the chart.

``make test-k8s`` brings the server up. The server says yes to what it would store (a dry run), and
must have kept every field: one that it does not know is dropped in silence.
"""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.support.manifest_server import PATHS, opened, show
from tests.support.manifests import BASE, ROOT, Manifests
from tests.support.pods import RealPods
from tests.support.programs import find_program
from tests.support.registry import eventually
from tests.support.sidecars import sidecar, until_answer

SERVER = os.environ["PGLEADERLOCK_K8S_SERVER"]


@pytest.fixture
async def server() -> AsyncIterator[RealPods]:
    async with opened(SERVER) as pods:
        yield pods


def kustomized(folder: Path) -> Manifests:
    command = [find_program("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if "must be a file (got d=" in done.stderr:  # the kubectl of Debian 12: a folder was a base, not a resource
        file = folder / "kustomization.yaml"
        file.write_text(file.read_text(encoding="utf-8").replace("resources:", "bases:"), encoding="utf-8")
        return kustomized(folder)
    assert done.returncode == 0, done.stderr
    return Manifests(done.stdout)


async def test_the_server_takes_the_base(server: RealPods):
    built = kustomized(BASE)
    assert {each["kind"] for each in built.objects} == set(PATHS)
    await show(server, built.objects)


async def test_the_server_takes_the_overlay_of_the_docs(server: RealPods, tmp_path: Path):
    page = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n# kustomization.yaml\n")[2].partition("```")[0]
    assert "namespace: jobs" in text
    folder = tmp_path / "overlay"
    folder.mkdir()
    up = "../" * len(folder.parts[1:])
    (folder / "kustomization.yaml").write_text(text.replace("../pgleaderlock/", f"{up}{str(ROOT)[1:]}/"))
    built = kustomized(folder)
    assert {each["metadata"]["namespace"] for each in built.objects} == {"jobs"}
    assert built.one("RoleBinding")["subjects"][0]["namespace"] == "jobs"
    images = [each["image"] for each in built.containers.values()]
    assert all(image.startswith("registry.example/") for image in images), images
    for each in built.objects:
        each["metadata"]["namespace"] = "default"
    await show(server, built.objects)


async def test_the_server_takes_the_deployment_of_the_example(server: RealPods):
    text = (ROOT / "examples" / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8")
    await show(server, Manifests(text).objects)


async def test_a_candidate_with_no_other_rights_than_the_role_leads_and_labels_its_pod(
    server: RealPods, tmp_path: Path
):
    """The role of the base is bound to a user who has no other."""
    shipped = kustomized(BASE)
    role, binding = shipped.one("Role"), shipped.one("RoleBinding")
    binding["subjects"] = [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}]
    await server.ask("POST", f"/{PATHS['Role']}", role)
    await server.ask("POST", f"/{PATHS['RoleBinding']}", binding)
    kubeconfig = kubeconfig_of("nobody", tmp_path)
    pod = await server.create(app="worker")
    label = str(shipped.option("--pod-label"))
    options = ("--url", str(shipped.option("--url")), "--pod-label", label, "--lease", "15")
    try:
        async with sidecar(*options, pod=pod, KUBECONFIG=kubeconfig, POD_NAMESPACE="default") as process:
            await until_answer(process.url, "leader", 200)
            await eventually(lambda: is_labelled(server, label, [pod]))
    finally:
        await server.delete(pod)
        await server.ask("DELETE", f"/{PATHS['RoleBinding']}/{binding['metadata']['name']}")
        await server.ask("DELETE", f"/{PATHS['Role']}/{role['metadata']['name']}")


async def is_labelled(server: RealPods, label: str, pods: list[str]) -> bool:
    return await server.labelled(label) == pods


def kubeconfig_of(user: str, folder: Path) -> str:
    """Write a kubeconfig for another user of the same server."""
    config = yaml.safe_load(Path(SERVER).read_text(encoding="utf-8")) | {"current-context": user}
    cluster = config["clusters"][0]["cluster"]
    cluster["certificate-authority"] = str(Path(SERVER).parent / cluster["certificate-authority"])
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)
