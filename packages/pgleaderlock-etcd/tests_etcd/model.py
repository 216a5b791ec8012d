"""A modelled etcd for the simulation: the real store and watch, on a modelled server and network.

Modelled: requests that each take their own path, so that one may be executed long after its sender gave up; answers
that are lost; a cluster without a majority, which refuses, or executes a write and reports a failure; streams that end,
fall silent, or are asked for a history that was compacted; writes to other keys. Not modelled: HTTP and credentials.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LossCause
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing.simulation import STORES, SimulatedNode, Store
from pgleaderlock.testing.simulation.network import Cable, Pipe
from pgleaderlock.testing.simulation.world import ServerThatGoesDown, World
from pgleaderlock_etcd import Change, Compacted, EtcdError, EtcdStore, Seen

UNTOLD_SHARE = 0.3
"""The share of the requests to a failing cluster that are executed, and answered as if they had failed."""
_KEY = b"simulated"


class ModelledEtcd(ServerThatGoesDown):
    """The server's side: one key, and a revision that all keys share."""

    def __init__(self, world: World, note: Callable[[str, str], None]) -> None:
        super().__init__(world, note)
        self.revision = 1
        self.seen = Seen(1, None, 0)
        self.history: list[Change] = []
        self.compacted_up_to = 0
        self.streams: list[Stream] = []

    def read(self) -> Seen:
        self.revision += self.world.random.choice([0, 0, 3])  # other clients write other keys
        return Seen(self.revision, self.seen.value, self.seen.mod_revision)

    def replace(self, value: bytes, mod_revision: int) -> int | None:
        if not self.compares(mod_revision):
            return None
        self.revision += 1
        self.seen = Seen(self.revision, value, self.revision)
        self.history.append(Change(self.revision, value))
        for stream in list(self.streams):
            stream.say(self.history[-1])
        return self.revision

    def compares(self, mod_revision: int) -> bool:
        return self.seen.mod_revision == mod_revision

    def answer(self, do: Callable[[], Any]) -> Any:
        """Execute a request, and return the answer: a value, an error, or None for a refused connection."""
        if self.is_up:
            return [do()]
        if self.world.random.random() < UNTOLD_SHARE:
            do()
            return EtcdError("etcdserver: request timed out", 14)
        return ConnectionError("connection refused", cause=LossCause.CONNECTION_LOST)

    def open_stream(self, stream: "Stream", start: int) -> None:
        if not self.is_up:
            stream.say(None)
        elif start <= self.compacted_up_to:
            stream.say(Compacted("the changes were compacted"))
        else:
            self.streams.append(stream)
            for change in self.history:
                if change.revision >= start:
                    stream.say(change)

    def end_stream(self, stream: "Stream") -> None:
        if stream in self.streams:
            self.streams.remove(stream)
            stream.say(None)

    def go_down(self, down_s: float) -> None:
        """Lose the majority for a while: members end their watches, which ask for a leader."""
        self._end_all_streams()
        super().go_down(down_s)

    def compact(self) -> None:
        """Drop the history, and end all watches, as a member that is restarted after a compaction."""
        self.compacted_up_to = self.revision
        self.history.clear()
        self._end_all_streams()

    def _end_all_streams(self) -> None:
        for stream in list(self.streams):
            self.end_stream(stream)


class Stream:
    """One watch: a connection that may fall silent without a notice to either end."""

    def __init__(self, server: ModelledEtcd, cable: Cable) -> None:
        self._server = server
        self._cable = cable
        self._there, self._back = Pipe(cable), Pipe(cable)
        self.events: asyncio.Queue[Change | Exception | None] = asyncio.Queue()
        self.closed = False

    def open(self, start: int) -> None:
        self._there.send(lambda: self._server.open_stream(self, start))

    def say(self, event: Change | Exception | None) -> None:
        self._back.send(lambda: self.events.put_nowait(event))

    def hang_up(self) -> None:
        self.closed = True
        self._there.send(lambda: self._server.end_stream(self))

    def vanish(self) -> None:
        self._there.is_dead = self._back.is_dead = True
        self._cable.troubled_at = self._cable.world.now


class SimulatedClient:
    """An EtcdClient over the modelled network."""

    def __init__(self, server: ModelledEtcd, node: SimulatedNode) -> None:
        self._server = server
        self._node = node

    async def read(self, key: bytes) -> Seen:
        seen: Seen = await self._ask(self._server.read)
        return seen

    async def replace(self, key: bytes, value: bytes, mod_revision: int) -> int | None:
        revision: int | None = await self._ask(lambda: self._server.replace(value, mod_revision))
        return revision

    async def watch(self, key: bytes, start_revision: int) -> AsyncGenerator[Change, None]:
        stream = Stream(self._server, self._node.cable)
        self._node.connect(stream)
        stream.open(start_revision)
        try:
            while (event := await stream.events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            stream.hang_up()

    async def close(self) -> None:
        pass

    async def _ask(self, do: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there, back = Pipe(self._node.cable), Pipe(self._node.cable)

        def arrive() -> None:
            back.send(partial(_resolve, answer, self._server.answer(do)))

        there.send(arrive)
        found = await answer
        if isinstance(found, Exception):
            raise found
        return found[0]


def _resolve(answer: "asyncio.Future[Any]", value: Any) -> None:
    if not answer.done():  # its caller has given up
        answer.set_result(value)


def contend(node: SimulatedNode, server: Any, lease_s: float, _: dict[str, Any]) -> Backend:
    store = EtcdStore(SimulatedClient(server, node), _KEY, lease_s=lease_s)
    return RecordBackend(store, identity=f"{node.name}-{node.boots}", lease_s=lease_s, clock=node.loop.time)


def etcd_store(server_type: type[ModelledEtcd] = ModelledEtcd) -> Store:
    """Return etcd as a store of the simulation, with the faults that are inside the promise of a Lease."""
    return Store(
        "etcd",
        STORES["kubernetes"].faults,
        make_server=lambda world, checker, _: server_type(world, checker.note),
        contend=contend,
    )
