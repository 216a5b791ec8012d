"""A worker on gevent: the blocking API in a process whose threads are greenlets.

PG_DSN=postgresql://localhost/app python examples/gevent_worker.py

Start it twice: one of the two works. Ctrl-C, or SIGTERM, hands the leadership over.
"""

# ruff: noqa: E402 - gevent has to patch the standard library before anything else is imported
from gevent import monkey

monkey.patch_all()

import os
import signal

import gevent
from gevent.event import Event

from pgleaderlock import Term
from pgleaderlock.sync import LeaderLock

lock = LeaderLock(
    os.environ.get("PG_DSN", "postgresql://localhost/app"), role="examples/gevent", lease_s=3, health_interval_s=1
)
stop = Event()


@lock.on_lost
def report() -> None:
    """Say that the term is over."""
    print(f"lost by {os.getpid()}", flush=True)


@lock.while_leader
def work(term: Term) -> None:
    """Work until the term ends, in a greenlet."""
    print(f"process {os.getpid()} leads", flush=True)
    pieces = 0
    while not term.wait(0.1):
        pieces += 1
        print(f"piece {pieces} of {os.getpid()}", flush=True)


def serve_requests() -> None:
    """Stand for what else the process does: other greenlets run while the lock is waited for."""
    served = 0
    while not stop.wait(0.1):
        served += 1
        print(f"served {served} requests", flush=True)


if __name__ == "__main__":
    gevent.signal_handler(signal.SIGTERM, stop.set)
    gevent.signal_handler(signal.SIGINT, stop.set)
    server = gevent.spawn(serve_requests)
    with lock:
        print("taking part", flush=True)
        stop.wait()
    server.join()
    print("stopped", flush=True)
