"""What tests of session share with others."""

import psycopg

from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._psycopg_session import PsycopgSession
from pgleaderlock.postgres.keys import LockKey


async def open_session(dsn: str, key: LockKey) -> PsycopgSession:
    connector = Connector(key, dsn=dsn, connect_fn=None)
    return PsycopgSession(await connector.connect(), connector.explain)


def terminate(dsn: str, pid: int) -> None:
    """Without the event loop, which so has no chance to read anything."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
