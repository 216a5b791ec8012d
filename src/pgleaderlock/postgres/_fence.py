"""Run the fence inside a user's own transaction, on psycopg's async and blocking connections.

The connection is the user's: nothing of it is changed except what the fence itself sets for the transaction, and errors
that are not about leadership are passed on unchanged.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, NoReturn

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import LeadershipLost, LockError
from pgleaderlock.postgres._driver import AsyncConnection, Connection, DriverError, is_idle, is_in_pipeline
from pgleaderlock.postgres.terms import NOT_THE_NEWEST

__all__ = ["FENCE", "AsyncConnection", "Connection", "FenceWords", "run_fence"]

_SERIALIZATION_FAILURE = "40001"
_STALE_SNAPSHOT = "concurrent update"  # what it says when the term changed after this transaction's snapshot
_NOT_ALLOWED = "42501"
_NO_SUCH_TABLE = ("42P01", "3F000")


@dataclass(frozen=True, slots=True)
class FenceWords:
    """The names of the fence in messages, by the API that the user called."""

    call: str
    sql_call: str
    table: str
    lost: str


FENCE = FenceWords(
    "fence()",
    "lock.fence_sql()",
    "term table",
    "this process does not lead {lock} any more, or its term began after this transaction",
)
"""The names of a lock's fence."""


def run_fence(connection: object, statement: str, lock: str, words: FenceWords = FENCE) -> Awaitable[None] | None:
    """Run the fence on a blocking connection, or return a coroutine that does on an async one."""
    if not isinstance(connection, Connection | AsyncConnection):
        raise TypeError(
            f"{words.call} takes a psycopg connection, not {type(connection).__name__}: with another driver, execute "
            f"{words.sql_call} in your transaction"
        )
    _check_in_transaction(connection, words)
    if isinstance(connection, AsyncConnection):
        return _fence_to_be_awaited(connection, statement, lock, words)
    try:
        connection.execute(statement.encode())
    except DriverError as error:
        _translate(error, lock, words)
    return None


async def _fence_to_be_awaited(connection: AsyncConnection[Any], statement: str, lock: str, words: FenceWords) -> None:
    """Run the fence. Python shows the name of this function in its warning when the ``await`` is missing."""
    try:
        await connection.execute(statement.encode())
    except DriverError as error:
        _translate(error, lock, words)


def _check_in_transaction(connection: Connection[Any] | AsyncConnection[Any], words: FenceWords) -> None:
    if connection.autocommit and is_idle(connection):
        raise LockError(
            f"{words.call} outside a transaction protects nothing: the connection is in autocommit mode, so call it "
            "inside `with connection.transaction():`"
        )
    if is_in_pipeline(connection):
        raise LockError(
            f"{words.call} in a pipeline would return before it was answered: call it before the pipeline begins"
        )


def _translate(error: DriverError, lock: str, words: FenceWords) -> NoReturn:
    is_stale = error.sqlstate == _SERIALIZATION_FAILURE and _STALE_SNAPSHOT in str(error)
    if error.sqlstate == NOT_THE_NEWEST or is_stale:
        raise LeadershipLost(
            f"{words.lost.format(lock=lock)}: roll the whole transaction back", cause=LossCause.FENCED
        ) from error
    if error.sqlstate == _NOT_ALLOWED:
        raise LockError(
            f"this user may not use {words.call} of {lock}: it needs SELECT and UPDATE on the {words.table}. As its "
            "owner, run pgleaderlock schema apply --grant-to this user"
        ) from error
    if error.sqlstate in _NO_SUCH_TABLE:
        raise LockError(
            f"the {words.table} of {lock} is not in the database of this connection: {words.call} needs the database "
            "that the lock is in"
        ) from error
    raise error
