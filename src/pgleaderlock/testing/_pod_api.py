"""The rules of the Kubernetes API for pods, as far as their metadata go: a read, a list by one label, a merge patch.

Written from what a real API server answers; ``tests/stores/test_pods_contract.py`` asks both the same questions.
"""

import copy
import uuid
from typing import Any

from pgleaderlock._base.pod_labels import label_fault
from pgleaderlock.testing._lease_api import Refusal

Object = dict[str, Any]


class PodApi:
    """The pods of all namespaces. They have no containers, and nothing runs in them."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Object] = {}
        self._revision = 1

    def create(self, namespace: str, name: str, labels: dict[str, str] | None = None) -> Object:
        """Make one, as a Deployment does; of the same name again, it is another pod."""
        pod: Object = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())},
        }
        if labels:
            pod["metadata"]["labels"] = dict(labels)
        self.pods[namespace, name] = pod
        return self._stamped(pod)

    def delete(self, namespace: str, name: str) -> None:
        """Remove one."""
        del self.pods[namespace, name]

    def get(self, namespace: str, name: str) -> Object:
        return copy.deepcopy(self._find(namespace, name))

    def listing(self, namespace: str, selector: str) -> Object:
        """Return those with this label, ``KEY=VALUE``."""
        key, _, value = selector.partition("=")
        items = [
            pod
            for (place, _), pod in self.pods.items()
            if place == namespace and (not key or pod["metadata"].get("labels", {}).get(key) == value)
        ]
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": str(self._revision)},
            "items": copy.deepcopy(items),
        }

    def patch(self, namespace: str, name: str, change: object) -> Object:
        """Merge this into one, if it is still of the version that the patch names."""
        pod = self._find(namespace, name)
        if not isinstance(change, dict) or not isinstance(change.get("metadata", {}), dict):
            raise Refusal(400, "BadRequest", "the patch is not a mapping")
        wanted = change.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != pod["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": {why}')
        merged = _merge(pod["metadata"], change.get("metadata", {}))
        merged = {field: value for field, value in merged.items() if value != {}}
        for key, value in merged.get("labels", {}).items():
            if label_fault(f"{key}={value}") is not None:
                raise Refusal(422, "Invalid", f'Pod "{name}" is invalid: metadata.labels: Invalid value: "{value}"')
        if merged != pod["metadata"]:
            pod["metadata"] = merged
            self._stamped(pod)
        return copy.deepcopy(pod)

    def _find(self, namespace: str, name: str) -> Object:
        pod = self.pods.get((namespace, name))
        if pod is None:
            raise Refusal(404, "NotFound", f'pods "{name}" not found')
        return pod

    def _stamped(self, pod: Object) -> Object:
        self._revision += 1
        pod["metadata"]["resourceVersion"] = str(self._revision)
        return copy.deepcopy(pod)


def _merge(old: Object, change: Object) -> Object:
    """Return the object with a JSON merge patch (RFC 7396) applied: null removes, a mapping is merged."""
    merged = dict(old)
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            before = old.get(name)
            merged[name] = _merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = value
    return merged
