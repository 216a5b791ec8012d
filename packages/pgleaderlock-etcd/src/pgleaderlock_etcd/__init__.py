"""Leader election on etcd, as a store of pgleaderlock.

    pip install pgleaderlock-etcd
    pgleaderlock run --url etcd://etcd-1,etcd-2,etcd-3/locks/scheduler

Installed, the package makes ``etcd://`` and ``etcds://`` known to :func:`pgleaderlock.open_backend` and to every
command.
"""

import math

from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock_etcd.api import Change, Compacted, EtcdClient, EtcdError, Seen
from pgleaderlock_etcd.client import GatewayClient, default_next_after_s
from pgleaderlock_etcd.store import EtcdStore
from pgleaderlock_etcd.url import Tls, Where, parse

__all__ = [
    "Change",
    "Compacted",
    "EtcdClient",
    "EtcdError",
    "EtcdStore",
    "GatewayClient",
    "Seen",
    "Tls",
    "Where",
    "open_etcd",
]

_OPTIONS = ("user", "password", "ca", "cert", "key", "next_after_s")


def open_etcd(url: str, settings: BackendSettings) -> Backend:
    """Return a candidate for the lock in the key that the URL names; nothing is connected yet.

    Options: ``user`` and ``password``, in place of those in the URL; ``ca``, ``cert`` and ``key``, the paths of TLS
    files for ``etcds://``; ``next_after_s``, how long one member may take to answer before the next is asked.
    """
    options = dict(settings.own_options(url.partition("://")[0], _OPTIONS))
    next_after_s = options.pop("next_after_s", None)
    where = parse(url, settings.role, **options)
    if next_after_s is None:
        next_after_s = default_next_after_s(settings.lease_s, len(where.endpoints))
    elif isinstance(next_after_s, bool) or not isinstance(next_after_s, int | float) or not 0 < next_after_s < math.inf:
        raise ValueError(f"next_after_s must be a number of seconds greater than zero, got {next_after_s!r}")
    client = GatewayClient(where, next_after_s=next_after_s)
    store = EtcdStore(client, where.key, lease_s=settings.lease_s, endpoints=where.endpoints)
    return RecordBackend(
        store,
        identity=settings.identity,
        lease_s=settings.lease_s,
        clock=settings.clock,
        address=settings.address,
    )
