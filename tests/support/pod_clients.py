"""A client of pods in memory, which fails and stands still when told: for tests on virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

from pgleaderlock import ConnectionError
from pgleaderlock.stores.kubernetes.api import PodObject
from pgleaderlock.stores.kubernetes.refusals import PODS, explain
from pgleaderlock.testing._lease_api import Refusal
from pgleaderlock.testing._pod_api import PodApi

REQUEST_S = 2.0


class ModelClient:
    """Answers as the fake API server does, without a network."""

    def __init__(self, api: PodApi) -> None:
        self.api = api
        self.asked: list[tuple[float, str]] = []
        self.forbidden: set[str] = set()
        self.broken: set[tuple[str, str]] = set()
        """A verb and a pod or selector, which are answered with 500."""
        self.is_away = False
        self.hangs = False
        self.raises: Exception | None = None
        self.after_list: Callable[[], object] | None = None
        """Called once, between a list and its answer."""
        self.closed = 0

    @property
    def verbs(self) -> list[str]:
        return [verb for _, verb in self.asked]

    async def get(self, namespace: str, name: str) -> PodObject:
        return await self._answer("get", namespace, name, lambda: self.api.get(namespace, name))

    async def list(self, namespace: str, selector: str, *, cached: bool) -> PodObject:
        verb = "list cached" if cached else "list"
        found = await self._answer(verb, namespace, selector, lambda: self.api.listing(namespace, selector))
        meanwhile, self.after_list = self.after_list, None
        if meanwhile is not None:
            meanwhile()
        return found

    async def patch(self, namespace: str, name: str, change: PodObject) -> PodObject:
        return await self._answer("patch", namespace, name, lambda: self.api.patch(namespace, name, change))

    async def close(self) -> None:
        self.closed += 1

    async def _answer(self, verb: str, namespace: str, name: str, do: Callable[[], Any]) -> PodObject:
        self.asked.append((asyncio.get_running_loop().time(), verb))
        await asyncio.sleep(0)
        if self.raises is not None:
            raise self.raises
        if self.hangs:
            await asyncio.sleep(REQUEST_S)
        if self.hangs or self.is_away:
            raise ConnectionError(f"cannot {verb} pod {namespace}/{name}: the API server cannot be reached")
        if (verb.split(maxsplit=1)[0], name) in self.broken:
            raise explain(verb, namespace, name, 500, b"", resource=PODS)
        if verb.split(maxsplit=1)[0] in self.forbidden:
            raise explain(verb.split(maxsplit=1)[0], namespace, name, 403, b"", resource=PODS)
        try:
            answer: PodObject = do()
        except Refusal as refusal:
            raise explain(verb, namespace, name, refusal.status, b"", resource=PODS) from refusal
        return answer
