"""One candidate in a process of its own: prints "waiting" and "acquired", and releases on SIGTERM.

On SIGUSR1 it says how often its threads have waited so far, those that have ended included (``ru_nvcsw``).

python bench/candidate.py URL [LEASE_S HEALTH_INTERVAL_S [RETRY_S]]    ours, on any store
python bench/candidate.py --bare DSN                                   pg_advisory_lock, and nothing around it
"""

import asyncio
import resource
import signal
import sys
import time
from collections.abc import Coroutine

import psycopg

from pgleaderlock import Election, FixedInterval, open_backend
from pgleaderlock.stores.base import Backend

ROLE = "bench/hand-over"
_REST_S = 0.1  # an interpreter that ends uses a processor for milliseconds, and would slow down what is timed


def say(word: str) -> None:
    print(word, flush=True)


def backend_of(url: str, lease_s: float) -> Backend:
    if url.startswith("postgresql://"):
        return open_backend(url, role=ROLE, lease_s=lease_s, settle_s=0)
    return open_backend(url, role=ROLE if url.startswith("postgresql+lease://") else None, lease_s=lease_s)


async def ours(
    stop: asyncio.Event, url: str, lease_s: str = "15", health_interval_s: str = "5", retry_s: str = ""
) -> None:
    election = Election(
        backend_of(url, float(lease_s)),
        health_interval_s=float(health_interval_s),
        retry_strategy=FixedInterval(float(retry_s)) if retry_s else None,
        shutdown_event=stop,
    )
    election.on_acquire_failed(lambda: say("waiting"))
    election.on_acquired(lambda: say("acquired"))
    async with election:
        await stop.wait()


async def bare(stop: asyncio.Event, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        say("waiting")
        await connection.execute("SELECT pg_advisory_lock(4242, 4)")
        say("acquired")
        await stop.wait()


def answer_signals() -> asyncio.Event:
    """Return the event that SIGTERM sets, and answer SIGUSR1 from now on."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: say(f"waits {resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw}"))
    return stop


def run(side: Coroutine[None, None, None]) -> None:
    """Run a candidate, and rest before the process ends."""
    asyncio.run(side)
    time.sleep(_REST_S)


async def main(*arguments: str) -> None:
    stop = answer_signals()
    if arguments[0] == "--bare":
        await bare(stop, *arguments[1:])
    else:
        await ours(stop, *arguments)


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
