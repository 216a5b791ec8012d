"""What the store asks of a Kubernetes client: five calls on one Lease.

Whoever has a client already (one that is authenticated in some way of its own, or goes through some proxy) wraps it in
these calls and passes it in; ours over httpx is :class:`~pgleaderlock.backends.kubernetes.client.HttpLeaseClient`.

Leases are plain dictionaries, as the API server sent them. That is the point: a typed object would lose the fields
that its class does not know, and every write must be the object that was read.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from pgleaderlock.causes import LossCause
from pgleaderlock.errors import ConnectionError

__all__ = ["ApiError", "LeaseClient", "LeaseObject"]

LeaseObject = dict[str, Any]
"""A Lease, a list of them or an event of a watch, as decoded from JSON. Treated as read-only."""


class ApiError(ConnectionError):
    """The API server answered, and the answer is an error.

    Still a ConnectionError, because nothing was learned about the lease and asking again may help: permissions are
    repaired, servers recover. The store looks at ``status`` for the few answers that do say something.
    """

    def __init__(self, message: str, status: int, *, cause: LossCause = LossCause.REFUSED) -> None:
        super().__init__(message, cause=cause)
        self.status = status


class LeaseClient(Protocol):
    """The calls. Each ends in a bounded time; an error answer is :class:`ApiError`, no answer is ConnectionError."""

    async def get(self, namespace: str, name: str) -> LeaseObject:
        """GET one Lease. 404 when there is none."""
        ...

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        """POST a new Lease. 409 when there is one, 404 when the namespace is missing."""
        ...

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        """PUT exactly this object, with its resourceVersion and uid. 409 when another was quicker."""
        ...

    async def list(self, namespace: str, name: str) -> LeaseObject:
        """List the Leases of that name, none or one: for the collection's resourceVersion."""
        ...

    def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        """Yield the events of that Lease since then, until the server ends the watch. Bounded by minutes."""
        ...

    async def close(self) -> None:
        """Let go of connections. Does not raise, may be repeated; the next call connects again."""
        ...
