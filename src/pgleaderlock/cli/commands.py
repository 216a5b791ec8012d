"""The commands, and the checks that refuse wrong usage before anything runs."""

import asyncio
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pgleaderlock import __version__
from pgleaderlock._base.checks import visible
from pgleaderlock._base.schemes import is_postgres
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.acquire import Attempts, acquire_once
from pgleaderlock.cli.alerts import alerts
from pgleaderlock.cli.argv_secrets import hide_secrets
from pgleaderlock.cli.beside_config import config_for_lock, config_for_node
from pgleaderlock.cli.config import config, config_option, config_options
from pgleaderlock.cli.console import print_json, show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.demo import demo
from pgleaderlock.cli.elect import elected
from pgleaderlock.cli.election_options import (
    allow_pooler_option,
    allows_pooler,
    candidate_options,
    chosen_backoff,
    election_options,
    schema_owner,
    schema_owner_option,
)
from pgleaderlock.cli.exec import exec_command
from pgleaderlock.cli.k8s import as_list, as_yaml, manifest
from pgleaderlock.cli.leader import follow_leader, show_leader
from pgleaderlock.cli.metrics import served_metrics
from pgleaderlock.cli.nfs import nfs
from pgleaderlock.cli.node import run_configured
from pgleaderlock.cli.operators import COMMANDS, show_all_roles
from pgleaderlock.cli.options import (
    LockName,
    dsn_option,
    examined_options,
    json_lines_option,
    json_option,
    lock_options,
    metrics_port_option,
    schema_option,
    seconds_option,
)
from pgleaderlock.cli.run import take_part
from pgleaderlock.cli.schema import apply_schema, statements_of, tell_applied
from pgleaderlock.cli.shown_roles import find_shown_roles, is_configured, lock_in, named_target
from pgleaderlock.cli.sidecar import sidecar
from pgleaderlock.cli.signals import unwind_on_signal
from pgleaderlock.cli.status import show_status
from pgleaderlock.cli.suggestions import with_near_words
from pgleaderlock.cli.target import as_dsn
from pgleaderlock.cli.torture import torture
from pgleaderlock.cli.words import WORDS, CommandGroup, texts
from pgleaderlock.errors import MissingExtra
from pgleaderlock.postgres.schema import known_version


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
        # Paths and names in it may contain control characters: a terminal must not execute them.
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
    """With --json, print the error on stdout too: a program that reads stdout finds one object in any case."""
    if _wants_json(arguments):
        with contextlib.suppress(OSError):  # then only the exit code reports it
            print_json({"error": text, "exit_code": code})
    return code


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for JSON on stdout, without parsing them: parsing may be what failed."""
    command: click.Command = cli
    for word in arguments:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        elif command is exec_command or word == "--":  # its stdout belongs to the command that it runs
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

    On PostgreSQL (--dsn), or on the store that --url names: a file, a shared folder, a Kubernetes Lease, etcd, lease
    rows behind a pooler. To try it on this host alone, --embedded starts a PostgreSQL that your processes here share.
    """


# --- The commands ---


@cli.command(**texts("run"))
@candidate_options
@json_lines_option
@config_options
@metrics_port_option
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
    retry_base_s: float,
    retry_max_s: float,
    quiet: bool,
) -> None:
    """Take part in the election, and log every transition until interrupted.

    SIGINT (Ctrl-C) and SIGTERM release the lock and exit; a second one closes the session by force. Logs go to
    stderr. With --json, each event is a line on stdout.

    With --config or --set, take part for all roles of a configured node; pgleaderlock config show prints the values
    in force. Other options win over the file and the variables; options without a meaning there are refused.
    """
    configured = config_for_node(context, config_file, sets)
    if configured is not None:
        context.exit(run_configured(configured, as_json=as_json, log_level="INFO" if quiet else "DEBUG"))
    backoff = chosen_backoff(retry_base_s, retry_max_s)
    level = "INFO" if quiet else "DEBUG"
    with (
        elected(dsn, url, named, log_level=level, retry_strategy=backoff) as (lock, target),
        served_metrics(lock, target.name, metrics_port),
    ):
        code = asyncio.run(take_part(lock, target, as_json=as_json))
    context.exit(code)


