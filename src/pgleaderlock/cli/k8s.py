"""``pgleaderlock k8s rbac``: the permissions that candidates need in Kubernetes, as a manifest."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_API = "rbac.authorization.k8s.io"

Manifest = list[dict[str, Any]]


def manifest(namespace: str, account: str, leases: tuple[str, ...], role: str | None = None) -> Manifest:
    """Return a Role and its binding; for these Leases alone, if any are named.

    The Role is named after what it allows, so that two applications in one namespace do not replace each other's.
    """
    role = role or f"pgleaderlock-{'-'.join(leases) or account}"
    for name in (namespace, account, role, *leases):
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"{name!r} is not a name in Kubernetes: lower-case letters, digits, - and .")
    place = {"name": role, "namespace": namespace}
    on_leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    only = {"resourceNames": list(leases)} if leases else {}
    rules = [
        # Creating cannot be limited to a name: an object that is not there yet has none.
        {**on_leases, "verbs": ["create"]},
        {**on_leases, **only, "verbs": ["get", "update", "list", "watch"]},
    ]
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


def as_list(objects: Manifest) -> dict[str, Any]:
    """Return them as one object, which ``kubectl apply -f -`` takes as well."""
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def as_yaml(objects: Manifest) -> str:
    """Return them as YAML, with a comment that explains them."""
    role, binding = objects
    names = role["rules"][1].get("resourceNames")
    what = f"the Lease {', '.join(names)}" if names else "all Leases"
    account, namespace = binding["subjects"][0]["name"], role["metadata"]["namespace"]
    head = (
        f"# Lets {account} take part in elections on {what} in namespace {namespace}.\n"
        "# get, create and update are needed; list and watch make a hand-over a matter of milliseconds instead of two "
        "seconds.\n"
    )
    return head + "---\n".join("".join(f"{line}\n" for line in _lines(each)) for each in objects)


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
