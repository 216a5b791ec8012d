"""A worker of which one pod works and the others wait. See deployment.yaml beside it.

    pip install 'pgleaderlock[kubernetes]'
    LEASE=leader-worker python worker.py

$POD_NAME, $POD_NAMESPACE and $POD_LABEL come from the Deployment. Outside a cluster, the kubeconfig is used.
"""

import asyncio
import os
import signal

from pgleaderlock import Election
from pgleaderlock.ops.pod_label import PodLabel
from pgleaderlock.stores.kubernetes import new_from_env

SECONDS_PER_PIECE = float(os.environ.get("SECONDS_PER_PIECE", "1"))


def make_election() -> Election:
    """Elect among all pods that name the same Lease; 15 s after one falls silent, another takes over."""
    backend = new_from_env(os.environ.get("LEASE", "leader-worker"), lease_s=float(os.environ.get("LEASE_S", "15")))
    election = Election(backend, health_interval_s=float(os.environ.get("LEASE_S", "15")) / 3)
    if label := os.environ.get("POD_LABEL"):  # then a Service can route to the leader
        PodLabel(label).watch(election)
    return election


async def work(election: Election) -> None:
    """Do one thing after another, for as long as we lead."""
    while election.is_leader:
        print(f"{os.environ.get('POD_NAME', 'here')} works in term {election.token}", flush=True)
        await asyncio.sleep(SECONDS_PER_PIECE)


async def main() -> None:
    """Take part until the pod is asked to end, and then hand over at once."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with make_election() as election:
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            leading = asyncio.create_task(election.wait_for_leadership())
            await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                leading.cancel()
                break
            working = asyncio.create_task(work(election))
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()


if __name__ == "__main__":
    asyncio.run(main())
