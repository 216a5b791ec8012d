"""``pgleaderlock k8s rbac``: what a Kubernetes administrator has to allow, as a manifest."""

import re

import click

__all__ = ["manifest"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")

# Creating cannot be limited to a name: an object that is not there yet has none.
_MANIFEST = """\
# Lets {account} take part in elections on {what} in namespace {namespace}.
# get, create and update are needed; list and watch make a hand-over a matter of milliseconds instead of two seconds.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {role}
  namespace: {namespace}
rules:
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    verbs: ["create"]
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
{names}    verbs: ["get", "update", "list", "watch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {role}
  namespace: {namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {role}
subjects:
  - kind: ServiceAccount
    name: {account}
    namespace: {namespace}
"""


def manifest(namespace: str, account: str, leases: tuple[str, ...], role: str | None = None) -> str:
    """Return a Role and its binding; for these Leases alone, if any are named.

    Two applications of one namespace must not replace each other's, so it is named after what it allows.
    """
    role = role or f"pgleaderlock-{'-'.join(leases) or account}"
    for name in (namespace, account, role, *leases):
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"{name!r} is not a name in Kubernetes: lower-case letters, digits, - and .")
    names = f"    resourceNames: [{', '.join(leases)}]\n" if leases else ""
    what = f"the Lease {', '.join(leases)}" if leases else "all Leases"
    return _MANIFEST.format(namespace=namespace, account=account, names=names, what=what, role=role)
