"""Elections on a Kubernetes Lease, over the fake API server: the nine rules, and what goes wrong at night.

What the fake answers is held against a real server by ``test_kubernetes_contract.py``.
"""

import asyncio
import contextlib
import copy
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgleaderlock import ConnectionError, Event, EventKind, FixedInterval, LeadershipLost, LockError, LockState
from pgleaderlock.engine.election import Election
from pgleaderlock.models import LossCause
from pgleaderlock.stores.kubernetes import ApiError, KubernetesBackend, LeaseClient, LeaseObject, LeaseStore
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster
from pgleaderlock.stores.kubernetes.credentials import Credential, FixedCredential
from pgleaderlock.stores.kubernetes.lease import LeaseVersion, claimed_lease, micro_time, read_lease
from pgleaderlock.stores.kubernetes.refusals import explain
from pgleaderlock.stores.record import Claim, RecordBackend
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.doubles import Witness, until

LEASE_S = 2.0


_clients: list[HttpLeaseClient] = []


@pytest.fixture
async def server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server
        await close_clients()


async def close_clients() -> None:
    """Close what tests of holders that fall silent leave open."""
    while _clients:
        await _clients.pop().close()


def client_of(server: FakeKubernetes, request_timeout_s: float = 1.0) -> HttpLeaseClient:
    client = HttpLeaseClient(Cluster(server.url), request_timeout_s=request_timeout_s)
    _clients.append(client)
    return client


def skewed(seconds: float) -> Any:
    return lambda: datetime.now(UTC) + timedelta(seconds=seconds)


def candidate(
    server: FakeKubernetes,
    identity: str = "me",
    *,
    lease_s: float = LEASE_S,
    skew_s: float = 0.0,
    client: LeaseClient | None = None,
    namespace: str = "default",
) -> KubernetesBackend:
    store = LeaseStore(client or client_of(server), namespace, "job", wall_clock=skewed(skew_s))
    return KubernetesBackend(store, identity=identity, lease_s=lease_s)


@contextlib.asynccontextmanager
async def running(backend: RecordBackend, **settings: Any) -> AsyncIterator[tuple[Election, Witness]]:
    settings = {"health_interval_s": 0.3, "retry_strategy": FixedInterval(0.3), **settings}
    election = Election(backend, **settings)
    witness = Witness(election)
    async with election:
        yield election, witness


def spec_of(server: FakeKubernetes) -> dict[str, Any]:
    spec: dict[str, Any] = server.api.leases["default", "job"]["spec"]
    return spec


def edit(server: FakeKubernetes, **spec: Any) -> None:
    """Change the Lease as another client would."""
    lease = server.api.get("default", "job")
    server.api.replace("default", "job", {**lease, "spec": {**lease["spec"], **spec}})
    server.touch()


async def closed(*backends: RecordBackend) -> None:
    for backend in backends:
        await backend.close()


# --- Rule 1: expiry is judged on our own clock, by what the record says ---------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("holder_skew_s", "follower_skew_s"), [(60, 0), (-60, 0), (0, 60), (0, -60), (60, -60)])
async def test_a_silent_holder_is_succeeded_after_one_lease_whatever_the_clocks_on_the_wall_say(
    server: FakeKubernetes, holder_skew_s: float, follower_skew_s: float
) -> None:
    holder = candidate(server, "holder", lease_s=2, skew_s=holder_skew_s)
    follower = candidate(server, "follower", lease_s=2, skew_s=follower_skew_s)
    first = await holder.try_acquire()
    assert first is not None
    written_at = time.monotonic()
    while (taken := await follower.try_acquire()) is None:
        await follower.wait(5)
    assert 2.0 <= time.monotonic() - written_at < 30  # and not a minute: how far the clocks are apart
    assert taken.token == 1
    with pytest.raises(LeadershipLost, match="held by follower in term 1") as caught:
        await holder.renew(first)
    assert caught.value.cause is LossCause.HELD_BY_ANOTHER
    await closed(holder, follower)


@pytest.mark.slow
async def test_a_leader_that_renews_is_left_alone_by_a_follower_whose_clock_is_a_minute_ahead(
    server: FakeKubernetes,
) -> None:
    async with running(candidate(server, "leader", lease_s=2)) as (leader, heard):
        await leader.wait_for_leadership(5)
        async with running(candidate(server, "follower", lease_s=1, skew_s=60)) as (follower, _):
            await asyncio.sleep(3.5)
            assert leader.is_leader
            assert not follower.is_leader
    assert "on_lost" not in heard.words


@pytest.mark.slow
async def test_the_records_own_duration_counts_and_not_the_followers(server: FakeKubernetes) -> None:
    holder, follower = candidate(server, "holder", lease_s=3), candidate(server, "follower", lease_s=1)
    await holder.try_acquire()
    began = time.monotonic()
    while await follower.try_acquire() is None:
        await follower.wait(0.5)
    assert 3.0 <= time.monotonic() - began < 5
    assert spec_of(server)["leaseDurationSeconds"] == 1
    await closed(holder, follower)


async def test_a_follower_that_just_started_waits_one_lease_though_the_renewal_is_years_old(
    server: FakeKubernetes,
) -> None:
    await candidate(server, "holder", lease_s=1, skew_s=-1e8).try_acquire()
    follower = candidate(server, "follower", lease_s=1)
    assert await follower.try_acquire() is None
    await closed(follower)


# --- Rules 2 and 3: whose it is, and what is written ----------------------------------------------------------------


