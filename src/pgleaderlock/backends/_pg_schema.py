"""Making the tables from outside an election, as their owner."""

import psycopg
from psycopg import sql

from pgleaderlock.backends import _dsn
from pgleaderlock.backends._driver import open_connection, take_over
from pgleaderlock.backends.terms import create_sql
from pgleaderlock.errors import ConnectionError

__all__ = ["make_tables"]

_GRANT = (
    "GRANT USAGE ON SCHEMA {schema} TO {grantee}; "
    "GRANT SELECT, INSERT, UPDATE ON {schema}.terms, {schema}.leases TO {grantee}; "
    "GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.nodes, {schema}.candidates, {schema}.leaders, {schema}.history, "
    "{schema}.tick_jobs, {schema}.ticks TO {grantee}"
)


async def make_tables(dsn: str, schema: str, grantee: str | None) -> None:
    """Make what is not there, and let this user use it; ConnectionError says what the database objected to."""
    parts = _dsn.check_dsn(dsn)
    try:
        connection = await open_connection(
            lambda: psycopg.AsyncConnection.connect(_dsn.with_defaults(parts), autocommit=True)
        )
        take_over(connection)
        async with connection:
            await connection.execute(create_sql(schema).encode())
            if grantee is not None:
                names = {"schema": sql.Identifier(schema), "grantee": sql.Identifier(grantee)}
                await connection.execute(sql.SQL(_GRANT).format(**names))
    except psycopg.Error as error:
        reason = " ".join(_dsn.scrub(str(error), parts).split())
        raise ConnectionError(f"schema {schema} could not be made ({_dsn.describe(parts)}): {reason}") from None
