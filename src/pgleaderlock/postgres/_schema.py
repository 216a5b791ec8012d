"""Create or upgrade the tables from outside an election, as their owner."""

from dataclasses import dataclass

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._advice import identifier
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._schema_versions import LOCK, known_version, table_names, upgrade_sql, version_sql
from pgleaderlock.postgres._standby import MISSING_SQL, missing_problem
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.terms import note_sql

__all__ = ["Made", "make_tables"]

_ANSWER_S = 30.0  # for a server that accepts connections and then does not answer
_STATEMENT_S = 3600.0  # an index on a long history takes its time
# A statement that waits for the lock of a table makes every later one wait behind it.
_LIMIT_WAITS = "SELECT set_config('lock_timeout', '10s', true)"

_UNDEFINED_OBJECT = "42704"
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


@dataclass(frozen=True, slots=True)
class Made:
    """What became of the schema."""

    from_version: int
    """The version before; 0 where there were no tables."""
    version: int


async def make_tables(
    dsn: str, schema: str, grantee: str | None, operator: str | None = None, *, owner: str | None = None
) -> Made:
    """Create the missing tables, upgrade older ones, and return from which version to which.

    Grant ``grantee`` what elections need, and ``operator`` to read and to send requests.
    ConnectionError says what the database refused. Nothing is begun if its commit would wait for an absent synchronous
    standby: closing the connection does not end such a wait.
    """
    connector = Connector(f"schema {schema}", dsn=dsn)
    connection = await connector.open(bound_s=_ANSWER_S, failure="tables were not made")
    try:
        if problem := missing_problem(await connection.fetch_all(MISSING_SQL, bound_s=_ANSWER_S)):
            raise ConnectionError(f"schema {schema} was not made ({connector.where}): {problem}")
        made = await _upgrade(connection, schema, owner, connector.where)
        for grants, user in ((_GRANT, grantee), (_GRANT_ASKS, operator)):
            if user is not None:
                statement = grants.format(schema=identifier(schema), grantee=identifier(user))
                await _grant(connection, statement, user, f"schema {schema} is there ({connector.where})")
    finally:
        await connection.close()
    return made


async def _grant(connection: Connection, statement: str, user: str, what: str) -> None:
    try:
        await connection.fetch(statement, bound_s=_STATEMENT_S)
    except ConnectionError as error:
        if error.sqlstate != _UNDEFINED_OBJECT:
            raise
        text = f"{what}, but nothing was granted to {visible(user)}: there is no such database role. Create it first"
        raise ConnectionError(text, answered=True, sqlstate=error.sqlstate) from error


async def _upgrade(connection: Connection, schema: str, owner: str | None, where: str) -> Made:
    async with connection.transaction(bound_s=_STATEMENT_S) as fetch_all:
        await fetch_all(f"SELECT {LOCK}", ())  # first, so that the version stays as it is read
        (((version, _),),) = await fetch_all(f"SELECT {version_sql(schema, ['terms'])}", ())
        if version > known_version():
            raise ConnectionError(
                f"schema {schema} has version {version}, and this program knows version {known_version()} ({where}): "
                "nothing was changed. Use a newer pgleaderlock"
            )
        # From the beginning where a table is missing that this version has.
        (((start, _),),) = await fetch_all(f"SELECT {version_sql(schema, table_names(up_to=max(1, version)))}", ())
        await fetch_all(_LIMIT_WAITS, ())
        await fetch_all(upgrade_sql(schema, start, owner, note_sql(schema)), ())
    return Made(version, known_version())