async def test_the_first_lease_a_renewal_a_release_and_a_takeover_are_written_as_client_go_writes_them(
    server: FakeKubernetes,
) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    store = LeaseStore(client_of(server), "default", "job", wall_clock=lambda: now)
    backend = KubernetesBackend(store, identity="me", lease_s=15)

    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 0
    began = "2026-01-02T03:04:05.000000Z"
    first = {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    assert spec_of(server) == {**first, "acquireTime": began, "renewTime": began}

    now += timedelta(seconds=5)
    await backend.renew(grant)
    assert spec_of(server) == {**first, "acquireTime": began, "renewTime": "2026-01-02T03:04:10.000000Z"}

    now += timedelta(seconds=5)
    await backend.release(grant)
    ended = "2026-01-02T03:04:15.000000Z"
    released = {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0}
    assert spec_of(server) == {**released, "acquireTime": ended, "renewTime": ended}

    now += timedelta(seconds=5)
    again = await backend.try_acquire()
    assert again is not None
    assert again.token == 1
    taken = "2026-01-02T03:04:20.000000Z"
    assert spec_of(server) == {**first, "leaseTransitions": 1, "acquireTime": taken, "renewTime": taken}
    await closed(backend)


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": ""}, {"leaseDurationSeconds": 30}], ids=str)
async def test_lease_without_a_holder_is_free_at_once(server: FakeKubernetes, spec: dict[str, Any]) -> None:
    server.api.create("default", {"metadata": {"name": "job"}, "spec": spec})
    backend = candidate(server)
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 1
    await closed(backend)


async def test_another_process_of_our_own_name_is_another(server: FakeKubernetes) -> None:
    """Names of pods come again; only what this very candidate wrote is its own."""
    assert await candidate(server, "me").try_acquire() is not None
    backend = candidate(server, "me")
    assert await backend.try_acquire() is None
    await closed(backend)


async def test_a_holder_that_did_not_say_for_how_long_is_given_what_others_have_by_default(
    server: FakeKubernetes,
) -> None:
    server.api.create("default", {"metadata": {"name": "job"}, "spec": {"holderIdentity": "terse"}})
    record = await LeaseStore(client_of(server), "default", "job").read()
    assert record is not None
    assert record.lease_s == 15.0


async def test_holder_says_who_and_since_when(server: FakeKubernetes) -> None:
    backend = candidate(server)
    assert await backend.holder() is None
    grant = await backend.try_acquire()
    holder = await backend.holder()
    assert holder is not None
    assert grant is not None
    assert (holder.name, holder.since) == ("me", spec_of(server)["acquireTime"])
    await backend.release(grant)
    assert await backend.holder() is None
    await closed(backend)


@pytest.mark.parametrize("namespace", ["default", "missing"])
async def test_message_about_a_missing_lease_mentions_that_the_namespace_may_be_missing(
    server: FakeKubernetes, namespace: str
) -> None:
    backend = candidate(server, namespace=namespace)
    assert await backend.holder() is None
    assert f"no Lease job in namespace {namespace} (no leader yet, or the namespace does not exist)" in (
        await backend.explain_absence()
    )
    assert set(server.asked) == {"get"}  # which needs no more permissions than an election does
    await closed(backend)


async def test_released_lease_is_free_without_an_explanation(server: FakeKubernetes) -> None:
    server.api.create("default", {"metadata": {"name": "job"}, "spec": {"holderIdentity": ""}})
    backend = candidate(server)
    assert await backend.holder() is None
    assert await backend.explain_absence() == ""
    await closed(backend)


# --- Rule 4: a write is the object that was read --------------------------------------------------------------------


class Tampering(HttpLeaseClient):
    """Knows a field of a later Kubernetes, which the fake would drop, and keeps what was sent."""

    def __init__(self, server: FakeKubernetes) -> None:
        super().__init__(Cluster(server.url))
        self.sent: list[LeaseObject] = []

    async def get(self, namespace: str, name: str) -> LeaseObject:
        lease = await super().get(namespace, name)
        return {**lease, "spec": {**lease["spec"], "fromTheFuture": {"x": 1}}, "status": "new"}

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        self.sent.append(copy.deepcopy(lease))
        return await super().replace(namespace, name, lease)


async def test_labels_and_unknown_fields_and_the_uid_go_back_as_they_came(server: FakeKubernetes) -> None:
    labelled = {"name": "job", "labels": {"team": "billing"}, "annotations": {"why": "because"}}
    server.api.create("default", {"metadata": labelled, "spec": {}})
    before = server.api.get("default", "job")
    client = Tampering(server)
    backend = candidate(server, client=client)
    grant = await backend.try_acquire()
    assert client.sent[0]["metadata"] == before["metadata"]
    assert client.sent[0]["spec"]["fromTheFuture"] == {"x": 1}
    assert client.sent[0]["status"] == "new"
    assert grant is not None
    await backend.renew(grant)
    await backend.release(grant)
    metadata = server.api.get("default", "job")["metadata"]
    assert metadata == {**before["metadata"], "resourceVersion": metadata["resourceVersion"]}
    await closed(backend)


async def test_a_leader_whose_lease_is_deleted_does_not_bring_it_back_to_life(server: FakeKubernetes) -> None:
    backend = candidate(server)
    grant = await backend.try_acquire()
    assert grant is not None
    server.api.delete("default", "job")
    with pytest.raises(LeadershipLost, match="lease=job is gone"):
        await backend.renew(grant)
    assert server.api.leases == {}
    await closed(backend)


async def test_a_leader_whose_lease_was_made_anew_by_another_has_lost(server: FakeKubernetes) -> None:
    backend = candidate(server)
    grant = await backend.try_acquire()
    assert grant is not None
    server.api.delete("default", "job")
    server.api.create("default", {"metadata": {"name": "job"}, "spec": {"holderIdentity": "other"}})
    with pytest.raises(LeadershipLost, match="held by other"):
        await backend.renew(grant)
    with pytest.raises(LockError, match="nothing to release"):
        await backend.release(grant)
    assert spec_of(server) == {"holderIdentity": "other"}
    await closed(backend)


async def test_leader_renews_without_a_loss_after_a_client_has_labelled_the_lease(server: FakeKubernetes) -> None:
    backend = candidate(server)
    grant = await backend.try_acquire()
    assert grant is not None
    lease = server.api.get("default", "job")
    lease["metadata"]["labels"] = {"seen": "yes"}
    server.api.replace("default", "job", lease)
    assert (await backend.renew(grant)).token == 0
    assert server.api.get("default", "job")["metadata"]["labels"] == {"seen": "yes"}
    await closed(backend)


async def test_of_many_candidates_for_a_new_or_a_free_lease_one_wins(server: FakeKubernetes) -> None:
    backends = [candidate(server, f"p{n}") for n in range(8)]
    for token in range(3):
        grants = await asyncio.gather(*(backend.try_acquire() for backend in backends))
        assert [grant.token for grant in grants if grant is not None] == [token]
        winner = next(n for n, grant in enumerate(grants) if grant is not None)
        grant = grants[winner]
        assert grant is not None
        await backends[winner].release(grant)
    await closed(*backends)


# --- Rule 5: while leading -----------------------------------------------------------------------------------------


async def test_a_leader_renews_with_a_put_and_nothing_else_beside_one_stream(server: FakeKubernetes) -> None:
    async with running(candidate(server), health_interval_s=0.1) as (leader, _):
        await leader.wait_for_leadership(5)
        await until(lambda: "watch" in server.asked, 5)
        server.asked.clear()
        await until(lambda: len(server.asked) >= 5, 5)
        assert set(server.asked) == {"update"}


async def test_a_frozen_api_server_ends_leadership_by_the_lease_and_a_thawed_one_begins_it_anew(
    server: FakeKubernetes,
) -> None:
    async with running(candidate(server)) as (leader, heard):
        await leader.wait_for_leadership(5)
        server.freeze()
        frozen_at = time.monotonic()
        await until(lambda: not leader.is_leader, 5)
        assert time.monotonic() - frozen_at < 0.9 * LEASE_S
        await until(lambda: "on_lost" in heard.words, 5)
        assert time.monotonic() - frozen_at < LEASE_S
        server.thaw()
        await until(lambda: leader.is_leader, 10)


async def test_a_leader_outlasts_a_restart_of_the_api_server_and_dropped_connections(server: FakeKubernetes) -> None:
    async with running(candidate(server)) as (leader, heard):
        await leader.wait_for_leadership(5)
        await server.stop()
        await asyncio.sleep(0.4)
        await server.start()
        await asyncio.sleep(0.8)
        await server.drop_connections()
        await asyncio.sleep(0.8)
        assert leader.is_leader
        assert leader.token == 0
    assert "on_lost" not in heard.words


async def test_an_api_server_that_stays_away_ends_leadership_and_is_come_back_to(server: FakeKubernetes) -> None:
    async with running(candidate(server)) as (leader, heard):
        await leader.wait_for_leadership(5)
        await server.stop()
        await until(lambda: "on_lost" in heard.words, 5)
        lost = next(event for event in heard.events if event.kind is EventKind.LOST)
        assert lost.cause in (LossCause.CONNECTION_LOST, LossCause.RENEW_TIMEOUT)
        await server.start()
        await until(lambda: leader.is_leader, 10)


async def test_a_renewal_whose_answer_was_lost_is_recognised(server: FakeKubernetes) -> None:
    backend = candidate(server)
    grant = await backend.try_acquire()
    assert grant is not None
    server.lose_answers(1)
    renewed = await backend.renew(grant)
    assert renewed.token == grant.token
    assert [verb for verb in server.asked if verb != "watch"][-4:] == ["update", "update", "get", "update"]
    await closed(backend)


async def test_an_acquisition_whose_answer_was_lost_is_made_again(server: FakeKubernetes) -> None:
    backend = candidate(server)
    assert await backend.holder() is None
    server.forbidden = set()
    lost = asyncio.ensure_future(backend.try_acquire())
    await until(lambda: server.asked[-1] == "get", 5)
    with contextlib.suppress(ConnectionError):
        server.lose_answers(2)
        await lost
    server.lose_answers(0)
    grant = await backend.try_acquire()
    assert grant is not None
    assert spec_of(server)["holderIdentity"] == "me"
    await closed(backend)


async def test_throttled_renewal_waits_as_long_as_the_server_asks(server: FakeKubernetes) -> None:
    backend = candidate(server, lease_s=15, client=client_of(server, request_timeout_s=3))
    grant = await backend.try_acquire()
    assert grant is not None
    server.throttle(1, retry_after_s=1)
    began = time.monotonic()
    await backend.renew(grant)
    assert 1.0 <= time.monotonic() - began < 3
    await closed(backend)


# --- Rule 6: waking up ---------------------------------------------------------------------------------------------


async def handover_s(server: FakeKubernetes) -> float:
    leader = candidate(server, "leader", lease_s=30)
    grant = await leader.try_acquire()
    assert grant is not None
    async with running(candidate(server, "follower", lease_s=30), retry_strategy=FixedInterval(25)) as (
        follower,
        heard,
    ):
        await until(lambda: "watch" in server.asked or "watch" in server.forbidden, 5)
        await asyncio.sleep(0.3)
        await leader.renew(grant)
        await asyncio.sleep(0.3)
        assert not follower.is_leader
        released = asyncio.get_running_loop().time()
        await leader.release(grant)
        await until(lambda: follower.is_leader, 5)
        took = asyncio.get_running_loop().time() - released
    await closed(leader)
    return took


async def test_a_release_wakes_the_follower(server: FakeKubernetes) -> None:
    assert await handover_s(server) < 1.0  # a poll would take 1.6 s at least
    assert server.asked.count("watch") == 2  # one stream each, kept through the renewal
    assert server.asked.count("get") == 2  # one read by each at the beginning: the stream delivers the rest


async def test_a_deleted_lease_wakes_the_follower(server: FakeKubernetes) -> None:
    """Not before the lease is over that it knew of, because the holder may still be valid; and the tokens go on."""
    await candidate(server, "leader").try_acquire()
    async with running(candidate(server, "follower"), retry_strategy=FixedInterval(25)) as (follower, _):
        await until(lambda: "watch" in server.asked, 5)
        server.api.delete("default", "job")
        server.touch()
        began, asked = time.monotonic(), len(server.asked)
        await until(lambda: follower.is_leader, 10)
        assert time.monotonic() - began > 0.9 * LEASE_S
        assert follower.token == 1
        assert len(server.asked) - asked < 10  # it waits that out, and does not ask all the time


@pytest.mark.parametrize("verb", ["watch", "list"])
@pytest.mark.slow
async def test_where_watching_is_forbidden_the_follower_polls_and_says_so_once(
    server: FakeKubernetes, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.forbidden = {verb}
    store = LeaseStore(client_of(server), "default", "job")
    with caplog.at_level(logging.WARNING, "pgleaderlock"):
        seen = None
        if verb == "watch":
            await candidate(server, "leader", lease_s=30).try_acquire()
            seen = await store.read()
        began = time.monotonic()
        await store.changed(seen, 10)
        assert 1.6 <= time.monotonic() - began < 4
        await store.changed(seen, 0.1)
    lines = [record.getMessage() for record in caplog.records if "watch_forbidden" in record.getMessage()]
    assert len(lines) == 1
    assert f"verb '{verb}'" in lines[0]
    assert server.asked.count(verb) == 1
    server.forbidden = set()
    store._polls_until = 0.0  # five minutes later
    await store.changed(seen, 0.2)
    assert server.asked.count(verb) == 2
    assert "namespace=default lease=job" in lines[0]
    await store.close()


@pytest.mark.slow
async def test_a_follower_that_polls_takes_over_within_a_poll(server: FakeKubernetes) -> None:
    server.forbidden = {"watch"}
    assert await handover_s(server) < 4


async def test_a_change_between_looking_and_watching_is_not_missed(server: FakeKubernetes) -> None:
    store = LeaseStore(client_of(server), "default", "job")
    assert await store.read() is None
    await candidate(server, "first").try_acquire()
    await asyncio.wait_for(store.changed(None, 30), 2)
    seen = await store.read()
    edit(server, holderIdentity="second")
    await asyncio.wait_for(store.changed(seen, 30), 2)
    # The stream of that wait is still open; what it told already is not told again.
    seen = await store.read()
    began = time.monotonic()
    await store.changed(seen, 0.3)
    assert time.monotonic() - began >= 0.29
    edit(server, holderIdentity="third")
    await asyncio.sleep(0.1)  # the event goes by while no follower waits
    await asyncio.wait_for(store.changed(seen, 30), 2)
    assert server.asked.count("watch") == 1
    await store.close()


async def test_a_version_that_the_server_has_forgotten_is_looked_up_in_a_list(server: FakeKubernetes) -> None:
    await candidate(server, "leader").try_acquire()
    store = LeaseStore(client_of(server), "default", "job")
    seen = await store.read()
    server.api.create("default", {"metadata": {"name": "other"}, "spec": {}})
    server.api.forgotten_up_to = server.api.revision
    await store.changed(seen, 1.3)
    assert server.asked[-3:] == ["watch", "list", "watch"]
    edit(server, holderIdentity="second")
    await asyncio.wait_for(store.changed(seen, 30), 2)
    await store.close()


async def test_a_dead_stream_is_given_up_after_a_wait_without_what_was_seen(server: FakeKubernetes) -> None:
    await candidate(server, "leader").try_acquire()
    client = client_of(server)
    store = LeaseStore(client, "default", "job")
    await store.changed(await store.read(), 0.2)
    lease = server.api.get("default", "job")  # changed without a word to the stream
    server.api.replace("default", "job", {**lease, "spec": {**lease["spec"], "holderIdentity": "second"}})
    seen = await store.read()
    await store.changed(seen, 0.3)
    assert server.asked.count("watch") == 1
    await store.changed(seen, 0.3)
    assert server.asked.count("watch") == 2
    await store.close()


async def test_a_stream_that_breaks_is_a_poll_and_is_opened_again(server: FakeKubernetes) -> None:
    await candidate(server, "leader", lease_s=30).try_acquire()
    store = LeaseStore(client_of(server), "default", "job")
    seen = await store.read()
    waiting = asyncio.ensure_future(store.changed(seen, 30))
    await until(lambda: "watch" in server.asked, 5)
    await server.drop_connections()
    began = time.monotonic()
    await waiting
    assert 1.5 <= time.monotonic() - began < 4
    edit(server, holderIdentity="second")
    await asyncio.wait_for(store.changed(seen, 30), 2)
    await store.close()


# --- A leader watches its own Lease --------------------------------------------------------------------------------


def replace_lease(server: FakeKubernetes) -> None:
    """Delete the Lease and make it anew for another, as a person may."""
    server.api.delete("default", "job")
    server.api.create("default", {"metadata": {"name": "job"}, "spec": {"holderIdentity": "other"}})
    server.touch()


def delete_lease(server: FakeKubernetes) -> None:
    server.api.delete("default", "job")
    server.touch()


BY_HAND = {
    "emptied": lambda server: edit(server, holderIdentity=""),
    "taken": lambda server: edit(server, holderIdentity="other", leaseTransitions=1),
    "in another term": lambda server: edit(server, leaseTransitions=7),
    "deleted": delete_lease,
    "made anew": replace_lease,
}


@pytest.mark.parametrize("change", BY_HAND.values(), ids=BY_HAND.keys())
async def test_a_leader_whose_lease_is_changed_by_hand_stops_long_before_its_next_renewal(
    server: FakeKubernetes, change: Any
) -> None:
    """The next renewal is due after 200 s.

    The event is waited for, not ``is_leader``: a Lease that was emptied or deleted is free, so the same candidate leads
    a new term a few milliseconds after its loss, between two looks.
    """
    backend = candidate(server, "leader", lease_s=600)
    settings = {"health_interval_s": 200.0, "retry_strategy": FixedInterval(200)}
    async with running(backend, **settings) as (leader, heard):
        await leader.wait_for_leadership(30)
        first = leader.token
        await until(lambda: "watch" in server.asked, 30)
        change(server)
        await until(lambda: "on_lost" in heard.words, 30)
        lost = next(event for event in heard.events if event.kind is EventKind.LOST)
        assert lost.cause is LossCause.HELD_BY_ANOTHER
        assert leader.token != first


async def test_a_leader_learns_of_its_loss_while_a_renewal_gets_no_answer(server: FakeKubernetes) -> None:
    class Slow(Forwarding):
        """Answers no PUT."""

        async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
            server.asked.append("hanging")
            await asyncio.get_running_loop().create_future()
            raise NotImplementedError

    backend = candidate(server, "leader", lease_s=30, client=Slow(client_of(server)))
    async with running(backend, health_interval_s=0.5, retry_strategy=FixedInterval(60)) as (leader, _):
        await leader.wait_for_leadership(5)
        await until(lambda: "hanging" in server.asked, 5)
        edit(server, holderIdentity="other", leaseTransitions=1)
        await until(lambda: not leader.is_leader, 15)  # its lease alone would be lost after 20 s


@pytest.mark.slow
async def test_leader_keeps_its_lease_when_another_client_only_labels_it(server: FakeKubernetes) -> None:
    async with running(candidate(server, lease_s=30), health_interval_s=1.0) as (leader, heard):
        await leader.wait_for_leadership(5)
        await until(lambda: "watch" in server.asked, 5)
        for number in range(3):
            lease = server.api.get("default", "job")
            labels = {"number": str(number)}
            server.api.replace("default", "job", {**lease, "metadata": {**lease["metadata"], "labels": labels}})
            server.touch()
        await until(lambda: len(heard.renewals) > 2, 10)
        assert leader.is_leader
    assert "on_lost" not in heard.words


async def test_a_leader_that_may_not_watch_leads_all_the_same_and_says_once_what_is_missing(
    server: FakeKubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    server.forbidden = {"watch"}
    with caplog.at_level(logging.WARNING, "pgleaderlock"):
        async with running(candidate(server, lease_s=3), health_interval_s=0.2) as (leader, heard):
            await leader.wait_for_leadership(5)
            await until(lambda: len(heard.renewals) > 5, 10)
            assert leader.is_leader
            edit(server, holderIdentity="")
            await until(lambda: "on_lost" in heard.words, 10)  # the next renewal finds out
    assert caplog.text.count("watch_forbidden") == 1


async def test_a_leaders_stream_that_fell_silent_is_replaced_after_two_renewals(server: FakeKubernetes) -> None:
    async with running(candidate(server, lease_s=30), health_interval_s=0.2) as (leader, heard):
        await leader.wait_for_leadership(5)
        await until(lambda: server.asked.count("watch") == 1, 5)
        touch, server.touch = server.touch, lambda: None  # type: ignore[method-assign]
        await until(lambda: server.asked.count("watch") > 1, 10)
        server.touch = touch  # type: ignore[method-assign]
        assert leader.is_leader
    assert "on_lost" not in heard.words


# --- What another client wrote into the Lease ------------------------------------------------------------------------

LAST_TERM = 2**31 - 1


@contextlib.asynccontextmanager
async def candidate_that_is_told_to(
    server: FakeKubernetes, patch: str, *words: str, **spec: Any
) -> AsyncIterator[Election]:
    """Have a candidate before a Lease that was edited so, which has reported these words and the command to mend it."""
    await candidate(server, "first").try_acquire()
    edit(server, **spec)
    async with running(candidate(server, "me")) as (election, heard):
        await until(lambda: bool(heard.errors), 5)
        assert isinstance(heard.errors[0], LockError)
        advice = f"kubectl -n default patch lease job --type=merge -p '{patch}'"
        for word in (*words, advice):
            assert word in str(heard.errors[0])
        assert not election.is_leader
        yield election


async def test_after_the_last_term_a_candidate_says_what_to_do_and_goes_on_when_it_is_done(
    server: FakeKubernetes,
) -> None:
    patch, said = '{"spec":{"leaseTransitions":...}}', "lease default/job can have no term after 2147483647"
    edits = {"holderIdentity": "", "leaseTransitions": LAST_TERM}
    async with candidate_that_is_told_to(server, patch, said, **edits) as election:
        edit(server, leaseTransitions=41)
        await until(lambda: election.is_leader, 5)
        assert election.token == 42


async def test_a_leader_may_have_the_last_term_and_renews_it(server: FakeKubernetes) -> None:
    await candidate(server, "first").try_acquire()
    edit(server, holderIdentity="", leaseTransitions=LAST_TERM - 1)
    backend = candidate(server, "me")
    grant = await backend.try_acquire()
    assert grant is not None
    assert (await backend.renew(grant)).token == LAST_TERM
    await backend.release(grant)
    with pytest.raises(LockError, match="can have no term after"):
        await backend.try_acquire()
    await closed(backend)


async def test_a_lease_that_lasts_for_decades_is_reported_and_goes_to_us_once_it_is_emptied(
    server: FakeKubernetes,
) -> None:
    patch, said = '{"spec":{"holderIdentity":""}}', "namespace=default lease=job is held by gone for 2147483647 s"
    edits = {"holderIdentity": "gone", "leaseDurationSeconds": LAST_TERM}
    async with candidate_that_is_told_to(server, patch, said, **edits) as election:
        edit(server, holderIdentity="")
        await until(lambda: election.is_leader, 5)


async def test_a_lease_that_lasts_for_decades_is_waited_out_for_one_of_ours_once_it_is_deleted(
    server: FakeKubernetes,
) -> None:
    await candidate(server, "first").try_acquire()
    edit(server, holderIdentity="gone", leaseDurationSeconds=LAST_TERM)
    async with running(candidate(server, "me", lease_s=1)) as (election, heard):
        await until(lambda: bool(heard.errors), 5)
        delete_lease(server)
        await until(lambda: election.is_leader, 10)


# --- Rule 7: coordinated election ----------------------------------------------------------------------------------


@pytest.fixture
async def modern() -> AsyncIterator[FakeKubernetes]:
    """A server that knows coordinated election, as Kubernetes does since 1.31."""
    async with FakeKubernetes(coordinated=True) as server:
        yield server
        await close_clients()


@pytest.mark.parametrize("holder", ["", "candidate"])
async def test_a_lease_with_a_strategy_is_not_ours_to_take(modern: FakeKubernetes, holder: str) -> None:
    coordinated = {"holderIdentity": holder, "leaseDurationSeconds": 1, "strategy": "OldestEmulationVersion"}
    modern.api.create("default", {"metadata": {"name": "job"}, "spec": coordinated})
    async with running(candidate(modern, lease_s=1)) as (election, heard):
        await until(lambda: len(heard.errors) >= 4, 10)
        assert not election.is_leader
    assert isinstance(heard.errors[0], LockError)
    assert "default/job has spec.strategy 'OldestEmulationVersion'" in str(heard.errors[0])
    assert "Use another lease name" in str(heard.errors[0])
    assert spec_of(modern) == {name: value for name, value in coordinated.items() if value or name == "holderIdentity"}


@pytest.mark.parametrize("holder", ["", "candidate"])
async def test_reader_of_a_lease_with_a_strategy_gets_an_answer(modern: FakeKubernetes, holder: str) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 1, "strategy": "OldestEmulationVersion"}
    modern.api.create("default", {"metadata": {"name": "job"}, "spec": spec})
    backend = candidate(modern)
    found = await backend.holder()
    assert (found.name if found is not None else "") == holder
    assert await backend.explain_absence() == ""
    with pytest.raises(LockError, match=r"has spec\.strategy"):  # to look is one thing, to take is another
        await backend.try_acquire()
    await closed(backend)


async def test_a_leader_steps_down_for_a_preferred_holder_and_says_why(modern: FakeKubernetes) -> None:
    async with running(candidate(modern)) as (leader, heard):
        await leader.wait_for_leadership(5)
        edit(modern, strategy="OldestEmulationVersion")
        await asyncio.sleep(1)
        assert leader.is_leader  # a strategy alone does not take away what we hold
        edit(modern, preferredHolder="candidate")
        await until(lambda: not leader.is_leader, 40)
        await until(lambda: spec_of(modern)["holderIdentity"] == "", 40)
        await asyncio.sleep(0.5)
        assert not leader.is_leader
    lost = [event for event in heard.events if event.kind is EventKind.LOST]
    assert lost[0].cause is LossCause.STEPPED_DOWN
    assert "prefers 'candidate' for lease default/job" in str(lost[0].error)
    assert spec_of(modern)["preferredHolder"] == "candidate"


async def test_being_the_preferred_holder_is_no_reason_to_step_down(modern: FakeKubernetes) -> None:
    backend = candidate(modern)
    grant = await backend.try_acquire()
    assert grant is not None
    edit(modern, strategy="OldestEmulationVersion", preferredHolder="me")
    assert (await backend.renew(grant)).token == 0
    await closed(backend)


# --- Rules 8 and 9: durations and times ----------------------------------------------------------------------------


@pytest.mark.parametrize("lease_s", [0.5, 0, -1, 2.5, 2**31, float("nan"), float("inf")])
def test_a_lease_is_a_whole_number_of_seconds(lease_s: float) -> None:
    store = LeaseStore(HttpLeaseClient(Cluster("http://127.0.0.1:1")), "default", "job")
    with pytest.raises(ValueError, match="lease_s"):
        KubernetesBackend(store, lease_s=lease_s)


async def test_the_store_itself_refuses_a_broken_second(server: FakeKubernetes) -> None:
    backend = RecordBackend(LeaseStore(client_of(server), "default", "job"), lease_s=1.5)
    with pytest.raises(LockError, match=r"default/job cannot last 1\.5 s"):
        await backend.try_acquire()
    assert server.api.leases == {}
    await closed(backend)


@pytest.mark.parametrize("identity", ["", "  "])
def test_identity_must_not_be_empty(identity: str) -> None:
    store = LeaseStore(HttpLeaseClient(Cluster("http://127.0.0.1:1")), "default", "job")
    with pytest.raises(ValueError, match="identity must not be empty"):
        KubernetesBackend(store, identity=identity)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("default", "Upper"), ("default", ""), ("default", "a/b"), ("default", "a" * 254), ("a.b", "x"), ("../x", "x")],
)
def test_a_name_that_cannot_be_is_refused_before_anything_runs(namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match="cannot"):
        LeaseStore(HttpLeaseClient(Cluster("http://127.0.0.1:1")), namespace, name)


