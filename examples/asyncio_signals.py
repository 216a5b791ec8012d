"""Plain asyncio: work on the leader only, a signal that ends it, and systemd told if it is there.

    PG_DSN=postgresql://... python examples/asyncio_signals.py

Run it several times at once. SIGTERM or Ctrl-C hands leadership over when the piece of work at hand is done; kill -9
lets another go on within milliseconds.
"""

import asyncio
import os
import signal

from pgleaderlock import LeaderLock, Term
from pgleaderlock.integrations.systemd import Notifier

PIECE_S = 0.1


async def main() -> None:
    """Take part until a signal comes."""
    lock = LeaderLock(os.environ["PG_DSN"], role="examples/asyncio", health_interval_s=1.0)

    @lock.while_leader(drains=True)
    async def work(term: Term) -> None:
        while not term.is_ending:
            print(f"piece in process {os.getpid()}", flush=True)
            await asyncio.sleep(PIECE_S)
        print("finished what it was at", flush=True)

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with lock, Notifier(lock):
        print("taking part", flush=True)
        await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
