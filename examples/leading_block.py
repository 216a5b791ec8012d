"""Lead for one block: the second process waits until the first has left it.

    python examples/leading_block.py

Start it in two terminals. With $PG_DSN it uses your PostgreSQL, otherwise a small one of its own
(pip install 'pgleaderlock[embedded]').
"""

import asyncio
import os

from pgleaderlock import LeaderLock, LeadershipLost
from pgleaderlock.testing.embedded import shared_server

TURN_S = float(os.environ.get("TURN_S", "5"))


async def main(dsn: str) -> None:
    """Lead once, for a few seconds."""
    lock = LeaderLock(dsn, role="examples/leading-block", health_interval_s=1.0)
    print("waiting for my turn")
    try:
        async with lock.leading() as term:
            print(f"process {os.getpid()} leads with token {term.token}")
            await asyncio.sleep(TURN_S)
    except LeadershipLost as error:
        print(f"the block was cancelled: {error.cause}")
    else:
        print("released")


if __name__ == "__main__":
    if "PG_DSN" in os.environ:
        asyncio.run(main(os.environ["PG_DSN"]))
    else:
        with shared_server() as server:
            asyncio.run(main(server.dsn))
