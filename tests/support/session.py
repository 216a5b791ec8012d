"""What tests of session share with others."""

import psycopg

from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.keys import LockKey


async def open_session(dsn: str, key: LockKey) -> Connection:
    return await Connector(key, dsn=dsn).open_session()


def terminate(dsn: str, pid: int) -> None:
    """Without the event loop, which so has no chance to read anything."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
