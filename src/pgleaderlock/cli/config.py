"""``pgleaderlock config``: print the values in force and where each came from, or check them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from pgleaderlock._base.schemes import is_postgres_scheme
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import DSN_VARIABLE, MOVED_VARIABLE, URL_VARIABLE
from pgleaderlock.cli.console import print_json
from pgleaderlock.cli.options import wants_embedded
from pgleaderlock.cli.words import WORDS, texts
from pgleaderlock.postgres import _dsn

if TYPE_CHECKING:
    from pgleaderlock.ops.config import InForce, Loaded, Problem
    from pgleaderlock.ops.config.sources import Option

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG_VARIABLE = "PGLEADERLOCK_CONFIG"
_SECRETS = {"cluster.leader_election.backend": "PGLEADERLOCK_BACKEND", "registry.dsn": "PGLEADERLOCK_REGISTRY_DSN"}
_STORE_OF_NODE = (DSN_VARIABLE, URL_VARIABLE, _SECRETS["cluster.leader_election.backend"])
_WIDEST_VALUE = 48


class WrongConfigError(click.ClickException):
    """All problems, one per line in the format of compilers, so that editors can jump to the place."""

    exit_code = exit_codes.USAGE

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the lines as they are."""
        click.echo(self.format_message(), file=file, err=file is None)


def config_option(command: F) -> F:
    """Add ``--config``, for every command that uses the store or the registry of a node's configuration."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        envvar=_CONFIG_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        help="The TOML file of a node. Without one, defaults and variables apply.",
    )(command)


def config_options(command: F) -> F:
    """Add ``--config`` and ``--set``, for every command that takes a configuration."""
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one key, such as cluster.leader_election.lease_duration=30s; may be repeated.",
    )(command)
    return config_option(command)


def load_for_command(config_file: Path | None, sets: tuple[str, ...], options: "Sequence[Option]" = ()) -> "Loaded":
    """Return the configuration in force, overridden by the command's own options; problems are wrong usage."""
    _keep_passwords_out(sets)
    left_out = os.environ.get(MOVED_VARIABLE, "").split()  # set by us from the command line, not by the user
    if wants_embedded():  # which wins over the variables
        left_out += _STORE_OF_NODE
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    from pgleaderlock.ops.config import ConfigError, load  # noqa: PLC0415 - it needs an extra of its own

    try:
        loaded = load(config_file, environ=environ, sets=sets, options=options)
    except ConfigError as error:
        raise WrongConfigError(str(error)) from error
    if wants_embedded() and loaded.config.election.url is not None:
        raise click.UsageError(
            "--embedded and the configuration's backend name the store twice: leave one of them out."
        )
    return loaded


def _keep_passwords_out(sets: tuple[str, ...]) -> None:
    """Refuse passwords in --set: every user of the machine can read arguments, and shells keep a history."""
    for written in sets:
        key, _, value = written.partition("=")
        scheme, separator, rest = value.partition("://")
        is_postgres = is_postgres_scheme(scheme.lower()) or scheme.lower().startswith("postgres")
        dsn = f"postgresql://{rest}" if separator and is_postgres else value
        if key in _SECRETS and (not separator or dsn is not value) and _dsn.has_password(dsn):
            raise click.UsageError(
                f"--set {key} has a password in it, which every user of this machine could read: put it into the file, "
                f"or into ${_SECRETS[key]}."
            )


@click.group(short_help=WORDS["config"].short)
def config() -> None:
    """Show or check the configuration of a node: defaults, file, variables and flags, of which later ones win."""


@config.command("show", **texts("config show"))
@config_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def config_show(*, config_file: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Print every value that is in force, and where it came from. Never a secret.

    Later ones win: defaults, the file, variables of the environment, --set.
    """
    from_sources = load_for_command(config_file, sets)
    from pgleaderlock.ops.config import in_force  # noqa: PLC0415 - it needs an extra of its own

    values = in_force(from_sources)
    if as_json:
        settings = [{"key": each.key, "value": each.value, "source": each.origin} for each in values]
        print_json({"file": from_sources.file, "settings": settings})
    else:
        click.echo("\n".join(_table(values)))


def _table(values: "list[InForce]") -> list[str]:
    keys = max(len(each.key) for each in values)
    texts = min(_WIDEST_VALUE, max(len(each.text) for each in values))
    return [f"{each.key:<{keys}}  {each.text:<{texts}}  {each.origin}" for each in values]


@config.command("check", **texts("config check"))
@config_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def config_check(context: click.Context, *, config_file: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Check whether this configuration can be used: exit code 0, or 2 and a list of all problems.

    Also list the alerts that alerts export would refuse, and on stderr its warnings. It does not connect to the
    database: for that, see doctor.
    """
    roles, doubtful = "", list[Any]()
    try:
        loaded = load_for_command(config_file, sets)
    except WrongConfigError as error:
        if not as_json:
            raise
        problems = getattr(error.__cause__, "problems", ())
    else:
        problems, doubtful = loaded.refused, list(loaded.doubtful)
        if loaded.config.election.roles or not loaded.config.alerts:  # a file of alerts alone is for alerts export
            problems = (*problems, *_unfit_for_node(loaded))
        roles = ", ".join(role.name for role in loaded.config.election.roles)
    if as_json:
        told = {"problems": _told(problems), "warnings": _told(doubtful)}
        print_json({"ok": not problems, **told})
        context.exit(exit_codes.USAGE if problems else exit_codes.CLEAN)
    for each in doubtful:
        click.echo(f"Warning: {each}", err=True)
    if problems:
        raise WrongConfigError("\n".join(map(str, problems)))
    click.echo(f"{config_file or 'the configuration'}: no problems. Roles: {roles or 'none'}")


def _unfit_for_node(loaded: "Loaded") -> "list[Problem]":
    """Return why ``run`` would refuse this configuration, whatever store it is given."""
    from pgleaderlock.ops.node import missing_for_node  # noqa: PLC0415 - it needs an extra of its own

    found = missing_for_node(loaded.config, dsn="")
    return [replace(each, place=loaded.file or "") for each in found]


def _told(problems: "Sequence[Problem]") -> list[dict[str, str]]:
    return [{"place": each.place, "key": each.key, "text": each.text} for each in problems]
