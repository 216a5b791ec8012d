"""``pgleaderlock schema``: print or create the tables."""

import asyncio

import click

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.cli.status import ANSWER_TIMEOUT_S
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._schema import make_tables
from pgleaderlock.postgres.terms import schema_sql


def statements_of(schema: str) -> str:
    """Return the statements that create the tables; an invalid name of a schema is wrong usage."""
    with wrong_usage():
        return schema_sql(schema)


async def apply_schema(
    dsn: str, schema: str, grantee: str | None, operator: str | None = None, *, owner: str | None
) -> None:
    """Create the tables; UnreachableError if the database refuses."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await make_tables(dsn, schema, grantee, operator, owner=owner)
    except ConnectionError as error:
        raise UnreachableError(str(error)) from error
    except TimeoutError as error:
        raise UnreachableError(f"the database did not answer within {ANSWER_TIMEOUT_S:g} s") from error


def tell_applied(schema: str, grantee: str | None, operator: str | None) -> None:
    """Print that the schema is ready, and to whom it is granted."""
    granted = (
        f"{grantee} may use it" if grantee else "",
        f"{operator} may ask leaders to step down" if operator else "",
    )
    click.echo(visible(", and ".join((f"schema {schema} is ready", *filter(None, granted)))))
