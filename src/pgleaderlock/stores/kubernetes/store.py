"""A Kubernetes Lease as a record store, by the rules of client-go: a Go controller can compete for the same Lease.

The design decisions:

- **The version is uid and resourceVersion.** A Lease that was deleted and created again is another record.
- **409 is not an error**: another client's write came first. Nor is 404 to a replacement: the Lease was deleted, and
  the next read shows that.
- **The token is leaseTransitions**, which client-go increments at every take-over too. It starts over when the Lease is
  deleted: do not delete a Lease whose token is used for fencing.
- **A Lease with a strategy belongs to Kubernetes' coordinated leader election**, which chooses among candidates that
  registered with it. Our candidates do not register, and do not acquire such a Lease. When such an election begins
  while we hold the Lease, it names a preferred holder, and we step down.
- **Followers and leaders watch the Lease.** A leader detects at once that its Lease was emptied, replaced or deleted by
  hand. Where watching is forbidden (it needs ``list`` and ``watch``), followers poll, which is logged once, and a
  leader detects such a change only at its next renewal: until then there may be two leaders.
- **No term follows the last number.** leaseTransitions is an int32; at its maximum the election stops with an error
  that says what to do, and goes on once an operator has written a smaller number.
"""

import asyncio
import math
import random
import re
from collections.abc import Mapping

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import quoted
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError
from pgleaderlock.stores.kubernetes.api import ApiError, LeaseClient, LeaseObject
from pgleaderlock.stores.kubernetes.lease import LeaseVersion, WallClock, claimed_lease, new_lease, read_lease, utc_now
from pgleaderlock.stores.kubernetes.watch import LeaseWatch
from pgleaderlock.stores.record import Claim, Record, RecordStore

__all__ = ["LeaseStore"]

_POLL_S, _SHORTEST_POLL_S = 2.0, 0.5
_POLLS_PER_LEASE = 6
_FORBIDDEN_FOR_S = 300.0
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME, _NAMESPACE = re.compile(rf"{_LABEL}(\.{_LABEL})*"), re.compile(_LABEL)
_NAME_LENGTH, _NAMESPACE_LENGTH = 253, 63
_LAST_TERM = 2**31 - 1  # an int32 in the API