@cli.command(**texts("acquire"))
@lock_options
@election_options
@seconds_option(
    "--hold",
    "Hold the lock for this long. A signal ends it early, with a release and exit code 0.",
    default=0.0,
    zero_ok=True,
)
@seconds_option("--wait", "Keep trying for this long, instead of trying once.", default=0.0, zero_ok=True)
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
    hold_s: float,
    wait_s: float,
) -> None:
    """Try once to acquire the lock: exit code 0 if acquired, 1 if another process holds it.

    The lock is released again when the command ends, at once unless --hold is given.

    Lease rows, Kubernetes and shared folders recognise a dead holder only by its missing renewals, so one attempt
    cannot tell it from a live one. To take over from a dead holder, --wait for longer than a lease.

    With --config, --role is a role of that file. Its store and times apply unless an option overrides them.
    """
    configured = config_for_lock(context, config_file, takes_part=True)
    once: dict[str, Any] = {"retry_strategy": Attempts(wait_s), "auto_reacquire": False}
    # Only errors are logged: the command itself prints the outcome.
    with elected(dsn, url, named, configured=configured, log_level="ERROR", **once) as (lock, target):
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
    """Show who holds the lock, who leads next and who else queues for it, as its store shows it now.

    Without a lock: all roles of the registry, or those of --config, with their leaders and candidates, as the nodes
    reported them.

    Informational only: it may be outdated by the time you read it, so never decide by it which process leads.
    Of the followers, the locks show the heir, the next heir and those that queue: all others are idle. Process ids are
    those of the server's sessions.
    """
    show_logs("ERROR")
    if not named.is_given and (is_configured(config_file) or url is None or is_postgres(url)):
        show_all_roles(find_shown_roles(dsn, url, schema, config_file), as_json=as_json)
        return
    with named_target(config_for_lock(context, config_file), dsn, url, named, schema) as target:
        asyncio.run(show_status(target, as_json=as_json))


@cli.command("leader", **texts("leader"))
@lock_options
@click.option("--follow", is_flag=True, help="Go on, and print a line whenever the leader changes.")
@click.option(
    "--schema",
    metavar="NAME",
    help="Where the tables are that show tokens, or the rows of postgresql+lease://. [default: pgleaderlock, or what "
    "--config says]",
)
@schema_owner_option
@config_option
@click.pass_context
def leader(
    context: click.Context,
    *,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    follow: bool,
    schema: str | None,
    config_file: Path | None,
) -> None:
    """Show who leads, and the address that the leader advertises, without taking part.

    A hint, not a promise: the leader may have changed by the time you read it. Ask the process at that address whether
    it leads, and use fencing tokens.
    """
    show_logs("ERROR")
    with named_target(config_for_lock(context, config_file), dsn, url, named, schema) as target:
        if follow:
            asyncio.run(follow_leader(target, as_json=as_json))
        else:
            context.exit(asyncio.run(show_leader(target, as_json=as_json)))


@cli.command(**texts("doctor"))
@examined_options
@seconds_option("--lease", "The lease of your candidates: wait slices and round trips must fit it.", default=15.0)
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
    """Check whether elections can run on this database with this user, and print what to do if not.

    With a lock named, also print who holds it. Nothing is left behind. With --config, the database, the lease and the
    schema are those of that file.
    """
    from pgleaderlock.cli.doctor import show_doctor  # noqa: PLC0415 - its tables take a while to import

    configured = config_for_lock(context, config_file)
    url, dsn = as_dsn(url, dsn)
    settings = {"allow_pooler": allows_pooler(), "schema": schema, "schema_owner": schema_owner()}
    if configured is not None:
        election = configured.election
        url, dsn = (None, election.url) if election.on_sessions else (election.url, None)
        settings = {"allow_pooler": election.allow_pooler, "schema": election.schema_name}
        settings["schema_owner"] = election.schema_owner
        lease_s = election.lease_s
    if url is not None:
        raise click.UsageError(
            "doctor examines a PostgreSQL for session locks, and this is another store: name the database with --dsn."
        )
    key = lock_in(configured, named) if named.is_given else None
    statements_of(str(settings["schema"]))  # raises if this cannot be the name of a schema
    show_logs("ERROR")
    with open_database(dsn) as database_dsn:
        is_fit = asyncio.run(show_doctor(database_dsn, key, lease_s, as_json=as_json, **settings))
    context.exit(exit_codes.CLEAN if is_fit else exit_codes.UNFIT)


