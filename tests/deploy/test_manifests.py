"""What holds in every manifest that we ship, without a cluster: kustomize base, and chart as Helm rendered it.

``test_manifests_server.py`` renders them again, and shows them to a real API server.
"""

import json
from typing import Any

import pytest
import yaml

from pgleaderlock.cli.commands import cli
from pgleaderlock.cli.k8s import manifest
from pgleaderlock.stores.kubernetes.config import SERVICE_ACCOUNT
from tests.support.manifests import BASE, NAMES, ROOT, Manifests, manifests

CHART = ROOT / "deploy" / "helm" / "pgleaderlock"
RELEASE_S = 10.0  # the longest time that a release may take after SIGTERM
WITH_SIDECAR = [name for name in NAMES if name != "exec"]


@pytest.fixture(params=NAMES)
def shipped(request: pytest.FixtureRequest) -> Manifests:
    return manifests(request.param)


def test_every_file_of_the_base_is_in_the_kustomization():
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in BASE.iterdir())


def test_the_command_of_a_pod_is_one_that_pgleaderlock_takes(shipped: Manifests, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGLEADERLOCK_URL", "postgresql+lease://db/app")  # as from the Secret
    name, *words = [word.replace("$(POD_IP)", "10.0.0.7") for word in shipped.command]
    with cli.commands[name].make_context(name, words) as context:
        assert context.params["url"]


def test_no_probe_asks_whether_the_pod_leads(shipped: Manifests):
    probes = [each[kind] for each in shipped.containers.values() for kind in each if kind.endswith("Probe")]
    assert {probe["httpGet"]["path"] for probe in probes} <= {"/healthz", "/readyz"}


@pytest.mark.parametrize("name", WITH_SIDECAR)
def test_the_sidecar_is_probed_for_its_election(name: str):
    sidecar = manifests(name).containers["sidecar"]
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "sidecar"}
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "sidecar"}
    assert sidecar["ports"] == [{"name": "sidecar", "containerPort": int(manifests(name).option("--port") or 0)}]


def test_an_update_begins_a_new_pod_before_it_ends_an_old_one(shipped: Manifests):
    strategy = shipped.one("Deployment")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_a_pod_has_time_to_hand_over(shipped: Manifests):
    until_release_s = float(shipped.option("--notice") or shipped.option("--kill-after") or 0)
    assert shipped.pod["spec"]["terminationGracePeriodSeconds"] > until_release_s + RELEASE_S


def test_containers_have_no_rights_and_cannot_write(shipped: Manifests):
    pod = shipped.pod["spec"]["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in shipped.containers.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_token_of_the_account_is_mounted_where_the_election_is_and_nowhere_else(shipped: Manifests):
    assert shipped.pod["spec"]["automountServiceAccountToken"] is False
    (volume,) = shipped.pod["spec"]["volumes"]
    mounted = {
        name: [each["mountPath"] for each in container.get("volumeMounts", []) if each["name"] == volume["name"]]
        for name, container in shipped.containers.items()
    }
    place = [str(SERVICE_ACCOUNT)]
    assert mounted == ({"worker": [], "sidecar": place} if "sidecar" in mounted else {"worker": place})


def test_a_pod_knows_its_name_and_namespace(shipped: Manifests):
    candidate = shipped.containers.get("sidecar") or shipped.containers["worker"]
    fields = {each["name"]: each["valueFrom"].get("fieldRef", {}).get("fieldPath") for each in candidate["env"]}
    assert fields["POD_NAME"] == "metadata.name"
    assert fields["POD_NAMESPACE"] == "metadata.namespace"


def test_the_role_allows_what_the_command_says_that_candidates_need(shipped: Manifests):
    url, label = shipped.option("--url"), shipped.option("--pod-label")
    if not url and not label:
        assert shipped.kind("Role") == []
        return
    lease = str(url).removeprefix("k8s:///")
    role, _ = manifest("default", "worker", (lease,), labels_pods=label is not None)
    assert shipped.one("Role")["rules"] == role["rules"]
    subject = shipped.one("RoleBinding")["subjects"][0]
    assert subject["name"] == shipped.one("ServiceAccount")["metadata"]["name"]
    assert subject["name"] == shipped.pod["spec"]["serviceAccountName"]


def test_objects_select_the_pods_of_the_deployment(shipped: Manifests):
    labels = shipped.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert labels.items() <= shipped.pod["metadata"]["labels"].items()
    assert shipped.one("PodDisruptionBudget")["spec"]["selector"] == {"matchLabels": labels}
    assert shipped.one("NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": labels}


def test_the_service_selects_the_leader_by_the_label_that_the_command_sets(shipped: Manifests):
    label, has_port = shipped.option("--pod-label"), "ports" in shipped.containers["worker"]
    if label is None or not has_port:
        assert shipped.kind("Service") == []
        return
    key, _, value = label.partition("=")
    labels = shipped.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert shipped.one("Service")["spec"]["selector"] == {**labels, key: value}


def test_other_pods_reach_the_port_of_the_worker_alone(shipped: Manifests):
    rules = shipped.one("NetworkPolicy")["spec"].get("ingress", [])
    assert rules == ([{"ports": [{"port": "http"}]}] if "ports" in shipped.containers["worker"] else [])


# --- The chart -------------------------------------------------------------------------------------------------------


def keys(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: keys(each) if "properties" in each else None for name, each in schema["properties"].items()}


def test_every_value_has_a_type_in_the_schema_and_a_default():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = keys(json.loads((CHART / "values.schema.json").read_text()))
    known.pop("global")  # Helm's own

    def check(found: dict[str, Any], shown: dict[str, Any], where: str) -> None:
        assert set(found) == set(shown), where
        for name, inner in shown.items():
            if inner is not None:
                check(found[name], inner, f"{where}.{name}")

    check(values, known, "values")


def test_the_version_of_the_chart_is_that_of_the_package():
    from pgleaderlock import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__.partition(".dev")[0]
