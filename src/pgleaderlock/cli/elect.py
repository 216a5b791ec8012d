"""Make an election and its target from the options; combinations that make no sense are wrong usage."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.options import LockName, allows_pooler, is_given, schema_owner
from pgleaderlock.cli.place import role_of, target_of
from pgleaderlock.cli.target import Target, in_postgres, in_store, is_postgres, store_options
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.lock import LeaderLock
from pgleaderlock.options import LockOptions
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.retry import RetryStrategy
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.times import USUAL_INTERVAL_S, LeaseTimes, choose_times

if TYPE_CHECKING:
    from pgleaderlock.ops.config import Config

__all__ = ["Common", "LeaseOptions", "as_dsn", "check_url", "chosen_times", "elected"]


def as_dsn(url: str | None, dsn: str | None) -> tuple[str | None, str | None]:
    """Return URL and DSN with a ``postgresql://`` URL moved to the DSN: it is a connection string."""
    return (None, url) if url is not None and is_postgres(url) else (url, dsn)


def check_url(url: str | None, named: LockName, **for_postgres: object) -> str | None:
    """Return the URL of a store that is not PostgreSQL's session locks, or None where ``--dsn`` is meant."""
    if url is None:
        return None
    numbers = {"key": named.key, "key1": named.key1, "key2": named.key2}
    given = [name for name, value in {**numbers, **for_postgres}.items() if value is not None and value is not False]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"only for sessions of PostgreSQL, with --dsn or a postgresql:// URL: {options}")
    return url


def _check_by_making(make_lock: Callable[[str], LeaderLock]) -> None:
    """Let the library refuse a combination of settings now, before a server is started for it."""
    try:
        make_lock("postgresql://")
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_takeover(takeover: str, *, term_table: bool) -> None:
    if takeover == "strict" and not term_table:  # the library's error names its arguments, this one the options
        raise click.UsageError("--takeover strict decides by the term table: add --term-table.")


def _check_schema(*, term_table: bool) -> None:
    """Refuse --schema and --schema-owner where no table is used."""
    owner = schema_owner() is not None
    given = [flag for flag, is_there in (("--schema", is_given("schema")), ("--schema-owner", owner)) if is_there]
    if given and not term_table:
        raise click.UsageError(f"{', '.join(given)}: here only for the term table. Add --term-table, or leave it out.")


def chosen_times(
    lease_s: float | None, health_interval_s: float | None, configured: "Config | None" = None
) -> LeaseTimes:
    """Return the times of ``--lease`` and ``--health-interval``; the one that is missing follows from the other.

    A configuration has taken both options into account already.
    """
    if configured is not None:
        return choose_times(configured.election.lease_s, configured.election.health_interval_s)
    try:
        return choose_times(lease_s, health_interval_s or USUAL_INTERVAL_S)
    except ValueError as error:
        raise click.UsageError(f"--lease and --health-interval: {error}") from error


class Common(TypedDict, total=False):
    """The arguments of every election, independent of its store."""

    retry_strategy: RetryStrategy
    health_interval_s: float
    reconnect_grace_s: float | None
    auto_reacquire: bool


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The values of :func:`lease_options`."""

    lease_s: float
    settle_s: float | None
    wake: Literal["line", "poll"]
    no_witness: bool
    takeover: Literal["fast", "strict"]
    term_table: bool
    schema: str


@contextlib.contextmanager
def elected(
    dsn: str | None,
    url: str | None,
    named: LockName,
    common: Common,
    lease: LeaseOptions,
    *,
    configured: "Config | None" = None,
    log_level: str,
) -> Iterator[tuple[Election, Target]]:
    """Yield the election that the options describe, not yet started, and its target.

    With a configuration, it is the election of one of its roles, with the configuration's store and lease.
    """
    if configured is not None:
        with _elected_as_configured(configured, named, common, log_level=log_level) as (election, target):
            yield election, target
        return
    url, dsn = as_dsn(url, dsn)
    is_strict, polls = lease.takeover == "strict", lease.wake == "poll"
    settles = lease.settle_s is not None
    only_postgres = {"allow_pooler": allows_pooler(), "takeover": is_strict, "wake": polls, "settle": settles}
    only_postgres |= {"no_witness": lease.no_witness, "term_table": lease.term_table}
    if check_url(url, named, **only_postgres) is not None:
        schema = lease.schema if is_given("schema") else None
        election = _election_by_url(str(url), named.role, common, lease.lease_s, schema)
        show_logs(log_level)
        _warn_of_memory(str(url))
        yield election, in_store(str(url), named.role, schema, schema_owner())
        return
    key = named.choose()
    _check_takeover(lease.takeover, term_table=lease.term_table)
    _check_schema(term_table=lease.term_table)
    make_lock = partial(
        LeaderLock,
        key=key,
        lease_s=lease.lease_s,
        witness=not lease.no_witness,
        allow_pooler=allows_pooler(),
        takeover=lease.takeover,
        term_table=lease.term_table,
        schema=lease.schema,
        options=LockOptions(wake=lease.wake, schema_owner=schema_owner()),
        **common,
    )
    _check_by_making(make_lock)
    show_logs(log_level)
    with open_database(dsn) as database:
        yield make_lock(database.dsn, settle_s=lease.settle_s), in_postgres(database.dsn, key)


@contextlib.contextmanager
def _elected_as_configured(
    config: "Config", named: LockName, common: Common, *, log_level: str
) -> Iterator[tuple[Election, Target]]:
    from pgleaderlock.ops.node import make_election  # noqa: PLC0415 - it needs an extra of its own

    settings, role = config.election, role_of(config, named)
    show_logs(log_level)
    if settings.on_sessions:
        with open_database(settings.url) as database:
            key = role if isinstance(role, LockKey) else role.lock_key
            yield make_election(settings, role, database.dsn, **common), in_postgres(database.dsn, key)
        return
    _warn_of_memory(str(settings.url))
    try:
        election = make_election(settings, role, **common)
    except (ValueError, PgLeaderLockError) as error:
        raise click.UsageError(str(error)) from error
    yield election, target_of(config, role)


def _warn_of_memory(url: str) -> None:
    if url.lower().startswith("memory://"):
        click.echo(
            "memory:// is local to this process: every process leads. For several processes, use file:///path.",
            err=True,
        )


def _election_by_url(url: str, role: str | None, common: Common, lease_s: float, schema: str | None) -> Election:
    try:
        options = store_options(url, schema, schema_owner())
        return Election(open_backend(url, role=role, lease_s=lease_s, **options), **common)
    except (ValueError, TypeError, PgLeaderLockError) as error:
        raise click.UsageError(str(error)) from error
