"""``pgleaderlock k8s rbac``: a manifest that Kubernetes would take; and what ``status`` says of a Lease."""

import asyncio
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
