"""Make an election and its target from the options; combinations that make no sense are wrong usage."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.election_options import given_pod_label, given_settings, schema_owner
from pgleaderlock.cli.options import LockName, wrong_usage
from pgleaderlock.cli.pod_label import find_pod, label_pod
from pgleaderlock.cli.shown_roles import role_of, target_of
from pgleaderlock.cli.target import Target, as_dsn, check_url, in_postgres, in_store, store_options
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.lock import LeaderLock
from pgleaderlock.options import BY_NAME, POD_LABEL, LockSettings
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.times import USUAL_INTERVAL_S, LeaseTimes, choose_times

if TYPE_CHECKING:
    from pgleaderlock.ops.config import Config


def _check_tables(given: Mapping[str, Any], *, has_tables: bool) -> None:
    """Check what needs the term table; the library's error would name its arguments, these name the options."""
    if given.get("term_table"):
        return
    if given.get("takeover") == "strict":
        raise click.UsageError("--takeover strict decides by the term table: add --term-table.")
    idle = [BY_NAME[name].flag for name in ("schema", "schema_owner") if name in given]
    if idle and not has_tables:
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
    dsn: str | None,
    url: str | None,
    named: LockName,
    *,
    configured: "Config | None" = None,
    log_level: str,
    has_tables: bool = False,
    labels_pod: bool = True,
    **own: Any,
) -> Iterator[tuple[Election, Target]]:
    """Yield the election that the options describe, not yet started, and its target.

    With a configuration, it is the election of one of its roles, with the configuration's store and lease. ``own`` are
    settings of the command itself. ``has_tables`` says that the command uses tables, whether the election does or not;
    ``labels_pod`` that the election is started, so that a pod label has a meaning.
    """
    if configured is not None:
        with _elected_as_configured(configured, named, own, log_level=log_level, labels_pod=labels_pod) as both:
            yield both
        return
    pod = find_pod(given_pod_label(), named.role, named=POD_LABEL.flag) if labels_pod else None
    times, given = chosen_times(), {**given_settings(), **own}
    url, dsn = as_dsn(url, dsn)
    if check_url(url, named) is not None:
        election = _election_by_url(str(url), named.role, LockSettings(**given), times.lease_s)
        show_logs(log_level)
        _warn_of_memory(str(url))
        yield label_pod(election, pod), in_store(str(url), named.role, given.get("schema"), schema_owner())
        return
    key = named.choose()
    _check_tables(given, has_tables=has_tables)
    with wrong_usage():
        keywords = LockSettings(**given).keywords()
        LeaderLock("postgresql://", key=key, **keywords)  # refuses what does not fit before a server is started for it
    show_logs(log_level)
    with open_database(dsn) as database_dsn:
        target = in_postgres(database_dsn, key, given.get("schema"), schema_owner())
        yield label_pod(LeaderLock(database_dsn, key=key, **keywords), pod), target


@contextlib.contextmanager
def _elected_as_configured(
    config: "Config", named: LockName, own: Mapping[str, Any], *, log_level: str, labels_pod: bool
) -> Iterator[tuple[Election, Target]]:
    from pgleaderlock.ops.node import make_election  # noqa: PLC0415 - it needs an extra of its own

    settings, role = config.election, role_of(config, named)
    name = None if isinstance(role, LockKey) else role.name
    pod = find_pod(settings.pod_label, name, named=str(POD_LABEL.key)) if labels_pod else None
    show_logs(log_level)
    if settings.on_sessions:
        with open_database(settings.url) as database_dsn:
            key = role if isinstance(role, LockKey) else role.lock_key
            target = in_postgres(database_dsn, key, settings.schema_name, settings.schema_owner)
            yield label_pod(make_election(settings, role, database_dsn, **own), pod), target
        return
    _warn_of_memory(str(settings.url))
    with wrong_usage((ValueError, PgLeaderLockError)):
        election = make_election(settings, role, **own)
    yield label_pod(election, pod), target_of(config, role)


def _warn_of_memory(url: str) -> None:
    if url.lower().startswith("memory://"):
        click.echo(
            "memory:// is local to this process: every process leads. For several processes, use file:///path.",
            err=True,
        )


def _election_by_url(url: str, role: str | None, settings: LockSettings, lease_s: float) -> Election:
    with wrong_usage((ValueError, TypeError, PgLeaderLockError)):
        options = store_options(url, given_settings().get("schema"), schema_owner())
        backend = open_backend(url, role=role, lease_s=lease_s, address=settings.address, **options)
        return Election(backend, **settings.of_election())
