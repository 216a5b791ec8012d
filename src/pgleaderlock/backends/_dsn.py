"""Connection strings: checked before anything runs, and described without their secrets.

libpq quotes the part it stumbled over when it rejects a connection string, and that part can be the password. So its
words are never repeated here.
"""

import os
import socket
from collections.abc import Mapping

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

__all__ = ["check_dsn", "default_application_name", "describe", "has_password", "scrub", "with_defaults"]

_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_FORMS = "write postgresql://user@host:5432/dbname or 'host=... dbname=...'"
_LAST_PORT = 65535
_SHORTEST_SECRET = 3
_APPLICATION_NAME_BYTES = 63  # the server cuts off the rest


def check_dsn(dsn: object) -> dict[str, str]:
    """Return the parts of a usable connection string; otherwise say what is wrong, without quoting it."""
    if not isinstance(dsn, str):
        raise TypeError(f"dsn must be a str, not {type(dsn).__name__}")
    if not dsn.strip():
        raise ValueError(f"dsn is empty: {_FORMS}")
    scheme, separator, _ = dsn.partition("://")
    if separator and scheme.isalnum() and scheme not in ("postgresql", "postgres"):
        raise ValueError(f"dsn has the scheme {scheme!r}, which is not PostgreSQL's: {_FORMS}")
    parts = _parse(dsn)
    # Raised here, where libpq's exception is no longer being handled: it would come along as the context.
    if parts is None:
        raise ValueError(
            f"dsn is not a valid PostgreSQL connection string (not shown, it may hold a password): {_FORMS}"
        )
    _check_parts(parts, is_url=bool(separator))
    return parts


def _parse(dsn: str) -> dict[str, str] | None:
    """Return the parts, or None when libpq does not understand them."""
    if "\0" in dsn:  # libpq would end the string there, silently
        return None
    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except (ProgrammingError, UnicodeError, ValueError):
        return None


def _check_parts(parts: Mapping[str, str], *, is_url: bool) -> None:
    """Refuse now what would fail at every connection. Nothing is quoted: a mistyped password can end up anywhere."""
    for port in filter(None, parts.get("port", "").split(",")):
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= _LAST_PORT):
            raise ValueError(f"dsn has a port that is not a number from 1 to {_LAST_PORT}: {_FORMS}")
    if not parts.get("connect_timeout", "0").lstrip("-").isdecimal():
        raise ValueError("dsn has a connect_timeout that is not a whole number of seconds")
    if any("@" in host[1:] for host in parts.get("host", "").split(",") if not host.startswith("/")):
        raise ValueError("dsn has an @ in its host name: an @ in a password must be written as %40")
    if is_url and "@" in parts.get("dbname", ""):  # postgresql://u:5/secret@h/db has the dbname secret@h/db
        raise ValueError("dsn has an @ in its dbname: a / or @ in a password must be written as %2F or %40")
    if "://" in parts.get("dbname", ""):
        raise ValueError(f"dsn has a URL for its dbname: {_FORMS}")


def default_application_name() -> str:
    """Return the name under which a session of this process shows in pg_stat_activity."""
    name = f"pgleaderlock {socket.gethostname()}:{os.getpid()}"
    return name.encode("ascii", "replace")[:_APPLICATION_NAME_BYTES].decode("ascii")


def with_defaults(parts: Mapping[str, str]) -> str:
    """Fill in what a long-lived, mostly idle session needs, wherever the string does not say otherwise."""
    defaults = {
        "application_name": os.environ.get("PGAPPNAME") or default_application_name(),
        "connect_timeout": "10",
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
    }
    return make_conninfo(**{**defaults, **parts})


def describe(parts: Mapping[str, str]) -> str:
    """Say where a connection goes, for messages: never a secret."""
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    user = parts.get("user") or os.environ.get("PGUSER")
    database = parts.get("dbname") or os.environ.get("PGDATABASE") or user
    return f"host={host} port={port} dbname={database or '(default)'} user={user or '(default)'}"


def has_password(dsn: str) -> bool:
    """Whether this string holds a secret that must not be seen by others. A string that cannot be read may."""
    parts = _parse(dsn)
    return parts is None or any(parts.get(name) for name in _SECRETS)


def scrub(text: str, parts: Mapping[str, str]) -> str:
    """Take the secrets of this connection string out of a text, should a driver have put them there."""
    # A very short one would be cut out of ordinary words, and shown by its absence.
    secrets = [secret for name in _SECRETS if len(secret := parts.get(name, "")) >= _SHORTEST_SECRET]
    for secret in sorted(secrets, key=len, reverse=True):  # one may hold another
        text = text.replace(secret, "***")
    return text
