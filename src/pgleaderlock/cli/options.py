"""The options that commands share, each defined once, and the checks that concern one option alone."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from pgleaderlock._base.checks import check_seconds, visible
from pgleaderlock.cli.argv_secrets import DSN_VARIABLE, MOVED_VARIABLE, URL_VARIABLE
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres.keys import LockKey, is_written_as_key

F = TypeVar("F", bound=Callable[..., Any])

_VARIABLES = {"dsn": DSN_VARIABLE, "url": URL_VARIABLE}


@contextlib.contextmanager
def wrong_usage(errors: tuple[type[Exception], ...] = (ValueError,), said: str = "{}") -> Iterator[None]:
    """Turn these errors into wrong usage; ``said`` is its message, with a place for theirs."""
    try:
        yield
    except errors as error:
        raise click.UsageError(said.format(error)) from error


def with_options(command: F, *options: Callable[[Any], Any]) -> F:
    """Add these options, in the order in which ``--help`` lists them."""
    for option in reversed(options):
        command = option(command)
    return command


def is_given(name: str) -> bool:
    """Return whether the command line gives this option; its value may have been moved to the environment since."""
    context = click.get_current_context()
    if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        return True
    is_moved = _VARIABLES.get(name) in os.environ.get(MOVED_VARIABLE, "").split()
    return is_moved and any(option.name == name for option in context.command.params)


def seconds_option(
    flag: str,
    help: str,  # noqa: A002 - the word of click
    *,
    default: float | None = None,
    zero_ok: bool = False,
) -> Callable[[F], F]:
    """Return an option that takes a duration. Its argument has the flag's name with the unit ``_s``."""
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

    def check(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        with wrong_usage():
            return None if value is None else check_seconds(option.opts[0], value, zero_ok=zero_ok)

    return check


# --- The demo and the torture ---

_SHORTEST_LEASE_S = 0.5
nodes_option = click.option(
    "--nodes",
    type=click.IntRange(2, 26),  # one for each letter
    default=3,
    show_default=True,
    metavar="N",
    help="How many candidates (processes) to start.",
)


def check_own_lease(lease_s: float) -> None:
    """Refuse a lease that is too short for processes of one machine."""
    if lease_s < _SHORTEST_LEASE_S:
        raise click.UsageError(f"--lease must be at least {_SHORTEST_LEASE_S:g} seconds: a busy machine needs them.")


# --- The store ---

_EMBEDDED = "pgleaderlock.testing.embedded"
_STORES = ("embedded", "url", "dsn")
"""The options that name a store by themselves: two of them are refused, and each wins over all variables.

A configuration names more than a store. ``--dsn`` and ``--url`` win over its backend. ``--embedded`` beside a
configuration may be a mistake, so it is refused: see ``load_for_command``.
"""


def _keep_embedded(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    context.meta[_EMBEDDED] = value


def wants_embedded() -> bool:
    """Return whether the command line asks for the embedded PostgreSQL."""
    return bool(click.get_current_context().meta.get(_EMBEDDED))


def _check_store(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the store to use: an option wins over the variables of the others; two such options are refused."""
    name = str(option.name)
    given = [each for each in _STORES if is_given(each)]
    if name in given and len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} name the store twice: give one of them.", context)
    if value is None and not given and _VARIABLES[name] in os.environ:  # a secret that was not filled in
        raise click.UsageError(f"${_VARIABLES[name]} is set but empty: give it a value, or unset it.", context)
    return value if name in given or not given else None


def _check_option_dsn(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    value = _check_store(context, option, value)
    with wrong_usage():
        if value is not None:
            _dsn.check_dsn(value)
    return value


def dsn_option(command: F) -> F:
    """Add the options of the database: ``--dsn``, and ``--embedded``, which wants_embedded() returns."""
    embedded = click.option(
        "--embedded",
        is_flag=True,
        is_eager=True,  # the other options of the store are checked against it
        expose_value=False,
        callback=_keep_embedded,
        help="For a first try: start a PostgreSQL on this host, which no other host shares.",
    )
    dsn = click.option(
        "--dsn",
        envvar=DSN_VARIABLE,
        show_envvar=True,
        metavar="DSN",
        callback=_check_option_dsn,
        help="PostgreSQL connection string. With a password in it, prefer the variable: shells keep a history.",
    )
    return dsn(embedded(command))


def url_option(help: str) -> Callable[[F], F]:  # noqa: A002 - the word of click
    """Return ``--url`` with the help text of the command: which stores it accepts differs."""
    return click.option("--url", envvar=URL_VARIABLE, show_envvar=True, metavar="URL", callback=_check_store, help=help)


# --- Servers ---

metrics_port_option = click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this loopback port."
)


def listen_options(port: int) -> Callable[[F], F]:
    """Return ``--host`` and ``--port`` of a command that answers over HTTP, with the port of this one."""

    def add(command: F) -> F:
        return with_options(
            command,
            click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen."),
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                default=port,
                show_default=True,
                metavar="PORT",
                help="0 is any free one.",
            ),
        )

    return add


# --- Tables ---

schema_option = click.option(
    "--schema", default=DEFAULT_SCHEMA, show_default=True, metavar="NAME", help="The schema of the tables."
)


# --- The lock ---


@dataclass(frozen=True, slots=True)
class LockName:
    """The lock as the command line names it: by role, by key, by two keys, or not at all."""

    role: str | None = None
    key: str | None = None
    key1: int | None = None
    key2: int | None = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names a lock in any way."""
        return self != LockName()

    def choose(self) -> LockKey:
        """Return the lock that was named, in exactly one way."""
        by_pair = self.key1 is not None or self.key2 is not None
        if by_pair + (self.key is not None) + (self.role is not None) != 1:
            raise click.UsageError("name the lock in exactly one way: --role, or --key, or --key1 and --key2.")
        if by_pair and (self.key1 is None or self.key2 is None):
            raise click.UsageError("--key1 and --key2 go together: both are needed.")
        if self.role is not None:
            refuse_key_as_role(self.role, "--key")
        if self.role is not None and "://" in self.role:  # never meant as a name, and every log line would show it
            raise click.UsageError("--role takes a name, and this is a connection string: that is for --dsn.")
        with wrong_usage():
            if self.key is not None:
                return LockKey.parse(self.key)
            if self.role is not None:
                return LockKey.named(self.role)
            return LockKey.pair(self.key1, self.key2)  # type: ignore[arg-type]


def refuse_key_as_role(role: str, flag: str) -> None:
    """Refuse a role that is written as a key: hashed, it would be another lock. ``flag`` is what takes a key here."""
    if is_written_as_key(role):
        raise click.UsageError(f"--role takes a name, and {visible(role)} is a lock key: write {flag} {visible(role)}.")


def json_option(help: str) -> Callable[[F], F]:  # noqa: A002 - the word of click
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


json_lines_option = json_option("One JSON object per line on stdout.")


def lock_options(command: F) -> F:
    """Add the options that say which lock, where, and how to print."""
    return naming_options(json_lines_option(command))


def examined_options(command: F) -> F:
    """Add the same options for ``doctor``, which examines no other store than PostgreSQL."""
    url = url_option("In place of --dsn: a postgresql:// URL. No other store can be examined.")
    return _naming_options(json_option("One JSON object on stdout.")(command), url)


def naming_options(command: F) -> F:
    """Add the options that say which lock, as an argument ``named``, and where."""
    return _naming_options(
        command,
        url_option(
            "Another store than --dsn: file:///path, nfs:///path, k8s://namespace/name, etcd://host/key (a package of "
            "its own), postgresql+lease://..."
        ),
    )


def _naming_options(command: F, url: Callable[[Any], Any]) -> F:
    @functools.wraps(command)
    def with_name(
        *args: Any, role: str | None, key: str | None, key1: int | None, key2: int | None, **others: Any
    ) -> Any:
        return command(*args, named=LockName(role, key, key1, key2), **others)

    return with_options(
        cast("F", with_name),
        dsn_option,
        url,
        click.option("--role", metavar="NAME", help="The lock by name, as LeaderLock(role=...)."),
        click.option("--key", metavar="KEY", help="The lock by number: bigint:7, bigint:0x464F_5247, pair:1/100."),
        click.option("--key1", type=int, help="Advisory lock key 1 (32-bit). Needs --key2."),
        click.option("--key2", type=int, help="Advisory lock key 2 (32-bit). Needs --key1."),
    )
