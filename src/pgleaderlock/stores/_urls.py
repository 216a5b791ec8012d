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

    key = LockKey.named(_role(settings, "postgresql://"))
    lease = Lease(settings.lease_s, **_refuse_unknown(settings, "postgresql://", OF_BACKEND))
    return make_backend(key, lease, settings.clock, Connector(key, dsn=url, lease=lease))


def open_lease_rows(url: str, settings: BackendSettings) -> Backend:
    from pgleaderlock.postgres.lease_table import LeaseRowStore  # noqa: PLC0415

    dsn = url.replace("postgresql+lease://", "postgresql://", 1)
    role = _role(settings, "postgresql+lease://")
    options = _options(settings, "postgresql+lease://", LeaseRowStore)
    return _on_record(LeaseRowStore(dsn, role, lease_s=settings.lease_s, **options), settings)


def open_kubernetes(url: str, settings: BackendSettings) -> Backend:
    _check_no_role(settings, "k8s://")
    from pgleaderlock.stores import kubernetes  # noqa: PLC0415

    options = _options(settings, "k8s://", kubernetes.open_kubernetes)
    return kubernetes.open_kubernetes(
        url, lease_s=settings.lease_s, identity=settings.identity, clock=settings.clock, **options
    )


def open_file(url: str, settings: BackendSettings) -> Backend:
    _check_no_role(settings, "file://")
    from pgleaderlock.stores.file import backend  # noqa: PLC0415

    options = _options(settings, "file://", backend.open_file)
    return backend.open_file(url, lease_s=settings.lease_s, identity=settings.identity, clock=settings.clock, **options)


def open_nfs(url: str, settings: BackendSettings) -> Backend:
    """Return a backend with a lease in a folder that hosts share."""
    _check_no_role(settings, "nfs://")
    from pgleaderlock.stores.nfs import backend  # noqa: PLC0415

    options = _options(settings, "nfs://", backend.open_nfs)
    return backend.open_nfs(url, lease_s=settings.lease_s, identity=settings.identity, clock=settings.clock, **options)


def open_memory(url: str, settings: BackendSettings) -> Backend:
    """Return a backend with a lease in a variable of this process."""
    _check_no_role(settings, "memory://")
    from pgleaderlock.stores.memory import MemoryStore  # noqa: PLC0415

    name = unquote(url.removeprefix("memory://").partition("?")[0].partition("#")[0])
    if not name:
        raise ValueError("memory:// needs a name, as in memory://scheduler")
    _options(settings, "memory://", MemoryStore)
    return _on_record(MemoryStore(name), settings)


def _on_record(store: RecordStore, settings: BackendSettings) -> RecordBackend:
    return RecordBackend(store, identity=settings.identity, lease_s=settings.lease_s, clock=settings.clock)


def _options(settings: BackendSettings, scheme: str, make: Callable[..., object]) -> Mapping[str, Any]:
    """Return the options; TypeError for one that the backend does not have."""
    known = [
        name
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.default is not parameter.empty and name not in {"lease_s", "identity", "clock"}
    ]
    return _refuse_unknown(settings, scheme, known)


def _refuse_unknown(settings: BackendSettings, scheme: str, known: Sequence[str]) -> Mapping[str, Any]:
    unknown = ", ".join(sorted(set(settings.options) - set(known)))
    if unknown:
        raise TypeError(f"{scheme} has no option {unknown}. It has: {', '.join(known) or 'none'}")
    return settings.options


def _role(settings: BackendSettings, scheme: str) -> str:
    if settings.role is None:
        raise ValueError(f"{scheme} holds many locks: name one with role=, such as role='billing/scheduler'")
    return settings.role


def _check_no_role(settings: BackendSettings, scheme: str) -> None:
    if settings.role is not None:
        raise ValueError(f"{scheme} names one lock by itself: two roles would share it, so put the name into the URL")
