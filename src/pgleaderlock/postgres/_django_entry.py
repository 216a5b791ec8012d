"""An entry of Django's ``DATABASES``, as the settings have it or as dj-database-url returns it. Needs no Django."""

from collections.abc import Mapping
from typing import Any

__all__ = ["options_of_entry"]

_NAMES = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
_OF_DJANGO = frozenset(
    {
        *("ENGINE", "OPTIONS", "ATOMIC_REQUESTS", "AUTOCOMMIT", "CONN_MAX_AGE", "CONN_HEALTH_CHECKS"),
        *("DISABLE_SERVER_SIDE_CURSORS", "TEST", "TIME_ZONE"),
    }
)
"""Keys that say nothing of how to connect, besides the two that are read here."""
_ENGINES = ("postg", "psql", "timescale")


def options_of_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an entry, those of OPTIONS among them; ValueError for another mapping."""
    engine = entry.get("ENGINE")
    if not isinstance(engine, str):
        nested = [name for name, each in entry.items() if isinstance(each, Mapping) and "ENGINE" in each]
        advice = f": pass DATABASES[{nested[0]!r}]" if nested else ", as an entry of Django's DATABASES has it"
        raise ValueError(f"dsn is a dict without ENGINE{advice}")  # noqa: TRY004 - the dict is what is wrong
    if not any(word in engine for word in _ENGINES):
        raise ValueError(f"dsn has the ENGINE {engine!r}, which is not PostgreSQL's")
    if unknown := sorted(str(name) for name in entry if name not in _NAMES and name not in _OF_DJANGO):
        raise ValueError(f"dsn has keys that Django's DATABASES do not have: {', '.join(unknown)}")
    options = entry.get("OPTIONS") or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"dsn has OPTIONS that are a {type(options).__name__}, and no dict")  # noqa: TRY004 - as above
    return {**options, **{theirs: entry[name] for name, theirs in _NAMES.items() if entry.get(name)}}
