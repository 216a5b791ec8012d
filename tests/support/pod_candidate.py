"""An election whose leader's pod is labelled, on virtual time and an API server in memory."""

import asyncio
from typing import Any

from pgleaderlock import ConnectionError, Election
from pgleaderlock.models import Grant
from pgleaderlock.ops.pod_label import PodLabel
from pgleaderlock.testing._pod_api import PodApi
from tests.support.doubles import ScriptedBackend, Witness, until
from tests.support.pod_clients import ModelClient

__all__ = ["KEY", "LABEL", "PROCESS", "TOKEN", "Candidate", "settled"]

LABEL = "pgleaderlock/leader=billing"
KEY, TOKEN, PROCESS = "pgleaderlock/leader", "pgleaderlock/leader-token", "pgleaderlock/leader-process"


class Candidate:
    """An election with a scripted store, in a pod of its own."""

    def __init__(self, api: PodApi, name: str = "a", token: int | None = 5, **settings: Any) -> None:
        if ("default", name) not in api.pods:
            api.create("default", name, {"app": "worker"})
        self.api, self.name = api, name
        self.client = ModelClient(api)
        self.backend = ScriptedBackend()
        self.backend.defaults |= {"try_acquire": Grant(token), "renew": Grant(token)}
        self.label = PodLabel(LABEL, pod=name, namespace="default", client=self.client, environ={})
        self.election = Election(
            self.backend, **{"clock": asyncio.get_running_loop().time, "health_interval_s": 5.0, **settings}
        )
        self.label.watch(self.election)
        self.heard = Witness(self.election)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.api.get("default", self.name)["metadata"])

    @property
    def is_labelled(self) -> bool:
        return bool(self.metadata.get("labels", {}).get(KEY) == "billing")

    @property
    def term(self) -> tuple[str | None, str | None]:
        """The annotations."""
        annotations = self.metadata.get("annotations", {})
        return annotations.get(TOKEN), annotations.get(PROCESS)

    def lose(self) -> None:
        assert self.backend.loss is not None
        self.backend.loss.set_result(ConnectionError("the store is gone"))

    async def lead(self) -> None:
        await self.election.start()
        await until(lambda: self.is_labelled)
        await settled()


async def settled() -> None:
    """Let all that is ready to run do so; on virtual time hardly any passes."""
    await asyncio.sleep(0.001)
