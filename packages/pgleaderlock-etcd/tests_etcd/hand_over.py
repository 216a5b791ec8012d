"""Measure hand-overs on a real etcd: ``PYTHONPATH=.:../.. python -m tests_etcd.hand_over`` in the package's folder.

Three elections of one process, in turns: from the call of ``shutdown()`` at the leader until another one leads.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pgleaderlock import Election, FixedInterval, open_backend
from tests_etcd.server import Etcd

_ROUNDS = 50
_SETTLE_S = 0.2  # so that the watches of the followers are open again


async def measure(url: str) -> list[float]:
    elections = [Election(open_backend(url), retry_strategy=FixedInterval(5.0)) for _ in range(3)]
    took_ms = []
    for election in elections:
        await election.start()
    for _ in range(_ROUNDS):
        leader = await _leader(elections)
        await asyncio.sleep(_SETTLE_S)
        others = [each for each in elections if each is not leader]
        began = time.perf_counter()
        leading = [asyncio.create_task(each.wait_for_leadership()) for each in others]
        stopping = asyncio.create_task(leader.shutdown())
        await asyncio.wait(leading, return_when=asyncio.FIRST_COMPLETED)
        took_ms.append((time.perf_counter() - began) * 1000)
        for task in leading:
            task.cancel()
        await asyncio.wait({stopping, *leading})
        await leader.start()  # not after a step-down, which keeps it from leading for a retry delay
    for election in elections:
        await election.shutdown()
    return took_ms


async def _leader(elections: list[Election]) -> Election:
    while True:
        for election in elections:
            if election.is_leader:
                return election
        await asyncio.sleep(0.01)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Etcd(Path(folder))
        try:
            server.start()
            took_ms = asyncio.run(measure(f"etcd://{server.hosts}/hand-over"))
        finally:
            server.stop()
    ordered = sorted(took_ms)
    sys.stdout.write(
        f"{len(ordered)} hand-overs: median {statistics.median(ordered):.1f} ms, 90 % within "
        f"{ordered[int(len(ordered) * 0.9)]:.1f} ms, longest {ordered[-1]:.1f} ms\n"
    )


if __name__ == "__main__":
    main()
