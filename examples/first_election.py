"""The smallest election: become the leader, say so, hand over.

    PG_DSN=postgresql://... python examples/first_election.py

Start it in two terminals: the second waits until the first ends.
"""

import asyncio
import os

from pgleaderlock import LeaderLock


async def main() -> None:
    """Lead once, for as long as it takes to press Enter."""
    lock = LeaderLock(os.environ["PG_DSN"], role="examples/first-election")

    @lock.on_acquired
    def acquired() -> None:
        print("I am the leader")

    @lock.on_released
    def released() -> None:
        print("I handed over")

    async with lock:
        print("waiting for my turn")
        await lock.wait_for_leadership()
        await asyncio.to_thread(input, "press Enter to hand over\n")


if __name__ == "__main__":
    asyncio.run(main())
