"""Leases, lists, events and answers that no API server would give, or a newer one, or a proxy, or a user's edit."""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.stores.kubernetes import ApiError, KubernetesBackend, LeaseStore
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.lease import LeaseVersion, claimed_lease, read_lease
from pgleaderlock.stores.kubernetes.refusals import explain
from pgleaderlock.stores.record import Claim
from pgleaderlock.testing import VirtualTimeLoop
from pgleaderlock.testing._lease_api import LeaseApi, Refusal
from tests.support.fuzzing import (
    LEASE_S,
    SECRET,
    Clock,
    check_words,
    fuzzed,
    play,
    refused_in_words,
    texts,
    values,
    with_other_values,
)

pytestmark = pytest.mark.proof

LEASE: dict[str, Any] = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "a", "namespace": "default", "uid": "u-1", "resourceVersion": "7"},
    "spec": {
        "holderIdentity": "me",
        "leaseDurationSeconds": 10,
        "leaseTransitions": 3,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "strategy": None,
        "preferredHolder": None,
    },
}
LEASES = values() | with_other_values(LEASE)
TIMES = ["9999-12-31T23:59:59-11:00", "9999-12-31T23:59:58Z", "0001-01-01T00:00:00+14:00", "2026-01-01", "24:00"]


def with_time(text: object) -> dict[str, Any]:
    return {**LEASE, "spec": {**LEASE["spec"], "renewTime": text}}


@fuzzed(LEASES | st.sampled_from(TIMES).map(with_time), examples=100)
@example(with_time("9999-12-31T23:30:00-11:00"))
def test_any_object_is_a_lease_that_can_be_written_again_or_is_refused(lease: object) -> None:
    with refused_in_words():
        record = read_lease(lease)
        assert 0 <= record.token < 2**31
        assert 1 <= record.lease_s < 2**31
        assert isinstance(record.version, LeaseVersion)
        for claim in (Claim("me", 4, LEASE_S, is_new_term=True), Claim("me", 3, LEASE_S, is_new_term=False)):
            written = claimed_lease(record.version, claim, datetime.now(UTC))
            datetime.strptime(written["spec"]["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: DTZ007 - it ends with a Z
            assert read_lease(written).holder == "me"


@fuzzed(st.sampled_from([400, 401, 403, 404, 409, 422, 429, 500, 599]), st.binary(max_size=400) | LEASES, examples=30)
@example(500, b"\x1b[31m<html>\r\n" * 50)
@example(500, {"message": "\x1b]0;owned\x07" * 500})
def test_any_refusal_is_explained(status: int, body: Any) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    said = explain("get", "default", "a", status, text)
    if SECRET.encode() not in text:  # what a server says is shown, and our own token taken out of it by the client
        check_words(said)


# --- Candidates for it ------------------------------------------------------------------------------------------------


class Client:
    """A client of an API server in this process, whose data can be harmed."""

    def __init__(self, api: LeaseApi) -> None:
        self._api = api
        self.replaced_by: Any = None

    async def get(self, namespace: str, name: str) -> Any:
        return self._answer(lambda: self._api.get(namespace, name))

    async def create(self, namespace: str, lease: Any) -> Any:
        return self._answer(lambda: self._api.create(namespace, lease))

    async def replace(self, namespace: str, name: str, lease: Any) -> Any:
        return self._answer(lambda: self._api.replace(namespace, name, lease)[1])

    async def list(self, namespace: str, name: str) -> Any:
        return self._answer(lambda: self._api.listing(namespace, name))

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[Any, None]:
        raise ApiError("no watch here", 403)
        yield

    async def close(self) -> None:
        pass

    def _answer(self, ask: Any) -> Any:
        try:
            found = copy.deepcopy(ask())
        except Refusal as refusal:
            raise ApiError(str(refusal.body["message"]), refusal.status) from refusal
        return found if self.replaced_by is None else self.replaced_by


def is_unreadable(lease: object) -> bool:
    try:
        read_lease(lease)
    except ConnectionError:
        return True
    return False


@fuzzed(LEASES.filter(is_unreadable), st.booleans(), examples=30)
def test_a_lease_that_is_damaged_while_it_is_held_is_neither_free_nor_ours(lease: Any, also_when_written: bool) -> None:
    """Whatever the API server answers to a reading, and to a writing, that it may have done all the same."""
    api, clock, clients = LeaseApi(), Clock(), []

    def candidate() -> KubernetesBackend:
        clients.append(Client(api))
        return KubernetesBackend(LeaseStore(clients[-1], "default", "a"), lease_s=LEASE_S, clock=clock)

    def harm() -> None:
        for client in clients if also_when_written else clients[1:]:
            client.replaced_by = lease

    asyncio.run(play(candidate, clock, harm))


async def test_a_lease_at_the_end_of_all_numbers_says_so() -> None:
    store = LeaseStore(Client(LeaseApi()), "default", "a")
    await store.write(Claim("", 2**31 - 1, LEASE_S, is_new_term=True), None)
    with pytest.raises(LockError, match="no term after 2147483647"):
        await KubernetesBackend(store, lease_s=LEASE_S).try_acquire()


# --- News of it -------------------------------------------------------------------------------------------------------


class Newscaster(Client):
    """Sends anything at all to a client that watches."""

    def __init__(self, events: list[Any], listing: Any) -> None:
        super().__init__(LeaseApi())
        self._events, self._listing = events, listing

    async def list(self, namespace: str, name: str) -> Any:
        return self._listing

    async def watch(self, namespace: str, name: str, resource_version: str) -> AsyncGenerator[Any, None]:
        for event in self._events:
            yield event


KINDS: st.SearchStrategy[Any] = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "", None, 5, []])
EVENTS = st.fixed_dictionaries({}, optional={"type": KINDS, "object": LEASES})
LISTS = st.fixed_dictionaries({}, optional={"items": st.lists(LEASES, max_size=2) | values(), "metadata": values()})


