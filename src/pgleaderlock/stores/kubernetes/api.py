"""The Kubernetes client that the store needs, five calls on one Lease, and that of the pod label, three on pods.

An application that has a client already (with its own authentication, or through a proxy) wraps it in these calls and
passes it in; ours over httpx is :class:`~pgleaderlock.stores.kubernetes.client.HttpLeaseClient`.

Leases are plain dictionaries, as the API server sent them: a typed object would lose the fields that its class does not
know, and every write must send the object that was read.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError

__all__ = ["ApiError", "LeaseClient", "LeaseObject", "PodClient", "PodObject"]

LeaseObject = dict[str, Any]
"""A Lease, a list of them or an event of a watch, as decoded from JSON. Treated as read-only."""


class ApiError(ConnectionError):
    """The API server answered, and the answer is an error.

    Still a ConnectionError, because the state of the lease is unknown and a retry may help: permissions are repaired,
    servers recover. The store checks ``status`` for the few answers that do show the state of the lease.
    """

    def __init__(self, message: str, status: int, *, cause: LossCause = LossCause.REFUSED) -> None:
        super().__init__(message, cause=cause)
        self.status = status


class LeaseClient(Protocol):
    """The requests for Leases. Each is bounded in time; an error answer is ApiError, no answer is ConnectionError."""

    async def get(self, namespace: str, name: str) -> LeaseObject:
        """GET one Lease. 404 when there is none."""
        ...

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        """POST a new Lease. 409 when there is one, 404 when the namespace is missing."""
        ...

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        """PUT exactly this object, with its resourceVersion and uid. 409 when another client's write came first."""
        ...

    async def list(self, namespace: str, name: str) -> LeaseObject:
        """List the Leases of that name, none or one; also returns the collection's resourceVersion."""
        ...

    def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        """Yield the events of that Lease since then, until the server ends the watch. Bounded by minutes."""
        ...

    async def close(self) -> None:
        """Close the connections. Does not raise, may be repeated; the next call connects again."""
        ...


PodObject = dict[str, Any]
"""The metadata of a pod, or a list of them, as decoded from JSON. Treated as read-only."""


class PodClient(Protocol):
    """The calls for the label of the leader's pod; they end and fail as those of :class:`LeaseClient`."""

    async def get(self, namespace: str, name: str) -> PodObject:
        """GET one pod; its metadata are enough. 404 when there is none."""
        ...

    async def list(self, namespace: str, selector: str, *, cached: bool) -> PodObject:
        """List the pods with this label, ``KEY=VALUE``; ``cached``: as the API server remembers them."""
        ...

    async def patch(self, namespace: str, name: str, change: PodObject) -> PodObject:
        """PATCH one pod with a JSON merge patch. 409 when its resourceVersion is not that of the patch."""
        ...

    async def close(self) -> None:
        """Close the connections. Does not raise, may be repeated; the next call connects again."""
        ...
