"""The rules of the Kubernetes API for Leases, without the network: what is answered to what.

Written from what a real API server answers; ``tests/stores/test_kubernetes_contract.py`` asks both the same questions.
"""

import copy
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

_KIND = "leases.coordination.k8s.io"
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME_LENGTH = 253
_INT32 = range(-(2**31), 2**31)
_SPEC = {
    "holderIdentity": "text",
    "leaseDurationSeconds": "int32",
    "acquireTime": "time",
    "renewTime": "time",
    "leaseTransitions": "int32",
}
_COORDINATED = {"strategy": "text", "preferredHolder": "text"}  # since 1.31; older servers drop them
_METADATA = ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid", "resourceVersion")


class Refusal(Exception):  # noqa: N818 - an answer like the others
    """An answer with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            "code": status,
        }


class LeaseApi:
    """The Leases of all namespaces, and every change of them."""

    def __init__(
        self,
        *,
        namespaces: tuple[str, ...] = ("default",),
        coordinated: bool = False,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_uid: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self.namespaces = set(namespaces)
        self.leases: dict[tuple[str, str], Object] = {}
        self.revision = 1
        self.history: list[tuple[int, str, Object]] = []
        self.forgotten_up_to = 0
        """A watch from an earlier version is refused, as after a compaction."""
        self._spec = {**_SPEC, **_COORDINATED} if coordinated else _SPEC
        self._wall_clock = wall_clock
        self._new_uid = new_uid

    def get(self, namespace: str, name: str) -> Object:
        lease = self.leases.get((namespace, name))
        if lease is None:
            raise Refusal(404, "NotFound", f'{_KIND} "{name}" not found')
        return copy.deepcopy(lease)

    def create(self, namespace: str, content: object) -> Object:
        lease = self._decode(namespace, content)
        name = lease["metadata"].get("name", "")
        if "resourceVersion" in lease["metadata"]:
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        self._check_values(name, lease)
        self._check_namespace(namespace)
        if (namespace, name) in self.leases:
            raise Refusal(409, "AlreadyExists", f'{_KIND} "{name}" already exists')
        return self._make(namespace, name, lease)

    def replace(self, namespace: str, name: str, content: object) -> tuple[int, Object]:
        """Replace one, or make it when there is none: the surprise that makes the uid matter."""
        lease = self._decode(namespace, content)
        metadata = lease["metadata"]
        if metadata.get("name", name) != name:
            told = metadata["name"]
            text = f"the name of the object ({told}) does not match the name on the URL ({name})"
            raise Refusal(400, "BadRequest", text)
        if not metadata.get("name"):
            raise Refusal(400, "BadRequest", "the name of the object is missing")
        old = self.leases.get((namespace, name))
        uid = metadata.get("uid")
        if uid and uid != (old["metadata"]["uid"] if old else ""):
            raise self._conflict(name, "Precondition failed: UID in precondition differs from UID in object meta")
        if old is None:
            self._check_namespace(namespace)
            self._check_values(name, lease)
            return 201, self._make(namespace, name, lease)
        version = metadata.get("resourceVersion")
        if not version:
            raise _invalid(name, "metadata.resourceVersion", "must be specified for an update")
        if version != old["metadata"]["resourceVersion"]:
            raise self._conflict(name, "the object has been modified; please apply your changes to the latest version")
        self._check_values(name, lease)
        lease["metadata"] = {**metadata, **_fixed(old)}
        if lease != old:
            self._note("MODIFIED", namespace, name, lease)
        return 200, copy.deepcopy(self.leases[namespace, name])

    def delete(self, namespace: str, name: str) -> Object:
        lease = self.get(namespace, name)
        del self.leases[namespace, name]
        self._stamp(lease)
        self.history.append((self.revision, "DELETED", lease))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def listing(self, namespace: str, name: str | None) -> Object:
        """Return those of a namespace, perhaps of one name."""
        items = [lease for key, lease in self.leases.items() if key[0] == namespace and name in (None, key[1])]
        return {
            "kind": "LeaseList",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"resourceVersion": str(self.revision)},
            "items": copy.deepcopy(items),
        }

    def events(self, namespace: str, name: str | None, since: int) -> list[tuple[int, Object]]:
        """Return what happened after that revision, as the lines of a watch."""
        return [
            (revision, {"type": kind, "object": copy.deepcopy(lease)})
            for revision, kind, lease in self.history
            if revision > since
            and lease["metadata"]["namespace"] == namespace
            and name in (None, lease["metadata"]["name"])
        ]

    # --- How an object becomes one of ours ---------------------------------------------------------------------

    def _make(self, namespace: str, name: str, lease: Object) -> Object:
        now = self._wall_clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        uid = str(self._new_uid())
        lease["metadata"] |= {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": now}
        self._note("ADDED", namespace, name, lease)
        return copy.deepcopy(lease)

    def _note(self, kind: str, namespace: str, name: str, lease: Object) -> None:
        self._stamp(lease)
        self.leases[namespace, name] = lease
        self.history.append((self.revision, kind, copy.deepcopy(lease)))

    def _stamp(self, lease: Object) -> None:
        self.revision += 1
        lease["metadata"]["resourceVersion"] = str(self.revision)

    def _decode(self, namespace: str, content: object) -> Object:
        """Keep the fields that a Lease has; a value of the wrong type is a bad request."""
        if not isinstance(content, dict):
            raise _bad("the object is not a mapping")
        if content.get("kind") not in ("Lease", None) or content.get("apiVersion") not in (
            "coordination.k8s.io/v1",
            None,
        ):
            raise _bad("the object is not a Lease")
        metadata, spec = content.get("metadata") or {}, content.get("spec") or {}
        if not isinstance(metadata, dict) or not isinstance(spec, dict):
            raise _bad("metadata or spec is not a mapping")
        _check_metadata(metadata)
        if metadata.get("namespace", namespace) not in (namespace, ""):
            raise _bad("the namespace of the provided object does not match the namespace sent on the request")
        return {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {field: metadata[field] for field in _METADATA if metadata.get(field)},
            "spec": {
                field: _checked(field, kind, spec[field])
                for field, kind in self._spec.items()
                if spec.get(field) is not None
            },
        }

    def _check_values(self, name: str, lease: Mapping[str, Any]) -> None:
        if len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
            raise _invalid(name, "metadata.name", "a lowercase RFC 1123 subdomain is needed")
        if lease["spec"].get("leaseDurationSeconds", 1) <= 0:
            raise _invalid(name, "spec.leaseDurationSeconds", "must be greater than 0")
        if lease["spec"].get("leaseTransitions", 0) < 0:
            raise _invalid(name, "spec.leaseTransitions", "must be greater than or equal to 0")
        if "preferredHolder" in lease["spec"] and "strategy" not in lease["spec"]:
            raise _invalid(name, "spec.preferredHolder", "needs a strategy")

    def _check_namespace(self, namespace: str) -> None:
        if namespace not in self.namespaces:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')

    def _conflict(self, name: str, why: str) -> Refusal:
        return Refusal(409, "Conflict", f'Operation cannot be fulfilled on {_KIND} "{name}": {why}')


def _fixed(old: Object) -> Object:
    """Return what no update can change."""
    return {field: old["metadata"][field] for field in ("namespace", "uid", "creationTimestamp", "resourceVersion")}


def _bad(why: str) -> Refusal:
    return Refusal(400, "BadRequest", f'Lease in version "v1" cannot be handled as a Lease: {why}')


def _invalid(name: str, field: str, why: str) -> Refusal:
    return Refusal(422, "Invalid", f'Lease.coordination.k8s.io "{name}" is invalid: {field}: {why}')


def _check_metadata(metadata: Object) -> None:
    for field in ("name", "namespace", "uid", "resourceVersion"):
        if not isinstance(metadata.get(field) or "", str):
            raise _bad(f"{field} is not a text")
    for field in ("labels", "annotations"):
        content = metadata.get(field)
        if content is None:
            continue
        if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
            raise _bad(f"{field} is not a map of texts")


def _checked(field: str, kind: str, value: object) -> object:
    if kind == "int32":
        if isinstance(value, bool) or not isinstance(value, int) or value not in _INT32:
            raise _bad(f"{field} is not an int32")
        return value
    if not isinstance(value, str):
        raise _bad(f"{field} is not a text")
    if kind == "text":
        return value
    if not _MICRO_TIME.fullmatch(value):
        raise _bad(f"parsing time of {field} as 2006-01-02T15:04:05.000000Z07:00")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise _bad(f"parsing time of {field}: out of range") from None
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
