"""``pgleaderlock k8s rbac``: a manifest that Kubernetes would take; and what ``status`` says of a Lease."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.doubles import until


def manifest(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert invoke(["k8s", "rbac", *words]) == exit_codes.CLEAN
    role, binding = yaml.safe_load_all(capsys.readouterr().out)
    return role, binding


def test_the_role_allows_what_an_election_asks_for(capsys: pytest.CaptureFixture[str]):
    role, binding = manifest(capsys, "--namespace", "jobs", "--service-account", "worker")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "create", "update", "list", "watch"}
    assert all(rule["apiGroups"] == ["coordination.k8s.io"] for rule in role["rules"])
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "jobs"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "worker", "namespace": "jobs"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_two_applications_of_one_namespace_do_not_replace_each_other_s(capsys: pytest.CaptureFixture[str]):
    names = [manifest(capsys, *words)[0]["metadata"]["name"] for words in (["--lease", "a"], ["--lease", "b"], [])]
    assert names == ["pgleaderlock-a", "pgleaderlock-b", "pgleaderlock-default"]
    assert manifest(capsys, "--name", "mine")[0]["metadata"]["name"] == "mine"


def test_it_can_be_limited_to_some_leases_except_for_making_them(capsys: pytest.CaptureFixture[str]):
    role, _ = manifest(capsys, "--lease", "one", "--lease", "two")
    by_verb = {verb: rule.get("resourceNames") for rule in role["rules"] for verb in rule["verbs"]}
    assert by_verb["create"] is None
    assert by_verb["update"] == ["one", "two"]


@pytest.mark.parametrize("words", [(), ("--lease", "1e3", "--lease", "true", "--namespace", "12")], ids=str)
def test_json_and_yaml_are_the_same_objects_whatever_a_name_looks_like(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    objects = list(manifest(capsys, *words))
    assert invoke(["k8s", "rbac", *words, "--json"]) == exit_codes.CLEAN
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["items"]) == ("List", objects)


@pytest.mark.parametrize("name", ["Upper", "a b", "x\ny: z", "-a", ""])
def test_what_is_no_name_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(["k8s", "rbac", "--lease", name]) == exit_codes.USAGE
    assert "not a name in Kubernetes" in capsys.readouterr().err


def test_a_pod_label_needs_pods_beside_leases_or_alone(capsys: pytest.CaptureFixture[str]):
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]}
    role, _ = manifest(capsys, "--lease", "one", "--pod-label")
    assert role["rules"][-1] == pods
    assert len(role["rules"]) == 3
    role, _ = manifest(capsys, "--pod-label", "--no-lease", "--service-account", "worker")
    assert (role["rules"], role["metadata"]["name"]) == ([pods], "pgleaderlock-pod-label-worker")


@pytest.mark.parametrize("words", [("--no-lease",), ("--no-lease", "--pod-label", "--lease", "x")], ids=" ".join)
def test_no_lease_is_for_a_pod_label_alone(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert invoke(["k8s", "rbac", *words]) == exit_codes.USAGE
    assert "--no-lease is for --pod-label alone" in capsys.readouterr().err


def test_the_example_allows_what_the_command_prints(capsys: pytest.CaptureFixture[str]):
    example = (Path(__file__).parents[2] / "examples" / "kubernetes" / "rbac.yaml").read_text(encoding="utf-8")
    command, printed = example.split("\n", 1)
    words = command.removeprefix("# pgleaderlock ").split()
    assert invoke(words) == exit_codes.CLEAN
    assert capsys.readouterr().out == printed


# --- The label of the leader's pod ---------------------------------------------------------------------------------


@pytest.fixture
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POD_NAME", "POD_NAMESPACE", "KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_pod")
@pytest.mark.parametrize("command", [("run",), ("exec", "--", "true")])
def test_a_pod_label_outside_a_pod_is_wrong_usage_before_anything_starts(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    words = ["--url", "memory://pod-label", "--pod-label", "a=b"]
    assert invoke([command[0], *words, *command[1:]]) == exit_codes.USAGE
    said = capsys.readouterr().err
    assert "--pod-label: the pod label needs the pod of this process, and this is none" in said
    assert "set POD_NAME from metadata.name" in said


@pytest.mark.usefixtures("no_pod")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--role", "a", "--pod-label", "leader"], "--pod-label must be KEY=VALUE"),
        (["--key", "7", "--pod-label", "x/{role}=leader"], "no role is named here"),
        (["--role", "a/b", "--pod-label", "x/leader={role}"], "must have a value"),
    ],
)
def test_a_label_that_kubernetes_would_refuse_is_wrong_usage(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
):
    assert invoke(["run", "--dsn", "postgresql://nowhere.invalid/x", *words]) == exit_codes.USAGE
    assert why in capsys.readouterr().err


def test_a_slot_without_a_leader_labels_no_pod(capsys: pytest.CaptureFixture[str]):
    words = ["--cron", "* * * * *", "--dsn", "postgresql://x/y", "--role", "a", "--pod-label", "a=b"]
    assert invoke(["exec", *words, "--", "true"]) == exit_codes.USAGE
    assert "--pod-label: not with --cron" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pod")
def test_a_pod_label_of_a_configuration_is_refused_outside_a_pod_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "node.toml"
    path.write_text('[cluster.leader_election]\nbackend = "memory://x"\nroles = ["a"]\npod_label = "a=b"\n')
    for command in (["run"], ["acquire"], ["exec", "--", "true"]):
        words = [command[0], "--config", str(path), *command[1:]]
        assert invoke(words) == exit_codes.USAGE
        assert "the pod label needs the pod of this process" in capsys.readouterr().err


async def labelled_by(server: FakeKubernetes, tmp_path: Path, *words: str) -> int:
    """Start a command in a pod, and wait until it is labelled."""
    server.pods.create("default", "pod-1")
    config = str(server.write_kubeconfig(tmp_path / "config"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pgleaderlock.cli", *words),
        env={**os.environ, "KUBECONFIG": config, "POD_NAME": "pod-1"},
    )
    try:
        await until(lambda: server.pods.get("default", "pod-1")["metadata"].get("labels") == {"x/leader": "a"})
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        code = await process.wait()
    return code


@pytest.mark.parametrize(
    ("command", "by_config"), [("run", False), ("run", True), ("exec", False), ("exec", True), ("acquire", True)]
)
@pytest.mark.slow
async def test_the_pod_of_a_command_that_leads_is_labelled_until_it_ends(
    server: FakeKubernetes, tmp_path: Path, command: str, *, by_config: bool
):
    path, url = tmp_path / "node.toml", f"file://{tmp_path}/lock"
    label = 'pod_label = "x/leader={role}"'
    path.write_text(f'[cluster.leader_election]\nbackend = "{url}"\nroles = ["a"]\n{label}\n')
    words = ["--config", str(path)] if by_config else ["--url", url, "--pod-label", "x/leader=a"]
    more = {"exec": ["--", "sleep", "600"], "acquire": ["--hold", "600"], "run": []}[command]
    code = await labelled_by(server, tmp_path, command, *words, *more)
    assert code == (128 + 15 if command == "exec" else exit_codes.CLEAN)
    assert "labels" not in server.pods.get("default", "pod-1")["metadata"]


# --- status --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes(coordinated=True) as server:
        yield server


async def status(config: Path, url: str, *words: str) -> str:
    """Ask as a person does: in a process of its own, since the server is in this one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pgleaderlock.cli", "status", "--url", url, *words),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(config)},
    )
    output, _ = await process.communicate()
    assert process.returncode == exit_codes.CLEAN
    return output.decode()


