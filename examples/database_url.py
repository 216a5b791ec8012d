"""An election on the database that the application has: whatever form its DATABASE_URL has.

    DATABASE_URL='postgresql+asyncpg://app:secret@db/app?ssl=require' python examples/database_url.py

Leads once, says so, and ends.
"""

import asyncio
import os

from pgleaderlock import LeaderLock

lock = LeaderLock(os.environ["DATABASE_URL"], role="examples/database-url")


async def main() -> None:
    """Lead, and hand over."""
    async with lock:
        await lock.wait_for_leadership()
        print(f"process {os.getpid()} leads with token {lock.token}", flush=True)


asyncio.run(main())
