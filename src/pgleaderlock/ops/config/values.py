"""The types of the settings, each with the check of a single value.

Checks raise ``ValueError`` with a text that follows the name of the key, and that does not repeat the value.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, PlainValidator, SecretStr

from pgleaderlock import stores
from pgleaderlock._base.checks import check_token
from pgleaderlock._base.durations import parse_duration
from pgleaderlock._base.schemes import is_postgres_scheme
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.alerts.rules import check_prefix
from pgleaderlock.options import BY_NAME, Setting
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres.keys import LockKey

__all__ = [
    "About",
    "BackendUrl",
    "DashboardToken",
    "Duration",
    "Host",
    "NodeName",
    "PostgresDsn",
    "Prefix",
    "RoleKey",
    "RoleName",
    "SchemaName",
    "between",
    "describe_store",
    "is_rows",
    "is_sessions",
    "type_of",
]

_LONGEST_NAME = 200
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,40}", re.IGNORECASE)
_ROWS = "postgresql+lease"


# --- Durations and numbers -------------------------------------------------------------------------------------------


def _check_duration(value: Any) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise ValueError("must be longer than 0")
    return seconds


def _follows_rule(setting: Setting) -> AfterValidator:
    """Return the check of a value by the rule that the library has for it."""

    def check(value: Any) -> Any:
        wrong = None if setting.rule is None else setting.rule(value)
        if wrong is not None:
            raise ValueError(wrong)
        return value

    return AfterValidator(check)


def type_of(setting: Setting) -> Any:
    """Return the type of a setting of the library in a configuration."""
    checked: Any = Annotated[setting.type, _follows_rule(setting)]
    if setting.is_seconds:
        checked = Annotated[checked, BeforeValidator(parse_duration if setting.zero_ok else _check_duration)]
    return checked | None if setting.otherwise else checked


def between(low: int, high: int) -> AfterValidator:
    """Return the check of a whole number."""

    def check(number: int) -> int:
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return AfterValidator(check)


Duration = Annotated[float, BeforeValidator(_check_duration)]
"""Seconds, from ``"5s"`` or 5, and not 0."""


# --- Names -----------------------------------------------------------------------------------------------------------


def _check_text(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST_NAME or "://" in text:
        raise ValueError(f"must be a name of at most {_LONGEST_NAME} printable characters, and no connection string")
    return text


def _check_role(name: str) -> str:
    try:
        LockKey.named(name)
    except ValueError:  # the original message repeats the name
        raise ValueError(
            "is not usable as a role's name: start with an ASCII letter or digit, go on with those or any of "
            ". _ / : @ + - and keep it to 200 characters, without ://; pair:, bigint: and named: begin a key"
        ) from None
    return name


def _parse_key(written: Any) -> LockKey:
    if isinstance(written, LockKey):
        return written
    try:
        return LockKey.parse(written)
    except (ValueError, TypeError):
        raise ValueError(
            'is not a lock key: write "pair:1/100", "bigint:7", "bigint:0x464F524745_0001" or "named:billing/scheduler"'
        ) from None


def _check_about(value: Any) -> dict[str, Any]:
    """Return facts that JSON and a column of PostgreSQL can hold."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a table of texts, numbers, true or false: about = { zone = "eu-1" }')  # noqa: TRY004
    for name, item in value.items():
        is_fact = isinstance(item, str | int) or (isinstance(item, float) and math.isfinite(item))
        if not is_fact or "\0" in f"{name}{item if isinstance(item, str) else ''}":
            raise ValueError('must hold texts, numbers, true or false only: about = { zone = "eu-1" }')
    return dict(value)


NodeName = Annotated[str, AfterValidator(_check_text)]
"""The name of this process."""
Host = Annotated[str, AfterValidator(_check_text)]
"""The address to listen on. Never empty, which would mean all addresses."""
Prefix = Annotated[str, AfterValidator(check_prefix)]
"""The prefix of the metrics' names."""
RoleName = Annotated[str, AfterValidator(_check_role)]
"""The name of a role."""
RoleKey = Annotated[LockKey, PlainValidator(_parse_key), PlainSerializer(str, return_type=str)]
"""The key of a role's lock, if it does not follow from the name."""
SchemaName = Annotated[str, _follows_rule(BY_NAME["schema"])]
"""The schema of the tables."""
SchemaOwner = Annotated[str, _follows_rule(BY_NAME["schema_owner"])]
"""The database role that may own the tables."""
About = Annotated[Mapping[str, Any], PlainValidator(_check_about)]
"""Facts about a node, for people."""


# --- Stores ----------------------------------------------------------------------------------------------------------


def is_sessions(url: str) -> bool:
    """Return whether this names PostgreSQL's sessions: by a URL, or in libpq's own form, which has no scheme."""
    scheme, separator, _ = url.partition("://")
    return not separator or is_postgres_scheme(scheme)


def is_rows(url: str) -> bool:
    """Return whether this names lease rows in PostgreSQL."""
    return url.startswith(f"{_ROWS}://")


def describe_store(url: str) -> str:
    """Return the name of a store, without any secret that its URL may hold."""
    if is_sessions(url):
        return _dsn.describe(_dsn.check_dsn(url))
    scheme, _, rest = url.partition("://")
    if is_rows(url):
        return f"{scheme}:// {_dsn.describe(_dsn.check_dsn(f'postgresql://{rest}'))}"
    return f"{scheme}://(not shown)" if set(rest) & set("@?#") else url


def _check_dsn(dsn: str) -> None:
    try:
        _dsn.check_dsn(dsn)
    except ValueError as error:  # its message does not repeat the value
        raise ValueError(str(error).removeprefix("dsn ")) from None


def _check_backend(secret: SecretStr) -> SecretStr:
    scheme, separator, rest = secret.get_secret_value().partition("://")
    if not separator:
        _check_dsn(scheme)
        return secret
    scheme = scheme.lower()
    if is_postgres_scheme(scheme) or scheme == _ROWS:
        _check_dsn(f"{'postgresql' if scheme == _ROWS else scheme}://{rest}")
    elif not rest or not _SCHEME.fullmatch(scheme) or not _is_known(scheme):
        raise ValueError(f"is not the URL of a store: {stores._known()}")  # noqa: SLF001 - of this package
    return SecretStr(f"{scheme}://{rest}")


def _is_known(scheme: str) -> bool:
    try:
        stores._factory(scheme)  # noqa: SLF001 - of this package
    except MissingExtra:
        pass  # known, but not installed: checking a configuration does not need it
    except ValueError:
        return False
    return True


def _check_postgres(secret: SecretStr) -> SecretStr:
    dsn = secret.get_secret_value()
    if not is_sessions(dsn):
        raise ValueError(
            "must be a connection string of libpq: write postgresql://user@host:5432/dbname or 'host=... dbname=...'"
        )
    _check_dsn(dsn)
    return secret


def _check_token(secret: SecretStr) -> SecretStr:
    check_token(secret.get_secret_value())
    return secret


BackendUrl = Annotated[SecretStr, AfterValidator(_check_backend)]
"""A store, as ``open_backend`` takes it, or a connection string of libpq."""
PostgresDsn = Annotated[SecretStr, AfterValidator(_check_postgres)]
"""Which PostgreSQL."""
DashboardToken = Annotated[SecretStr, AfterValidator(_check_token)]
"""The token that an operator sends with a request, as the value of a header."""
