"""The registry that an operator's command reads, and which of its roles.

The command line wins. Then comes the configuration of a node, from ``--config`` or from the variables that nodes read,
so that operators see the registry that the nodes use. Only without a configuration do ``$PGLEADERLOCK_URL`` and
``$PG_DSN`` apply by themselves; a configuration has taken them into account already.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgleaderlock._base.schemes import is_postgres
from pgleaderlock.cli.config import load_for_command
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.election_options import schema_owner
from pgleaderlock.cli.options import LockName, is_given, refuse_key_as_role, wants_embedded, wrong_usage
from pgleaderlock.cli.target import Target, as_dsn, check_url, in_postgres, in_store
from pgleaderlock.options import DEFAULT_SCHEMA, check_schema
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres.keys import LockKey

if TYPE_CHECKING:
    from pgleaderlock.ops.alerts import Alert
    from pgleaderlock.ops.config import Config
    from pgleaderlock.ops.config.model import RoleConfig

_CONFIGURING = ("PGLEADERLOCK_BACKEND", "PGLEADERLOCK_REGISTRY_DSN")


@dataclass(frozen=True, slots=True)
class ShownRoles:
    """A registry, and the roles of it to show."""

    dsn: str | None
    """None means the embedded PostgreSQL."""
    schema: str
    owner: str | None
    """The role whose tables are used, besides those of the connecting user and of superusers."""
    config: "Config | None" = None
    """The configuration that applies, if any."""

    @property
    def alerting(self) -> "tuple[tuple[Alert, ...], str]":
        """The alerts of the configuration, and the prefix of the metrics in their conditions."""
        config = self.config
        return ((), "pgleaderlock") if config is None else (config.alerting.alerts, config.metrics.prefix)

    @property
    def roles(self) -> tuple[str, ...] | None:
        """Only these; None is all of them."""
        return (self.config and tuple(role.name for role in self.config.election.roles)) or None


def find_shown_roles(dsn: str | None, url: str | None, schema: str | None, config_file: Path | None) -> ShownRoles:
    """Return the registry that the options name. Contradictory options are wrong usage."""
    config = config_in_force(config_file)
    if config is None:
        return ShownRoles(_named_dsn(url, dsn), _checked(schema or DEFAULT_SCHEMA), schema_owner())
    if wants_embedded() and config.registry_dsn is not None:
        raise click.UsageError("--embedded and registry.dsn of the configuration name the registry twice: give one.")
    found = _named_dsn(url, dsn) if is_database_said() else _registry_of(config)
    owner = schema_owner() or config.registry.schema_owner
    return ShownRoles(found, _checked(schema or config.registry.schema_name), owner, config)


def config_in_force(config_file: Path | None) -> "Config | None":
    """Return the configuration that applies, if any: a database on the command line wins over variables."""
    return load_for_command(config_file, ()).config if is_configured(config_file) else None


def is_configured(config_file: Path | None, *, takes_part: bool = False) -> bool:
    """Return whether a node's configuration applies: --config names it, or variables do and no option names a store.

    A command that takes part does so as the nodes do: for it, the file of ``$PGLEADERLOCK_CONFIG`` also applies with
    ``--dsn``. A command that only reads may read any database.
    """
    if is_given("config_file") or (takes_part and config_file is not None):
        return True
    variables = _CONFIGURING[:1] if takes_part else _CONFIGURING
    return not is_database_said() and (config_file is not None or any(name in os.environ for name in variables))


def role_of(config: "Config", named: LockName) -> "RoleConfig | LockKey":
    """Return the named role of this configuration, or its only one; on PostgreSQL's sessions also a lock by key."""
    election = config.election
    if named.is_given and named != LockName(named.role):
        if not election.on_sessions:
            raise click.UsageError(
                "--key, --key1 and --key2 are only for sessions of PostgreSQL: backend names another store."
            )
        return named.choose()
    if named.role is None and len(election.roles) == 1:
        return election.roles[0]
    if named.role is not None:
        refuse_key_as_role(named.role, "--key")
    if (known := _role_in(config, named.role)) is None:
        names = ", ".join(each.name for each in election.roles) or "those of the configuration, which names none"
        raise click.UsageError(f"name a role of the configuration: --role is one of {names}.")
    return known


def target_of(config: "Config", role: "RoleConfig | LockKey") -> Target:
    """Return the target of one role in the store of its configuration, which is not the embedded one."""
    election = config.election
    if isinstance(role, LockKey) or election.on_sessions:
        return in_postgres(str(election.url), role if isinstance(role, LockKey) else role.lock_key)
    rows = election.postgres_dsn is not None
    return in_store(
        str(election.url_of(role)),
        role.name if rows else None,
        election.schema_name if rows else None,
        schema_owner() or election.schema_owner,
    )


@contextlib.contextmanager
def named_target(
    config: "Config | None", dsn: str | None, url: str | None, named: LockName, schema: str | None
) -> Iterator[Target]:
    """Yield the lock that the options name, or the configuration; within the block the embedded PostgreSQL runs."""
    if config is not None and not config.election.on_sessions:
        yield target_of(config, role_of(config, named))
        return
    url, dsn = as_dsn(url, dsn)
    if config is not None:
        url, dsn = None, config.election.url
        schema = schema or config.registry.schema_name
    if check_url(url, named) is not None:
        yield in_store(str(url), named.role, schema, schema_owner())
        return
    key = lock_in(config, named)
    with open_database(dsn) as database_dsn:
        yield in_postgres(database_dsn, key, schema, schema_owner())


def lock_in(config: "Config | None", named: LockName) -> LockKey:
    """Return the named lock; the configuration may give its role another key than its name."""
    by_role = key_in(config, named.role) if named == LockName(named.role) else None
    return by_role or named.choose()


def key_in(config: "Config | None", role: str | None) -> LockKey | None:
    """Return the lock of a role in this configuration; None if it has no such role."""
    known = None if config is None else _role_in(config, role)
    return None if known is None else known.lock_key


def _role_in(config: "Config", role: str | None) -> "RoleConfig | None":
    return next((each for each in config.election.roles if each.name == role), None)


def is_database_said() -> bool:
    """Return whether the command line names a database."""
    return is_given("dsn") or is_given("url") or wants_embedded()


def _checked(schema: str) -> str:
    with wrong_usage():
        return check_schema(schema)


def _registry_of(config: "Config") -> str | None:
    if config.registry_dsn is None and not config.election.on_sessions:
        raise click.UsageError(
            "this configuration has no registry: its store is not PostgreSQL, and registry.dsn names none. "
            "Name the registry's database with --dsn."
        )
    return config.registry_dsn


def _named_dsn(url: str | None, dsn: str | None) -> str | None:
    """Return the database that was named, None for the embedded one. A URL of another store names no registry."""
    if url is None or is_given("dsn"):
        return dsn
    if not is_postgres(url):
        if dsn is not None and not is_given("url"):
            return dsn
        raise click.UsageError("the registry is in a PostgreSQL: name it with --dsn or $PG_DSN.")
    with wrong_usage():
        _dsn.check_dsn(url)
    return url
