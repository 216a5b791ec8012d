"""The calls on etcd that the store needs: read one key, replace its value, watch it.

The client over HTTP implements them (:class:`~pgleaderlock_etcd.client.GatewayClient`), and so does the model in the
tests; an application that has a client of its own can wrap it in these.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LossCause

__all__ = ["Change", "Compacted", "EtcdClient", "EtcdError", "Seen"]


class EtcdError(ConnectionError):
    """etcd answered, and the answer is an error; ``code`` is gRPC's.

    Still a ConnectionError: the state of the key is unknown, and a retry may help once the cause is removed.
    """

    def __init__(self, message: str, code: int, *, said: str = "") -> None:
        super().__init__(message, cause=LossCause.REFUSED, answered=True)
        self.code = code
        self.said = said
        """etcd's own words."""


class Compacted(ConnectionError):  # noqa: N818 - named after what happened
    """The watch was asked for changes that etcd no longer has: read the key, and watch from there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A key as it was at one revision of the cluster."""

    revision: int
    """The cluster's revision at the time of the read: the key has not changed up to here."""
    value: bytes | None
    """None when there is no such key."""
    mod_revision: int
    """The revision of the write that gave the key this value; 0 when there is no such key."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the key: a new value, or its deletion (None)."""

    revision: int
    value: bytes | None


class EtcdClient(Protocol):
    """The calls. Each ends in a bounded time; an error answer is :class:`EtcdError`, no answer is ConnectionError."""

    async def read(self, key: bytes) -> Seen:
        """Return the key as the majority of the members has it, never an older value."""
        ...

    async def replace(self, key: bytes, value: bytes, mod_revision: int) -> int | None:
        """Write if the key's ``mod_revision`` is still this one (0: no such key), and return the new one; else None."""
        ...

    def watch(self, key: bytes, start_revision: int) -> AsyncGenerator[Change, None]:
        """Yield all changes from that revision on. :class:`Compacted` when etcd no longer has them."""
        ...

    async def close(self) -> None:
        """Close the connections. Does not raise, may be repeated; the next call connects again."""
        ...
