"""A candidate on one store, as a process: ``python -m proofs.outage_nodes '{"url": ..., "role": ..., "lease_s": 3}'``.

It writes a line when it has begun to lead and when it has ended, with the time by the machine's one clock, and ends
with its stdin. The retry strategy is the default one. ``proofs/outage_torture.py`` starts it.
"""

import asyncio
import json
import sys

from pgleaderlock import Election, LeaderLock, open_backend
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.testing.demo._node import say, until_stdin_ends

_BEGINS = frozenset({EventKind.ACQUIRED, EventKind.RECOVERED})
_ENDS = frozenset({EventKind.LOST, EventKind.RELEASED, EventKind.STOPPED})


def make_election(url: str, role: str, lease_s: float) -> Election:
    """Return a candidate for the role; on Kubernetes the URL names the Lease."""
    interval_s = lease_s / 3
    if url.startswith("postgresql://"):
        return LeaderLock(url, role=role, lease_s=lease_s, health_interval_s=interval_s)
    backend = open_backend(url, lease_s=lease_s, role=None if url.startswith("k8s://") else role)
    return Election(backend, health_interval_s=interval_s)


def report(event: Event) -> None:
    if event.kind in _BEGINS | _ENDS:
        say("leads" if event.kind in _BEGINS else "ended", at=clock())
    elif event.kind is EventKind.ACQUIRE_FAILED:
        say("follows", at=clock())


async def main(*, url: str, role: str, lease_s: float) -> None:
    """Take part until stdin ends."""
    election = make_election(url, role, lease_s)
    election.subscribe(report)
    async with election:
        await until_stdin_ends()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
