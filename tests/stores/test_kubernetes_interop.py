"""One Lease shared with client-go's own elector, on a real API server.

``python tools/k8s_server.py run -- pytest tests/stores/test_kubernetes_interop.py`` brings both up. Without them
nothing here is collected. All clocks are of this host, so moments of both sides can be compared; what is skewed is the
time that we write into the Lease.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from pgleaderlock import ConnectionError, EventKind, FixedInterval, LeadershipLost
from pgleaderlock.engine.election import Election
from pgleaderlock.models import LossCause
from pgleaderlock.stores.kubernetes import (
    ApiError,
    KubernetesBackend,
    LeaseObject,
    LeaseStore,
    default_request_timeout_s,
)
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster, read_kubeconfig
from tests.support.doubles import until
from tests.support.pods import as_user
from tests.support.processes import Process

# A connection whose TLS handshake is cut short by a time limit is closed by httpcore only when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

REAL, PEER = os.environ.get("PGLEADERLOCK_K8S_SERVER"), os.environ.get("PGLEADERLOCK_K8S_PEER")
PEER_LEASE_S = 2.0
SKEWS = [0, 60, -60]

_numbers = count(1)


class Peer(Process):
    """A candidate that is client-go."""

    def __init__(self, lease: str) -> None:
        super().__init__(
            str(PEER), "-kubeconfig", str(REAL), "-lease", lease, "-identity", f"peer-{next(_numbers)}",
            "-duration", f"{PEER_LEASE_S:g}s", "-deadline", "1500ms", "-period", "300ms",
        )  # fmt: skip

    @property
    def acquisitions(self) -> list[float]:
        """When it became the leader, on the clock on the wall."""
        while not self._incoming.empty():
            self.lines.append(self._incoming.get() or "")
        words = [line.split() for line in self.lines if re.fullmatch(r"acquired \d+", line)]
        return [int(at) / 1000 for _, at in words]

    async def acquired_at(self, timeout_s: float = 20.0) -> float:
        await until(lambda: bool(self.acquisitions), timeout_s)
        return self.acquisitions[0]


@pytest.fixture
def lease() -> str:
    return f"interop-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def cluster() -> Cluster:
    assert REAL is not None
    return read_kubeconfig(Path(REAL))


def ours(cluster: Cluster, lease: str, *, skew_s: float = 0.0, lease_s: float = 2) -> KubernetesBackend:
    store = LeaseStore(
        HttpLeaseClient(cluster, request_timeout_s=1.0),
        "default",
        lease,
        wall_clock=lambda: datetime.now(UTC) + timedelta(seconds=skew_s),
    )
    return KubernetesBackend(store, lease_s=lease_s)


@contextlib.asynccontextmanager
async def running(backend: KubernetesBackend, **settings: Any) -> AsyncIterator[Election]:
    settings = {"health_interval_s": 0.4, "retry_strategy": FixedInterval(20), **settings}
    async with Election(backend, **settings) as election:
        yield election


RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


class WithoutWatch(HttpLeaseClient):
    """As if RBAC allowed neither list nor watch."""

    async def list(self, namespace: str, name: str) -> LeaseObject:
        raise ApiError("forbidden", 403)

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        raise ApiError("forbidden", 403)
        yield {}


class Permission:
    """What the user ``nobody`` may do with Leases, for as long as it is not withdrawn."""

    def __init__(self, http: httpx.AsyncClient, headers: dict[str, str], name: str) -> None:
        self._http = http
        self._headers = headers
        self._name = name

    async def give(self, *verbs: str) -> None:
        rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}]
        group = "rbac.authorization.k8s.io"
        await self._make("roles", {"kind": "Role", "rules": rules})
        reference = {"apiGroup": group, "kind": "Role", "name": self._name}
        subjects = [{"apiGroup": group, "kind": "User", "name": "nobody"}]
        await self._make("rolebindings", {"kind": "RoleBinding", "roleRef": reference, "subjects": subjects})

    async def withdraw(self) -> None:
        answer = await self._http.delete(f"{RBAC}/rolebindings/{self._name}", headers=self._headers)
        assert answer.status_code in (200, 404), answer.text

    async def _make(self, kind: str, content: dict[str, Any]) -> None:
        body = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": self._name}, **content}
        answer = await self._http.post(f"{RBAC}/{kind}", json=body, headers=self._headers)
        assert answer.status_code == 201, answer.text


@pytest.fixture
async def permission(cluster: Cluster, lease: str) -> AsyncIterator[Permission]:
    credential = await cluster.credentials.get()
    client = HttpLeaseClient(cluster)
    http = await client._connected(credential)
    permission = Permission(http, {"Authorization": f"Bearer {credential.token}"}, lease)
    yield permission
    await permission.withdraw()
    await client.close()


class TestInterop:
    __test__ = bool(REAL and PEER)

    async def test_real_server_accepts_our_client_certificate_and_names_what_another_user_may_not(self) -> None:
        assert REAL is not None
        allowed = ours(as_user(REAL, "certificate"), f"certificate-{os.getpid()}")
        assert await allowed.try_acquire() is not None
        await allowed.close()
        refused = ours(as_user(REAL, "nobody"), "job")
        with pytest.raises(ConnectionError, match=r"RBAC does not allow it.* verb 'get' .*User \"nobody\" cannot get"):
            await refused.try_acquire()
        await refused.close()

    async def test_a_leader_whose_holder_is_emptied_by_hand_stops_long_before_its_next_renewal(
        self, cluster: Cluster, lease: str
    ) -> None:
        """The next renewal is due after 10 s, and a follower is there to take over at once."""
        client = HttpLeaseClient(cluster)
        async with (
            running(ours(cluster, lease, lease_s=30), health_interval_s=10.0) as leader,
            running(ours(cluster, lease, lease_s=30), health_interval_s=10.0) as follower,
        ):
            await until(lambda: leader.is_leader or follower.is_leader, 10)
            old, new = (leader, follower) if leader.is_leader else (follower, leader)
            await asyncio.sleep(1)  # both watch
            first = old.token
            there = await client.get("default", lease)
            await client.replace("default", lease, {**there, "spec": {**there["spec"], "holderIdentity": ""}})
            await until(lambda: old.token != first, 4)  # not is_leader: it may lead again before the next look
            await until(lambda: new.is_leader or old.is_leader, 10)
            assert not (new.is_leader and old.is_leader)
        await client.close()

    @pytest.mark.parametrize("client", [HttpLeaseClient, WithoutWatch])
    async def test_a_leader_whose_permission_is_withdrawn_is_succeeded_after_its_lease(
        self, permission: Permission, cluster: Cluster, lease: str, client: type[HttpLeaseClient]
    ) -> None:
        """A follower that may not watch sees the last renewal one poll late, and counts from there."""
        assert REAL is not None
        lease_s = 6.0
        await permission.give("get", "create", "update", "list", "watch")
        store = LeaseStore(client(cluster, request_timeout_s=default_request_timeout_s(lease_s)), "default", lease)
        async with contextlib.AsyncExitStack() as stack:
            leader = Election(ours(as_user(REAL, "nobody"), lease, lease_s=lease_s))
            assert await (await stack.enter_async_context(leader)).wait_for_leadership(10)
            rival = await stack.enter_async_context(Election(KubernetesBackend(store, lease_s=lease_s)))
            await asyncio.sleep(2 * lease_s)
            withdrawn_at = time.monotonic()
            await permission.withdraw()
            await until(lambda: rival.is_leader, 20)
            took_s = time.monotonic() - withdrawn_at
            assert not leader.is_leader
            assert took_s < lease_s + 1.2 * lease_s / 6 + 1.0

    @pytest.mark.parametrize("skew_s", SKEWS)
    async def test_a_peer_that_is_killed_is_succeeded_after_its_own_lease(
        self, cluster: Cluster, lease: str, skew_s: float
    ) -> None:
        with Peer(lease) as peer:
            await peer.acquired_at()
            async with running(ours(cluster, lease, skew_s=skew_s, lease_s=1), health_interval_s=0.3) as election:
                await asyncio.sleep(1.5)
                assert not election.is_leader
                peer.signal(signal.SIGKILL)
                killed = time.monotonic()
                assert await election.wait_for_leadership(10)
                # Its last renewal was up to one period of 0.3 s, and its jitter, before.
                assert PEER_LEASE_S - 0.8 < time.monotonic() - killed < PEER_LEASE_S + 1.5
                assert election.token == 1

    @pytest.mark.parametrize("skew_s", SKEWS)
    async def test_we_fall_silent_and_the_peer_comes_after_our_trust_has_ended(
        self, cluster: Cluster, lease: str, skew_s: float
    ) -> None:
        backend = ours(cluster, lease, skew_s=skew_s)
        grant = await backend.try_acquire()
        assert grant is not None
        with Peer(lease) as peer:
            for _ in range(6):
                await asyncio.sleep(0.4)
                grant = await backend.renew(grant)
            trusted_until = time.time() + grant.trusted_until - backend._clock()
            acquired = await peer.acquired_at()
            assert acquired > trusted_until
            assert acquired < trusted_until + 2
            with pytest.raises(LeadershipLost, match=r"held by peer-\d+ in term 1") as caught:
                await backend.renew(grant)
            assert caught.value.cause is LossCause.HELD_BY_ANOTHER
            await backend.close()

    async def test_a_peers_release_wakes_us(self, cluster: Cluster, lease: str) -> None:
        took = []
        for _ in range(5):
            with Peer(lease) as peer:
                await peer.acquired_at()
                async with running(ours(cluster, lease)) as election:
                    await asyncio.sleep(0.5)
                    peer.signal(signal.SIGTERM)
                    began = time.monotonic()
                    assert await election.wait_for_leadership(5)
                    took.append(time.monotonic() - began)
        assert sorted(took)[2] < 0.3

    async def test_our_release_frees_it_for_the_peer_at_its_next_look(self, cluster: Cluster, lease: str) -> None:
        async with running(ours(cluster, lease)) as election:
            assert await election.wait_for_leadership(5)
            with Peer(lease) as peer:
                await asyncio.sleep(1)
                assert peer.is_alive
                began = time.time()
                await election.shutdown()
                assert await peer.acquired_at() - began < 1.5

    @pytest.mark.parametrize("skew_s", SKEWS)
    async def test_neither_robs_the_other_while_it_renews(self, cluster: Cluster, lease: str, skew_s: float) -> None:
        with Peer(lease) as peer:
            await peer.acquired_at()
            async with running(ours(cluster, lease, skew_s=skew_s, lease_s=1), health_interval_s=0.3) as election:
                await asyncio.sleep(4)
                assert not election.is_leader
                peer.signal(signal.SIGTERM)
                assert await election.wait_for_leadership(5)
                with Peer(lease) as other:
                    await asyncio.sleep(4)
                    assert election.is_leader
                    assert other.is_alive
                    assert other.acquisitions == []

    @pytest.mark.timeout(240)
    async def test_twenty_rounds_without_a_moment_of_two_leaders(self, cluster: Cluster, lease: str) -> None:
        rng = random.Random(7)
        tokens: list[int] = []
        for number in range(20):
            by_silence, skew_s = number % 2 == 0, rng.choice(SKEWS)
            with Peer(lease) as peer:
                await peer.acquired_at()
                async with running(ours(cluster, lease, skew_s=skew_s)) as election:
                    acquired: list[float] = []
                    election.subscribe(
                        lambda event, found=acquired: (
                            found.append(time.time()) if event.kind is EventKind.ACQUIRED else None
                        )
                    )
                    await asyncio.sleep(rng.uniform(0.1, 0.8))
                    assert not acquired
                    # A peer asked to stop releases, and says so only afterwards: its work ends when it is asked.
                    ended = time.time()
                    peer.signal(signal.SIGKILL if by_silence else signal.SIGTERM)
                    await until(lambda found=acquired: bool(found), 10)  # type: ignore[misc]
                    assert acquired[0] > ended
                    assert election.token is not None
                    tokens.append(election.token)
                    with Peer(lease) as successor:
                        await asyncio.sleep(rng.uniform(0.1, 0.8))
                        assert successor.acquisitions == []
                        ended = time.time()  # is_leader is False before the release is sent
                        await election.shutdown()
                        assert await successor.acquired_at() > ended - 0.002
                        successor.signal(signal.SIGTERM)
                        await asyncio.to_thread(successor.wait)
        assert tokens == sorted(set(tokens))
