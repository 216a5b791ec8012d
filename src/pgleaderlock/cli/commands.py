"""The words: what can be asked for, and the checks that refuse it before anything runs."""

import asyncio
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from pgleaderlock import __version__
from pgleaderlock._checks import visible
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.acquire import Attempts, acquire_once
from pgleaderlock.cli.alerts import alerts
from pgleaderlock.cli.argv_secrets import hide_secrets
from pgleaderlock.cli.beside_config import config_for_lock, config_for_node
from pgleaderlock.cli.config import config, config_option, config_options
from pgleaderlock.cli.console import print_json, show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.demo import demo
from pgleaderlock.cli.elect import Common, LeaseOptions, as_dsn, check_url, chosen_times, elected
from pgleaderlock.cli.exec import exec_command
from pgleaderlock.cli.k8s import as_list, as_yaml, manifest
from pgleaderlock.cli.metrics import served_metrics
from pgleaderlock.cli.nfs import nfs
from pgleaderlock.cli.node import run_configured
from pgleaderlock.cli.operators import COMMANDS, show_all_roles
from pgleaderlock.cli.options import (
    LockName,
    allow_pooler_option,
    allows_pooler,
    dsn_option,
    examined_options,
    health_interval,
    json_option,
    lease_options,
    lock_options,
    schema_option,
    schema_owner,
    schema_owner_option,
    seconds_option,
)
from pgleaderlock.cli.place import find_place, is_configured, lock_in, role_of, target_of
from pgleaderlock.cli.run import take_part
from pgleaderlock.cli.schema import apply_schema, statements_of, tell_applied
from pgleaderlock.cli.signals import unwind_on_signal
from pgleaderlock.cli.status import show_status
from pgleaderlock.cli.suggestions import with_near_words
from pgleaderlock.cli.target import in_postgres, in_store, is_postgres
from pgleaderlock.cli.torture import torture
from pgleaderlock.cli.words import WORDS, CommandGroup, texts
from pgleaderlock.errors import MissingExtra
from pgleaderlock.retry import ExponentialBackoff

__all__ = ["cli", "invoke"]


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. User errors become a message, without secrets, never a traceback."""
    unwind_on_signal()
    try:
        return _run(arguments)
    except click.Abort:
        return _failed("interrupted before there was anything to hand over", exit_codes.INTERRUPTED, arguments)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        # Paths and names in it may be anything: a terminal must not obey them.
        lines = map(visible, hide_secrets(shown.getvalue(), arguments).split("\n"))
        click.echo("\n".join(lines), err=True, nl=False)
        return _failed(hide_secrets(error.format_message(), arguments), error.exit_code, arguments)
    except OSError as error:  # such as a full disk behind "> file"
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        return exit_codes.NOT_ACQUIRED


def _run(arguments: Sequence[str]) -> int:
    try:
        return int(cli.main(list(arguments), prog_name="pgleaderlock", standalone_mode=False) or 0)
    except MissingExtra as error:
        raise click.UsageError(str(error)) from error
    except click.UsageError as error:
        raise with_near_words(error) from error


def _failed(text: str, code: int, arguments: Sequence[str]) -> int:
    """With --json, print the error on stdout too: a program that reads it finds one object there in any case."""
    if _wants_json(arguments):
        with contextlib.suppress(OSError):  # the exit code is all that is left to say it
            print_json({"error": text, "exit_code": code})
    return code


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command is asked for JSON on stdout. Read from the words: they may be wrong, and that is the error."""
    command: click.Command = cli
    for word in arguments:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        elif command is exec_command or word == "--":  # whose stdout is that of the command that it runs
            return False
        elif word == "--json":
            return any(parameter.name == "as_json" for parameter in command.params)
    return False


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exit_codes.EXIT_CODES_HELP,
)
@click.version_option(__version__, prog_name="pgleaderlock")
def cli() -> None:
    """Leader election: exactly one of N processes leads.

    On PostgreSQL (--dsn), or on what --url names: a file, a shared folder, a Kubernetes Lease, rows behind a pooler.
    To try it on this host alone, --embedded uses a PostgreSQL of its own, which your processes share.
    """


# --- The commands ---


