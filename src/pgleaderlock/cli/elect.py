"""Make an election and its target from the options; combinations that make no sense are wrong usage."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.election_options import given_settings, schema_owner
from pgleaderlock.cli.options import LockName, wrong_usage
from pgleaderlock.cli.place import role_of, target_of
from pgleaderlock.cli.target import Target, in_postgres, in_store, is_postgres, store_options
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.lock import LeaderLock
from pgleaderlock.options import BY_NAME, LockSettings
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.times import USUAL_INTERVAL_S, LeaseTimes, choose_times

if TYPE_CHECKING:
    from pgleaderlock.ops.config import Config


def as_dsn(url: str | None, dsn: str | None) -> tuple[str | None, str | None]:
    """Return URL and DSN with a ``postgresql://`` URL moved to the DSN: it is a connection string."""
    return (None, url) if url is not None and is_postgres(url) else (url, dsn)


def check_url(url: str | None, named: LockName) -> str | None:
    """Return the URL of a store that is not PostgreSQL's session locks, or None where ``--dsn`` is meant."""
    if url is None:
        return None
    numbers = {"--key": named.key, "--key1": named.key1, "--key2": named.key2}
    given = [flag for flag, value in numbers.items() if value is not None]
    given += [BY_NAME[name].flag for name in given_settings() if BY_NAME[name].scope == "sessions"]
    if given:
        raise click.UsageError(
            f"only for sessions of PostgreSQL, with --dsn or a postgresql:// URL: {', '.join(given)}"
        )
    return url


def _check_tables(given: Mapping[str, Any]) -> None:
    """Check what needs the term table; the library's error would name its arguments, these name the options."""
    if given.get("term_table"):
        return
    if given.get("takeover") == "strict":
        raise click.UsageError("--takeover strict decides by the term table: add --term-table.")
    if idle := [BY_NAME[name].flag for name in ("schema", "schema_owner") if name in given]:
        raise click.UsageError(f"{', '.join(idle)}: here only for the term table. Add --term-table, or leave it out.")


def chosen_times(configured: "Config | None" = None) -> LeaseTimes:
    """Return the times of ``--lease`` and ``--health-interval``; the one that is missing follows from the other.

    A configuration has taken both options into account already.
    """
    if configured is not None:
        return choose_times(configured.election.lease_s, configured.election.health_interval_s)
    given = given_settings()
    with wrong_usage(said="--lease and --health-interval: {}"):
        return choose_times(given.get("lease_s"), given.get("health_interval_s", USUAL_INTERVAL_S))


@contextlib.contextmanager
def elected(
    dsn: str | None, url: str | None, named: LockName, *, configured: "Config | None" = None, log_level: str, **own: Any
) -> Iterator[tuple[Election, Target]]:
    """Yield the election that the options describe, not yet started, and its target.

    With a configuration, it is the election of one of its roles, with the configuration's store and lease. ``own`` are
    settings of the command itself.
    """
    if configured is not None:
        with _elected_as_configured(configured, named, own, log_level=log_level) as (election, target):
            yield election, target
        return
    times, given = chosen_times(), {**given_settings(), **own}
    url, dsn = as_dsn(url, dsn)
    if check_url(url, named) is not None:
        election = _election_by_url(str(url), named.role, LockSettings(**given), times.lease_s)
        show_logs(log_level)
        _warn_of_memory(str(url))
        yield election, in_store(str(url), named.role, given.get("schema"), schema_owner())
        return
    key = named.choose()
    _check_tables(given)
    with wrong_usage():
        keywords = LockSettings(**given).keywords()
        LeaderLock("postgresql://", key=key, **keywords)  # refuses what does not fit before a server is started for it
    show_logs(log_level)
    with open_database(dsn) as database_dsn:
        yield LeaderLock(database_dsn, key=key, **keywords), in_postgres(database_dsn, key)


@contextlib.contextmanager
def _elected_as_configured(
    config: "Config", named: LockName, own: Mapping[str, Any], *, log_level: str
) -> Iterator[tuple[Election, Target]]:
    from pgleaderlock.ops.node import make_election  # noqa: PLC0415 - it needs an extra of its own

    settings, role = config.election, role_of(config, named)
    show_logs(log_level)
    if settings.on_sessions:
        with open_database(settings.url) as database_dsn:
            key = role if isinstance(role, LockKey) else role.lock_key
            yield make_election(settings, role, database_dsn, **own), in_postgres(database_dsn, key)
        return
    _warn_of_memory(str(settings.url))
    with wrong_usage((ValueError, PgLeaderLockError)):
        election = make_election(settings, role, **own)
    yield election, target_of(config, role)


def _warn_of_memory(url: str) -> None:
    if url.lower().startswith("memory://"):
        click.echo(
            "memory:// is local to this process: every process leads. For several processes, use file:///path.",
            err=True,
        )


def _election_by_url(url: str, role: str | None, settings: LockSettings, lease_s: float) -> Election:
    with wrong_usage((ValueError, TypeError, PgLeaderLockError)):
        options = store_options(url, given_settings().get("schema"), schema_owner())
        return Election(open_backend(url, role=role, lease_s=lease_s, **options), **settings.of_election())
