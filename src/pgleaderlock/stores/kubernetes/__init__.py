"""Leader election on a Kubernetes Lease; candidates that use client-go can compete for the same Lease.

::

    backend = new_from_env("billing-scheduler")
    async with Election(backend) as election: ...

Needs ``pip install "pgleaderlock[kubernetes]"``, and a Role with get, create and update on leases of
coordination.k8s.io; with list and watch too, a hand-over takes milliseconds instead of a poll of two seconds, and a
leader detects at once that its Lease was emptied, replaced or deleted by hand.

Not safe: deleting the Lease or emptying its holder. Candidates that knew the deleted Lease wait for its lease duration
and continue its transitions; a candidate that starts just then, or one of client-go, creates it again at once, and
until the former leader has noticed (without list and watch: until its next renewal) there may be two leaders. Nor is a
candidate of client-go with a shorter LeaseDuration than our ``lease_s``: some versions of client-go use their own
setting, not the duration in the Lease.
"""

import os
import secrets
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.kubernetes.api import ApiError, LeaseClient, LeaseObject
from pgleaderlock.stores.kubernetes.config import SERVICE_ACCOUNT, Cluster, find_cluster, namespace_of_pod
from pgleaderlock.stores.kubernetes.lease import WallClock, utc_now
from pgleaderlock.stores.kubernetes.store import LeaseStore
from pgleaderlock.stores.record import RecordBackend, default_identity
from pgleaderlock.stores.times import USUAL_LEASE_S

__all__ = [
    "ApiError",
    "KubernetesBackend",
    "LeaseClient",
    "LeaseObject",
    "LeaseStore",
    "default_request_timeout_s",
    "new_from_env",
    "open_kubernetes",
]

_LONGEST_LEASE_S = 2**31 - 1  # an int32 in the API


class KubernetesBackend(RecordBackend):
    """One candidate for one Lease.

    ``identity`` must be unique to this process: a candidate that finds its own identity in a Lease regards the Lease as
    its own.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str | None = None,
        lease_s: float = USUAL_LEASE_S,
        clock: Clock = suspend_aware_clock,
        address: str | None = None,
    ) -> None:
        if identity is not None and not identity.strip():
            raise ValueError("identity must not be empty: an empty name marks a Lease as free")
        super().__init__(store, identity=identity, lease_s=_check_lease_s(lease_s), clock=clock, address=address)


def new_from_env(
    lease_name: str,
    *,
    lease_s: float = USUAL_LEASE_S,
    identity: str | None = None,
    namespace: str | None = None,
    client: LeaseClient | None = None,
    request_timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Clock = suspend_aware_clock,
    wall_clock: WallClock = utc_now,
    address: str | None = None,
) -> RecordBackend:
    """Return a candidate for that Lease, configured from the environment.

    The API server is the one of $KUBECONFIG, else of the pod of this process, else of ``~/.kube/config``. The namespace
    is ``namespace``, else $POD_NAMESPACE, else that of the configuration, else ``default``. The identity is
    ``identity``, else $POD_NAME (else the host's name) with a unique suffix.

    A ``client`` is used as it is: then no API server is looked up in the environment.
    """
    make_another = partial(
        new_from_env,
        lease_name,
        namespace=namespace,
        client=client,
        request_timeout_s=request_timeout_s,
        environ=environ,
        wall_clock=wall_clock,
        address=address,
    )
    environ = os.environ if environ is None else environ
    _check_lease_s(lease_s)
    namespace = namespace or environ.get("POD_NAMESPACE")
    if client is None:
        cluster = find_cluster(environ)
        namespace = namespace or cluster.namespace
        client = _http_client(
            cluster, lease_s, default_request_timeout_s(lease_s) if request_timeout_s is None else request_timeout_s
        )
    elif namespace is None:
        namespace = namespace_of_pod(SERVICE_ACCOUNT)
    store = LeaseStore(client, namespace or "default", lease_name, wall_clock=wall_clock)
    identity = identity or _pod_identity(environ)
    backend = KubernetesBackend(store, identity=identity, lease_s=lease_s, clock=clock, address=address)
    backend.make_another = make_another
    return backend


def open_kubernetes(
    url: str,
    *,
    lease_s: float = USUAL_LEASE_S,
    identity: str | None = None,
    client: LeaseClient | None = None,
    request_timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Clock = suspend_aware_clock,
    address: str | None = None,
) -> RecordBackend:
    """Return a candidate for the Lease ``k8s://namespace/name``, or ``k8s:///name`` in the environment's namespace."""
    namespace, name = _parse_url(url)
    return new_from_env(
        name,
        lease_s=lease_s,
        identity=identity,
        namespace=namespace,
        client=client,
        request_timeout_s=request_timeout_s,
        environ=environ,
        clock=clock,
        address=address,
    )


def _parse_url(url: str) -> tuple[str | None, str]:
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that does not belong to an IPv6 address
        parts = urlsplit("")
    name = parts.path.removeprefix("/")
    if parts.scheme != "k8s" or not name or "/" in name or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "a Lease is named as k8s://namespace/name, or k8s:///name for the namespace of the environment"
        )
    return parts.netloc or None, name


def default_request_timeout_s(lease_s: float) -> float:
    """Return how long one request may take: a renewal without an answer is retried while there is time.

    A renewal is sent after a third of the lease, and leadership is declared lost after two thirds. A quarter leaves
    room for an API server that is slow and for a second try on a new connection.
    """
    return min(5.0, max(0.5, lease_s / 4))


def _http_client(cluster: Cluster, lease_s: float, request_timeout_s: float) -> LeaseClient:
    try:
        from pgleaderlock.stores.kubernetes.client import HttpLeaseClient  # noqa: PLC0415 - only where it is used
    except ImportError as error:  # pragma: no cover - the tests have it
        raise MissingExtra(
            f"k8s:// needs the package {error.name}: pip install 'pgleaderlock[kubernetes]', or pass a client"
        ) from error
    # Just before the backend itself gives up, at 2/3, so that the error is the one that names the plug-in.
    return HttpLeaseClient(cluster, request_timeout_s=request_timeout_s, credential_timeout_s=lease_s * 0.65)


def _pod_identity(environ: Mapping[str, str]) -> str:
    # A restarted container has the same pod name and may have the same process id, but is another candidate.
    pod = environ.get("POD_NAME")
    return f"{pod}_{os.getpid()}_{secrets.token_hex(4)}" if pod else default_identity()


def _check_lease_s(lease_s: float) -> float:
    seconds = check_seconds("lease_s", lease_s)
    if seconds < 1 or seconds != int(seconds) or seconds > _LONGEST_LEASE_S:
        raise ValueError(f"lease_s must be a whole number of seconds, at least 1, for Kubernetes: got {lease_s}")
    return seconds