@fuzzed(st.lists(EVENTS, max_size=4), LISTS, st.booleans(), examples=40)
def test_any_news_ends_a_wait_in_time(events: list[Any], listing: Any, has_seen: bool) -> None:
    async def wait() -> None:
        store = LeaseStore(Newscaster(events, listing), "default", "a")
        for _ in range(2):
            with refused_in_words():
                async with asyncio.timeout(30):
                    await store.changed(read_lease(LEASE) if has_seen else None, 10.0)
        await store.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(wait())


# --- Answers on the wire ----------------------------------------------------------------------------------------------


async def answers_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body without an end, or one that would be endless if it were unpacked."""
    asked = await reader.readuntil(b"\r\n\r\n")
    status = b"500 No" if b"/error" in asked.split(b"\r\n")[0] else b"200 OK"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            writer.write(b'{"a": "' + b"x" * 65536)
            await writer.drain()


@pytest.mark.parametrize("verb", ["get", "watch", "error"])
async def test_an_answer_without_an_end_is_not_read_to_its_end(verb: str) -> None:
    server = await asyncio.start_server(answers_for_ever, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpLeaseClient(Cluster(f"http://127.0.0.1:{port}"), request_timeout_s=30.0)
    with pytest.raises(ConnectionError, match=r"longer than any lease|500") as caught:
        if verb == "watch":
            async for _ in client.watch("default", "a", "1"):
                pass
        else:
            await client.get("error" if verb == "error" else "default", verb)
    check_words(caught.value)
    await client.close()
    server.close()
    await server.wait_closed()


@fuzzed(texts(), examples=15)
def test_a_coordinated_lease_names_any_strategy(strategy: str) -> None:
    lease = {**LEASE, "spec": {**LEASE["spec"], "strategy": strategy, "preferredHolder": strategy}}
    client = Client(LeaseApi())
    client.replaced_by = lease
    with refused_in_words():
        asyncio.run(KubernetesBackend(LeaseStore(client, "default", "a"), lease_s=LEASE_S).try_acquire())
