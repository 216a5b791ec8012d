"""How each built-in backend is made from its URL. Wrong ones are ValueError, before anything is connected."""

from urllib.parse import unquote, urlsplit

from pgleaderlock.backends import BackendSettings
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.record import RecordBackend, RecordStore
from pgleaderlock.keys import LockKey

__all__ = ["open_file", "open_kubernetes", "open_lease_rows", "open_memory", "open_postgres"]


def open_postgres(url: str, settings: BackendSettings) -> Backend:
    """Two advisory locks on two sessions."""
    from pgleaderlock.backends.lease import Lease  # noqa: PLC0415 - each backend is imported when it is asked for
    from pgleaderlock.backends.postgres import PostgresBackend  # noqa: PLC0415

    key = LockKey.named(_role(settings, "postgresql://"))
    return PostgresBackend(key, Lease(settings.lease_s, **settings.options), settings.clock, dsn=url)


def open_lease_rows(url: str, settings: BackendSettings) -> Backend:
    """A row."""
    from pgleaderlock.backends.lease_rows import LeaseRowStore  # noqa: PLC0415

    dsn = url.replace("postgresql+lease://", "postgresql://", 1)
    role = _role(settings, "postgresql+lease://")
    return _on_record(LeaseRowStore(dsn, role, **settings.options), settings)


def open_kubernetes(url: str, settings: BackendSettings) -> Backend:
    """A Kubernetes Lease."""
    _check_no_role(settings, "k8s://")
    from pgleaderlock.backends import kubernetes  # noqa: PLC0415

    return kubernetes.open_kubernetes(
        url, lease_s=settings.lease_s, identity=settings.identity, clock=settings.clock, **settings.options
    )


def open_file(url: str, settings: BackendSettings) -> Backend:
    """A file."""
    _check_no_role(settings, "file://")
    from pgleaderlock.backends import file  # noqa: PLC0415

    return file.open_file(
        url, lease_s=settings.lease_s, identity=settings.identity, clock=settings.clock, **settings.options
    )


def open_memory(url: str, settings: BackendSettings) -> Backend:
    """A variable."""
    _check_no_role(settings, "memory://")
    from pgleaderlock.backends.memory import MemoryStore  # noqa: PLC0415

    parts = urlsplit(url)
    name = unquote(parts.netloc + parts.path)
    if not name:
        raise ValueError("memory:// needs a name, as in memory://scheduler")
    return _on_record(MemoryStore(name, **settings.options), settings)


def _on_record(store: RecordStore, settings: BackendSettings) -> RecordBackend:
    return RecordBackend(store, identity=settings.identity, lease_s=settings.lease_s, clock=settings.clock)


def _role(settings: BackendSettings, scheme: str) -> str:
    if settings.role is None:
        raise ValueError(f"{scheme} holds many locks: name one with role=, such as role='billing/scheduler'")
    return settings.role


def _check_no_role(settings: BackendSettings, scheme: str) -> None:
    if settings.role is not None:
        raise ValueError(f"{scheme} names one lock by itself: two roles would share it, so put the name into the URL")
