"""Create the tables from outside an election, as their owner."""

import psycopg
from psycopg import sql

from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._search_path import open_pinned
from pgleaderlock.postgres._standby import MISSING_SQL, missing_problem
from pgleaderlock.postgres.terms import create_sql

__all__ = ["make_tables"]

_GRANT = (
    "GRANT USAGE ON SCHEMA {schema} TO {grantee}; "
    "GRANT SELECT, INSERT, UPDATE ON {schema}.terms, {schema}.leases TO {grantee}; "
    "GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.nodes, {schema}.candidates, {schema}.leaders, {schema}.history, "
    "{schema}.tick_jobs, {schema}.ticks TO {grantee}; "
    "GRANT SELECT, DELETE, INSERT (lock, instance, token, claimed_by, reason, wait_s), "
    "UPDATE (answer, why, answered_by, answered_at) ON {schema}.asks TO {grantee}"
)
_GRANT_ASKS = (
    "GRANT USAGE ON SCHEMA {schema} TO {grantee}; "
    "GRANT SELECT ON {schema}.nodes, {schema}.candidates, {schema}.leaders, {schema}.history, {schema}.asks "
    "TO {grantee}; "
    # Not on the table: who asked, and when, is for the server to write.
    "GRANT INSERT (lock, instance, token, claimed_by, reason, wait_s) ON {schema}.asks TO {grantee}"
)


async def make_tables(
    dsn: str, schema: str, grantee: str | None, operator: str | None = None, *, owner: str | None = None
) -> None:
    """Create the missing tables; grant ``grantee`` what elections need, and ``operator`` to read and to send requests.

    ConnectionError says what the database refused. Nothing is begun if its commit would wait for an absent synchronous
    standby: closing the connection does not end such a wait.
    """
    parts = _dsn.check_dsn(dsn)
    try:
        async with await open_pinned(_dsn.with_defaults(parts)) as connection:
            if problem := missing_problem(await (await connection.execute(MISSING_SQL)).fetchall()):
                raise ConnectionError(f"schema {schema} was not made ({_dsn.describe(parts)}): {problem}")
            await connection.execute(create_sql(schema, owner, keeps_terms=True).encode())
            for grants, user in ((_GRANT, grantee), (_GRANT_ASKS, operator)):
                if user is not None:
                    names = {"schema": sql.Identifier(schema), "grantee": sql.Identifier(user)}
                    await connection.execute(sql.SQL(grants).format(**names))
    except psycopg.Error as error:
        reason = _dsn.one_line(str(error), parts)
        raise ConnectionError(f"schema {schema} could not be made ({_dsn.describe(parts)}): {reason}") from None
