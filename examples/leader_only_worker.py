"""Work that runs on the leader only, stops when leadership is lost, and starts again when it comes back.

    python examples/leader_only_worker.py

Run it several times at once: one of them ticks. Kill that one: another goes on. With $PG_DSN it uses your PostgreSQL,
otherwise a small one of its own (pip install 'pgleaderlock[embedded]').
"""

import asyncio
import os
import signal

from pgleaderlock import LeaderLock, Term
from pgleaderlock.testing.embedded import shared_server

TICK_S = 0.2


async def work(term: Term) -> None:
    """Do one small piece at a time. Cancelled when the term ends, and awaited before anybody else can lead."""
    number = 0
    while True:
        number += 1
        term.check()  # raises if this process was asleep for too long to be sure of anything
        print(f"tick {number} from process {os.getpid()}", flush=True)
        await asyncio.sleep(TICK_S)


async def main(dsn: str) -> None:
    """Take part until told to stop."""
    lock = LeaderLock(dsn, role="examples/worker", health_interval_s=1.0)
    lock.while_leader(work)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with lock:
        print("taking part", flush=True)
        await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    if "PG_DSN" in os.environ:
        asyncio.run(main(os.environ["PG_DSN"]))
    else:
        with shared_server() as server:
            asyncio.run(main(server.dsn))
