"""The Lease object: the fields that are read, and those that a write changes.

**A write sends the object that was read**, with five fields of its spec replaced. Labels, fields that some later
version of Kubernetes adds, ``resourceVersion`` and above all ``uid`` are sent back unchanged: without its uid, a PUT to
a deleted Lease does not fail, but creates the Lease again.

**Times are for display.** They are written as other clients write them, and never used for a decision. Their form is
strict: exactly six digits of a second and a zone, or the API server answers 400. Go's own clients print it that way;
``datetime.isoformat()`` leaves the digits out at microsecond 0. Each renewal is written as at least one second after
the last one, so with leases under three seconds, renewed more than once a second, the written time runs ahead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.api import LeaseObject
from pgleaderlock.stores.lease_observation import address_in, address_text
from pgleaderlock.stores.record import Claim, Record

__all__ = [
    "ADDRESS_ANNOTATION",
    "LeaseVersion",
    "WallClock",
    "claimed_lease",
    "micro_time",
    "new_lease",
    "read_lease",
    "utc_now",
]

ADDRESS_ANNOTATION = "pgleaderlock-address"
"""The annotation with the address of the leader, and before it the leaseTransitions of its term."""

WallClock = Callable[[], datetime]
"""The time of day, with its zone."""

_UNKNOWN_LEASE_S = 15.0  # for a holder that wrote none: the usual LeaseDuration of client-go
_RELEASED_LEASE_S = 1  # the smallest that the API server accepts; 0 is refused
_MOST = 2**31 - 1  # an int32 in the API


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def micro_time(at: datetime) -> str:
    """Print a time as the API server's MicroTime."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class LeaseVersion:
    """The version of a record. Equal when both uid and resourceVersion are: a Lease created again has another uid."""

    uid: str
    resource_version: str
    lease: LeaseObject = field(compare=False, repr=False)
    """The whole object, for the write that replaces it."""


def read_lease(lease: object) -> Record:
    """Read the record out of a Lease. Absent fields are allowed, as the API server allows them."""
    try:
        fields = _mapping(lease, "it")
        spec = _mapping(fields.get("spec") or {}, "spec")
        metadata = _mapping(fields.get("metadata"), "metadata")
        version = LeaseVersion(_text(metadata, "uid"), _text(metadata, "resourceVersion"), fields)
        annotations = _mapping(metadata.get("annotations") or {}, "annotations")
        token = _whole(spec, "leaseTransitions", 0, least=0)
        return Record(
            holder=_text(spec, "holderIdentity", ""),
            token=token,
            lease_s=float(_whole(spec, "leaseDurationSeconds", _UNKNOWN_LEASE_S, least=1)),
            version=version,
            since=_text(spec, "acquireTime", "") or None,
            address=address_in(annotations.get(ADDRESS_ANNOTATION), token),
        )
    except (TypeError, ValueError) as error:
        raise ConnectionError(
            f"the answer is not a Lease of coordination.k8s.io/v1 ({error}): does something other than the API server "
            "answer for it?"
        ) from error


def new_lease(namespace: str, name: str, claim: Claim, now: datetime) -> LeaseObject:
    """Return the Lease object for the first write."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata if claim.address is None else _with_address(metadata, claim),
        "spec": _claimed_spec({}, claim, now),
    }


def claimed_lease(version: LeaseVersion, claim: Claim, now: datetime) -> LeaseObject:
    """Return the object that was read, with the values of the claim."""
    lease = {**version.lease, "spec": _claimed_spec(version.lease.get("spec") or {}, claim, now)}
    if claim.address is None:  # what an earlier holder wrote stays, as with other clients: it counts for its own term
        return lease
    return {**lease, "metadata": _with_address(lease["metadata"], claim)}


def _with_address(metadata: dict[str, Any], claim: Claim) -> dict[str, Any]:
    """Return the metadata with the address of the holder."""
    annotations = {**(metadata.get("annotations") or {}), ADDRESS_ANNOTATION: address_text(claim.token, claim.address)}
    return {**metadata, "annotations": annotations}


def _claimed_spec(spec: Mapping[str, Any], claim: Claim, now: datetime) -> dict[str, Any]:
    is_renewal = bool(claim.holder) and not claim.is_new_term
    renewed = micro_time(max(now, _next_second(spec.get("renewTime"), now)) if is_renewal else now)
    claimed = {
        **spec,
        "holderIdentity": claim.holder,
        "leaseDurationSeconds": int(claim.lease_s) if claim.holder else _RELEASED_LEASE_S,
        "leaseTransitions": claim.token,
        "renewTime": renewed,
    }
    return claimed if is_renewal else {**claimed, "acquireTime": renewed}


def _next_second(text: object, default: datetime) -> datetime:
    """Return the earliest renewTime that every follower distinguishes from the last renewal.

    client-go compares Leases after cutting renewTime to whole seconds. It ignores a second renewal within one second:
    its wait counts from the first, and it takes over up to a second early, while the second one is still valid for us.
    Nor may the time stand still or go back, as a wall clock may: a PUT that changes nothing does not change the
    version.
    """
    try:
        last = datetime.fromisoformat(str(text))
        following = last.replace(microsecond=0) + timedelta(seconds=1)
        # In our own zone, here: the last hours of the year 9999 in America are in no year that can be written in UTC.
        return following.astimezone(UTC) if following.tzinfo is not None else default
    except (ValueError, OverflowError):  # OverflowError: another client wrote the end of the year 9999
        return default


def _mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no mapping")
    return value


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, str) or (default is None and not value):
        raise TypeError(f"{name} is not a text")
    return value


def _whole(fields: Mapping[str, Any], name: str, default: float, *, least: int) -> int:
    value = fields.get(name)
    if value is None:
        return int(default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is not a whole number")
    if not least <= value <= _MOST:
        raise ValueError(f"{name} is out of range")
    return value
