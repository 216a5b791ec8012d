"""As much of HTTP/1.1 as a Kubernetes client speaks, for the fake API server."""

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from pgleaderlock.testing._lease_api import Refusal

_VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}
_PLACES = {"leases": ["apis", "coordination.k8s.io", "v1", "namespaces"], "pods": ["api", "v1", "namespaces"]}
_REASONS = {200: "OK", 201: "Created"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    resource: str
    namespace: str
    name: str | None
    query: dict[str, str]
    token: str | None
    body: bytes

    @property
    def verb(self) -> str:
        """What RBAC calls it."""
        if self.method != "GET":
            return _VERBS.get(self.method, self.method.lower())
        return "watch" if "watch" in self.query else "get" if self.name else "list"

    @property
    def named(self) -> str:
        """The verb, with the resource unless it is the usual one: ``get``, ``get pods``."""
        return f"{self.verb} pods" if self.resource == "pods" else self.verb

    @property
    def since(self) -> int | None:
        """The version that a watch begins after; None for the present."""
        text = self.query.get("resourceVersion", "")
        if text and not text.isdecimal():
            raise Refusal(400, "BadRequest", f"invalid resource version {text!r}")
        return int(text) if text else None

    @property
    def selected(self) -> str | None:
        """The one name that a list or watch is about."""
        return self.query.get("fieldSelector", "").removeprefix("metadata.name=") or None


def decode(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        raise Refusal(400, "BadRequest", "the body is not JSON") from None


def head(status: int, length: int, headers: str = "") -> bytes:
    """Return the first lines of an answer."""
    kind = "application/json"
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}\r\n"
        f"Content-Type: {kind}\r\n{headers}Content-Length: {length}\r\n\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    """Return one piece of a body whose length is not known beforehand; an empty one is its end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _place(parts: list[str]) -> tuple[str, str, str | None]:
    """Return the resource, its namespace and the name of one object; an empty resource if we have none there."""
    for resource, prefix in _PLACES.items():
        length = len(prefix)
        if parts[:length] == prefix and parts[length + 1 : length + 2] == [resource]:
            return resource, parts[length], parts[length + 2] if len(parts) > length + 2 else None
    return "", "", None


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; None when the client has no more of them."""
    if reader.at_eof():
        return None
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    url = urlsplit(target)
    parts = url.path.strip("/").split("/")
    resource, namespace, name = _place(parts)
    return Request(
        method if resource else "UNKNOWN",
        resource,
        namespace=namespace,
        name=name,
        query={name: values[0] for name, values in parse_qs(url.query).items()},
        token=headers.get("authorization", "").removeprefix("Bearer ") or None,
        body=await reader.readexactly(int(headers.get("content-length", 0))),
    )
