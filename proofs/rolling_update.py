"""How many hand-overs a rolling update costs: real sidecars, a fake API server, the controller's order of ending pods.

    python -m proofs.rolling_update --rounds 12              with --pod-label, and so with a pod-deletion-cost
    python -m proofs.rolling_update --rounds 12 --no-label   without

In turns, the leader is the old pod that the controller would end first, second and last.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.pods import FakePods
from tests.support.registry import eventually
from tests.support.rolling_update import LABEL, Deployment

OPTIONS = ("--url", "k8s://default/worker", "--lease", "10", "--retry-base", "0.05", "--retry-max", "0.2")


@contextlib.asynccontextmanager
async def deployed(server: FakeKubernetes, *more: str) -> AsyncIterator[Deployment]:
    """Yield a Deployment whose candidates have these options, and no pods yet."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = str(server.write_kubeconfig(Path(folder) / "kubeconfig"))
        async with contextlib.AsyncExitStack() as stack:
            env = {"KUBECONFIG": kubeconfig, "POD_NAMESPACE": "default"}
            yield Deployment((*OPTIONS, *more), FakePods(server), stack, env)


async def until_labelled(deployment: Deployment) -> str:
    """Wait until the leader's pod, and no other, has the label; return its name."""
    name = await deployment.note_leader()

    async def is_so() -> bool:
        return await deployment.pods.labelled(LABEL) == [name]

    await eventually(is_so)
    return name


def handovers(server: FakeKubernetes) -> int:
    """Return how often the Lease changed its holder: none is missed."""
    (lease,) = server.api.leases.values()
    return int(lease["spec"]["leaseTransitions"])


async def update_once(leader_place: int, *, is_labelled: bool) -> int:
    """Update one Deployment; return how many hand-overs that took."""
    async with FakeKubernetes() as server, deployed(server, *(("--pod-label", LABEL) if is_labelled else ())) as one:
        leader = await one.start()
        one.make_ready_at(leader, leader_place)
        await one.update((lambda: until_labelled(one)) if is_labelled else one.note_leader)
        return handovers(server)


async def _measure(rounds: int, *, is_labelled: bool) -> None:
    found: Counter[int] = Counter()
    for number in range(rounds):
        found[await update_once(2 - number % 3, is_labelled=is_labelled)] += 1
    words = ", ".join(
        f"{count} with {number} hand-over{'s' * (number != 1)}" for number, count in sorted(found.items())
    )
    print(f"{rounds} updates {'with' if is_labelled else 'without'} the pod label: {words}")  # noqa: T201 - its output


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the hand-overs of rolling updates.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--no-label", action="store_true")
    options = parser.parse_args()
    asyncio.run(_measure(options.rounds, is_labelled=not options.no_label))


if __name__ == "__main__":
    main()
