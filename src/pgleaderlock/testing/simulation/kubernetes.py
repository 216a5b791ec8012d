"""A modelled API server of Kubernetes, and one node's client of it.

The Lease, its rules and its numbers are those of :mod:`pgleaderlock.testing._lease_api`, which the tests compare with a
real API server; the store, watch and backend above them are the real ones. Modelled here is what lies between: requests
that each take their own path, so that one may still be executed long after its sender gave up; answers that are lost; a
server that refuses, or that executes a request and reports a failure; streams that end, fall silent, or are asked for
a history that was compacted.

Not modelled: HTTP itself, credentials, 429. ``tests/stores/test_kubernetes.py`` has those, over sockets.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.api import LeaseObject
from pgleaderlock.stores.kubernetes.refusals import explain
from pgleaderlock.testing._lease_api import LeaseApi, Refusal
from pgleaderlock.testing.simulation._futures import resolve
from pgleaderlock.testing.simulation.network import Cable, Pipe
from pgleaderlock.testing.simulation.world import ServerThatGoesDown, World

__all__ = ["ApiServer", "SimulatedClient", "Stream", "wall_clock"]

Do = Callable[[LeaseApi], Any]

_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
_REMEMBERED = 100
"""How many past changes a watch can still receive."""
_STREAM_S = 300.0
_UNTOLD_SHARE = 0.3
"""The share of the requests to a failing server that are executed, and answered as if they had failed."""


def wall_clock(world: World, rate: float, ahead_s: float) -> Callable[[], datetime]:
    """Return a host's time of day, which may be hours from that of the other hosts."""
    return lambda: _EPOCH + timedelta(seconds=world.now * rate + ahead_s)


