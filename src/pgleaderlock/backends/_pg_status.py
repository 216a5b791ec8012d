"""Looking at a lock from outside the election: one connection, one question, gone again.

For people and for messages. What it answers may be history by the time it is read, so nothing decides by it.
"""

from pgleaderlock.backends._connector import Connector
from pgleaderlock.backends._pg_activity import Contender
from pgleaderlock.backends.plain import PlainLockBackend
from pgleaderlock.keys import LockKey

__all__ = ["Contender", "inspect_lock", "look_at_lock"]


async def look_at_lock(dsn: str, key: LockKey) -> list[Contender]:
    """Return who holds the lock and then who waits for it; ConnectionError if the database does not say."""
    return (await inspect_lock(dsn, key))[0]


async def inspect_lock(dsn: str, key: LockKey) -> tuple[list[Contender], str]:
    """Return who holds the lock and then who waits for it, and what is wrong with that, or nothing.

    ConnectionError if the database does not say.
    """
    observer = PlainLockBackend(key, Connector(key, dsn=dsn))
    try:
        await observer.open()
        return await observer.contenders(), await observer.standby_problem()
    finally:
        await observer.close()
