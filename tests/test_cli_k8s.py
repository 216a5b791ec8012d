"""``pgleaderlock k8s rbac``: a manifest that Kubernetes would take."""

from typing import Any

import pytest
import yaml

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke


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


def test_it_can_be_limited_to_some_leases_except_for_making_them(capsys: pytest.CaptureFixture[str]):
    role, _ = manifest(capsys, "--lease", "one", "--lease", "two")
    by_verb = {verb: rule.get("resourceNames") for rule in role["rules"] for verb in rule["verbs"]}
    assert by_verb["create"] is None
    assert by_verb["update"] == ["one", "two"]


@pytest.mark.parametrize("name", ["Upper", "a b", "x\ny: z", "-a", ""])
def test_what_is_no_name_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(["k8s", "rbac", "--lease", name]) == exit_codes.USAGE
    assert "not a name in Kubernetes" in capsys.readouterr().err
