"""A file server that simulated hosts share: the real store, on a real folder, behind cables that may be pulled.

Work on the files is done by threads in production; here each piece of it travels to the server, is done there as
a whole, and is answered, each way in its own time. So a heartbeat may arrive late, or its answer may, and what was
given up on may still be done. A piece of work that has not begun when its process dies is not done, and that of
a frozen process waits for it. A server that is down keeps everybody waiting, as a hard mount does.

What can come between two system calls of one piece, what is sent before and obeyed after a look at the clock, and what
a client of NFS remembers wrongly, is the subject of ``tests/nfs_simulation.py``. Here it is leases, freezes, cuts, and
the engine above.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pgleaderlock.backends.nfs import NfsStore
from pgleaderlock.nfs._threads import Threads
from pgleaderlock.testing.simulation._futures import reject, resolve
from pgleaderlock.testing.simulation.files import SharedFolder
from pgleaderlock.testing.simulation.network import Pipe
from pgleaderlock.testing.simulation.node import Node
from pgleaderlock.testing.simulation.world import World

__all__ = ["FileServer", "SimulatedNfsStore"]

T = TypeVar("T")

_POLLS = 10
"""In a lease. The default of ten a second would be most of what happens in a simulated hour."""


class FileServer(SharedFolder):
    """The folder, on a server that may be silent."""

    def __init__(self, world: World, note: Callable[[str, str], None], leave_out: Callable[[str], object]) -> None:
        super().__init__(world, leave_out)
        self._note = note
        self._waiting: list[Callable[[], object]] = []

    def serve(self, do: Callable[[], object]) -> None:
        """Do it, now or when the server is back."""
        if self.is_up:
            do()
        else:
            self._waiting.append(do)

    def go_down(self, down_s: float) -> None:
        """Answer nobody for a while."""
        self.is_up = False
        self._world.later(down_s, self.come_back)

    def come_back(self) -> None:
        """Answer everybody."""
        if self.is_up:
            return
        self.is_up = True
        self._note("server", "is up")
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do()


class _WayToTheServer(Threads):
    """Where one process does its work on the files."""

    def __init__(self, server: FileServer, node: Node) -> None:
        self._server = server
        self._cable = node.cable
        self._loop = node.loop

    def begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Send it; its end is told by an answer."""
        answer: asyncio.Future[T] = self._loop.create_future()
        back = Pipe(self._cable)

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
                back.send(partial(reject, answer, error))
            else:
                back.send(partial(resolve, answer, result))

        self.start(do)
        return answer

    def start(self, work: Callable[[], object]) -> None:
        """Send it. A thread takes no step while its process is frozen, and none after its end."""
        Pipe(self._cable).send(lambda: self._server.serve(lambda: self._loop.call_soon(work)))


class SimulatedNfsStore(NfsStore):
    """The store of one process."""

    def __init__(self, server: FileServer, node: Node, *, identity: str, lease_s: float) -> None:
        super().__init__(
            server.path / "leader.lock",
            lease_s=lease_s,
            identity=identity,
            clock=node.loop.time,
            poll_s=lease_s / _POLLS,
        )
        self._threads = _WayToTheServer(server, node)