@cli.command(**texts("run"))
@lock_options
@health_interval
@lease_options
@seconds_option("--retry-base", "Base delay of the exponential back-off between attempts.", default=1.0)
@seconds_option("--retry-max", "Longest delay of the back-off.", default=30.0)
@seconds_option("--reconnect-grace", "Try to win leadership back for so long before calling it lost. [default: off]")
@click.option("--no-auto-reacquire", is_flag=True, help="Exit after a loss instead of becoming a follower.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out a follower's attempts: log only what changes who leads.")
@config_options
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics there, on loopback.")
@click.pass_context
def run(
    context: click.Context,
    *,
    config_file: Path | None,
    sets: tuple[str, ...],
    metrics_port: int | None,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    health_interval_s: float | None,
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

    With --config or --set, all roles of a configured node; pgleaderlock config show tells what is in force. Other
    options win over the file and the variables; those that a configured node has no use for are refused.
    """
    configured = config_for_node(context, config_file, sets)
    if configured is not None:
        context.exit(run_configured(configured, as_json=as_json, log_level="INFO" if quiet else "DEBUG"))
    try:
        backoff = ExponentialBackoff(retry_base_s, retry_max_s)
    except ValueError as error:
        raise click.UsageError(f"--retry-base and --retry-max: {error}") from error
    times = chosen_times(lease_s, health_interval_s)
    common = Common(
        retry_strategy=backoff,
        health_interval_s=times.health_interval_s,
        reconnect_grace_s=reconnect_grace_s,
        auto_reacquire=not no_auto_reacquire,
    )
    lease = LeaseOptions(times.lease_s, settle_s, wake, no_witness, takeover, term_table, schema)
    level = "INFO" if quiet else "DEBUG"
    with (
        elected(dsn, url, named, common, lease, log_level=level) as (lock, target),
        served_metrics(lock, target.name, metrics_port),
    ):
        code = asyncio.run(take_part(lock, target, as_json=as_json))
    context.exit(code)


@cli.command(**texts("acquire"))
@lock_options
@health_interval
@lease_options
@seconds_option(
    "--hold",
    "Keep the lock for so long. A signal ends it early, with a release and exit code 0.",
    default=0.0,
    zero_ok=True,
)
@seconds_option("--wait", "Go on asking for so long, instead of asking once.", default=0.0, zero_ok=True)
@config_option
@click.pass_context
def acquire(
    context: click.Context,
    *,
    config_file: Path | None,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    health_interval_s: float | None,
    lease_s: float | None,
    settle_s: float | None,
    wake: Literal["line", "poll"],
    no_witness: bool,
    takeover: Literal["fast", "strict"],
    term_table: bool,
    schema: str,
    hold_s: float,
    wait_s: float,
) -> None:
    """Try once to get the lock: exit code 0 if acquired, 1 if another process holds it.

    The lock is released again when the command ends, at once unless --hold is given.

    Where a dead holder is known by its silence (rows, Kubernetes, a shared folder), one look cannot tell it from a
    living one: --wait for longer than a lease takes over from it.

    With --config, --role is one of that file, whose store and times count unless an option says otherwise.
    """
    configured = config_for_lock(context, config_file, takes_part=True)
    times = chosen_times(lease_s, health_interval_s, configured)
    common = Common(retry_strategy=Attempts(wait_s), health_interval_s=times.health_interval_s, auto_reacquire=False)
    lease = LeaseOptions(times.lease_s, settle_s, wake, no_witness, takeover, term_table, schema)
    # Only errors are logged: the outcome is told by the command itself.
    with elected(dsn, url, named, common, lease, configured=configured, log_level="ERROR") as (lock, target):
        code = asyncio.run(acquire_once(lock, target, hold_s=hold_s, wait_s=wait_s, as_json=as_json))
    context.exit(code)


@cli.command(**texts("status"))
@lock_options
@click.option(
    "--schema",
    metavar="NAME",
    help="Where the registry is, or the rows of postgresql+lease://. [default: pgleaderlock, or what --config says]",
)
@schema_owner_option
@config_option
@click.pass_context
def status(
    context: click.Context,
    *,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    schema: str | None,
    config_file: Path | None,
) -> None:
    """Show who holds the lock and who queues for it, as its store shows it now.

    Without a lock: all roles of the registry, or those of --config, with their leaders and candidates, as the nodes
    wrote them down.

    Informational only: it may be history by the time you read it, so never decide by it who leads. Followers that
    poll hold nothing and wait in no queue, so they are not shown. Process ids are those of the server's sessions.
    """
    show_logs("ERROR")
    if not named.is_given and (is_configured(config_file) or url is None or is_postgres(url)):
        show_all_roles(find_place(dsn, url, schema, config_file), as_json=as_json)
        return
    configured = config_for_lock(context, config_file)
    if configured is not None and not configured.election.on_sessions:
        asyncio.run(show_status(target_of(configured, role_of(configured, named)), as_json=as_json))
        return
    url, dsn = as_dsn(url, dsn)
    if configured is not None:
        url, dsn = None, configured.election.url
    if check_url(url, named) is not None:
        asyncio.run(show_status(in_store(str(url), named.role, schema, schema_owner()), as_json=as_json))
        return
    key = lock_in(configured, named)
    with open_database(dsn) as database:
        asyncio.run(show_status(in_postgres(database.dsn, key), as_json=as_json))


@cli.command(**texts("doctor"))
@examined_options
@seconds_option("--lease", "The lease of your candidates: wait slices and round trips are judged by it.", default=15.0)
@allow_pooler_option
@schema_option
@schema_owner_option
@config_option
@click.pass_context
def doctor(
    context: click.Context,
    *,
    config_file: Path | None,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    lease_s: float,
    schema: str,
) -> None:
    """Check whether this database and this user can carry an election, and say what to do if not.

    With a lock named, also who holds it. Nothing is left behind. With --config, the database of that file is examined,
    by its lease and its schema.
    """
    from pgleaderlock.cli.doctor import show_doctor  # noqa: PLC0415 - its tables take a while to import

    configured = config_for_lock(context, config_file)
    url, dsn = as_dsn(url, dsn)
    settings = {"allow_pooler": allows_pooler(), "schema": schema, "schema_owner": schema_owner()}
    if configured is not None:
        election = configured.election
        url, dsn = (None, election.url) if election.on_sessions else (election.url, None)
        settings = {name: election.lock_options()[name] for name in settings}
        lease_s = election.lease_s
    if url is not None:
        raise click.UsageError(
            "doctor examines a PostgreSQL for session locks, and this is another store: name the database with --dsn."
        )
    key = lock_in(configured, named) if named.is_given else None
    statements_of(str(settings["schema"]))  # which refuses what is no name of a schema
    show_logs("ERROR")
    with open_database(dsn) as database:
        is_fit = asyncio.run(show_doctor(database.dsn, key, lease_s, as_json=as_json, **settings))
    context.exit(exit_codes.CLEAN if is_fit else exit_codes.UNFIT)


@cli.group(short_help=WORDS["schema"].short)
def schema() -> None:
    """Print or make the tables that pgleaderlock keeps in a PostgreSQL. An election by --dsn alone needs none.

    They are for --term-table, the registry (status, history, audit, step-down), scheduled jobs (ticks) and
    postgresql+lease://. What needs a table makes it where its user may create one. Where not, an owner of the
    database runs schema apply once, with --grant-to the user of the candidates.
    """


@schema.command("show", **texts("schema show"))
@schema_option
@json_option("One JSON object on stdout.")
def schema_show(*, schema: str, as_json: bool) -> None:
    """Print the SQL that makes the tables, to be applied in another way. Nothing is connected to."""
    statements = statements_of(schema)
    if as_json:
        print_json({"schema": schema, "sql": statements})
    else:
        click.echo(statements, nl=False)


@schema.command("apply", **texts("schema apply"))
@dsn_option
@schema_option
@schema_owner_option
@click.option(
    "--grant-to",
    "grantee",
    metavar="USER",
    help="Let this user take part in elections with these tables, and write the registry.",
)
@click.option(
    "--grant-asks-to", "operator", metavar="USER", help="Let this user read the registry and ask leaders to step down."
)
@json_option("One JSON object on stdout.")
def schema_apply(*, dsn: str | None, schema: str, grantee: str | None, operator: str | None, as_json: bool) -> None:
    """Make the tables that are not there yet, and grant their use. May be repeated.

    Run it as a user who may create a schema in this database.
    """
    statements_of(schema)
    with open_database(dsn) as database:
        asyncio.run(apply_schema(database.dsn, schema, grantee, operator, owner=schema_owner()))
    if as_json:
        print_json({"schema": schema, "granted_to": grantee, "asks_granted_to": operator})
    else:
        tell_applied(schema, grantee, operator)


cli.add_command(exec_command)
cli.add_command(nfs)
cli.add_command(alerts)
cli.add_command(config)
cli.add_command(demo)
cli.add_command(torture)
for _command in COMMANDS:
    cli.add_command(_command)


@cli.group(short_help=WORDS["k8s"].short)
def k8s() -> None:
    """What Kubernetes has to allow."""


@k8s.command("rbac", **texts("k8s rbac"))
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Where the Lease is.")
@click.option(
    "--service-account", "account", default="default", show_default=True, metavar="NAME", help="Whose pods take part."
)
@click.option("--lease", "leases", multiple=True, metavar="NAME", help="Only this Lease; may be repeated.")
@click.option("--name", "role", metavar="NAME", help="Of the Role. [default: after the Lease, or the service account]")
@json_option("One JSON object on stdout, which kubectl takes as well.")
def k8s_rbac(*, namespace: str, account: str, leases: tuple[str, ...], role: str | None, as_json: bool) -> None:
    """Print a Role and its binding, for kubectl apply -f -."""
    objects = manifest(namespace, account, leases, role)
    if as_json:
        print_json(as_list(objects))
    else:
        click.echo(as_yaml(objects), nl=False)
