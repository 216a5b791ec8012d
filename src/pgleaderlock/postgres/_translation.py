"""From the options of other drivers and frameworks to those of libpq.

An option is translated, or has no meaning for an election's own sessions (``NO_MEANING``, documented in
``docs/how-to/use-your-database-url.md``), or is refused by name. No other option is left out.
"""

import math
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

__all__ = ["NO_MEANING", "CannotTranslate", "as_libpq_url", "translate"]

_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
NO_MEANING: Mapping[str, tuple[str, ...]] = {
    "a pool": (
        *("pool", "pool_size", "max_overflow", "pool_timeout", "pool_recycle", "pool_pre_ping", "pool_use_lifo"),
        *("pool_reset_on_return", "min_size", "max_size", "max_queries", "max_inactive_connection_lifetime"),
        *("connection_limit", "conn_max_age", "conn_health_checks"),
    ),
    "a driver's cache of statements": (
        *("statement_cache_size", "prepared_statement_cache_size", "prepared_statement_name_func"),
        *("max_cached_statement_lifetime", "max_cacheable_statement_size", "prepare_threshold"),
    ),
    "your own statements, transactions and rows": (
        *("command_timeout", "autocommit", "isolation_level", "server_side_binding", "cursor_factory", "row_factory"),
        *("context", "record_class", "disable_server_side_cursors", "executemany_mode", "echo", "async_fallback"),
    ),
}
"""What the options concern that no session of an election has."""
_MEANINGLESS = frozenset(name for names in NO_MEANING.values() for name in names)


class CannotTranslate(ValueError):  # noqa: N818 - named after what happened
    """Options without an equivalent. Their names are for the caller to show, or not: one may be part of a password."""

    def __init__(self, unknown: Iterable[str] = (), wrong: Iterable[str] = ()) -> None:
        self.unknown = list(unknown)
        """The names of the options that libpq does not have."""
        self.wrong = list(wrong)
        """What is wrong with the values of others, with their names."""
        super().__init__("; ".join([*self.unknown, *self.wrong]))


def translate(options: Mapping[str, Any], known: frozenset[str]) -> dict[str, str]:
    """Return the options of libpq that mean the same; CannotTranslate names those for which there are none.

    ``known`` are the names that the installed libpq has.
    """
    parts: dict[str, str] = {}
    unknown: list[str] = []
    wrong: list[str] = []
    for name, value in options.items():
        if value is None or name in _MEANINGLESS:
            continue
        if name not in known and name not in _TRANSLATIONS:
            unknown.append(name)
            continue
        found = _translated(name, value)
        if isinstance(found, str):
            wrong.append(f"{name}: {found}")
            continue
        if "options" in found and "options" in parts:
            found = {**found, "options": f"{parts.pop('options')} {found['options']}"}
        wrong += [f"{name}: {part} is given by another name too" for part in found if _differ(part, found, parts)]
        parts |= found
    if unknown or wrong:
        raise CannotTranslate(unknown, wrong)
    return parts


def _differ(part: str, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return part in other and one[part] != other[part]


def _translated(name: str, value: Any) -> dict[str, str] | str:
    """Return the parts that mean the same, or what is wrong with the value."""
    if name in _TRANSLATIONS:
        return _TRANSLATIONS[name](value)
    text = _text(value)
    return f"a {type(value).__name__} is no value of libpq" if text is None else {name: text}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int | float | os.PathLike):
        text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        return text if isinstance(text, str) and "\0" not in text else None
    return None


def _ssl(value: Any) -> dict[str, str] | str:
    """Translate asyncpg's option. True means what it means there: a certificate that Python would accept."""
    if value is True:
        return {"sslmode": "verify-full", "sslrootcert": ssl.get_default_verify_paths().cafile or "system"}
    if value is False:
        return {"sslmode": "disable"}
    word = getattr(value, "name", value)  # asyncpg has an enumeration of them
    word = word.lower().replace("_", "-") if isinstance(word, str) else None
    if word in _SSL_MODES:
        return {"sslmode": str(word)}
    if word == "true":  # of a URL; libpq reads it so too
        return {"sslmode": "require"}
    if isinstance(value, ssl.SSLContext):
        return _instead_of_context(value)
    return f"must be one of {', '.join(_SSL_MODES)}"


def _instead_of_context(context: ssl.SSLContext) -> str:
    """Return what to write in place of a context that checks as much. Left out, nothing would be checked."""
    if context.verify_mode is not ssl.CERT_REQUIRED:
        return "an SSLContext cannot be read; this one checks no certificate: pass a connection string, sslmode=require"
    mode = "verify-full" if context.check_hostname else "verify-ca"
    return (
        "an SSLContext does not say which files it was made from; this one checks the server's certificate: pass a "
        f"connection string with sslmode={mode} and sslrootcert=FILE, the authority's certificates (system for those "
        "of the system), and sslcert and sslkey where it shows a certificate"
    )