class ApiServer(ServerThatGoesDown):
    """The server's side."""

    def __init__(self, world: World, note: Callable[[str, str], None]) -> None:
        super().__init__(world, note)
        self._api = LeaseApi(
            wall_clock=wall_clock(world, 1.0, 0.0), new_uid=lambda: f"{world.random.getrandbits(64):016x}"
        )
        self._streams: list[Stream] = []

    def answer(self, do: Do) -> Any:
        """Execute a request, and return the answer: an object, a refusal, or None for a refused connection."""
        if not self.is_up:
            return self._answer_badly(do)
        try:
            answer = do(self._api)
        except Refusal as refusal:
            return refusal
        self._tell()
        return answer

    def _answer_badly(self, do: Do) -> Refusal | None:
        chance = self.world.random.random()
        if chance < _UNTOLD_SHARE:
            with contextlib.suppress(Refusal):
                do(self._api)
            self._tell()
            return Refusal(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
        if chance < 2 * _UNTOLD_SHARE:
            return Refusal(503, "ServiceUnavailable", "etcdserver: no leader")
        return None

    def _tell(self) -> None:
        for stream in list(self._streams):
            stream.catch_up(self._api)
        if len(self._api.history) > _REMEMBERED:
            self._api.forgotten_up_to = self._api.history[-_REMEMBERED][0] - 1
            del self._api.history[:-_REMEMBERED]

    # --- Streams -----------------------------------------------------------------------------------------------

    def open_stream(self, stream: "Stream", since: int) -> Any:
        """Begin to send; return the first answer. A history that was compacted may be refused now, or later."""
        if not self.is_up:
            return None
        if since < self._api.forgotten_up_to:
            refusal = Refusal(410, "Expired", f"too old resource version: {since} ({self._api.forgotten_up_to})")
            if self.world.random.random() < 0.5:  # noqa: PLR2004 - an API server's cache answers so, etcd the other way
                return refusal
            stream.say({"type": "ERROR", "object": refusal.body})
            return {}
        self._streams.append(stream)
        stream.sent_up_to = since
        stream.catch_up(self._api)
        self.world.later(_STREAM_S * self.world.random.uniform(0.8, 1.2), lambda: self.end_stream(stream))
        return {}

    def end_stream(self, stream: "Stream") -> None:
        """End a stream, and notify its client."""
        if stream in self._streams:
            self._streams.remove(stream)
            stream.say(None)

    # --- Faults ------------------------------------------------------------------------------------------------

    def go_down(self, down_s: float) -> None:
        """Fail requests for a while. All that was written is kept."""
        self._end_all_streams()
        super().go_down(down_s)

    def empty_holder(self) -> None:
        """Let an operator empty the name of the holder in every Lease, without asking the holder."""
        for (namespace, name), lease in list(self._api.leases.items()):
            emptied = {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
            self.answer(partial(_put, namespace, name, emptied))

    def compact(self) -> None:
        """Drop the history, and end all streams: none of them can be resumed."""
        self._api.forgotten_up_to = self._api.revision
        self._api.history.clear()
        self._end_all_streams()

    def _end_all_streams(self) -> None:
        for stream in list(self._streams):
            self.end_stream(stream)


def _put(namespace: str, name: str, lease: LeaseObject, api: LeaseApi) -> LeaseObject:
    return api.replace(namespace, name, lease)[1]


class Stream:
    """One watch: a connection that may fall silent without a notice to either end."""

    def __init__(self, server: ApiServer, cable: Cable) -> None:
        self._server = server
        self._cable = cable
        self._there, self._back = Pipe(cable), Pipe(cable)
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.events: asyncio.Queue[LeaseObject | None] = asyncio.Queue()
        self.sent_up_to = 0
        self.closed = False
        self._name = ("", "")

    def open(self, namespace: str, name: str, since: int) -> None:
        """Ask the server for the watch."""
        self._name = namespace, name

        def arrive() -> None:
            answer = self._server.open_stream(self, since)
            self._back.send(lambda: resolve(self.opened, answer))

        self._there.send(arrive)

    def catch_up(self, api: LeaseApi) -> None:
        """Send the events that the client has not received yet."""
        for revision, event in api.events(*self._name, self.sent_up_to):
            self.sent_up_to = revision
            self.say(event)

    def say(self, event: LeaseObject | None) -> None:
        """Send one event, or the end."""
        self._back.send(lambda: self.events.put_nowait(event))

    def hang_up(self) -> None:
        """Close the watch, and notify the server."""
        self.closed = True
        self._there.send(lambda: self._server.end_stream(self))

    def vanish(self) -> None:
        """Make both directions silent."""
        self._there.is_dead = self._back.is_dead = True
        self._cable.troubled_at = self._cable.world.now


class SimulatedClient:
    """A :class:`~pgleaderlock.stores.kubernetes.api.LeaseClient`, with the time limits of the one over httpx."""

    def __init__(
        self, server: ApiServer, cable: Cable, connect: Callable[[Stream], object], request_timeout_s: float
    ) -> None:
        self._server = server
        self._cable = cable
        self._connect = connect
        self._timeout_s = request_timeout_s

    async def get(self, namespace: str, name: str) -> LeaseObject:
        """GET one Lease."""
        return await self._ask("get", namespace, name, lambda api: api.get(namespace, name))

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        """POST a new Lease."""
        name = lease["metadata"]["name"]
        return await self._ask("create", namespace, name, lambda api: api.create(namespace, lease))

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        """PUT exactly this object."""
        return await self._ask("update", namespace, name, lambda api: api.replace(namespace, name, lease)[1])

    async def list(self, namespace: str, name: str) -> LeaseObject:
        """List the Leases of that name."""
        return await self._ask("list", namespace, name, lambda api: api.listing(namespace, name))

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        """Yield the events of that Lease since then."""
        stream = Stream(self._server, self._cable)
        self._connect(stream)
        stream.open(namespace, name, int(resource_version))
        try:
            self._checked("watch", namespace, name, await self._in_time(stream.opened, self._timeout_s))
            while (event := await self._in_time(stream.events.get(), _STREAM_S * 1.2 + self._timeout_s)) is not None:
                yield event
        finally:
            stream.hang_up()

    async def close(self) -> None:
        """Do nothing: every request has a connection of its own."""

    async def _ask(self, verb: str, namespace: str, name: str, do: Do) -> LeaseObject:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there, back = Pipe(self._cable), Pipe(self._cable)
        there.send(lambda: back.send(partial(resolve, answer, self._server.answer(do))))
        return self._checked(verb, namespace, name, await self._in_time(answer, self._timeout_s))

    async def _in_time(self, answer: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise ConnectionError(
                f"no answer from the simulated API server within {timeout_s:g} s", cause=LossCause.RENEW_TIMEOUT
            ) from None

    @staticmethod
    def _checked(verb: str, namespace: str, name: str, answer: Any) -> LeaseObject:
        if answer is None:
            raise ConnectionError("the simulated API server refuses connections", cause=LossCause.CONNECTION_LOST)
        if isinstance(answer, Refusal):
            raise explain(verb, namespace, name, answer.status, json.dumps(answer.body).encode())
        found: LeaseObject = answer
        return found
