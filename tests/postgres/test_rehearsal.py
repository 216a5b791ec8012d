"""What an heir's sessions look up beforehand: the server plans it, and must not execute it."""

from collections.abc import Iterator

import psycopg
import pytest

from pgleaderlock.postgres._sql import REHEARSAL, LockStatements, numbers
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from tests.conftest import Postgres


@pytest.fixture
def session(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.dsn, autocommit=True) as session:
        yield session


def last_row(session: psycopg.Connection, statement: str) -> tuple[object, ...]:
    cursor = session.execute(statement)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    return row


def test_a_wait_slice_that_is_not_granted_the_lock_assigns_no_transaction_id(
    postgres: Postgres, session: psycopg.Connection, key: LockKey
):
    """Assigned before the grant, the token could be older than that of a leader in between."""
    statements = LockStatements(key, Lease(15.0), is_enforced=True)
    with psycopg.connect(postgres.dsn, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({numbers(key)})")
        wait = statements.slice(0.02, begins_term=True, more=", pg_current_xact_id_if_assigned()::text")
        assert last_row(session, wait) == ("", "", None)
    granted, token, assigned = last_row(session, wait)
    assert (granted, token) == ("lock", assigned)


def test_a_rehearsal_takes_no_lock(session: psycopg.Connection):
    """The key 0 may be an application's."""
    assert last_row(session, REHEARSAL) == (1,)
    held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
    assert last_row(session, held) == (0,)
