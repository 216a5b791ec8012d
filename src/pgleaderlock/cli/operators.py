"""The operators' commands, which read the registry that all nodes share.

All of them only read, except ``step-down``: it asks the leader to hand over, and the leader decides. The modules that
implement them are imported when a command runs, because tables take a while to import.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from pgleaderlock._base.schemes import is_postgres
from pgleaderlock.cli.config import config_option
from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.election_options import schema_owner_option
from pgleaderlock.cli.options import (
    dsn_option,
    is_given,
    json_option,
    listen_options,
    refuse_key_as_role,
    seconds_option,
    url_option,
    with_options,
    wrong_usage,
)
from pgleaderlock.cli.shown_roles import ShownRoles, find_shown_roles, key_in
from pgleaderlock.cli.times import SINCE_FORMS, Since, parse_since
from pgleaderlock.cli.words import texts
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres.keys import LockKey

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# --- Options ---


def _registry_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a registry, which the command gets as ``place``, and ``--json``."""

    @functools.wraps(command)
    def with_place(
        *args: Any, dsn: str | None, url: str | None, schema: str | None, config_file: Path | None, **others: Any
    ) -> Any:
        show_logs("ERROR")
        return command(*args, place=find_shown_roles(dsn, url, schema, config_file), **others)

    return _place_options(json_option("One JSON object per line on stdout.")(with_place))


_REGISTRY_URL = "In place of --dsn: a postgresql:// URL. A registry is in PostgreSQL, whatever the elections are on."
_STORE_URL = "In place of --dsn: a postgresql:// URL of a registry; or one lock, as file:///path, k8s://namespace/name."


def _place_options(command: F, url_help: str = _REGISTRY_URL) -> F:
    return with_options(
        command,
        dsn_option,
        url_option(url_help),
        click.option(
            "--schema",
            metavar="NAME",
            help=f"Where the registry's tables are. [default: {DEFAULT_SCHEMA}, or what --config says]",
        ),
        schema_owner_option,
        config_option,
    )


def _role_options(command: F) -> F:
    return with_options(
        command,
        click.option("--role", metavar="NAME", help="The role, as the registry shows it."),
        click.option("--lock", metavar="LOCK", help="The lock, as pair:1/100; needed where two have one role."),
    )


def _check_option_since(_context: click.Context, _option: click.Parameter, value: str | None) -> Since:
    with wrong_usage(said="--since: {}"):
        return Since() if value is None else parse_since(value)


_since_option = click.option(
    "--since", callback=_check_option_since, metavar="WHEN", help=f"From when on: {SINCE_FORMS}. [default: all]"
)
_limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Only the newest so many.",
)


# --- The commands ---


def _run(command: Callable[..., Coroutine[Any, Any, T]], place: ShownRoles, *arguments: Any, **options: Any) -> T:
    """Run a command on the database of this registry."""
    with open_database(place.dsn) as dsn:
        return asyncio.run(command(dsn, place, *arguments, **options))


def show_all_roles(place: ShownRoles, *, as_json: bool) -> None:
    """Print all roles of the registry: ``status`` without a lock."""
    from pgleaderlock.cli.roles import show_roles  # noqa: PLC0415 - its tables take a while to import

    _run(show_roles, place, as_json=as_json)


@click.command("history", **texts("history"))
@_registry_options
@_role_options
@_since_option
@_limit_option
def history(*, place: ShownRoles, as_json: bool, role: str | None, lock: str | None, since: Since, limit: int) -> None:
    """Show the events of each role, the oldest first: who led, how each term ended, and why.

    Times are by the database's clock, in UTC. Events that a node could not write are counted where they are missing.
    """
    from pgleaderlock.cli.history import show_history  # noqa: PLC0415 - its tables take a while to import

    _run(show_history, place, (role, lock), since, limit, as_json=as_json)


def _only_role(place: ShownRoles) -> str:
    if place.roles is None or len(place.roles) != 1:
        raise click.UsageError("name the role whose leader is meant: --role, or --lock.")
    return place.roles[0]


@click.command("ticks", **texts("ticks"))
@_registry_options
@click.option("--job", metavar="NAME", help="Only this job.")
@_role_options
@_since_option
@_limit_option
def ticks(
    *,
    place: ShownRoles,
    as_json: bool,
    job: str | None,
    role: str | None,
    lock: str | None,
    since: Since,
    limit: int,
) -> None:
    """Show the runs of scheduled jobs, the oldest first: the slot, the node that ran it, and how the run ended.

    Times are by the database's clock, in UTC.
    """
    from pgleaderlock.cli.ticks import show_ticks  # noqa: PLC0415 - its tables take a while to import

    _run(show_ticks, place, job=job, lock=_key_of(role, lock, place), since=since, limit=limit, as_json=as_json)