def test_a_time_has_six_digits_at_microsecond_0_too_and_is_in_utc() -> None:
    assert micro_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    assert micro_time(datetime(2026, 1, 2, 3, 4, 5, 7, tzinfo=UTC)) == "2026-01-02T03:04:05.000007Z"
    local = datetime.fromisoformat("2026-01-02T03:04:05+05:30")
    assert micro_time(local) == "2026-01-01T21:34:05.000000Z"


@pytest.mark.parametrize("step_s", [0.0, 0.0005, 0.4, -3600.0], ids=["stands", "creeps", "walks", "goes back"])
async def test_each_renewal_is_seen_by_others_who_read_whole_seconds_whatever_the_clock_on_the_wall_does(
    server: FakeKubernetes, step_s: float
) -> None:
    """client-go cuts renewTime to seconds before it compares."""
    now = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
    store = LeaseStore(client_of(server), "default", "job", wall_clock=lambda: now)
    record = await store.write(Claim("me", 0, 15, is_new_term=True), None)
    seconds, versions = [], set()
    for _ in range(5):
        assert record is not None
        seconds.append(spec_of(server)["renewTime"][:19])
        versions.add(server.api.get("default", "job")["metadata"]["resourceVersion"])
        now += timedelta(seconds=step_s)
        record = await store.write(Claim("me", 0, 15, is_new_term=False), record)
    assert seconds == sorted(set(seconds))
    assert len(seconds) == len(versions) == 5
    assert spec_of(server)["acquireTime"] == "2026-01-02T03:04:05.600000Z"
    await store.close()