@cli.group(short_help=WORDS["schema"].short)
def schema() -> None:
    """Print, create or upgrade the tables that pgleaderlock keeps in a PostgreSQL. An election by --dsn needs none.

    They are for --term-table, the registry (status, history, audit, step-down), scheduled jobs (ticks) and
    postgresql+lease://. A candidate creates the tables that it needs if its user may. If not, an owner of the
    database runs schema apply once, with --grant-to the user of the candidates.
    """


@schema.command("show", **texts("schema show"))
@schema_option
@click.option(
    "--from",
    "from_version",
    type=click.IntRange(min=1),
    metavar="VERSION",
    help="Print what upgrades tables of this version, instead of what creates them. Those of 0.1.0 are version 1.",
)
@json_option("One JSON object on stdout.")
def schema_show(*, schema: str, from_version: int | None, as_json: bool) -> None:
    """Print the SQL that creates or upgrades the tables, to be applied in another way: in one transaction.

    It does not connect to a database.
    """
    statements = statements_of(schema, from_version or 0)
    if as_json:
        versions = {"from_version": from_version, "version": known_version()}
        print_json({"schema": schema, **versions, "sql": statements})
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
    """Create the tables that do not exist yet, upgrade those of an older version, and grant their use.

    May be repeated, also while elections run. Run it as a user who may create a schema in this database.
    """
    statements_of(schema)
    with open_database(dsn) as database_dsn:
        made = asyncio.run(apply_schema(database_dsn, schema, grantee, operator, owner=schema_owner()))
    if as_json:
        versions = {"from_version": made.from_version or None, "version": made.version}
        print_json({"schema": schema, **versions, "granted_to": grantee, "asks_granted_to": operator})
    else:
        tell_applied(schema, made, grantee, operator)


cli.add_command(exec_command)
cli.add_command(sidecar)
cli.add_command(nfs)
cli.add_command(alerts)
cli.add_command(config)
cli.add_command(demo)
cli.add_command(torture)
for _command in COMMANDS:
    cli.add_command(_command)


@cli.group(short_help=WORDS["k8s"].short)
def k8s() -> None:
    """Print the permissions that candidates need in Kubernetes: for a Lease, and for the label of the leader's pod."""


@k8s.command("rbac", **texts("k8s rbac"))
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="The namespace of the Lease.")
@click.option(
    "--service-account",
    "account",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The account of the pods that take part.",
)
@click.option("--lease", "leases", multiple=True, metavar="NAME", help="Only this Lease; may be repeated.")
@click.option("--pod-label", "labels_pods", is_flag=True, help="Allow what --pod-label of run and exec needs, too.")
@click.option("--no-lease", is_flag=True, help="With --pod-label: nothing for Leases, for candidates on another store.")
@click.option(
    "--name", "role", metavar="NAME", help="The name of the Role. [default: after the Lease, or the service account]"
)
@json_option("One JSON object on stdout, which kubectl accepts as well.")
def k8s_rbac(
    *,
    namespace: str,
    account: str,
    leases: tuple[str, ...],
    labels_pods: bool,
    no_lease: bool,
    role: str | None,
    as_json: bool,
) -> None:
    """Print a Role and its binding, for kubectl apply -f -."""
    objects = manifest(namespace, account, leases, role, has_leases=not no_lease, labels_pods=labels_pods)
    if as_json:
        print_json(as_list(objects))
    else:
        click.echo(as_yaml(objects), nl=False)
