"""Constructors of the built-in backends from their URLs. A wrong URL is a ValueError, before anything is connected."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import RecordBackend, RecordStore


def open_postgres(url: str, settings: BackendSettings) -> Backend:
    """Return a backend with two advisory locks on two sessions."""
    from pgleaderlock.postgres.backend import Connector, make_backend  # noqa: PLC0415 - each is imported when asked for
    from pgleaderlock.postgres.lease import OF_BACKEND, Lease  # noqa: PLC0415
    from pgleaderlock.postgres.login import log_in  # noqa: PLC0415

    key = LockKey.named(_role(settings, "postgresql://"))
    options = dict(settings.own_options("postgresql", [*OF_BACKEND, "password"]))
    dsn = log_in(url, options.pop("password", None))
    lease = Lease(settings.lease_s, address=settings.address, **options)
    return make_backend(key, lease, settings.clock, Connector(key, dsn=dsn, lease=lease))


def open_lease_rows(url: str, settings: BackendSettings) -> Backend:
    from pgleaderlock.postgres.lease_table import LeaseRowStore  # noqa: PLC0415

    dsn = url.replace("postgresql+lease://", "postgresql://", 1)
    role = _role(settings, "postgresql+lease://")
    options = _options(settings, "postgresql+lease", LeaseRowStore, own=("has_address",))
    store = LeaseRowStore(dsn, role, lease_s=settings.lease_s, has_address=settings.address is not None, **options)
    return _on_record(store, settings)


def open_kubernetes(url: str, settings: BackendSettings) -> Backend:
    settings.check_no_role("k8s")
    from pgleaderlock.stores import kubernetes  # noqa: PLC0415

    options = _options(settings, "k8s", kubernetes.open_kubernetes)
    return kubernetes.open_kubernetes(url, **_common(settings), **options)


def open_file(url: str, settings: BackendSettings) -> Backend:
    settings.check_no_role("file")
    from pgleaderlock.stores.file import backend  # noqa: PLC0415

    options = _options(settings, "file", backend.open_file)
    return backend.open_file(url, **_common(settings), **options)


def open_nfs(url: str, settings: BackendSettings) -> Backend:
    """Return a backend with a lease in a folder that hosts share."""
    settings.check_no_role("nfs")
    from pgleaderlock.stores.nfs import backend  # noqa: PLC0415

    options = _options(settings, "nfs", backend.open_nfs)
    return backend.open_nfs(url, **_common(settings), **options)


def open_memory(url: str, settings: BackendSettings) -> Backend:
    """Return a backend with a lease in a variable of this process."""
    settings.check_no_role("memory")
    from pgleaderlock.stores.memory import MemoryStore  # noqa: PLC0415

    name = unquote(url.removeprefix("memory://").partition("?")[0].partition("#")[0])
    if not name:
        raise ValueError("memory:// needs a name, as in memory://scheduler")
    _options(settings, "memory", MemoryStore)
    return _on_record(MemoryStore(name), settings)


def _on_record(store: RecordStore, settings: BackendSettings) -> RecordBackend:
    return RecordBackend(store, **_common(settings))


def _common(settings: BackendSettings) -> dict[str, Any]:
    """Return the keywords that all lease stores have."""
    common = ("lease_s", "identity", "clock", "address")
    return {name: getattr(settings, name) for name in common}


def _options(
    settings: BackendSettings, scheme: str, make: Callable[..., object], own: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return the options; TypeError for one that the backend does not have. ``own`` are set here, not by callers."""
    known = [
        name
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.default is not parameter.empty and name not in {"lease_s", "identity", "clock", "address", *own}
    ]
    return settings.own_options(scheme, known)


def _role(settings: BackendSettings, scheme: str) -> str:
    if settings.role is None:
        raise ValueError(f"{scheme} holds many locks: name one with role=, such as role='billing/scheduler'")
    return settings.role
