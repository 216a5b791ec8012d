"""The options, each said once, and the checks that belong to one option alone."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pgleaderlock._checks import check_seconds
from pgleaderlock.backends import _dsn
from pgleaderlock.backends._ownership import check_owner
from pgleaderlock.backends.lease import DEFAULT_SCHEMA
from pgleaderlock.cli.argv_secrets import DSN_VARIABLE, URL_VARIABLE

__all__ = [
    "dsn_option",
    "health_interval",
    "lease_options",
    "lock_options",
    "naming_options",
    "schema_option",
    "schema_owner",
    "schema_owner_option",
    "seconds_option",
]

F = TypeVar("F", bound=Callable[..., Any])


def seconds_option(
    flag: str,
    help: str,  # noqa: A002 - the word of click
    *,
    default: float | None = None,
    zero_ok: bool = False,
) -> Callable[[F], F]:
    """Return an option that is a duration, whose argument is called as the flag is, with its unit."""
    return click.option(
        flag,
        f"{flag.removeprefix('--').replace('-', '_')}_s",
        type=float,
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        callback=_check_seconds(zero_ok=zero_ok),
        help=help,
    )


def _check_seconds(*, zero_ok: bool = False) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that refuses what is not a duration, in the library's words and under the option's name."""

    def check(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        try:
            return None if value is None else check_seconds(option.opts[0], value, zero_ok=zero_ok)
        except ValueError as error:
            raise click.UsageError(str(error), context) from error

    return check


def _check_option_dsn(context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is None and DSN_VARIABLE in os.environ:
        # Where a secret was not filled in, each process would get an embedded server of its own, and lead on it.
        raise click.UsageError(f"${DSN_VARIABLE} is set but empty: give it a value, or unset it.", context)
    try:
        if value is not None:
            _dsn.check_dsn(value)
    except ValueError as error:
        raise click.UsageError(str(error), context) from error
    return value


def _check_option_url(context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is None and URL_VARIABLE in os.environ:  # as with the other: a value that was not filled in
        raise click.UsageError(f"${URL_VARIABLE} is set but empty: give it a value, or unset it.", context)
    return value


schema_option = click.option(
    "--schema", default=DEFAULT_SCHEMA, show_default=True, metavar="NAME", help="Where the term table is."
)

_OWNER = "pgleaderlock.schema_owner"


def _keep_owner(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    try:
        context.meta[_OWNER] = check_owner(value)
    except ValueError as error:
        raise click.UsageError(str(error), context) from error


# No argument of the commands: whatever opens tables asks schema_owner().
schema_owner_option = click.option(
    "--schema-owner",
    envvar="PGLEADERLOCK_SCHEMA_OWNER",
    show_envvar=True,
    metavar="ROLE",
    expose_value=False,
    callback=_keep_owner,
    help="Use tables of this role there, besides those of our own user and of a superuser.",
)


def schema_owner() -> str | None:
    """Return the role that the command line trusts with the tables."""
    owner: str | None = click.get_current_context().meta.get(_OWNER)
    return owner


def dsn_option(command: F) -> F:
    """Add the database."""
    return click.option(
        "--dsn",
        envvar=DSN_VARIABLE,
        show_envvar=True,
        metavar="DSN",
        callback=_check_option_dsn,
        help="PostgreSQL connection string. With a password in it, prefer the variable: the shell remembers.",
    )(command)


def lock_options(command: F) -> F:
    """Add the options that say which lock, where, and how to print."""
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout.")
    return naming_options(as_json(command))


def naming_options(command: F) -> F:
    """Add the options that say which lock, and where."""
    options = (
        dsn_option,
        click.option(
            "--url",
            envvar=URL_VARIABLE,
            show_envvar=True,
            metavar="URL",
            callback=_check_option_url,
            help="Another store than --dsn: file:///path, k8s://namespace/name, postgresql+lease://...",
        ),
        click.option("--key1", type=int, help="Advisory lock key 1 (32-bit). Needs --key2."),
        click.option("--key2", type=int, help="Advisory lock key 2 (32-bit). Needs --key1."),
        click.option("--role", metavar="NAME", help="The lock by name instead of by keys, as LeaderLock(role=...)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


health_interval = seconds_option("--health-interval", "How often to renew the lease. [default: a third of it, so 5 s]")


def lease_options(command: F) -> F:
    """Add the options on which all contenders for one lock must agree."""
    options = (
        seconds_option("--lease", "How long a silent leader keeps the lock. [default: three intervals, so 15 s]"),
        seconds_option(
            "--settle",
            "How long after the server's start nobody leads yet. 0 only for a server without a past. "
            "[default: the lease]",
            zero_ok=True,
        ),
        click.option(
            "--wake",
            type=click.Choice(["line", "poll"]),
            default="line",
            show_default=True,
            help="Stand in line for the lock, or ask for it now and then.",
        ),
        click.option("--no-witness", is_flag=True, help="Do with one connection, and a weaker promise."),
        click.option(
            "--takeover",
            type=click.Choice(["fast", "strict"]),
            default="fast",
            show_default=True,
            help="Strict waits a lease after every leader that did not release cleanly. Needs --term-table.",
        ),
        click.option("--term-table", is_flag=True, help="Write each term down, for strict take-over and fencing."),
        schema_option,
        schema_owner_option,
    )
    for option in reversed(options):
        command = option(command)
    return command