async def test_renewal_a_second_after_the_last_is_written_with_its_real_time(server: FakeKubernetes) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
    store = LeaseStore(client_of(server), "default", "job", wall_clock=lambda: now)
    record = await store.write(Claim("me", 0, 15, is_new_term=True), None)
    now += timedelta(seconds=1)
    record = await store.write(Claim("me", 0, 15, is_new_term=False), record)
    assert spec_of(server)["renewTime"] == "2026-01-02T03:04:06.600000Z"
    edit(server, renewTime=None)
    record = await store.write(Claim("me", 0, 15, is_new_term=False), await store.read())
    assert spec_of(server)["renewTime"] == "2026-01-02T03:04:06.600000Z"
    await store.close()


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.000000Z", "2026-01-02T03:04:05", "soon"])
def test_a_time_that_nothing_can_follow_is_no_reason_to_fail_a_renewal(text: str) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    version = LeaseVersion("u", "1", {"spec": {"renewTime": text}})
    lease = claimed_lease(version, Claim("me", 0, 15, is_new_term=False), now)
    assert lease["spec"]["renewTime"] == micro_time(now)


# --- What a person at night reads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_a_missing_permission_is_named(server: FakeKubernetes, verb: str) -> None:
    if verb == "update":
        server.api.create("default", {"metadata": {"name": "job"}, "spec": {}})
    server.forbidden = {verb}
    backend = candidate(server)
    with pytest.raises(ConnectionError, match=f"cannot {verb} lease default/job: RBAC .* verb '{verb}' on leases"):
        await backend.try_acquire()
    await closed(backend)


