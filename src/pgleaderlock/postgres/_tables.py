"""A connection to our own tables: opened when it is needed, bounded in every call, closed at the first error.

It is never a session of a lock: what happens to it happens to no one's leadership.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import check_owner, check_schema
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._ownership import refusal
from pgleaderlock.postgres._schema_state import SchemaState, look_sql
from pgleaderlock.postgres._schema_versions import create_sql
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.session import FetchAll, Parameters, Row

_CALL_S = 10.0
_NOT_ALLOWED = "42501"


class TableConnection:
    """One connection to the database of some of our tables, or none. One statement at a time."""

    TABLES: Sequence[str]
    LATER_TABLES: Sequence[str] = ()
    """Tables which a schema of an earlier version has not."""
    NEEDS = 1
    """The lowest version of the schema that this can work with."""
    LIMITS = ""
    """A statement that limits the statements to come; empty where a pooler may lend the session to others."""
    SURVIVES_ERRORS = False
    """Whether a statement that the server refuses leaves the connection open."""

    def __init__(self, connector: Connector, schema: str, *, owner: str | None = None) -> None:
        self._connector = connector
        self._schema = check_schema(schema)
        self._owner = check_owner(owner)
        self._connection: Connection | None = None
        self._grant = "--grant-to"
        self.has_tables = False
        """Whether the tables were there when the connection was opened."""

    @property
    def where(self) -> str:
        """Which database, without secrets."""
        return self._connector.where

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that has not ended."""
        return self._connection is not None and not self._connection.closed

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the connection's socket; None if there is none."""
        return None if self._connection is None else self._connection.descriptor

    async def open(self, *, makes_tables: bool = True) -> None:
        """Connect, unless connected. Make the tables unless they are there, or upgrade them if they are too old.

        ConnectionError if the schema cannot be worked with. Without ``makes_tables`` they may be missing.
        """
        if self.is_open:
            return
        self._connection = await self._connector.open(
            bound_s=max(_CALL_S, self._connector.connect_s),
            survives_errors=self.SURVIVES_ERRORS,
            failure="a statement was refused",
        )
        try:
            await self._admit(self._connection)
            if self.LIMITS:
                await self.fetch(self.LIMITS)
            found = await self._look()
            if makes_tables and found.version < self.NEEDS and found.may_upgrade:
                await self.fetch(create_sql(self._schema, self._owner, from_version=found.version))
                found = await self._look()
            self.has_tables = found.version > 0
            needs = self.NEEDS if makes_tables or self.has_tables else 0
            found.check(self._schema, needs, self.where, grant=self._grant)
        except BaseException:
            await self.close()
            raise

    async def _admit(self, connection: Connection) -> None:
        """Raise ConnectionError if this connection cannot be used for what it is meant for."""

    async def upgrade(self) -> bool:
        """Make what the newest version of the schema has and this one lacks; return False where this user may not."""
        may_upgrade = (await self._look()).may_upgrade
        if may_upgrade:
            await self.fetch(create_sql(self._schema, self._owner))
        return may_upgrade

    async def _look(self) -> SchemaState:
        """Return what is there; ConnectionError if another role's code could run in the tables, before it does."""
        statement = look_sql(self._schema, self.TABLES, self._owner, optional=self.LATER_TABLES)
        ((versions, may_upgrade, user, database, problems),) = await self.fetch(statement)
        if problems:
            raise refusal(self._schema, problems, user, self.where)
        return SchemaState(versions, may_upgrade, user, database)

    async def close(self) -> None:
        """Close the connection. Does not raise, does not hang."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def fetch(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """Run one statement and return its rows; ConnectionError says what the database refused."""
        with self._advised():
            return await self._connected().fetch_all(statement, parameters, bound_s=_CALL_S)

    @contextlib.asynccontextmanager
    async def transaction(self, *, bound_s: float | None = None) -> AsyncIterator[FetchAll]:
        """Yield a function that runs statements in one transaction; ConnectionError says what was refused."""
        with self._advised():
            async with self._connected().transaction(bound_s=bound_s or _CALL_S) as fetch_all:
                yield fetch_all

    def _connected(self) -> Connection:
        if self._connection is None:
            raise ConnectionError(f"no connection is open to schema {self._schema} ({self.where})")
        return self._connection

    @contextlib.contextmanager
    def _advised(self) -> Iterator[None]:
        """Say in an error what to do about it."""
        try:
            yield
        except ConnectionError as error:
            if not (advice := self._advice(error.sqlstate)):
                raise
            text = f"{error}. {advice}"
            raise ConnectionError(text, cause=error.cause, answered=True, sqlstate=error.sqlstate) from None

    def _advice(self, sqlstate: str | None) -> str:
        if sqlstate != _NOT_ALLOWED:
            return ""
        user = "USER" if self._connection is None else self._connection.user
        return f"As its owner: pgleaderlock schema apply --schema {self._schema} {self._grant} {user}"
