"""A file server that simulated hosts share: the real store, on a real folder, behind cables that may be pulled.

In production, threads do the work on the files; here each piece of work travels to the server, is done there as a
whole, and is answered, each way with its own delay. So a heartbeat may arrive late, or its answer may, and work may
still be done after its caller gave up. Work that has not begun when its process dies is not done, and that of a frozen
process waits until it thaws. A server that is down keeps all clients waiting, as a hard mount does.

``proofs/nfs_simulation.py`` covers what can come between two system calls of one piece, what is sent before and done
after a reading of the clock, and stale caches of an NFS client. This simulation covers leases, freezes, cuts, and the
engine above.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pgleaderlock.stores.nfs._threads import Threads
from pgleaderlock.stores.nfs.backend import NfsStore
from pgleaderlock.stores.record import Record
from pgleaderlock.testing.simulation._futures import reject, resolve
from pgleaderlock.testing.simulation.files import SharedFolder
from pgleaderlock.testing.simulation.network import Pipe
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.world import ServerThatGoesDown, World

__all__ = ["FileServer", "SimulatedNfsStore"]

T = TypeVar("T")

_POLLS = 10
"""Polls per lease. The default of ten a second would be most of the steps of a simulated hour."""


class FileServer(SharedFolder, ServerThatGoesDown):
    """The folder, on a server that may be down."""

    def __init__(self, world: World, note: Callable[[str, str], None], leave_out: Callable[[str], object]) -> None:
        SharedFolder.__init__(self, world, leave_out)
        ServerThatGoesDown.__init__(self, world, note)
        self._waiting: list[Callable[[], object]] = []

    def serve(self, do: Callable[[], object]) -> None:
        """Do the work, now or when the server is back."""
        if self.is_up:
            do()
        else:
            self._waiting.append(do)

    def come_back(self) -> None:
        """Answer again, first what has waited."""
        super().come_back()
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do()


class _WayToTheServer(Threads):
    """The threads of one process, which work on the files of the server."""

    def __init__(self, server: FileServer, node: SimulatedNode) -> None:
        self._server = server
        self._cable = node.cable
        self._loop = node.loop

    def begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Send work to the server; return a future of its result."""
        answer: asyncio.Future[T] = self._loop.create_future()
        back = Pipe(self._cable)

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is passed to the caller
                back.send(partial(reject, answer, error))
            else:
                back.send(partial(resolve, answer, result))

        self.start(do)
        return answer

    def start(self, work: Callable[[], object]) -> None:
        """Send work to the server. A thread takes no step while its process is frozen, and none after its end."""
        Pipe(self._cable).send(lambda: self._server.serve(lambda: self._loop.call_soon(work)))


class SimulatedNfsStore(NfsStore):
    """The store of one process. It polls from its event loop: a thread that sleeps would not sleep in virtual time."""

    def __init__(self, server: FileServer, node: SimulatedNode, *, identity: str, lease_s: float) -> None:
        super().__init__(
            server.path / "leader.lock",
            lease_s=lease_s,
            identity=identity,
            clock=node.loop.time,
            poll_s=lease_s / _POLLS,
        )
        self._threads = _WayToTheServer(server, node)

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:
        """Poll the folder."""
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            await asyncio.sleep(min(left_s, self._poll_s * random.uniform(0.5, 1.5)))  # noqa: S311 - spreads the load
            now = await self.read()
            if now is None or seen is None or now.version != seen.version:
                return now
        return None