def _seconds(value: Any) -> dict[str, str] | str:
    try:
        return {"connect_timeout": str(math.ceil(float(value)))}
    except (TypeError, ValueError, OverflowError):
        return "must be a number of seconds"


def _listed(name: str) -> Callable[[Any], dict[str, str] | str]:
    """Return the translation of an option that asyncpg also takes as a list, with one value for each host."""

    def translated(value: Any) -> dict[str, str] | str:
        texts = [_text(each) for each in (value if isinstance(value, list | tuple) else [value])]
        if None in texts:
            return f"a {type(value).__name__} is no value of libpq"
        return {name: ",".join(map(str, texts))}

    return translated


def _server_settings(value: Any) -> dict[str, str] | str:
    """Translate asyncpg's dict of settings of the server, which libpq takes as words of a command line."""
    if not isinstance(value, Mapping):
        return "is not a dict"
    texts = {str(name): _text(each) for name, each in value.items()}
    if wrong := [name for name, each in texts.items() if each is None]:
        return f"no text or number for {', '.join(wrong)}"
    parts = {} if (name := texts.pop("application_name", None)) is None else {"application_name": name}
    words = [f"-c {name}={_escaped(str(each))}" for name, each in texts.items()]
    return {**parts, "options": " ".join(words)} if words else parts


def _assume_role(value: Any) -> dict[str, str] | str:
    """Translate Django's option: the role is set when the session begins."""
    return {"options": f"-c role={_escaped(value)}"} if isinstance(value, str) else "is not the name of a role"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace(" ", "\\ ")


def _renamed(name: str) -> Callable[[Any], dict[str, str] | str]:
    return lambda value: f"a {type(value).__name__} is no name" if (text := _text(value)) is None else {name: text}


_TRANSLATIONS: Mapping[str, Callable[[Any], dict[str, str] | str]] = {
    "ssl": _ssl,
    "timeout": _seconds,
    "connect_timeout": _seconds,
    "host": _listed("host"),
    "port": _listed("port"),
    "database": _renamed("dbname"),
    "username": _renamed("user"),
    "server_settings": _server_settings,
    "assume_role": _assume_role,
}


# --- URLs ------------------------------------------------------------------------------------------------------------


def as_libpq_url(url: str, known: frozenset[str]) -> str:
    """Return the URL as libpq reads it; CannotTranslate names the options that no driver would be asked for here.

    What cannot be taken apart is returned as it is: libpq refuses it, and the caller says why.
    """
    scheme, _, rest = url.partition("://")
    driver = scheme.partition("+")[2]
    place, query = _split_query(rest)
    given = _pairs(query, plus_is_space=bool(driver))
    names = {name for name, _ in given or ()}
    if not given or not (driver or names - known):
        return f"postgresql://{rest}"
    options = _with_hosts(given) if driver else given
    twice = sorted(name for name in names if sum(each == name for each, _ in options) > 1)
    if twice:
        raise CannotTranslate(wrong=[f"{name}: is there twice" for name in twice])
    parts = translate(dict(options), known)
    return f"postgresql://{place}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in parts.items())


def _split_query(rest: str) -> tuple[str, str]:
    """Return what is before the ? of the options and what is after it. A password before an @ may hold another ?."""
    user, at, _ = rest.partition("@")
    start = len(user) + 1 if at and "/" not in user else 0
    place, _, query = rest[start:].partition("?")
    return rest[:start] + place, query


def _pairs(query: str, *, plus_is_space: bool) -> list[tuple[str, str]] | None:
    """Return the options of a URL: SQLAlchemy reads a + as a space, libpq as a +. None if one has no value."""
    read = unquote_plus if plus_is_space else unquote
    found = [pair.partition("=") for pair in query.split("&")] if query else []
    if not all(separator for _, separator, _ in found):
        return None
    try:
        return [(read(name, errors="strict"), read(value, errors="strict")) for name, _, value in found]
    except UnicodeError:
        return None


def _with_hosts(given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the options with one list of hosts and one of ports, which SQLAlchemy has as host=a:1&host=b:2."""
    hosts = [each for name, value in given if name == "host" for each in value.split(",")]
    ports = [each for name, value in given if name == "port" for each in value.split(",")]
    split = [(host, "", "") if host.startswith("/") or host.count(":") != 1 else host.partition(":") for host in hosts]
    if any(port for _, _, port in split):
        hosts, ports = [host for host, _, _ in split], [port for _, _, port in split]
    others = [(name, value) for name, value in given if name not in {"host", "port"}]
    lists = [(name, ",".join(values)) for name, values in (("host", hosts), ("port", ports)) if values]
    return lists + others
