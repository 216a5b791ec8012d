"""Looking at a lock from outside the election: one connection, one question, gone again.

For people and for messages. What it answers may be history by the time it is read, so nothing decides by it.
"""

from pgleaderlock.backends import _pg_activity
from pgleaderlock.backends._pg_activity import Contender
from pgleaderlock.backends.postgres import AdvisoryLockBackend
from pgleaderlock.keys import LockKey

__all__ = ["Contender", "look_at_lock"]


class _Observer(AdvisoryLockBackend):
    """A backend that is only ever asked who holds the lock: it connects and reports errors as the others do."""

    async def contenders(self) -> list[Contender]:
        await self.open()
        answer: list[Contender] = await self._run(_pg_activity.contenders(self._connection, self._key))
        return answer


async def look_at_lock(dsn: str, key: LockKey) -> list[Contender]:
    """Return who holds the lock and then who waits for it; ConnectionError if the database does not say."""
    observer = _Observer(key, dsn=dsn)
    try:
        return await observer.contenders()
    finally:
        await observer.close()