def _key_of(role: str | None, lock: str | None, place: ShownRoles) -> LockKey | None:
    """Return the lock that --role or --lock names; None if neither is given."""
    if role is not None and lock is not None:
        raise click.UsageError("--role and --lock name the lock twice: give one of them.")
    if role is not None:
        refuse_key_as_role(role, "--lock")
    with wrong_usage():
        if role is not None:
            return key_in(place.config, role) or LockKey.named(role)
        return None if lock is None else LockKey.parse(lock)


@click.command("step-down", **texts("step-down"))
@_registry_options
@_role_options
@seconds_option("--wait", "How long the leader and its successor may take.", default=30.0)
@click.option("--reason", metavar="TEXT", help="Why, for the leader's log and the history.")
@click.option("--to", metavar="NODE", help="The node that is to lead next, by its name or as host:pid.")
@click.option(
    "--token",
    type=click.IntRange(min=0),
    help="Only the term with this token, as status shows it; a successor refuses.",
)
@click.pass_context
def step_down(
    context: click.Context,
    *,
    place: ShownRoles,
    as_json: bool,
    role: str | None,
    lock: str | None,
    wait_s: float,
    reason: str | None,
    to: str | None,
    token: int | None,
) -> None:
    """Ask the leader of a role to hand over; print which node took over, and how long there was no leader.

    Exit code 1 if no other node took over, or another one than --to names. The old leader remains a candidate. It
    accepts an ask from users to whom the table of asks is granted (schema apply --grant-asks-to USER), once per lease.
    A leader without a registry, or with accept_asks=False, does not receive it.
    """
    from pgleaderlock.cli import step_down as command  # noqa: PLC0415 - its tables take a while to import
    from pgleaderlock.ops.registry._ask_inbox import nominee_in  # noqa: PLC0415 - as above

    if role is None and lock is None:
        role = _only_role(place)
    if nominee_in(reason) is not None:
        raise click.UsageError("a --reason that begins like this names the next leader: use --to.")
    wish = command.Wish(role, lock, wait_s, reason, token, to)
    context.exit(_run(command.step_down, place, wish, as_json=as_json))


@click.command("watch", **texts("watch"))
@_registry_options
@seconds_option("--interval", "Read the registry at least this often, even without a notification.", default=1.0)
def watch(*, place: ShownRoles, as_json: bool, interval_s: float) -> None:
    """Show all roles as status does, and update them until interrupted.

    A terminal gets one table that is updated in place, a pipe a new table per change. While the database cannot be
    reached, the table is marked as stale.
    """
    from pgleaderlock.cli import watch as command  # noqa: PLC0415 - its tables take a while to import

    _run(command.watch, place, interval_s, as_json=as_json)


@click.command("audit", **texts("audit"))
@_registry_options
@_role_options
@_since_option
@click.pass_context
def audit(
    context: click.Context, *, place: ShownRoles, as_json: bool, role: str | None, lock: str | None, since: Since
) -> None:
    """Check the history: how long there was no leader, how terms ended, and whether two terms overlapped.

    Exit code 1 if two terms overlapped by more than the error of the clocks. Without --since, the whole history.
    """
    from pgleaderlock.cli.audit import show_audit  # noqa: PLC0415 - its tables take a while to import

    context.exit(_run(show_audit, place, role, lock, since, as_json=as_json))


@click.command("dashboard", **texts("dashboard"))
@functools.partial(_place_options, url_help=_STORE_URL)
@listen_options(8464)
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let the page ask leaders to step down. It needs the token that is printed with the address.",
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Another name that browsers may know this server by."
)
@seconds_option("--window", "How much of the history is shown.", default=3600.0)
def dashboard(
    *,
    dsn: str | None,
    url: str | None,
    schema: str | None,
    config_file: Path | None,
    host: str,
    port: int,
    allow_actions: bool,
    hosts: tuple[str, ...],
    window_s: float,
) -> None:
    """Serve a page that shows who leads what, live: leaders, candidates, failovers, alerts.

    It shows a registry, which is in PostgreSQL; or, with --url of a store whose URL names one lock, who holds that
    lock. There is no password: everyone who can reach the address can read the page, so it listens on this machine
    only, unless --host says otherwise. $PGLEADERLOCK_DASHBOARD_TOKEN sets the token of --allow-actions.
    """
    from pgleaderlock.cli import dashboard as command  # noqa: PLC0415 - it needs an extra of its own

    show_logs("ERROR")
    token = command.choose_token(allow_actions=allow_actions)
    serving: dict[str, Any] = {"host": host, "port": port, "token": token, "hosts": hosts}
    if url is not None and not is_postgres(url) and (is_given("url") or dsn is None):
        if is_given("config_file"):
            raise click.UsageError(
                "--url of a store without a registry and --config name two things to show: give one."
            )
        asyncio.run(command.serve(command.store_source([url], window_s), **serving))
        return
    place = find_shown_roles(dsn, url, schema, config_file)
    with open_database(place.dsn) as database_dsn:
        source = command.registry_source(database_dsn, place, window_s)
        asyncio.run(command.serve(source, place, **serving))


COMMANDS = (history, ticks, step_down, watch, audit, dashboard)
