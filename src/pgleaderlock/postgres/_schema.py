"""Create the tables from outside an election, as their owner."""

from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._advice import identifier
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._standby import MISSING_SQL, missing_problem
from pgleaderlock.postgres.terms import create_sql

__all__ = ["make_tables"]

_STATEMENT_S = 3600.0  # an index on a long history takes its time

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
    connector = Connector(f"schema {schema}", dsn=dsn)
    connection = await connector.open(failure="tables were not made")
    try:
        if problem := missing_problem(await connection.fetch_all(MISSING_SQL, bound_s=_STATEMENT_S)):
            raise ConnectionError(f"schema {schema} was not made ({connector.where}): {problem}")
        await connection.fetch(create_sql(schema, owner, keeps_terms=True), bound_s=_STATEMENT_S)
        for grants, user in ((_GRANT, grantee), (_GRANT_ASKS, operator)):
            if user is not None:
                statement = grants.format(schema=identifier(schema), grantee=identifier(user))
                await connection.fetch(statement, bound_s=_STATEMENT_S)
    finally:
        await connection.close()
