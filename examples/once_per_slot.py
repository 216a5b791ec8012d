"""Run something once per time slot, on one of several hosts, without a leader.

    python examples/once_per_slot.py 2026-03-04T03:00:00+00:00

Start it in several terminals with the same time. With $PG_DSN it uses your PostgreSQL, otherwise a small one of its own
(pip install 'pgleaderlock[embedded]').
"""

import asyncio
import os
import sys
from datetime import UTC, datetime

from pgleaderlock import LeaderLock
from pgleaderlock.testing.embedded import shared_server


async def main(dsn: str, slot: datetime) -> None:
    """Run the slot, or say which process did."""
    lock = LeaderLock(dsn, role="examples/once-per-slot")
    async with lock.once("report", slot) as mine:
        if mine:
            print(f"process {os.getpid()} makes the report for {slot:%F %T}")
        else:
            print(f"the report for {slot:%F %T} is {mine.state}, by {mine.holder}")


if __name__ == "__main__":
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    chosen = datetime.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else this_hour
    if "PG_DSN" in os.environ:
        asyncio.run(main(os.environ["PG_DSN"], chosen))
    else:
        with shared_server() as server:
            asyncio.run(main(server.dsn, chosen))
