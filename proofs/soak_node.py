"""A configured node of the soak, as a process: ``python -m proofs.soak_node CONFIG FOLDER``.

It writes into the folder what it observes of itself, in files that outlive a ``kill -9``: ``events``, what its
elections told, one JSON object per line; and one file per role (by its place in the configuration) with the intervals
in which the role's token was valid, sampled by a thread (:mod:`pgleaderlock.testing._claim`). Both are
independent of the registry, and dated by the machine's one clock. It ends with its stdin.
"""

import asyncio
import json
import mmap
import os
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path

from pgleaderlock import Election
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.ops.config import load_config
from pgleaderlock.ops.node import Node
from pgleaderlock.testing._claim import ClaimWriter, make_claim_file, pause
from pgleaderlock.testing.demo._node import until_stdin_ends

_WRITTEN = {EventKind.ACQUIRED, EventKind.RECOVERED, EventKind.LOST, EventKind.RELEASED, EventKind.STOPPED}
_SAMPLE_EVERY_S = 0.005


def log_events(election: Election, role: str, descriptor: int) -> None:
    """Write each event in one piece, which is the kernel's from then on."""

    def write(event: Event) -> None:
        if event.kind in _WRITTEN:
            facts = {"event": event.kind.value, "token": event.token, "until": event.trusted_until, "at": event.at}
            os.write(descriptor, (json.dumps({"role": role, **facts}) + "\n").encode())

    election.subscribe(write)


def sample_forever(elections: Iterable[tuple[Election, Path]]) -> None:
    """Ask all roles in turn. A process of which nothing is known must not be taken for one that leads nothing."""
    try:
        writers = []
        for election, path in elections:
            make_claim_file(path)
            with path.open("r+b") as file:
                writers.append((election, ClaimWriter(mmap.mmap(file.fileno(), 0))))
        while True:
            for election, writer in writers:
                before = clock()
                writer.note(before, election.token, clock())
            pause(_SAMPLE_EVERY_S)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


async def main(config: Path, folder: Path) -> None:
    """Take part in all elections of the configuration until stdin ends."""
    node = Node(load_config(config))
    descriptor = os.open(folder / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for role, election in node.elections.items():
        log_events(election, role, descriptor)
    sampled = [(election, folder / str(place)) for place, election in enumerate(node.elections.values())]
    threading.Thread(target=sample_forever, args=(sampled,), daemon=True).start()
    async with node:
        await until_stdin_ends()


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