async def test_a_permission_that_is_taken_away_for_a_moment_costs_nothing(server: FakeKubernetes) -> None:
    async with running(candidate(server)) as (leader, heard):
        await leader.wait_for_leadership(5)
        server.forbidden = {"update"}
        await asyncio.sleep(0.6)
        server.forbidden = set()
        await asyncio.sleep(0.8)
        assert leader.is_leader
    assert "on_lost" not in heard.words


async def test_a_namespace_that_does_not_exist_is_named(server: FakeKubernetes) -> None:
    backend = candidate(server, namespace="elsewhere")
    with pytest.raises(ConnectionError, match="namespace elsewhere does not exist; is POD_NAMESPACE right"):
        await backend.try_acquire()
    await closed(backend)


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{}",
        '{"metadata": []}',
        '{"metadata": {"uid": "u"}}',
        '{"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": "text"}',
        '{"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"holderIdentity": 7}}',
        '{"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"leaseDurationSeconds": "15"}}',
        '{"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"leaseDurationSeconds": 0}}',
        '{"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"leaseTransitions": true}}',
        f'{{"metadata": {{"uid": "u", "resourceVersion": "1"}}, "spec": {{"leaseDurationSeconds": 1{"0" * 400}}}}}',
        "<html>please log in</html>",
        "",
    ],
)
async def test_an_answer_that_is_no_lease_is_not_acted_upon(server: FakeKubernetes, body: str) -> None:
    server.answer_next(200, body)
    backend = candidate(server)
    with pytest.raises(ConnectionError, match=r"lease default/job.*something other than the API server"):
        await backend.try_acquire()
    assert server.asked == ["get"]
    await closed(backend)


