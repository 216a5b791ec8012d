"""Many roles in one process: one pair of sessions for all of them, beside a pair of sessions for each.

Each side is a process of its own, so that memory and processor time are its own. What a side costs is measured from its
start until it leads every role, then while nothing happens.
"""

import asyncio
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from pgleaderlock import Election, LeaderGroup, LeaderLock
from pgleaderlock.testing.embedded import Server

IDLE_S = 5.0
LEASE_S = 15.0


async def lead(dsn: str, count: int, *, grouped: bool) -> dict[str, float]:
    """Lead so many roles, and say what it cost."""
    names = [f"bench/{number}" for number in range(count)]
    left = count
    all_lead = asyncio.Event()

    def note() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            all_lead.set()

    before_mb = _memory_mb()
    if grouped:
        group = LeaderGroup(dsn, names, lease_s=LEASE_S, settle_s=0)
        group.on_acquired(lambda _: note())
        elections: list[Election] = list(group.values())
    else:
        group = None
        elections = [LeaderLock(dsn, role=name, lease_s=LEASE_S, settle_s=0) for name in names]
        for election in elections:
            election.on_acquired(note)
    gc.collect()  # or a collection of what was made before falls into what is measured, or not, by chance
    gc.disable()  # as docs/how-to/lead-many-roles.md advises
    began = time.perf_counter()
    await (group.start() if group is not None else asyncio.gather(*(election.start() for election in elections)))
    gc.enable()
    for election in elections:  # each is asked until it leads, and then no more: asking has a cost of its own
        while not election.is_leader:  # noqa: ASYNC110 - it is what is measured
            await asyncio.sleep(0.01)
    led_ms = (time.perf_counter() - began) * 1e3
    await all_lead.wait()
    told_ms = (time.perf_counter() - began) * 1e3
    sessions = await _sessions(dsn)
    used = time.process_time()
    await asyncio.sleep(IDLE_S)
    idle = (time.process_time() - used) / IDLE_S
    memory_kb = (_memory_mb() - before_mb) * 1024 / count
    await (group.shutdown() if group is not None else asyncio.gather(*(each.shutdown() for each in elections)))
    return {"led_ms": led_ms, "told_ms": told_ms, "sessions": sessions, "idle": idle * 100, "memory_kb": memory_kb}


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _sessions(dsn: str) -> float:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgleaderlock %'"
        row = await (await connection.execute(query)).fetchone()
        return float(row[0]) if row else 0.0


def measure(dsn: str, count: int, *, grouped: bool) -> dict[str, float]:
    command = [sys.executable, __file__, dsn, str(count), "grouped" if grouped else "single"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def bench_groups() -> None:
    """Print 100 roles both ways, and 5,000 in one group."""
    with tempfile.TemporaryDirectory(prefix="pgll-bench-") as folder:
        Path(folder).chmod(0o755)
        settings = {"max_connections": "300", "max_locks_per_transaction": "256"}
        server = Server(Path(folder) / "server", settings=settings)
        server.start()
        try:
            grouped, single = (measure(server.dsn, 100, grouped=is_grouped) for is_grouped in (True, False))
            many = measure(server.dsn, 5000, grouped=True)
        finally:
            server.stop("immediate")
    units = {
        "led_ms": "until all are led, ms",
        "told_ms": "until all callbacks ran, ms",
        "sessions": "connections",
        "idle": "idle, % of a core",
        "memory_kb": "memory per role, KiB",
    }
    print(f"\n{'100 roles':<32}{'in a group':>12}{'each alone':>12}{'ratio':>9}{'5,000 in a group':>20}")
    for name, unit in units.items():
        ratio = single[name] / grouped[name] if grouped[name] else float("inf")
        print(f"{unit:<32}{grouped[name]:>12.2f}{single[name]:>12.2f}{ratio:>8.1f}x{many[name]:>20.2f}")


if __name__ == "__main__":
    dsn, count, kind = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(lead(dsn, int(count), grouped=kind == "grouped"))))
