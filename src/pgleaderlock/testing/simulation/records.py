"""A modelled lease store: one record that can be replaced if it is still the one that was read.

It models a row behind a pooler, a Kubernetes Lease, a file: all that :class:`RecordStore` is an interface to. Every
request takes its own path, so one that its sender has long given up may arrive after a later one.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.record import Claim, Record, RecordStore
from pgleaderlock.testing.simulation._futures import reject, resolve
from pgleaderlock.testing.simulation.network import Cable, Pipe
from pgleaderlock.testing.simulation.world import ServerThatGoesDown, World

__all__ = ["ModelledRecord", "SimulatedStore"]

T = TypeVar("T")


class ModelledRecord(ServerThatGoesDown):
    """The store's side."""

    def __init__(self, world: World, note: Callable[[str, str], None]) -> None:
        super().__init__(world, note)
        self.current: Record | None = None
        self._version = 0
        self._watchers: list[Callable[[], object]] = []

    def replace(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Write the record, unless it was written since it was read; then return None."""
        seen = None if replacing is None else replacing.version
        if (None if self.current is None else self.current.version) != seen:
            return None
        self._version += 1
        self.current = Record(claim.holder, claim.token, claim.lease_s, self._version)
        watchers, self._watchers = self._watchers, []
        for tell in watchers:
            tell()
        return self.current

    def watch(self, seen: Record | None, tell: Callable[[], object]) -> None:
        """Call ``tell`` once the record differs from the one that was seen."""
        if self.current != seen:
            tell()
        else:
            self._watchers.append(tell)

    def go_down(self, down_s: float) -> None:
        """Refuse connections for a while. The record is kept, but all watches are lost."""
        self._watchers.clear()
        super().go_down(down_s)


class SimulatedStore(RecordStore):
    """One node's client of the record."""

    def __init__(self, server: ModelledRecord, cable: Cable) -> None:
        self._server = server
        self._cable = cable

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of the log lines."""
        return {"record": "simulated"}

    async def read(self) -> Record | None:
        """Read the record from the server."""
        return await self._ask(lambda: self._server.current)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Ask the server to replace the record."""
        return await self._ask(lambda: self._server.replace(claim, replacing))

    async def changed(self, seen: Record | None, timeout_s: float) -> None:
        """Wait until the record differs from ``seen``, or ``timeout_s`` has passed."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        there, back = Pipe(self._cable), Pipe(self._cable)

        def tell() -> None:
            back.send(lambda: resolve(told, None))

        there.send(lambda: self._server.watch(seen, tell))
        await asyncio.wait({told}, timeout=timeout_s)

    async def _ask(self, do: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        there, back = Pipe(self._cable), Pipe(self._cable)

        def arrive() -> None:
            if not self._server.is_up:
                back.send(lambda: reject(answer, _refused()))
                return
            result = do()
            back.send(lambda: resolve(answer, result))

        there.send(arrive)
        return await answer


def _refused() -> ConnectionError:
    return ConnectionError("the simulated store refuses connections", cause=LossCause.CONNECTION_LOST)
