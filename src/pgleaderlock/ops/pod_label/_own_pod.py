"""Which pod this process runs in, and a client for its API server: found out before anything runs, or refused."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.kubernetes.api import PodClient
from pgleaderlock.stores.kubernetes.config import SERVICE_ACCOUNT, Cluster, find_cluster, namespace_of_pod

_WHY = "the pod label needs the pod of this process"


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod of this process, and a client that can change it."""

    namespace: str
    name: str
    client: PodClient


def find_own_pod(
    name: str | None,
    namespace: str | None,
    client: PodClient | None,
    environ: Mapping[str, str] | None,
    request_timeout_s: float,
) -> OwnPod:
    """Return the pod that the arguments and the environment name; ValueError that says what is missing."""
    environ = os.environ if environ is None else environ
    name = name or environ.get("POD_NAME") or _host_name(environ)
    namespace = namespace or environ.get("POD_NAMESPACE")
    if client is None:
        try:
            cluster = find_cluster(environ)
        except ValueError as error:
            raise ValueError(f"{_WHY} ({name}) and its API server: {error}") from error
        namespace = namespace or cluster.namespace
        client = _http_client(cluster, request_timeout_s)
    namespace = namespace or namespace_of_pod(SERVICE_ACCOUNT)
    if namespace is None:
        raise ValueError(
            f"{_WHY} ({name}), and its namespace is not known: set POD_NAMESPACE from metadata.namespace, or mount the "
            "service account; a kubeconfig may name it in its context"
        )
    return OwnPod(namespace, name, client)


def _host_name(environ: Mapping[str, str]) -> str:
    # In a pod it is the pod's name, unless the pod uses the host's network. Elsewhere it names no pod.
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        raise ValueError(
            f"{_WHY}, and this is none: KUBERNETES_SERVICE_HOST and POD_NAME are not set. In a pod, set POD_NAME from "
            "metadata.name; elsewhere, leave the pod label out"
        )
    return socket.gethostname()


def _http_client(cluster: Cluster, request_timeout_s: float) -> PodClient:
    try:
        from pgleaderlock.stores.kubernetes.pods import HttpPodClient  # noqa: PLC0415 - only where it is used
    except ImportError as error:  # pragma: no cover - the tests have it
        raise MissingExtra(
            f"the pod label needs the package {error.name}: pip install 'pgleaderlock[kubernetes]'"
        ) from error
    return HttpPodClient(cluster, request_timeout_s=request_timeout_s)
