"""What the settings of a Django project say of the lock: its role, and where it is kept.

``PGLEADERLOCK = {"role": ..., "dsn": ..., "database": ..., "while_leader": [...], "options": {...}}``, all of it
optional. ``dsn`` is libpq's, and wins; ``database`` is an alias in ``DATABASES``, ``"default"`` by default; ``options``
are settings of the lock that runs ``while_leader``, by their names in :mod:`pgleaderlock.options`.
"""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from pgleaderlock.postgres import _dsn

__all__ = ["find_dsn", "find_options", "find_role", "find_work"]

_KEYS = frozenset({"role", "dsn", "database", "while_leader", "options"})


def find_role() -> str | None:
    """Return the role that the settings name, if they do."""
    role: str | None = _ours().get("role")
    return role


def find_work() -> list[str]:
    """Return the functions that the settings want to be run while leading, as dotted paths."""
    work = _ours().get("while_leader") or []
    if isinstance(work, str):
        raise ImproperlyConfigured("PGLEADERLOCK['while_leader'] must be a list of dotted paths")
    if work and not find_role():
        raise ImproperlyConfigured("PGLEADERLOCK has work for the leader, but no role to name the lock by")
    return list(work)


def find_options() -> dict[str, Any]:
    """Return the settings of the lock that the project gives."""
    return dict(_ours().get("options") or {})


def find_dsn(database: str | None = None) -> str:
    """Return where the lock is kept. It may hold a password: not for output, nor for a command line."""
    ours = _ours()
    if database is None and ours.get("dsn"):
        return str(ours["dsn"])
    alias = database or ours.get("database") or "default"
    try:
        chosen = settings.DATABASES[alias]
    except KeyError:
        raise ImproperlyConfigured(f"there is no database {alias!r} in DATABASES to keep the lock in") from None
    if "postg" not in chosen.get("ENGINE", ""):
        raise ImproperlyConfigured(
            f"the database {alias!r} is no PostgreSQL: name another with --database, or set PGLEADERLOCK['dsn']"
        )
    return _dsn_of(chosen, alias)


def _ours() -> Mapping[str, Any]:
    ours = getattr(settings, "PGLEADERLOCK", {})
    unknown = sorted(set(ours) - _KEYS)
    if unknown:
        raise ImproperlyConfigured(f"PGLEADERLOCK has no {', '.join(unknown)}; there are {', '.join(sorted(_KEYS))}")
    return dict(ours)


def _dsn_of(chosen: Mapping[str, Any], alias: str) -> str:
    try:
        return _dsn.join(_dsn.check_dsn(chosen))
    except ValueError as error:  # its message does not repeat a value
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] cannot be used for the lock: {error}. PGLEADERLOCK['dsn'] can name it otherwise"
        ) from None