@pytest.mark.slow
async def test_a_lease_that_is_not_there_is_not_called_free_since_its_namespace_may_be_missing(
    server: FakeKubernetes, tmp_path: Path
):
    config = server.write_kubeconfig(tmp_path / "config")
    for namespace in ("default", "missing"):
        note = f"there is no Lease job in namespace {namespace} (no leader yet, or the namespace does not exist)"
        url = f"k8s://{namespace}/job"
        assert await status(config, url) == f"{url} has no holder: {note}\n"
        shown = json.loads(await status(config, url, "--json"))
        assert (shown["state"], shown["holder"], shown["note"]) == ("free", None, note)


@pytest.mark.slow
async def test_a_lease_that_was_released_is_free(server: FakeKubernetes, tmp_path: Path):
    config = server.write_kubeconfig(tmp_path / "config")
    server.api.create("default", {"metadata": {"name": "job"}, "spec": {"holderIdentity": ""}})
    assert await status(config, "k8s://default/job") == "k8s://default/job is free\n"
    assert "note" not in json.loads(await status(config, "k8s://default/job", "--json"))


async def test_the_holder_of_a_coordinated_election_is_shown(server: FakeKubernetes, tmp_path: Path):
    config = server.write_kubeconfig(tmp_path / "config")
    spec = {"holderIdentity": "candidate", "leaseDurationSeconds": 1, "strategy": "OldestEmulationVersion"}
    server.api.create("default", {"metadata": {"name": "job"}, "spec": spec})
    assert await status(config, "k8s://default/job") == "k8s://default/job is held by candidate\n"


def test_a_kubeconfig_that_is_wrong_is_wrong_usage_and_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "config").write_text("contexts: 5\ncurrent-context: c\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert invoke(["status", "--url", "k8s://default/job"]) == exit_codes.USAGE
    assert f"{tmp_path}/config: contexts must be a list" in capsys.readouterr().err
