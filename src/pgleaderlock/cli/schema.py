"""``pgleaderlock schema``: print the tables, create or upgrade them."""

import click

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._schema import Made, make_tables
from pgleaderlock.postgres.schema import known_version, schema_sql


def statements_of(schema: str, from_version: int = 0) -> str:
    """Return the statements that create or upgrade the tables; a name or version that cannot be is wrong usage."""
    if from_version > known_version():
        raise click.UsageError(f"--from {from_version}: this program knows versions 1 to {known_version()}.")
    with wrong_usage():
        return schema_sql(schema, from_version=from_version)


async def apply_schema(
    dsn: str, schema: str, grantee: str | None, operator: str | None = None, *, owner: str | None
) -> Made:
    """Create or upgrade the tables; UnreachableError if the database refuses."""
    try:
        return await make_tables(dsn, schema, grantee, operator, owner=owner)
    except ConnectionError as error:
        raise UnreachableError(str(error)) from error


def tell_applied(schema: str, made: Made, grantee: str | None, operator: str | None) -> None:
    """Print that the schema is ready, in which version, and to whom it is granted."""
    upgraded = f", upgraded from version {made.from_version}" if 0 < made.from_version < made.version else ""
    granted = (
        f"{grantee} may use it" if grantee else "",
        f"{operator} may ask leaders to step down" if operator else "",
    )
    ready = f"schema {schema} is ready (version {made.version}{upgraded})"
    click.echo(visible(", and ".join((ready, *filter(None, granted)))))
