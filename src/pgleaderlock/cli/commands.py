"""The words: what can be asked for, and the checks that refuse it before anything runs."""

import asyncio
import io
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import click

from pgleaderlock import __version__
from pgleaderlock._checks import check_seconds
from pgleaderlock.backends import _dsn
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.acquire import OneAttempt, acquire_once
from pgleaderlock.cli.argv_secrets import DSN_VARIABLE, hide_secrets
from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.run import take_part
from pgleaderlock.cli.schema import apply_schema, statements_of
from pgleaderlock.cli.signals import unwind_on_signal
from pgleaderlock.cli.status import show_status
from pgleaderlock.keys import LockKey
from pgleaderlock.lock import LeaderLock
from pgleaderlock.retry import ExponentialBackoff

__all__ = ["cli", "invoke"]

F = TypeVar("F", bound=Callable[..., Any])


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. User errors become a message, without secrets, never a traceback."""
    unwind_on_signal()
    try:
        return int(cli.main(list(arguments), prog_name="pgleaderlock", standalone_mode=False) or 0)
    except click.Abort:
        return exit_codes.INTERRUPTED
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(hide_secrets(shown.getvalue(), arguments), err=True, nl=False)
        return error.exit_code
    except OSError as error:  # such as a full disk behind "> file"
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        return exit_codes.NOT_ACQUIRED


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exit_codes.EXIT_CODES_HELP,
)
@click.version_option(__version__, prog_name="pgleaderlock")
def cli() -> None:
    """Leader election on PostgreSQL: exactly one of N processes leads.

    Without --dsn and without $PG_DSN, every command uses an embedded PostgreSQL that all your processes share.
    """


# --- Options that every command has ---


def _check_option_seconds(*, zero_ok: bool = False) -> Callable[[click.Context, click.Parameter, Any], Any]:
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


_schema_option = click.option(
    "--schema", default="pgleaderlock", show_default=True, metavar="NAME", help="Where the term table is."
)


def _dsn_option(command: F) -> F:
    return click.option(
        "--dsn",
        envvar=DSN_VARIABLE,
        show_envvar=True,
        metavar="DSN",
        callback=_check_option_dsn,
        help="PostgreSQL connection string. With a password in it, prefer the variable: the shell remembers.",
    )(command)


def _lock_options(command: F) -> F:
    """Add the options that say which lock, where, and how to print."""
    options = (
        _dsn_option,
        click.option("--key1", type=int, help="Advisory lock key 1 (32-bit). Needs --key2."),
        click.option("--key2", type=int, help="Advisory lock key 2 (32-bit). Needs --key1."),
        click.option("--role", metavar="NAME", help="The lock by name instead of by keys, as LeaderLock(role=...)."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout."),
    )
    for option in reversed(options):
        command = option(command)
    return command


_health_interval = click.option(
    "--health-interval",
    "health_interval_s",
    type=float,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    callback=_check_option_seconds(),
    help="How often to see whether the lock is still held.",
)


def _lease_options(command: F) -> F:
    """Add the options on which all contenders for one lock must agree."""
    options = (
        click.option(
            "--lease",
            "lease_s",
            type=float,
            metavar="SECONDS",
            callback=_check_option_seconds(),
            help="How long a silent leader keeps the lock. [default: three health intervals]",
        ),
        click.option(
            "--settle",
            "settle_s",
            type=float,
            metavar="SECONDS",
            callback=_check_option_seconds(zero_ok=True),
            help="How long after the server's start nobody leads yet. 0 only for a server without a past. "
            "[default: the lease]",
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
        _schema_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _choose_key(key1: int | None, key2: int | None, role: str | None) -> LockKey:
    by_numbers = key1 is not None or key2 is not None
    if by_numbers == (role is not None):
        raise click.UsageError("name the lock in exactly one way: --key1 and --key2, or --role.")
    if by_numbers and (key1 is None or key2 is None):
        raise click.UsageError("--key1 and --key2 go together: both are needed.")
    if role is not None and "://" in role:  # a usable name, but never meant as one, and every log line would show it
        raise click.UsageError("--role takes a name, and this is a connection string: that is for --dsn.")
    try:
        return LockKey.named(role) if role is not None else LockKey.pair(key1, key2)  # type: ignore[arg-type]
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_by_making(make_lock: Callable[[str], LeaderLock]) -> None:
    """Let the library refuse a combination of settings now, before a server is started for it."""
    try:
        make_lock("postgresql://")
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_takeover(takeover: str, *, term_table: bool) -> None:
    if takeover == "strict" and not term_table:  # said here in the command line's own words
        raise click.UsageError("--takeover strict decides by the term table: add --term-table.")


# --- The commands ---


@cli.command(epilog=exit_codes.EXIT_CODES_HELP)
@_lock_options
@_health_interval
@_lease_options
@click.option(
    "--retry-base",
    "retry_base_s",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    callback=_check_option_seconds(),
    help="Base delay of the exponential back-off between attempts.",
)
@click.option(
    "--retry-max",
    "retry_max_s",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    callback=_check_option_seconds(),
    help="Longest delay of the back-off.",
)
@click.option(
    "--reconnect-grace",
    "reconnect_grace_s",
    type=float,
    metavar="SECONDS",
    callback=_check_option_seconds(),
    help="Try to win leadership back for so long before calling it lost. [default: off]",
)
@click.option("--no-auto-reacquire", is_flag=True, help="Exit after a loss instead of becoming a follower.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out a follower's attempts: log only what changes who leads.")
@click.pass_context
def run(
    context: click.Context,
    *,
    dsn: str | None,
    key1: int | None,
    key2: int | None,
    role: str | None,
    as_json: bool,
    health_interval_s: float,
    lease_s: float | None,
    settle_s: float | None,
    wake: Literal["line", "poll"],
    no_witness: bool,
    takeover: Literal["fast", "strict"],
    term_table: bool,
    schema: str,
    retry_base_s: float,
    retry_max_s: float,
    reconnect_grace_s: float | None,
    no_auto_reacquire: bool,
    quiet: bool,
) -> None:
    """Take part in the election, and log every transition until interrupted.

    SIGINT (Ctrl-C) and SIGTERM release the lock and exit; a second one closes the session by force. Logs go to
    stderr. With --json, each event is a line on stdout.
    """
    key = _choose_key(key1, key2, role)
    try:
        backoff = ExponentialBackoff(retry_base_s, retry_max_s)
    except ValueError as error:
        raise click.UsageError(f"--retry-base and --retry-max: {error}") from error
    make_lock = partial(
        LeaderLock,
        key=key,
        retry_strategy=backoff,
        health_interval_s=health_interval_s,
        reconnect_grace_s=reconnect_grace_s,
        auto_reacquire=not no_auto_reacquire,
        lease_s=lease_s,
        wake=wake,
        witness=not no_witness,
        takeover=takeover,
        term_table=term_table,
        schema=schema,
    )
    _check_takeover(takeover, term_table=term_table)
    _check_by_making(make_lock)
    show_logs("INFO" if quiet else "DEBUG")
    with open_database(dsn) as database:
        lock = make_lock(database.dsn, settle_s=database.settle_s(settle_s))
        code = asyncio.run(take_part(lock, database.dsn, as_json=as_json))
    context.exit(code)


@cli.command(epilog=exit_codes.EXIT_CODES_HELP)
@_lock_options
@_health_interval
@_lease_options
@click.option(
    "--hold",
    "hold_s",
    type=float,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    callback=_check_option_seconds(zero_ok=True),
    help="Keep the lock for so long. A signal ends it early, with a release and exit code 0.",
)
@click.pass_context
def acquire(
    context: click.Context,
    *,
    dsn: str | None,
    key1: int | None,
    key2: int | None,
    role: str | None,
    as_json: bool,
    health_interval_s: float,
    lease_s: float | None,
    settle_s: float | None,
    wake: Literal["line", "poll"],
    no_witness: bool,
    takeover: Literal["fast", "strict"],
    term_table: bool,
    schema: str,
    hold_s: float,
) -> None:
    """Try once to get the lock: exit code 0 if acquired, 1 if another process holds it.

    The lock is released again when the command ends, at once unless --hold is given.
    """
    make_lock = partial(
        LeaderLock,
        key=_choose_key(key1, key2, role),
        retry_strategy=OneAttempt(),
        health_interval_s=health_interval_s,
        auto_reacquire=False,
        lease_s=lease_s,
        wake=wake,
        witness=not no_witness,
        takeover=takeover,
        term_table=term_table,
        schema=schema,
    )
    _check_takeover(takeover, term_table=term_table)
    _check_by_making(make_lock)
    show_logs("ERROR")  # the outcome is told by the command itself
    with open_database(dsn) as database:
        lock = make_lock(database.dsn, settle_s=database.settle_s(settle_s))
        code = asyncio.run(acquire_once(lock, database.dsn, hold_s=hold_s, as_json=as_json))
    context.exit(code)


@cli.command(epilog=exit_codes.EXIT_CODES_HELP)
@_lock_options
def status(*, dsn: str | None, key1: int | None, key2: int | None, role: str | None, as_json: bool) -> None:
    """Show who holds the lock and who stands in line for it, from pg_locks and pg_stat_activity.

    Informational only: it may be history by the time you read it, so never decide by it who leads. Followers that
    poll hold nothing and wait in no line, so they are not shown. Process ids are those of the server's sessions.
    """
    key = _choose_key(key1, key2, role)
    show_logs("ERROR")
    with open_database(dsn) as database:
        asyncio.run(show_status(database.dsn, key, as_json=as_json))


@cli.group()
def schema() -> None:
    """The table that --term-table uses: print it, or make it.

    A contender with --term-table makes it by itself where its user may. Where not, its owner runs this once.
    """


@schema.command("show")
@_schema_option
def schema_show(*, schema: str) -> None:
    """Print the statements, for those who apply them in their own way."""
    click.echo(statements_of(schema), nl=False)


@schema.command("apply", epilog=exit_codes.EXIT_CODES_HELP)
@_dsn_option
@_schema_option
@click.option("--grant-to", "grantee", metavar="USER", help="Let this user take part in elections with it.")
def schema_apply(*, dsn: str | None, schema: str, grantee: str | None) -> None:
    """Make the table, unless it is there. May be repeated."""
    statements_of(schema)
    with open_database(dsn) as database:
        asyncio.run(apply_schema(database.dsn, schema, grantee))
