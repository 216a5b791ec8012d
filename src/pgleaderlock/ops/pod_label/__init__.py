"""The leader's pod carries a label, on any store, so that a Service of Kubernetes routes to the leader.

Needs ``pip install "pgleaderlock[kubernetes]"``, and a Role with get, list and patch on pods
(``pgleaderlock k8s rbac --pod-label``). Nothing happens before :meth:`PodLabel.watch`.

    PodLabel("pgleaderlock/leader=billing").watch(lock)

- In state LEADER the pod of this process has the label, and annotations with the fencing token of the term and with
  the process: ``pgleaderlock/leader-token``, ``pgleaderlock/leader-process``. In every other state it has none of them.
- The annotation ``controller.kubernetes.io/pod-deletion-cost`` is set with the label and removed with it, unless the
  pod has one of another value: a rolling update and a scale-down end the followers of a ReplicaSet before the leader.
- Once in each renewal interval the leader looks whether that is so, and repairs it. It also removes the label from
  other pods that were labelled with a smaller token: of a leader that is dead, frozen or cut off. A newer label is
  never removed: tokens are compared, and each patch is refused if the pod was changed since it was read.
- A candidate that starts removes the label that its pod has from a container that was killed.
- An election never waits for the API server: all requests are sent by a task of their own, with time limits, and are
  repeated after a failure. Only the return of a shutdown waits for the removal of the label, for 1 s at most, after the
  lock was released.

What is not promised: the label is no lock. It follows leadership by some milliseconds, endpoints and proxies follow the
label later, and for that time requests reach the old leader, or no pod. While the leader cannot reach the API server,
or is frozen, the label is outdated. So the process that gets a request must still ask ``is_leader``, and what it writes
must be protected by the token. A store without tokens (``lock.token`` is None) has no earlier leader to compare with:
there, only the candidate itself removes its label.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.pod_labels import LeaderLabel, parse_label
from pgleaderlock._logging import get_logger
from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind
from pgleaderlock.ops._rare_log import RareLog
from pgleaderlock.ops.pod_label._labeller import Labeller
from pgleaderlock.ops.pod_label._own_pod import find_own_pod
from pgleaderlock.ops.pod_label._pods import LabelledTerm
from pgleaderlock.ops.pod_label._process import this_process
from pgleaderlock.stores.kubernetes.api import PodClient

if TYPE_CHECKING:
    from pgleaderlock.sync._blocking import BlockingElection

__all__ = ["LeaderLabel", "PodClient", "PodLabel"]

_LEAVE_S = 1.0  # for the removal of the label when an election stops
_CLOSE_S = 0.2
_SHORTEST_CHECK_S = 1.0  # also where a leader renews more often


class PodLabel:
    """The label of the pod that this process runs in, while it leads.

    ``label`` is ``KEY=VALUE`` with the syntax of Kubernetes; use one label for each role. The pod is $POD_NAME, else
    the host's name; its namespace is $POD_NAMESPACE, else that of the service account or kubeconfig. Outside a pod it
    is a ValueError that says what is missing. ``environ`` and ``client`` replace the environment and our own client.
    """

    def __init__(
        self,
        label: str,
        *,
        pod: str | None = None,
        namespace: str | None = None,
        client: PodClient | None = None,
        environ: Mapping[str, str] | None = None,
        request_timeout_s: float = 2.0,
    ) -> None:
        self.label: LeaderLabel = parse_label(label)
        timeout_s = check_seconds("request_timeout_s", request_timeout_s)
        self._pod = find_own_pod(pod, namespace, client, environ, timeout_s)
        self._logger = get_logger().bind(pod=self.pod, label=str(self.label))
        self._rare = RareLog(self._logger)
        self._election: Election | None = None
        self._labeller: Labeller | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pod(self) -> str:
        """The pod, as ``namespace/name``."""
        return f"{self._pod.namespace}/{self._pod.name}"

    def watch(self, lock: "Election | BlockingElection[Any]") -> None:
        """Label the pod in the terms of this lock. Call it before the lock is started, once.

        Listeners are notified in the order in which they were registered: a slow callback that was registered before
        delays the label.
        """
        # Of the blocking API it is the election within; asked so, because an import of that API imports psycopg.
        election = lock if isinstance(lock, Election) else getattr(lock, "_engine", None)
        if not isinstance(election, Election):
            raise TypeError(f"lock must be a lock or an election, not {type(lock).__name__}")
        if self._election is not None:
            raise ValueError(f"the pod label {self.label} watches a lock already: make another label for another lock")
        if not election.state.is_stopped:
            raise ValueError(f"the lock runs already: watch it with the pod label {self.label} before it is started")
        self._election = election
        self._logger = self._logger.bind(**election.labels)
        self._rare = RareLog(self._logger)
        election.subscribe(self._hear)

    def _hear(self, event: Event) -> Awaitable[None] | None:
        if event.kind is EventKind.STATE_CHANGE and not event.to_state.is_stopped:
            labeller = self._labeller or self._begin()
            labeller.follow(LabelledTerm(event.token, labeller.process) if event.to_state.leads else None)
        return self._leave() if event.kind is EventKind.STOPPED else None

    def _begin(self) -> Labeller:
        election = self._election
        assert election is not None  # noqa: S101 - its event is here
        self._labeller = Labeller(
            self.label,
            self._pod,
            this_process(),
            check_s=max(_SHORTEST_CHECK_S, election.health_interval_s),
            leads=lambda: election.is_leader,
            logger=self._logger,
            rare=self._rare,
        )
        self._task = asyncio.get_running_loop().create_task(self._labeller.run(), name="pgleaderlock pod label")
        return self._labeller

    async def _leave(self) -> None:
        """Remove the label, within a bound: the lock is released, but the process may end after this."""
        labeller, task = self._labeller, self._task
        self._labeller = self._task = None
        if labeller is None or task is None:
            return
        labeller.follow(None)
        labeller.leave()
        if task.done():  # cancelled with all tasks of a loop that ends
            task = asyncio.get_running_loop().create_task(labeller.run(), name="pgleaderlock pod label")
        with contextlib.suppress(asyncio.CancelledError):  # of a shutdown that is in a hurry
            await asyncio.wait({task}, timeout=_LEAVE_S)
        if not task.done():
            self._logger.warning("pod_label_left", waited_s=_LEAVE_S)
        task.cancel()
        closing = asyncio.gather(task, self._pod.client.close(), return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({closing}, timeout=_CLOSE_S)
