"""Our own client of the API server for pods, over httpx: two reads and a merge patch, of their metadata alone."""

from pgleaderlock.stores.kubernetes.api import PodClient, PodObject
from pgleaderlock.stores.kubernetes.http_client import ApiClient, Ask
from pgleaderlock.stores.kubernetes.refusals import PODS

__all__ = ["HttpPodClient", "PodClient"]

# A whole pod has kilobytes of containers and status. A server that does not know the short form sends the long one.
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_MERGE = "application/merge-patch+json"


class HttpPodClient(ApiClient):
    """A :class:`PodClient` over httpx. Connects with the first request."""

    async def get(self, namespace: str, name: str) -> PodObject:
        """GET the metadata of one pod."""
        return await self._call(Ask(PODS, "get", namespace, name, accept=_METADATA))

    async def list(self, namespace: str, selector: str, *, cached: bool) -> PodObject:
        """List the metadata of the pods with this label."""
        # Version 0 is answered from the server's memory; without it etcd is read, for all pods of the namespace.
        query = {"labelSelector": selector, **({"resourceVersion": "0"} if cached else {})}
        return await self._call(
            Ask(PODS, "list", namespace, selector, by_name=False, query=query, accept=_METADATA_LIST)
        )

    async def patch(self, namespace: str, name: str, change: PodObject) -> PodObject:
        """PATCH one pod."""
        return await self._call(
            Ask(PODS, "patch", namespace, name, "PATCH", body=change, accept=_METADATA, content_type=_MERGE)
        )