WHOLE = '{"metadata": {"uid": "u", "labels": {"ä": "b"}}, "spec": {"holderIdentity": "me", "leaseTransitions": true}}'


async def test_an_answer_that_breaks_off_is_called_that_wherever_it_does(server: FakeKubernetes) -> None:
    backend = candidate(server)
    for length in range(1, len(WHOLE)):
        server.answer_next(200, WHOLE[:length])
        with pytest.raises(
            ConnectionError, match=r"lease default/job: the answer breaks off after \d+ bytes"
        ) as caught:
            await backend.try_acquire()
        assert caught.value.cause is LossCause.CONNECTION_LOST
    await closed(backend)


async def test_a_connection_that_ends_in_the_middle_of_an_answer_is_called_that(server: FakeKubernetes) -> None:
    await candidate(server, "first").try_acquire()
    server.break_off_next()
    backend = candidate(server)
    with pytest.raises(ConnectionError, match=r"ended the connection before its answer was complete"):
        await backend.try_acquire()
    server.lose_answers(1)
    with pytest.raises(ConnectionError, match=r"ended the connection before its answer was complete"):
        await backend.try_acquire()
    await closed(backend)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}], "etcd is away"),
        ([{"type": "ERROR", "object": {"message": "no code"}}], "no code"),
        ([{"type": "ADDED"}], "no event"),
        ([{"type": "ADDED", "object": {}}], "not a Lease"),
    ],
)
async def test_a_watch_that_says_nonsense_is_a_poll(
    events: list[LeaseObject], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = LeaseStore(Canned(events), "default", "job")
    with caplog.at_level(logging.DEBUG, "pgleaderlock"):
        await store.changed(read_lease(LEASE), 0.2)
    assert said in caplog.text
    await store.close()


LEASE = {"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"holderIdentity": "x"}}


class Forwarding(LeaseClient):
    """A client that passes everything on to another; tests override what is to go wrong."""

    def __init__(self, inner: LeaseClient) -> None:
        self.inner = inner

    async def get(self, namespace: str, name: str) -> LeaseObject:
        return await self.inner.get(namespace, name)

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        return await self.inner.create(namespace, lease)

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        return await self.inner.replace(namespace, name, lease)

    async def list(self, namespace: str, name: str) -> LeaseObject:
        return await self.inner.list(namespace, name)

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        async with contextlib.aclosing(self.inner.watch(namespace, name, resource_version)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        await self.inner.close()


class Canned(LeaseClient):
    """A third-party client, which is all that the store ever needs to know."""

    def __init__(self, events: list[LeaseObject], listing: LeaseObject | None = None) -> None:
        self.events = events
        self.listing = listing or {}

    async def get(self, namespace: str, name: str) -> LeaseObject:
        raise ApiError("no", 404)

    async def create(self, namespace: str, lease: LeaseObject) -> LeaseObject:
        return {**LEASE, "spec": lease["spec"]}

    async def replace(self, namespace: str, name: str, lease: LeaseObject) -> LeaseObject:
        raise ApiError("stale", 409)

    async def list(self, namespace: str, name: str) -> LeaseObject:
        return self.listing

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[LeaseObject, None]:
        for event in self.events:
            yield event
        self.events = []

    async def close(self) -> None:
        pass


async def test_a_client_of_ones_own_is_enough() -> None:
    store = LeaseStore(Canned([]), "default", "job")
    backend = KubernetesBackend(store, identity="me")
    grant = await backend.try_acquire()
    assert grant is not None
    await store.close()


async def test_bookmarks_are_no_news_and_a_stream_that_ends_at_once_is_opened_again_after_a_second() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}}
    client = Canned([bookmark])
    store = LeaseStore(client, "default", "job")
    changing = asyncio.ensure_future(store.changed(read_lease(LEASE), 10))
    await asyncio.sleep(0.3)
    assert not changing.done()
    client.events = [{"type": "DELETED", "object": LEASE}]
    await asyncio.wait_for(changing, 2)
    await store.close()


async def test_a_list_that_is_none_is_a_poll(caplog: pytest.LogCaptureFixture) -> None:
    store = LeaseStore(Canned([], {"items": 7}), "default", "job")
    with caplog.at_level(logging.DEBUG, "pgleaderlock"):
        await store.changed(None, 0.2)
    assert "watch_failed" in caplog.text
    await store.close()


async def test_closing_in_the_middle_of_a_wait_ends_it(server: FakeKubernetes) -> None:
    await candidate(server, "leader").try_acquire()
    store = LeaseStore(client_of(server), "default", "job")
    waiting = asyncio.ensure_future(store.changed(await store.read(), 30))
    await until(lambda: "watch" in server.asked, 5)
    await store.close()
    await asyncio.wait_for(waiting, 1)
    await store.close()


async def test_a_record_of_another_store_is_refused(server: FakeKubernetes) -> None:
    from pgleaderlock.stores.record import Record

    store = LeaseStore(client_of(server), "default", "job")
    with pytest.raises(TypeError, match="not read from a Kubernetes Lease"):
        await store.write(Claim("me", 1, 15, is_new_term=True), Record("x", 0, 15, version=7))


def test_a_store_that_was_left_open_on_a_closed_loop_can_be_closed_and_used_on_another() -> None:
    store: list[LeaseStore] = []

    async def first() -> None:
        server = FakeKubernetes()
        await server.start()
        await candidate(server, "leader").try_acquire()
        await close_clients()
        store.append(LeaseStore(client_of(server), "default", "job"))
        seen = await store[0].read()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(store[0].changed(seen, 30), 0.2)
        await server.stop()

    async def second() -> None:
        await store[0].close()
        with pytest.raises(ConnectionError, match="cannot be reached"):
            await store[0].read()
        await store[0].close()

    asyncio.run(first())
    asyncio.run(second())


async def test_two_elections_hand_over_and_never_lead_together(server: FakeKubernetes) -> None:
    events: list[tuple[str, Event]] = []
    async with contextlib.AsyncExitStack() as stack:
        elections = []
        for name in ("a", "b"):
            election, _ = await stack.enter_async_context(running(candidate(server, name)))
            election.subscribe(lambda event, name=name: events.append((name, event)))
            elections.append(election)
        for _ in range(6):
            await until(lambda: any(election.is_leader for election in elections), 5)
            assert [election.state for election in elections].count(LockState.LEADER) == 1
            leader = next(election for election in elections if election.is_leader)
            await leader.step_down()
            assert not leader.is_leader
    tokens = [event.token for _, event in events if event.kind is EventKind.ACQUIRED]
    assert tokens == sorted(set(tokens))  # type: ignore[type-var]
    assert len(tokens) >= 5


# --- Found by an attack -----------------------------------------------------------------------------------------------


async def test_a_lease_that_a_coordinated_election_takes_from_us_is_a_loss_and_not_the_end(
    server: FakeKubernetes,
) -> None:
    async with FakeKubernetes(coordinated=True) as coordinated:
        async with running(candidate(coordinated)) as (election, heard):
            await until(lambda: election.is_leader, 5)
            edit(coordinated, strategy="OldestEmulationVersion", holderIdentity="candidate")
            await until(lambda: "on_lost" in heard.words, 10)
            await asyncio.sleep(0.5)
            assert "on_stopped" not in heard.words
        await close_clients()


async def test_a_follower_rests_while_it_waits_for_a_lease_that_was_deleted_and_made_anew(
    server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower, other = (candidate(server, name) for name in ("leader", "follower", "other"))
    await leader.try_acquire()
    assert await follower.try_acquire() is None
    calls, changed = 0, LeaseStore.changed

    async def counted(store: LeaseStore, seen: Any, timeout_s: float) -> Any:
        nonlocal calls
        calls += 1
        return await changed(store, seen, timeout_s)

    monkeypatch.setattr(LeaseStore, "changed", counted)
    waiting = asyncio.create_task(follower.wait(3))
    await asyncio.sleep(0.3)
    server.api.delete("default", "job")
    server.touch()
    await asyncio.sleep(0.1)
    assert await other.try_acquire() is not None  # it never saw the first
    await asyncio.sleep(1.0)
    waiting.cancel()
    assert calls < 20
    await closed(leader, follower, other)


@pytest.mark.slow
async def test_a_dead_stream_is_given_up_while_waiting_for_the_lock(server: FakeKubernetes) -> None:
    leader, follower = candidate(server, "leader"), candidate(server, "follower")
    grant = await leader.try_acquire()
    assert grant is not None
    assert await follower.try_acquire() is None
    waiting = asyncio.create_task(follower.wait(6))
    await until(lambda: "watch" in server.asked, 5)
    server.touch = lambda: None  # type: ignore[method-assign]
    for _ in range(10):
        await asyncio.sleep(0.5)
        grant = await leader.renew(grant)
    waiting.cancel()
    assert server.asked.count("watch") > 1
    await closed(leader, follower)


async def test_token_that_the_server_quotes_in_its_answer_is_not_shown(server: FakeKubernetes) -> None:
    cluster = Cluster(server.url, credentials=FixedCredential(Credential(token="very-secret-token")))
    client = HttpLeaseClient(cluster, request_timeout_s=1)
    server.answer_next(403, '{"message": "you sent Authorization: Bearer very-secret-token"}')
    with pytest.raises(ConnectionError) as raised:
        await client.get("default", "job")
    assert "very-secret-token" not in str(raised.value)
    assert "Bearer ***" in str(raised.value)
    await client.close()


async def test_a_forked_child_uses_connections_of_its_own(
    server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(server)
    with contextlib.suppress(ConnectionError):
        await client.get("default", "job")
    of_parent, parent = client._http, os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        with contextlib.suppress(ConnectionError):
            await client.get("default", "job")
        assert client._http is not of_parent
        assert of_parent is not None
        assert not of_parent.is_closed
    await of_parent.aclose()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503, 504])
def test_loss_by_an_error_of_the_api_server_has_the_cause_refused(status: int) -> None:
    assert explain("update", "default", "billing", status, b"").cause is LossCause.REFUSED
