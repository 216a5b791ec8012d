"""The address of the API server and the credentials for it: from inside a pod, or from a kubeconfig file.

Environment variables for proxies are not read, so that a lease depends on its configuration only; a kubeconfig's
``proxy-url`` is.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pgleaderlock.stores.kubernetes.addresses import server_fault
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.credentials import TokenFile
from pgleaderlock.stores.kubernetes.files import exists, read_file
from pgleaderlock.stores.kubernetes.kubeconfig import read_kubeconfig
from pgleaderlock.stores.kubernetes.tls import authority_fault, pem_text

__all__ = ["SERVICE_ACCOUNT", "Cluster", "find_cluster", "in_cluster", "namespace_of_pod", "read_kubeconfig"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the certificate authority of its API server."""

_OF_THE_POD = "belongs to this pod's service account"


def find_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Return the cluster of $KUBECONFIG, else the one that this pod runs in, else the one of ``~/.kube/config``."""
    explicit = environ.get("KUBECONFIG")
    if environ.get("KUBERNETES_SERVICE_HOST") and not explicit:
        return in_cluster(environ, service_account)
    named = explicit or str(_home(environ) / ".kube" / "config")
    paths = [Path(part) for part in named.split(os.pathsep) if part]
    if not any(exists(path) for path in paths):
        raise ValueError(
            "found no Kubernetes to talk to: KUBERNETES_SERVICE_HOST is not set, so this is no pod, and there is no "
            f"kubeconfig at {named}. Set KUBECONFIG, or pass a client"
        )
    return read_kubeconfig(*paths)


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Return the cluster that this pod runs in."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    if fault := server_fault(server):
        raise ValueError(f"the address in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT (not shown) {fault}")
    authority_file = service_account / "ca.crt"
    authority = pem_text(read_file(authority_file, _OF_THE_POD))
    if fault := authority_fault(authority):
        raise ValueError(f"{authority_file}, which {_OF_THE_POD}, {fault}")
    return Cluster(
        server=server,
        credentials=TokenFile(service_account / "token"),
        authority=authority,
        namespace=namespace_of_pod(service_account),
    )


def namespace_of_pod(service_account: Path) -> str | None:
    """Return the namespace that this pod runs in; None when there is no such file."""
    file = service_account / "namespace"
    return read_file(file, _OF_THE_POD).decode("utf-8", "replace").strip() or None if exists(file) else None


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError as error:  # a user without an entry in /etc/passwd, as in containers
        raise ValueError(
            "found no Kubernetes to talk to: KUBERNETES_SERVICE_HOST is not set, so this is no pod, and without HOME "
            "there is no ~/.kube/config. Set KUBECONFIG, or pass a client"
        ) from error
