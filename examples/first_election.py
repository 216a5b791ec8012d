"""The smallest election: become the leader, say so, hand over.

    python examples/first_election.py

Start it in two terminals: the second waits until the first has had its turn. With $PG_DSN it uses your PostgreSQL,
otherwise a small one of its own (pip install 'pgleaderlock[embedded]').
"""

import asyncio
import os

from pgleaderlock import LeaderLock
from pgleaderlock.testing.embedded import shared_server

TURN_S = float(os.environ.get("TURN_S", "5"))


async def main(dsn: str) -> None:
    """Lead once, for a few seconds."""
    lock = LeaderLock(dsn, role="examples/first-election", health_interval_s=1.0)

    @lock.on_acquired
    def acquired() -> None:
        print(f"I am the leader, for {TURN_S:g} seconds")

    @lock.on_released
    def released() -> None:
        print("I handed over")

    async with lock:
        print("waiting for my turn")
        await lock.wait_for_leadership()
        await asyncio.sleep(TURN_S)


if __name__ == "__main__":
    if "PG_DSN" in os.environ:
        asyncio.run(main(os.environ["PG_DSN"]))
    else:
        with shared_server() as server:
            asyncio.run(main(server.dsn))
