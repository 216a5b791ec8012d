"""Work that runs on the leader only, stops when leadership is lost, and starts again when it comes back.

    python examples/leader_only_worker.py

Run it several times at once: one of them ticks. Kill that one: another goes on. With $PG_DSN it uses your PostgreSQL,
otherwise a small one of its own (pip install 'pgleaderlock[embedded]').
"""

import asyncio
import contextlib
import os
import signal

from pgleaderlock import LeaderLock
from pgleaderlock.embedded import shared_server

TICK_S = 0.2


async def work(lock: LeaderLock) -> None:
    """Do one small piece at a time, and ask before each whether it is still ours to do."""
    number = 0
    while lock.is_leader:
        number += 1
        print(f"tick {number} from process {os.getpid()}", flush=True)
        await asyncio.sleep(TICK_S)


async def main(dsn: str) -> None:
    """Take part until told to stop."""
    lock = LeaderLock(dsn, role="examples/worker", health_interval_s=1.0)
    working: asyncio.Task[None] | None = None

    @lock.on_acquired
    def start_working() -> None:
        # Callbacks must be quick: the work itself gets a task of its own.
        nonlocal working
        working = asyncio.create_task(work(lock))

    # However a term ends, one of these three is called.
    @lock.on_lost
    @lock.on_released
    @lock.on_stopped
    async def stop_working() -> None:
        if working is not None:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

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
