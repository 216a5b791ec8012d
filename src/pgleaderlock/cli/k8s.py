"""``pgleaderlock k8s rbac``: the permissions that candidates need in Kubernetes, as a manifest."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_API = "rbac.authorization.k8s.io"

Manifest = list[dict[str, Any]]


def manifest(
    namespace: str,
    account: str,
    leases: tuple[str, ...],
    role: str | None = None,
    *,
    has_leases: bool = True,
    labels_pods: bool = False,
) -> Manifest:
    """Return a Role and its binding; for these Leases alone, if any are named. Pods only if they are to be labelled.

    The Role is named after what it allows, so that two applications in one namespace do not replace each other's.
    """
    if not has_leases and (leases or not labels_pods):
        raise click.UsageError("--no-lease is for --pod-label alone: leave out --lease, or --no-lease.")
    allowed = "-".join(leases) or (account if has_leases else f"pod-label-{account}")
    role = role or f"pgleaderlock-{allowed}"
    for name in (namespace, account, role, *leases):
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"{name!r} is not a name in Kubernetes: lower-case letters, digits, - and .")
    place = {"name": role, "namespace": namespace}
    rules = [*(_lease_rules(leases) if has_leases else ()), *([_POD_RULE] if labels_pods else ())]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    reference = {"apiGroup": _API, "kind": "Role", "name": role}
    return [
        {"apiVersion": f"{_API}/v1", "kind": "Role", "metadata": place, "rules": rules},
        {
            "apiVersion": f"{_API}/v1",
            "kind": "RoleBinding",
            "metadata": place,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]


_POD_RULE: dict[str, Any] = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]}
"""For --pod-label. It cannot be limited to labels, nor to names: those of pods are not known beforehand."""


def _lease_rules(leases: tuple[str, ...]) -> list[dict[str, Any]]:
    on_leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    only = {"resourceNames": list(leases)} if leases else {}
    return [
        # Creating cannot be limited to a name: an object that is not there yet has none.
        {**on_leases, "verbs": ["create"]},
        {**on_leases, **only, "verbs": ["get", "update", "list", "watch"]},
    ]


def as_list(objects: Manifest) -> dict[str, Any]:
    """Return them as one object, which ``kubectl apply -f -`` takes as well."""
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def as_yaml(objects: Manifest) -> str:
    """Return them as YAML, with a comment that explains them."""
    role, binding = objects
    account, namespace = binding["subjects"][0]["name"], role["metadata"]["namespace"]
    head = "".join(f"# {line}\n" for line in _explained(role["rules"], account, namespace))
    return head + "---\n".join("".join(f"{line}\n" for line in _lines(each)) for each in objects)


def _explained(rules: list[dict[str, Any]], account: str, namespace: str) -> Iterator[str]:
    names = [rule.get("resourceNames") for rule in rules if rule["resources"] == ["leases"]]
    if names:
        what = f"the Lease {', '.join(names[-1])}" if names[-1] else "all Leases"
        yield f"Lets {account} take part in elections on {what} in namespace {namespace}."
        yield (
            "get, create and update are needed; list and watch make a hand-over a matter of milliseconds instead of "
            "two seconds."
        )
    if _POD_RULE in rules:
        yield f"Lets {account} label the leader's pod in namespace {namespace}, and remove the label of an earlier one."
        yield "It may then change every pod of the namespace: Kubernetes has no permission for labels alone."


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Write tables and lists of tables in YAML's indented style, and all else as JSON, which YAML includes."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, list) and isinstance(value[0], Mapping):
            yield f"{key}:"
            for item in value:
                first, *rest = _lines(item)
                yield from (f"  - {first}", *(f"    {line}" for line in rest))
        else:
            yield f"{key}: {json.dumps(value)}"
