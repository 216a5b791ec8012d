"""A node as a real process, with a thread that records when it acts as leader: the independent observer of the scenes.

    python -m tests.support.scenes_node CONFIG OBSERVATIONS

Each record of the observations is a role, and from when to when its election said ``is_leader``, on the machine's
clock. It is rewritten at its place while it lasts, so that a kill -9 loses a few milliseconds at most.
"""

import asyncio
import mmap
import signal
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from pgleaderlock import Election
from pgleaderlock.ops.config import load_config
from pgleaderlock.ops.node import Node

RECORD = struct.Struct("16sdd")
SIZE = RECORD.size * 1000
EVERY_S = 0.002


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def observe(elections: Mapping[str, Election], path: Path) -> None:
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    places: dict[str, int] = {}
    began: dict[str, float] = {}
    count = 0
    while True:
        for role, election in elections.items():
            now = time.time()
            if not election.is_leader:
                began.pop(role, None)
                continue
            if role not in began:
                began[role], places[role] = now, count
                count += 1
            RECORD.pack_into(memory, places[role] * RECORD.size, role.encode(), began[role], now)
        time.sleep(EVERY_S)


def read_observations(path: Path) -> list[tuple[str, float, float]]:
    """Return role, beginning and end of each interval in which the node acted as leader."""
    data = path.read_bytes()
    records = [RECORD.unpack_from(data, place) for place in range(0, len(data), RECORD.size)]
    return [(role.rstrip(b"\0").decode(), began, ended) for role, began, ended in records if began]


async def main(config: str, observations: str) -> None:
    node = Node(load_config(Path(config)))
    threading.Thread(target=observe, args=(node.elections, Path(observations)), daemon=True).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with node:
        say(f"metrics {node.metrics_port}")
        await stop.wait()
    say("stopped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
