"""Our own client of the API server for Leases, over httpx: three verbs, a list and a watch.

For one object this is enough, and it keeps the fields that it does not know.
"""

import contextlib
import random
from collections.abc import AsyncGenerator

from pgleaderlock.stores.kubernetes.api import LeaseClient, LeaseObject
from pgleaderlock.stores.kubernetes.http_client import ApiClient, Ask
from pgleaderlock.stores.kubernetes.refusals import LEASES

__all__ = ["HttpLeaseClient", "LeaseClient"]

_WATCH_S = 300  # for one stream; the server ends it then, and a dead one is noticed soon after


class HttpLeaseClient(ApiClient):
    """A :class:`LeaseClient` over httpx. Connects with the first request."""

    async def get(self, namespace: str, name: str) -> LeaseObject:
        """GET one Lease."""
        return await self._call(Ask(LEASES, "get", namespace, name))

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        """POST a new Lease."""
        return await self._call(
            Ask(LEASES, "create", namespace, lease["metadata"]["name"], "POST", by_name=False, body=lease)
        )

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        """PUT exactly this object."""
        return await self._call(Ask(LEASES, "update", namespace, name, "PUT", body=lease))

    async def list(self, namespace: str, name: str) -> LeaseObject:
        """List the Leases of that name."""
        query = {"fieldSelector": f"metadata.name={name}"}
        return await self._call(Ask(LEASES, "list", namespace, name, by_name=False, query=query))

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        """Yield the events of that Lease since then."""
        # Spread out, so that the streams of followers that started together do not always end together.
        stream_s = int(_WATCH_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
        query = {
            "fieldSelector": f"metadata.name={name}",
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(stream_s),
        }
        ask = Ask(LEASES, "watch", namespace, name, by_name=False, query=query)
        async with contextlib.aclosing(self._stream(ask, stream_s)) as events:
            async for event in events:
                yield event
