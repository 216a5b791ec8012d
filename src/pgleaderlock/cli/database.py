"""Which PostgreSQL: the one that was named, or the embedded one."""

import contextlib
from collections.abc import Iterator

import click

from pgleaderlock import embedded
from pgleaderlock.cli import exit_codes
from pgleaderlock.errors import EmbeddedServerError

__all__ = ["UnreachableError", "open_database"]


class UnreachableError(click.ClickException):
    """There is no database to ask. Shown as one line, never as a traceback."""

    exit_code = exit_codes.UNREACHABLE

    @classmethod
    def from_error(cls, error: Exception) -> "UnreachableError":
        """Say what went wrong and where, which the library's error does, and what to do."""
        return cls(f"{error} - check --dsn or $PG_DSN, and that the server is up and lets this user in.")


@contextlib.contextmanager
def open_database(dsn: str | None) -> Iterator[str]:
    """Yield a DSN that can be used within the block: the given one, or the embedded server's."""
    if dsn is not None:
        yield dsn
        return
    try:
        with _embedded_dsn() as embedded_dsn:
            yield embedded_dsn
    except EmbeddedServerError as error:
        raise UnreachableError(str(error)) from error


@contextlib.contextmanager
def _embedded_dsn() -> Iterator[str]:
    embedded.find_binaries()  # before we say that we use it
    folder = embedded.shared_folder()
    # Said before the start, because the first one takes a second or two and silence looks like a hang.
    click.echo(f"pgleaderlock: no --dsn and no $PG_DSN, so using the embedded PostgreSQL in {folder}", err=True)
    with embedded.shared_server(folder) as server:
        yield server.dsn