class LeaseStore(RecordStore):
    """One Lease in one namespace."""

    carries_address = True

    def __init__(self, client: LeaseClient, namespace: str, name: str, *, wall_clock: WallClock = utc_now) -> None:
        # Both become part of a URL, so they are checked here and not by the API server only.
        if len(namespace) > _NAMESPACE_LENGTH or not _NAMESPACE.fullmatch(namespace):
            raise ValueError(
                f"{quoted(namespace)} cannot be a Kubernetes namespace: lower-case letters, digits and '-', at most 63"
            )
        if len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
            raise ValueError(
                f"{quoted(name)} cannot name a Kubernetes Lease: lower-case letters, digits, '-' and '.', at most 253, "
                "with a letter or digit at both ends of each part"
            )
        self._client = client
        self._namespace = namespace
        self._name = name
        self._wall_clock = wall_clock
        self._watch = LeaseWatch(client, namespace, name)
        self._held_as: str | None = None  # the identity with which we hold the Lease, as far as we know
        self._polls_until = -math.inf  # on the loop's clock
        self._has_logged_polling = False
        self._logger = get_logger().bind(**self.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """Namespace and name."""
        return {"namespace": self._namespace, "lease": self._name}

    async def read(self) -> Record | None:
        """GET the Lease."""
        lease = await self._get()
        if lease is None:
            return None
        return self._decidable(lease)

    def _decidable(self, lease: LeaseObject) -> Record:
        """Return the record of a Lease; LockError if a coordinated leader election decides who holds it."""
        record = self._record(lease)
        strategy = _spec(lease).get("strategy")
        if strategy and record.holder != self._held_as:
            raise LockError(
                f"lease {self._namespace}/{self._name} has spec.strategy {quoted(strategy)}: Kubernetes' "
                "coordinated leader election decides who holds it. Use another lease name, or remove the strategy and "
                "its candidates"
            )
        return record

    async def peek(self) -> Record | None:
        """GET the Lease, also one of a coordinated leader election, which has a holder too."""
        lease = await self._get()
        return None if lease is None else self._record(lease)

    @property
    def absence(self) -> str:
        """Why there may be no Lease. The API server gives the same answer for a missing Lease and namespace."""
        return (
            f"there is no Lease {self._name} in namespace {self._namespace} (no leader yet, or the "
            "namespace does not exist)"
        )

    @property
    def last_token(self) -> int:
        """The maximum of leaseTransitions, an int32."""
        return _LAST_TERM

    @property
    def freeing(self) -> str:
        """The kubectl command with which an operator empties the holder."""
        return self._patch("holderIdentity", '""')

    def _patch(self, field: str, value: str) -> str:
        patch = f'{{"spec":{{"{field}":{value}}}}}'
        return f"kubectl -n {self._namespace} patch lease {self._name} --type=merge -p '{patch}'"

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """POST the first Lease, or PUT the one that was read; return None when another client's write came first."""
        if claim.lease_s < 1 or claim.lease_s != int(claim.lease_s):
            raise LockError(
                f"lease {self._namespace}/{self._name} cannot last {claim.lease_s:g} s: Kubernetes counts whole seconds"
            )
        if claim.token > _LAST_TERM:
            raise LockError(
                f"lease {self._namespace}/{self._name} can have no term after {_LAST_TERM}, which is in its "
                f"leaseTransitions: no candidate can lead. Write the number of the last term that was led, with "
                f"{self._patch('leaseTransitions', '...')}, or use another lease name"
            )
        try:
            lease = await self._send(claim, replacing)
        except ApiError as error:
            if error.status == _CONFLICT or (error.status == _NOT_FOUND and replacing is not None):
                return None
            raise
        self._held_as = claim.holder or None
        return self._record(lease)

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Watch the Lease. When that fails, wait for one poll interval instead: the caller then reads the Lease."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        if clock() >= self._polls_until:
            try:
                changed = await self._watch.wait_for_change(None if seen is None else _version(seen), timeout_s)
            except ConnectionError as error:
                self._note_failed_watch(error, seen)
            else:
                return None if changed is None else self._decidable(changed.lease)
        await asyncio.sleep(min(max(0.0, deadline - clock()), _poll_pause_s(seen)))
        return None

    async def overwritten(self, held: Record) -> Record | None:
        """Watch the Lease that we hold. Retry a failed watch; where watching is forbidden, much later."""
        clock = asyncio.get_running_loop().time
        while True:
            if clock() >= self._polls_until:
                try:
                    if await self._watch.wait_for_loss(_version(held), held.lease_s):
                        return None if self._watch.last is None else self._record(self._watch.last.lease)
                except ConnectionError as error:
                    self._note_failed_watch(error, held)
            await asyncio.sleep(_poll_pause_s(held))

    def _note_failed_watch(self, error: ConnectionError, seen: Record | None) -> None:
        if not isinstance(error, ApiError) or error.status != _FORBIDDEN:
            self._logger.debug("watch_failed", error=error)
            return
        # An operator may add the permission, or it may take effect late: so watching is retried, but logged once.
        self._polls_until = asyncio.get_running_loop().time() + _FORBIDDEN_FOR_S
        if not self._has_logged_polling:
            self._has_logged_polling = True
            self._logger.warning("watch_forbidden", error=error, polled_every_s=_poll_s(seen))

    async def close(self) -> None:
        """Close the watch and the connections."""
        await self._watch.close()
        self._held_as = None
        await self._client.close()

    async def _get(self) -> LeaseObject | None:
        try:
            return await self._client.get(self._namespace, self._name)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _send(self, claim: Claim, replacing: Record | None) -> LeaseObject:
        now = self._wall_clock()
        if replacing is None:
            return await self._client.create(self._namespace, new_lease(self._namespace, self._name, claim, now))
        version = _version(replacing)
        preferred = _spec(version.lease).get("preferredHolder")
        is_renewal = bool(claim.holder) and not claim.is_new_term
        if is_renewal and preferred and preferred != claim.holder:
            raise LeadershipLost(
                f"Kubernetes' coordinated leader election prefers {quoted(preferred)} for lease "
                f"{self._namespace}/{self._name}: stepping down in its favour",
                cause=LossCause.STEPPED_DOWN,
            )
        return await self._client.replace(self._namespace, self._name, claimed_lease(version, claim, now))

    def _record(self, lease: LeaseObject) -> Record:
        try:
            return read_lease(lease)
        except ConnectionError as error:
            raise ConnectionError(f"lease {self._namespace}/{self._name}: {error}") from error


def _spec(lease: LeaseObject) -> Mapping[str, object]:
    return lease.get("spec") or {}


def _version(record: Record) -> LeaseVersion:
    if not isinstance(record.version, LeaseVersion):
        raise TypeError("this record was not read from a Kubernetes Lease")
    return record.version


def _poll_s(seen: Record | None) -> float:
    """Return the time between two polls: a sixth of the lease, but 0.5 to 2 s."""
    return _POLL_S if seen is None else min(_POLL_S, max(_SHORTEST_POLL_S, seen.lease_s / _POLLS_PER_LEASE))


def _poll_pause_s(seen: Record | None) -> float:
    return _poll_s(seen) * random.uniform(0.8, 1.2)  # noqa: S311 - spreads out followers, keeps no secret
