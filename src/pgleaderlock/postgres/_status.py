"""Look at a lock from outside the election, on a connection of its own that is closed afterwards.

For display only: the answer may be out of date by the time it is read.
"""

from pgleaderlock.postgres._activity import Candidate
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.plain import PlainLockBackend

__all__ = ["Candidate", "inspect_lock", "look_at_lock"]


async def look_at_lock(dsn: str, key: LockKey) -> list[Candidate]:
    """Return the holder of the lock, then the followers; ConnectionError if the database does not answer."""
    return (await inspect_lock(dsn, key))[0]


async def inspect_lock(dsn: str, key: LockKey) -> tuple[list[Candidate], str]:
    """Return the holder of the lock, then the followers; and a text about what is wrong, or an empty one.

    ConnectionError if the database does not answer.
    """
    observer = PlainLockBackend(key, Connector(key, dsn=dsn))
    try:
        await observer.open()
        return await observer.candidates(), await observer.standby_problem()
    finally:
        await observer.close()
