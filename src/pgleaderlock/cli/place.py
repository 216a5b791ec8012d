"""Where operators look: which registry, and which of its roles.

Whatever is said on the command line counts most. Then comes the configuration of a node, from ``--config`` or from the
variables that nodes read: what nodes use, operators look at. Only where there is none, ``$PGLEADERLOCK_URL`` and
``$PG_DSN`` count by themselves; a configuration has taken them into account already.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgleaderlock.backends import _dsn
from pgleaderlock.backends.lease import DEFAULT_SCHEMA, check_schema
from pgleaderlock.cli.config import load_for_command
from pgleaderlock.cli.options import LockName, is_given, schema_owner, wants_embedded
from pgleaderlock.cli.target import Target, in_postgres, in_store, is_postgres
from pgleaderlock.keys import LockKey

if TYPE_CHECKING:
    from pgleaderlock.alerts import Alert
    from pgleaderlock.config import Config
    from pgleaderlock.config.model import RoleConfig

__all__ = ["Place", "config_in_force", "find_place", "find_target", "is_database_said", "key_in", "lock_in"]

_CONFIGURING = ("PGLEADERLOCK_BACKEND", "PGLEADERLOCK_REGISTRY_DSN")


@dataclass(frozen=True, slots=True)
class Place:
    """A registry, and what of it is wanted."""

    dsn: str | None
    """None is the embedded PostgreSQL, where that was asked for."""
    schema: str
    roles: tuple[str, ...] | None = None
    """Only these; None is all of them."""
    owner: str | None = None
    """Whose tables are used, besides our own user's and a superuser's."""
    alerts: "tuple[Alert, ...]" = ()
    """Those of the configuration."""
    prefix: str = "pgleaderlock"
    """What the metrics begin with that they are about."""


def find_place(dsn: str | None, url: str | None, schema: str | None, config_file: Path | None) -> Place:
    """Return where to look. What cannot be meant is wrong usage."""
    config = config_in_force(config_file)
    if config is None:
        return Place(_named_dsn(url, dsn), _checked(schema or DEFAULT_SCHEMA), owner=schema_owner())
    found = _named_dsn(url, dsn) if is_database_said() else _registry_of(config)
    roles = tuple(role.name for role in config.election.roles) or None
    owner = schema_owner() or config.registry.schema_owner
    where = found, _checked(schema or config.registry.schema_name), roles, owner
    return Place(*where, config.alerting.alerts, config.metrics.prefix)


def config_in_force(config_file: Path | None) -> "Config | None":
    """Return the configuration that counts, if there is one: variables give way to a database that is named here."""
    by_variables = config_file is not None or any(name in os.environ for name in _CONFIGURING)
    if not is_given("config_file") and (is_database_said() or not by_variables):
        return None
    return load_for_command(config_file, ()).config


def find_target(config: "Config", named: LockName) -> Target | LockKey:
    """Return a lock in a node's store, whose role the file may give a key; in the embedded one, the key."""
    election = config.election
    if election.on_sessions:
        key = lock_in(config, named)
        return key if election.postgres_dsn is None else in_postgres(election.postgres_dsn, key)
    known, role = _role_in(config, named.role), named.role
    if known is None or named != LockName(role):
        names = ", ".join(each.name for each in election.roles) or "none"
        raise click.UsageError(f"in this store the configuration says which locks there are: --role is one of {names}.")
    rows = election.postgres_dsn is not None
    return in_store(
        str(election.url_of(known)),
        role if rows else None,
        election.schema_name if rows else None,
        schema_owner() or election.schema_owner,
    )


def lock_in(config: "Config | None", named: LockName) -> LockKey:
    """Return the lock that is named, of which this configuration may say more than its name does."""
    by_role = key_in(config, named.role) if named == LockName(named.role) else None
    return by_role or named.choose()


def key_in(config: "Config | None", role: str | None) -> LockKey | None:
    """Return the lock that this configuration means by a role; None where it does not know it."""
    known = None if config is None else _role_in(config, role)
    return None if known is None else known.lock_key


def _role_in(config: "Config", role: str | None) -> "RoleConfig | None":
    return next((each for each in config.election.roles if each.name == role), None)


def is_database_said() -> bool:
    """Whether the command line names a database."""
    return is_given("dsn") or is_given("url") or wants_embedded()


def _checked(schema: str) -> str:
    try:
        return check_schema(schema)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _registry_of(config: "Config") -> str | None:
    if config.registry_dsn is None and not config.election.on_sessions:
        raise click.UsageError(
            "this configuration has no registry: its store is not PostgreSQL, and registry.dsn names none. "
            "Name the registry's database with --dsn."
        )
    return config.registry_dsn


def _named_dsn(url: str | None, dsn: str | None) -> str | None:
    """Return the database that was named, None for the embedded one. A URL of another store names no registry."""
    if is_given("url") and is_given("dsn"):
        raise click.UsageError("--url and --dsn name the database twice: give one of them.")
    if url is None or is_given("dsn"):
        return dsn
    if not is_postgres(url):
        if dsn is not None and not is_given("url"):
            return dsn
        raise click.UsageError("the registry is in a PostgreSQL: name it with --dsn or $PG_DSN.")
    try:
        _dsn.check_dsn(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return url
