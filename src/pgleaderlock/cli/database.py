"""Which PostgreSQL: the one that was named, or the embedded one where that was asked for."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import click

from pgleaderlock import embedded
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.options import wants_embedded
from pgleaderlock.errors import ConnectionError, EmbeddedServerError

__all__ = ["CHECK_DSN", "CHECK_REGISTRY", "Database", "UnreachableError", "explained", "need_store", "open_database"]

CHECK_DSN = "check --dsn or $PG_DSN, and that the server is up and lets this user in."
"""What to do where no PostgreSQL answered."""
CHECK_REGISTRY = "check --dsn, $PG_DSN or --config, and that the server is up and lets this user in."
_REFUSED = "the server answered: database, user and password are those of --dsn or $PG_DSN."

_NAMING = {"dsn": "--dsn", "url": "--url", "config_file": "--config"}


class UnreachableError(click.ClickException):
    """There is no database to ask. Shown as one line, never as a traceback."""

    exit_code = exit_codes.UNREACHABLE

    @classmethod
    def from_error(cls, error: Exception, advice: str) -> "UnreachableError":
        """Say what went wrong and where, which the library's error does, and what to do."""
        return cls(explained(error, advice))


def explained(error: Exception, advice: str = "") -> str:
    """Return the error's own words, and what to check where no server answered: one that did has said what is wrong."""
    text = visible(str(error))
    if not advice or not isinstance(error, ConnectionError) or error.answered:
        return text
    return f"{text} - {_REFUSED if 'FATAL: ' in text else advice}"


@dataclass(frozen=True, slots=True)
class Database:
    """A database that can be used."""

    dsn: str


def need_store(dsn: str | None) -> None:
    """Refuse to go on without a store: on the embedded PostgreSQL every host leads, and answers for itself alone."""
    if dsn is not None or wants_embedded():
        return
    known = {parameter.name for parameter in click.get_current_context().command.params}
    options = ", ".join(flag for name, flag in _NAMING.items() if name in known)
    raise click.UsageError(
        f"no store was named: give the one that all hosts share ({options} or $PG_DSN). With --embedded, to try it, "
        "each host has a PostgreSQL of its own, and a leader of its own."
    )


@contextlib.contextmanager
def open_database(dsn: str | None) -> Iterator[Database]:
    """Yield a database that can be used within the block: the given one, or with ``--embedded`` that server's."""
    need_store(dsn)
    if dsn is not None:
        yield Database(dsn)
        return
    try:
        with _embedded_database() as database:
            yield database
    except EmbeddedServerError as error:
        raise UnreachableError(str(error)) from error


@contextlib.contextmanager
def _embedded_database() -> Iterator[Database]:
    embedded.find_binaries()  # before we say that we use it
    folder = embedded.shared_folder()
    # Said before the start, because the first one takes a second or two and silence looks like a hang.
    click.echo(f"pgleaderlock: using the embedded PostgreSQL in {folder}", err=True)
    with embedded.shared_server(folder) as server:
        yield Database(server.dsn)
