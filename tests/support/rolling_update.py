"""A Deployment's rolling update with real candidates: each pod is a sidecar process and an object of an API server.

There is no cluster: the order in which old pods end is that of the ReplicaSet controller (``ActivePodsWithRanks`` of
Kubernetes), for pods that are all running and ready on different nodes. Of two such pods it ends the one first that has
the lower ``controller.kubernetes.io/pod-deletion-cost``, and with the same cost the one that became ready later.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pgleaderlock.ops.pod_label._pods import COST_KEY
from tests.support.pods import Pods
from tests.support.registry import eventually
from tests.support.sidecars import WAIT_S, SidecarProcess, ask, sidecar, until_answer

__all__ = ["LABEL", "Deployment"]

LABEL = "pgleaderlock/leader=worker"


@dataclass
class Deployment:
    """Three replicas that are updated as ``maxSurge: 1`` and ``maxUnavailable: 0`` say."""

    options: tuple[str, ...]
    pods: Pods
    stack: contextlib.AsyncExitStack
    env: dict[str, str] = field(default_factory=dict)
    replicas: int = 3
    running: dict[str, SidecarProcess] = field(default_factory=dict)
    """By the name of the pod, in the order in which they became ready."""
    leaders: list[str] = field(default_factory=list)
    """Every leader that was seen."""

    async def start_pod(self) -> str:
        """Start a pod and wait until it is ready: it takes part, and knows who leads."""
        name = await self.pods.create()
        process = await self.stack.enter_async_context(sidecar(*self.options, pod=name, **self.env))
        await until_answer(process.url, "readyz", 200)
        if self.running:
            await until_answer(process.url, "election", 200, leadership="led")
        self.running[name] = process
        return name

    async def start(self) -> str:
        """Start all pods, and return the one that leads."""
        first = await self.start_pod()
        await until_answer(self.running[first].url, "leader", 200)
        for _ in range(self.replicas - 1):
            await self.start_pod()
        return await self.note_leader()

    def make_ready_at(self, name: str, place: int) -> None:
        """Let this pod count as the one that became ready at this place, from 0."""
        names = [each for each in self.running if each != name]
        names.insert(place, name)
        self.running = {each: self.running[each] for each in names}

    async def leader(self) -> str | None:
        """Return the pod whose process says that it leads."""
        for name, process in self.running.items():
            if (await ask(process.url, "leader"))[0] == 200:
                return name
        return None

    async def note_leader(self) -> str:
        """Wait for a leader, and note it if it is another than before."""
        name: str = await eventually(self.leader)
        if self.leaders[-1:] != [name]:
            self.leaders.append(name)
        return name

    async def update(self, settled: Callable[[], Awaitable[object]]) -> None:
        """Replace all pods. ``settled`` is awaited before each choice, as a controller takes longer than a patch."""
        old = list(self.running)
        while old:
            await self.start_pod()
            await settled()
            name = await self.first_to_end(old)
            old.remove(name)
            await self.end_pod(name)
            await self.note_leader()

    async def first_to_end(self, names: list[str]) -> str:
        """Return the pod that the controller ends next."""
        costs = {}
        for name in names:
            costs[name] = int((await self.pods.metadata(name)).get("annotations", {}).get(COST_KEY, "0"))
        ready = list(self.running)
        return min(names, key=lambda name: (costs[name], -ready.index(name)))

    async def end_pod(self, name: str) -> None:
        process = self.running.pop(name)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WAIT_S) == 0, process.lines
        await self.pods.delete(name)
