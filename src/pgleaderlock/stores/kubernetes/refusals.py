"""Error texts for the operator from error answers of the API server."""

import json
from dataclasses import dataclass

from pgleaderlock._base.checks import visible
from pgleaderlock.stores.kubernetes.api import ApiError

__all__ = ["LEASES", "PODS", "Resource", "explain"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: where its requests go, and what error texts call it."""

    name: str
    plural: str
    group: str
    """Its API group; empty for the core one."""
    needed: str
    """The verbs that we use, for an operator who has to allow them."""

    @property
    def in_role(self) -> str:
        """Return how a Role names it."""
        return f"{self.plural} of {self.group}" if self.group else self.plural


LEASES = Resource(
    "lease", "leases", "coordination.k8s.io", "needed: get, create, update; for fast hand-over also list, watch"
)
"""The Leases of the elections."""
PODS = Resource(
    "pod", "pods", "", "needed: get, patch; to remove the label of an earlier leader from its pod also list"
)
"""The pods that carry the label of the leader."""

_EXCERPT = 200
_FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 403, 404, 500
_ADVICE = {
    400: "the API server finds the object wrong",
    401: "the API server does not accept our credentials; is the token expired, or for another cluster?",
    403: (
        "RBAC does not allow it. Give our account a Role in namespace {namespace} with verb {verb!r} on {in_role} "
        "({needed})"
    ),
    404: "there is no such {kind}",
    409: "another client's write came first",
    422: "the API server finds the object wrong",
    429: "the API server is overloaded and asks us to come back later",
}


def explain(verb: str, namespace: str, name: str, status: int, body: bytes, *, resource: Resource = LEASES) -> ApiError:
    """Return the error for an answer with this status: the request, the server's message, and advice."""
    said = _message(body)
    text = f"cannot {verb} {resource.name} {namespace}/{name}: {_advice(verb, namespace, status, said, resource)}"
    return ApiError(f"{text} ({status}: {said})" if said else f"{text} ({status})", status)


def _message(body: bytes) -> str:
    """Return the server's message; of an answer that is no Status, such as a proxy's page, the beginning."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return visible(body[:_EXCERPT].decode("utf-8", "replace").strip())
    message = content.get("message") if isinstance(content, dict) else None
    return visible(str(message)[: 3 * _EXCERPT]) if message else ""


def _advice(verb: str, namespace: str, status: int, said: str, resource: Resource) -> str:
    advice = _ADVICE.get(status, "the API server is not well" if status >= _SERVER_ERROR else "the API server refuses")
    if status == _FORBIDDEN and "being terminated" in said:
        advice = "namespace {namespace} is being deleted"
    if status == _NOT_FOUND and (verb == "create" or "namespaces" in said):
        advice = "namespace {namespace} does not exist; is POD_NAMESPACE right?"
    return advice.format(
        verb=verb, namespace=namespace, kind=resource.name, in_role=resource.in_role, needed=resource.needed
    )
