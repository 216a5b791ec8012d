"""The PostgreSQL to use: the one that the command line names, or with ``--embedded`` the embedded one."""

import contextlib
from collections.abc import Iterator

import click

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.options import wants_embedded
from pgleaderlock.errors import ConnectionError, EmbeddedServerError
from pgleaderlock.testing import embedded

CHECK_DSN = "check --dsn or $PG_DSN, and that the server is up and accepts this user."
"""The advice for a PostgreSQL that did not answer."""
CHECK_REGISTRY = "check --dsn, $PG_DSN or --config, and that the server is up and accepts this user."
_REFUSED = "the server answered, and refused: check database, user and password in --dsn or $PG_DSN."

_NAMING = {"dsn": "--dsn", "url": "--url", "config_file": "--config"}


class UnreachableError(click.ClickException):
    """The database or store cannot be reached. Shown as one line, never as a traceback."""

    exit_code = exit_codes.UNREACHABLE

    @classmethod
    def from_error(cls, error: Exception, advice: str) -> "UnreachableError":
        """Return the library's error, which says what failed and where, with the advice."""
        return cls(explained(error, advice))


def explained(error: Exception, advice: str = "") -> str:
    """Return the error's text and the advice; if the server answered, its own text says what is wrong."""
    text = visible(str(error))
    if not advice or not isinstance(error, ConnectionError) or error.answered:
        return text
    return f"{text} - {_REFUSED if 'FATAL: ' in text else advice}"


def need_store(dsn: str | None) -> None:
    """Refuse a command without a store: with an embedded PostgreSQL on each host, every host would lead."""
    if dsn is not None or wants_embedded():
        return
    known = {parameter.name for parameter in click.get_current_context().command.params}
    options = ", ".join(flag for name, flag in _NAMING.items() if name in known)
    raise click.UsageError(
        f"no store was named: give the one that all hosts share ({options} or $PG_DSN). --embedded is only for a first "
        "try: each host then has its own PostgreSQL, and its own leader."
    )


@contextlib.contextmanager
def open_database(dsn: str | None) -> Iterator[str]:
    """Yield the DSN to use within the block: the given one, or with ``--embedded`` that of its server."""
    need_store(dsn)
    if dsn is not None:
        yield dsn
        return
    try:
        with _embedded_database() as embedded_dsn:
            yield embedded_dsn
    except EmbeddedServerError as error:
        raise UnreachableError(str(error)) from error


@contextlib.contextmanager
def _embedded_database() -> Iterator[str]:
    embedded.find_binaries()  # before the message below
    folder = embedded.shared_folder()
    # Printed before the start, because the first start takes a second or two and silence looks like a hang.
    click.echo(f"pgleaderlock: using the embedded PostgreSQL in {folder}", err=True)
    with embedded.shared_server(folder) as server:
        yield server.dsn
