"""Lead, lose and lead again on the server in PG_DSN, with both APIs: what CI runs on systems that are not Linux."""

import asyncio
import os

from pgleaderlock import LeaderLock, sync
from pgleaderlock.testing import lose_leadership

DSN = os.environ["PG_DSN"]


async def elect() -> None:
    """Use the asyncio API."""
    async with LeaderLock(DSN, role="portable") as lock:
        await lock.wait_for_leadership()
        event = await lose_leadership(lock)
        assert not lock.is_leader
        print("asyncio", event.cause)
        await lock.wait_for_leadership()


def elect_blocking() -> None:
    """Use the blocking API."""
    with sync.LeaderLock(DSN, role="portable") as lock:
        assert lock.wait_for_leadership(timeout_s=60)
        print("blocking", lose_leadership(lock).cause)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # psycopg cannot use Windows' default loop
        runner.run(elect())
    elect_blocking()
