"""One key of etcd as a record store.

The design decisions:

- **The version is the key's mod_revision**, and a write is a transaction that compares it.
- **The token of a term is the revision of the write that began it.** Revisions are those of the whole cluster and only
  grow, so tokens grow even when the key was deleted and no candidate remembers it. A cluster that was restored from a
  backup begins at an older revision; therefore the value also has the least token that the term may have, which is
  above that of the record before.
- **etcd's own leases are not used.** The end of one would be decided by the clock of a server, and would delete the key
  while the holder cannot learn of it; here a holder stops by its own clock, and followers wait for the whole lease on
  theirs. So the price of a lease that the server keeps, a second request for each renewal, buys nothing.
- **A watch notifies followers of a release, and a leader of the loss of its key.** Where it fails, both poll.
"""

import asyncio
import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime

from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LossCause
from pgleaderlock.stores.record import Claim, Record, RecordStore
from pgleaderlock_etcd.api import EtcdClient
from pgleaderlock_etcd.refusals import printable
from pgleaderlock_etcd.watch import KeyWatch

__all__ = ["EtcdStore"]

_LAST_TOKEN = 2**63 - 1  # as a revision of etcd
_SILENT_SHARE = 0.5
_POLL_S, _SHORTEST_POLL_S, _POLLS_PER_LEASE = 2.0, 0.2, 6


class EtcdStore(RecordStore):
    """The record in one key. ``lease_s`` decides how often a store without a watch is polled."""

    carries_address = True

    def __init__(self, client: EtcdClient, key: bytes, *, lease_s: float, endpoints: tuple[str, ...] = ()) -> None:
        self._client = client
        self._key = key
        self._endpoints = endpoints
        self._watch = KeyWatch(client, key, silence_s=_SILENT_SHARE * lease_s)
        self._poll_s = min(_POLL_S, max(_SHORTEST_POLL_S, lease_s / _POLLS_PER_LEASE))
        self._known = (-1, 0)  # a mod_revision, and up to which revision of the cluster the key has kept it

    @property
    def labels(self) -> Mapping[str, object]:
        """The key, and the members that were named."""
        members = ",".join(each.partition("://")[2] for each in self._endpoints)
        return {"etcd": members, "key": printable(self._key)} if members else {"key": printable(self._key)}

    @property
    def freeing(self) -> str:
        """The command with which an operator frees the lock of a holder that has ended."""
        return f"etcdctl del {printable(self._key)}"

    async def read(self) -> Record | None:
        """Read the key."""
        seen = await self._client.read(self._key)
        self._known = seen.mod_revision, seen.revision
        return None if seen.value is None else self._record(seen.value, seen.mod_revision)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Write the key if its mod_revision is still that of the record, or if there is still no such key."""
        if claim.is_new_term:
            since: str | None = datetime.now(UTC).isoformat(timespec="seconds")
            content: dict[str, object] = {"token_at_least": claim.token}
        else:
            since = None if replacing is None else replacing.since
            content = {"token": claim.token}
        content |= {"holder": claim.holder, "lease_s": claim.lease_s, "since": since, "address": claim.address}
        text = json.dumps(content)
        revision = await self._client.replace(self._key, text.encode(), _version(replacing))
        if revision is None:
            return None
        self._known = revision, revision
        return self._record(text.encode(), revision)

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Watch the key; when that fails, wait for one poll interval. None means that the caller must read."""
        version, known_up_to = self._known
        if version != _version(seen):
            if seen is None:
                return None  # the absence of the key was never read: a watch would have no beginning
            known_up_to = _version(seen)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        try:
            change = await self._watch.wait(known_up_to, timeout_s)
        except ConnectionError:
            await asyncio.sleep(min(max(0.0, deadline - clock()), self._poll_pause_s()))
            return None
        if change is None or change.value is None:
            return None
        self._known = change.revision, change.revision
        return self._record(change.value, change.revision)

    async def overwritten(self, held: Record) -> Record | None:
        """Watch the key that we hold."""
        while True:
            try:
                change = await self._watch.wait(_version(held), math.inf)
            except ConnectionError:
                await asyncio.sleep(self._poll_pause_s())
                continue
            if change is not None:
                return None if change.value is None else self._record(change.value, change.revision)

    async def close(self) -> None:
        """Close the watch and the connections."""
        await self._watch.close()
        await self._client.close()

    def _poll_pause_s(self) -> float:
        return self._poll_s * random.uniform(0.8, 1.2)  # noqa: S311 - spreads out followers, keeps no secret

    def _record(self, value: bytes, mod_revision: int) -> Record:
        """Return the record in a value; ConnectionError for one that no candidate wrote."""
        try:
            content = json.loads(value)
            holder, lease_s = content["holder"], float(content["lease_s"])
            since, address = content.get("since"), content.get("address")
            claimed = None if "token" in content else _token(content["token_at_least"])
            token = _token(content["token"]) if claimed is None else max(claimed, mod_revision)
            if not isinstance(holder, str) or not all(isinstance(each, str | None) for each in (since, address)):
                raise TypeError("not text")  # noqa: TRY301 - all that is wrong with a value has one answer
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ConnectionError(
                f"the key {printable(self._key)} in etcd has a value that pgleaderlock did not write: name another "
                f"key, or remove it: {self.freeing}",
                cause=LossCause.REFUSED,
                answered=True,
            ) from error
        return Record(holder, token, lease_s, mod_revision, since, address, claimed)


def _token(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LAST_TOKEN:
        raise ValueError("not a token")
    return value


def _version(record: Record | None) -> int:
    if record is None:
        return 0
    if not isinstance(record.version, int):
        raise TypeError("this record was not read from etcd")
    return record.version
