"""What a Kubernetes API server answers, asked of the fake always and of a real one where there is one.

``python tools/k8s_server.py run -- pytest tests/stores/test_kubernetes_contract.py`` brings a real one up. The same
questions and the same expectations for both: the fake is as good as this file is long.
"""

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.kubernetes import KubernetesBackend, LeaseStore
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster, read_kubeconfig
from pgleaderlock.stores.kubernetes.credentials import Credential
from pgleaderlock.testing.contract import BackendContract
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes

# A connection whose TLS handshake is cut short by a time limit is closed by httpcore only when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

REAL = os.environ.get("PGLEADERLOCK_K8S_SERVER")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
TIME = "2026-01-02T03:04:05.000000Z"

_numbers = count(1)


class Server:
    """Raw requests: the status and the decoded body, nothing interpreted."""

    def __init__(self, http: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self.http = http
        self.headers = headers

    async def ask(self, method: str, path: str, content: Any = None, **query: str) -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        response = await self.http.request(
            method,
            f"{LEASES}{path}" if path[:1] in ("", "/") else f"/{path}",
            content=body,
            params=query,
            headers={"Content-Type": "application/json", **self.headers},
        )
        return response.status_code, response.json()

    async def make(self, **spec: Any) -> dict[str, Any]:
        status, made = await self.ask("POST", "", lease(**spec))
        assert status == 201, made
        return made

    async def put(self, obj: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return await self.ask("PUT", f"/{obj['metadata']['name']}", obj)


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    async with FakeKubernetes() as fake:
        path = Path(REAL) if request.param == "real" and REAL else fake.write_kubeconfig(tmp_path / "config")
        cluster = read_kubeconfig(path)
        credential = await cluster.credentials.get()
        client = HttpLeaseClient(cluster)
        http = await client._connected(credential)
        yield Server(http, {"Authorization": f"Bearer {credential.token}"} if credential.token else {})
        await client.close()


def lease(**spec: Any) -> dict[str, Any]:
    name = f"answers-{os.getpid()}-{next(_numbers)}"
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, **spec},
    }


def changed(obj: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**copy.deepcopy(obj), "spec": {**obj["spec"], **spec}}


def without(obj: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in fields}}


def refusal(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    status, body = answer
    assert body["kind"] == "Status"
    assert body["status"] == "Failure"
    assert body["code"] == status
    assert body["message"]
    return status, body.get("reason", "")


# --- Reading and making ------------------------------------------------------------------------------------------


async def test_a_lease_that_is_not_there(server: Server) -> None:
    assert refusal(await server.ask("GET", "/no-such-lease")) == (404, "NotFound")
    assert refusal(await server.ask("DELETE", "/no-such-lease")) == (404, "NotFound")


async def test_what_was_made_is_read_back_with_what_the_server_adds(server: Server) -> None:
    made = await server.make(leaseTransitions=0, acquireTime=TIME, renewTime=TIME)
    status, read = await server.ask("GET", f"/{made['metadata']['name']}")
    assert status == 200
    assert read == made
    assert read["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "acquireTime": TIME,
        "renewTime": TIME,
    }
    metadata = read["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert metadata["creationTimestamp"].endswith("Z")


async def test_a_second_of_the_same_name(server: Server) -> None:
    first = lease()
    assert (await server.ask("POST", "", first))[0] == 201
    assert refusal(await server.ask("POST", "", first)) == (409, "AlreadyExists")


async def test_an_empty_holder_and_an_empty_spec_are_allowed(server: Server) -> None:
    assert (await server.make(holderIdentity=""))["spec"]["holderIdentity"] == ""
    bare = lease()
    del bare["spec"]
    status, made = await server.ask("POST", "", bare)
    assert status == 201
    assert not made.get("spec")


async def test_a_missing_namespace(server: Server) -> None:
    elsewhere = "apis/coordination.k8s.io/v1/namespaces/no-such-namespace/leases"
    new = lease()
    assert refusal(await server.ask("POST", elsewhere, new)) == (404, "NotFound")
    assert refusal(await server.ask("GET", f"{elsewhere}/{new['metadata']['name']}")) == (404, "NotFound")
    status, listing = await server.ask("GET", elsewhere)
    assert (status, listing["items"]) == (200, [])


@pytest.mark.parametrize("name", ["Capitals", "under_score", "-dash", "dot.", "a" * 254, "two..dots"])
async def test_a_name_that_is_none(server: Server, name: str) -> None:
    wrong = lease()
    wrong["metadata"]["name"] = name
    assert refusal(await server.ask("POST", "", wrong)) == (422, "Invalid")


async def test_an_object_of_another_namespace(server: Server) -> None:
    wrong = lease()
    wrong["metadata"]["namespace"] = "another"
    assert refusal(await server.ask("POST", "", wrong)) == (400, "BadRequest")


async def test_a_body_that_is_no_lease(server: Server) -> None:
    assert refusal(await server.ask("POST", "", b"{")) == (400, "BadRequest")
    assert refusal(await server.ask("POST", "", b"[]")) == (400, "BadRequest")
    assert refusal(await server.ask("POST", "", {**lease(), "kind": "Secret"})) == (400, "BadRequest")
    assert refusal(await server.ask("POST", "", {**lease(), "spec": "text"})) == (400, "BadRequest")


# --- Values --------------------------------------------------------------------------------------------------------

GOOD_TIMES = [
    ("2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.000000Z"),
    ("2026-01-02T03:04:05.000001+00:00", "2026-01-02T03:04:05.000001Z"),
    ("2026-01-02T03:04:05.123456-05:30", "2026-01-02T08:34:05.123456Z"),
]
BAD_TIMES = [
    "2026-01-02T03:04:05Z",
    "2026-01-02T03:04:05.123Z",
    "2026-01-02T03:04:05.123456789Z",
    "2026-01-02 03:04:05.123456Z",
    "2026-01-02T03:04:05.123456",
    "2026-02-30T03:04:05.123456Z",
    "2026-01-02T25:04:05.123456Z",
    "",
    1,
]
OUT_OF_RANGE = [
    {"leaseDurationSeconds": 0},
    {"leaseDurationSeconds": -1},
    {"leaseTransitions": -1},
]
WRONG_TYPES = [
    {"leaseDurationSeconds": 2.5},
    {"leaseDurationSeconds": "15"},
    {"leaseDurationSeconds": 2**31},
    {"leaseDurationSeconds": True},
    {"leaseTransitions": 1.5},
    {"leaseTransitions": 2**31},
    {"holderIdentity": 7},
    *({"renewTime": time} for time in BAD_TIMES),
]


@pytest.mark.parametrize("spec", OUT_OF_RANGE, ids=str)
async def test_a_value_out_of_range(server: Server, spec: dict[str, Any]) -> None:
    assert refusal(await server.ask("POST", "", lease(**spec))) == (422, "Invalid")
    made = await server.make()
    assert refusal(await server.put(changed(made, **spec))) == (422, "Invalid")


@pytest.mark.parametrize("spec", WRONG_TYPES, ids=str)
async def test_a_value_of_the_wrong_type_or_form(server: Server, spec: dict[str, Any]) -> None:
    assert refusal(await server.ask("POST", "", lease(**spec))) == (400, "BadRequest")
    made = await server.make()
    assert refusal(await server.put(changed(made, **spec))) == (400, "BadRequest")


@pytest.mark.parametrize(("sent", "kept"), GOOD_TIMES)
async def test_a_time_is_kept_in_utc(server: Server, sent: str, kept: str) -> None:
    made = await server.make(renewTime=sent, acquireTime=sent)
    assert (made["spec"]["renewTime"], made["spec"]["acquireTime"]) == (kept, kept)


async def test_absent_and_null_are_the_same(server: Server) -> None:
    made = await server.make(renewTime=None, acquireTime=None, leaseTransitions=None)
    assert made["spec"] == {"holderIdentity": "me", "leaseDurationSeconds": 15}


async def test_unknown_fields_are_dropped(server: Server) -> None:
    made = await server.make(nonsense=1)
    assert "nonsense" not in made["spec"]
    status, put = await server.put({**changed(made, more="x"), "extra": {}})
    assert status == 200
    assert "more" not in put["spec"]
    assert "extra" not in put


# --- Replacing -----------------------------------------------------------------------------------------------------


async def test_replacing_what_was_read(server: Server) -> None:
    made = await server.make()
    status, put = await server.put(changed(made, renewTime=TIME))
    assert status == 200
    assert put["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert put["metadata"]["uid"] == made["metadata"]["uid"]
    assert put["spec"]["renewTime"] == TIME


async def test_labels_and_annotations_are_what_the_put_says(server: Server) -> None:
    new = lease()
    new["metadata"] |= {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    made = (await server.ask("POST", "", new))[1]
    put = (await server.put(changed(made, renewTime=TIME)))[1]
    assert put["metadata"]["labels"] == {"team": "a"}
    assert put["metadata"]["annotations"] == {"note": "b"}
    bare = (await server.put(without(put, "labels", "annotations")))[1]
    assert not bare["metadata"].get("labels")


async def test_a_put_that_changes_nothing_keeps_the_version(server: Server) -> None:
    made = await server.make(renewTime=TIME)
    status, put = await server.put(made)
    assert status == 200
    assert put["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_stale_version(server: Server) -> None:
    made = await server.make()
    assert (await server.put(changed(made, renewTime=TIME)))[0] == 200
    assert refusal(await server.put(changed(made, holderIdentity="other"))) == (409, "Conflict")


async def test_no_version(server: Server) -> None:
    made = await server.make()
    assert refusal(await server.put(without(made, "resourceVersion"))) == (422, "Invalid")


async def test_a_name_that_is_not_the_one_of_the_url(server: Server) -> None:
    made = await server.make()
    other = {**made, "metadata": {**made["metadata"], "name": "other"}}
    assert refusal(await server.ask("PUT", f"/{made['metadata']['name']}", other)) == (400, "BadRequest")


async def test_another_uid(server: Server) -> None:
    made = await server.make()
    other = {**made, "metadata": {**made["metadata"], "uid": "00000000-0000-4000-8000-000000000000"}}
    assert refusal(await server.put(other)) == (409, "Conflict")


async def test_a_put_after_a_delete_fails_with_the_uid_and_resurrects_without(server: Server) -> None:
    made = await server.make(leaseTransitions=7)
    assert (await server.ask("DELETE", f"/{made['metadata']['name']}"))[0] == 200
    assert refusal(await server.put(made)) == (409, "Conflict")
    status, risen = await server.put(without(made, "uid"))
    assert status == 201
    assert risen["metadata"]["uid"] != made["metadata"]["uid"]
    assert risen["spec"]["leaseTransitions"] == 7


async def test_the_old_object_does_not_replace_a_lease_made_anew(server: Server) -> None:
    made = await server.make()
    await server.ask("DELETE", f"/{made['metadata']['name']}")
    assert (await server.ask("POST", "", without(made, "uid", "resourceVersion", "creationTimestamp")))[0] == 201
    assert refusal(await server.put(made)) == (409, "Conflict")
    assert refusal(await server.put(without(made, "uid"))) == (409, "Conflict")


async def test_of_sixteen_puts_of_one_version_one_wins(server: Server) -> None:
    made = await server.make()
    answers = await asyncio.gather(*(server.put(changed(made, holderIdentity=f"p{n}")) for n in range(16)))
    assert sorted(status for status, _ in answers) == [200] + 15 * [409]


async def test_of_sixteen_posts_one_wins(server: Server) -> None:
    new = lease()
    answers = await asyncio.gather(*(server.ask("POST", "", changed(new, holderIdentity=f"p{n}")) for n in range(16)))
    assert sorted(status for status, _ in answers) == [201] + 15 * [409]


async def test_posting_with_a_version_is_refused(server: Server) -> None:
    made = await server.make()
    again = lease()
    again["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    assert refusal(await server.ask("POST", "", again)) == (500, "")


async def test_a_put_without_a_name_or_a_kind(server: Server) -> None:
    made = await server.make()
    path = f"/{made['metadata']['name']}"
    assert refusal(await server.ask("PUT", path, without(made, "name")))[0] == 400
    untyped = {name: value for name, value in made.items() if name not in ("kind", "apiVersion")}
    assert (await server.ask("PUT", path, untyped))[0] == 200
    assert refusal(await server.ask("PUT", path, {**made, "apiVersion": "v1"}))[0] == 400


async def test_metadata_of_the_wrong_type(server: Server) -> None:
    wrongs: list[dict[str, Any]] = [{"labels": "x"}, {"labels": {"a": 1}}, {"annotations": []}, {"uid": 7}]
    for metadata in [*wrongs, {"resourceVersion": 7}]:
        made = await server.make()
        wrong = {**made, "metadata": {**made["metadata"], **metadata}}
        assert refusal(await server.put(wrong)) == (400, "BadRequest"), metadata


async def test_a_put_into_a_missing_namespace(server: Server) -> None:
    new = lease()
    path = f"apis/coordination.k8s.io/v1/namespaces/no-such-namespace/leases/{new['metadata']['name']}"
    assert refusal(await server.ask("PUT", path, new)) == (404, "NotFound")


async def test_what_an_update_cannot_change(server: Server) -> None:
    made = await server.make()
    other = {**made, "metadata": {**made["metadata"], "creationTimestamp": "2000-01-01T00:00:00Z"}}
    status, put = await server.put(changed(other, renewTime=TIME))
    assert status == 200
    assert put["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]


async def test_a_method_that_the_collection_does_not_have(server: Server) -> None:
    assert refusal(await server.ask("PUT", "", lease()))[0] == 405


# --- Access --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
async def nobody(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """The server as one sees it who may do nothing."""
    async with FakeKubernetes() as fake:
        fake.forbidden = {"get", "list", "watch", "create", "update", "delete"}
        cluster = read_kubeconfig(Path(REAL)) if request.param == "real" and REAL else Cluster(fake.url)
        client = HttpLeaseClient(cluster)
        yield Server(await client._connected(Credential()), {"Authorization": "Bearer test-only-nobody"})
        await client.close()


async def test_what_is_not_allowed_is_named_by_its_verb(nobody: Server) -> None:
    new = lease()
    selector = {"fieldSelector": "metadata.name=x"}
    answers = {
        "get": await nobody.ask("GET", "/x"),
        "list": await nobody.ask("GET", "", **selector),
        "watch": await nobody.ask("GET", "", watch="true", **selector),
        "create": await nobody.ask("POST", "", new),
        "update": await nobody.ask("PUT", f"/{new['metadata']['name']}", new),
    }
    for verb, answer in answers.items():
        assert refusal(answer) == (403, "Forbidden")
        assert f'cannot {verb} resource "leases" in API group "coordination.k8s.io"' in answer[1]["message"]


async def test_an_unknown_token() -> None:
    async with FakeKubernetes(tokens=("known",)) as fake:
        for cluster in [Cluster(fake.url), *([read_kubeconfig(Path(REAL))] if REAL else [])]:
            client = HttpLeaseClient(cluster)
            server = Server(await client._connected(Credential()), {"Authorization": "Bearer of-nobody"})
            assert refusal(await server.ask("GET", "/x")) == (401, "Unauthorized")
            await client.close()


# --- Listing and watching ------------------------------------------------------------------------------------------


async def events(server: Server, since: str | None, name: str, wanted: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params = {"watch": "true", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "5"}
    if since is not None:
        params["resourceVersion"] = since
    async with server.http.stream("GET", LEASES, params=params, headers=server.headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            found.append(json.loads(line))
            if len(found) == wanted:
                break
    return found


async def test_listing_by_name(server: Server) -> None:
    made = await server.make()
    await server.make()
    status, listing = await server.ask("GET", "", fieldSelector=f"metadata.name={made['metadata']['name']}")
    assert status == 200
    assert listing["kind"] == "LeaseList"
    assert listing["metadata"]["resourceVersion"]
    assert [item["metadata"]["uid"] for item in listing["items"]] == [made["metadata"]["uid"]]


async def test_watch_reports_everything_since_a_version_and_of_that_name_only(server: Server) -> None:
    made = await server.make()
    name = made["metadata"]["name"]
    put = (await server.put(changed(made, renewTime=TIME)))[1]
    await server.make()
    assert (await server.ask("DELETE", f"/{name}"))[0] == 200
    again = await server.ask("POST", "", without(made, "uid", "resourceVersion", "creationTimestamp"))
    told = await events(server, made["metadata"]["resourceVersion"], name, 3)
    assert [event["type"] for event in told] == ["MODIFIED", "DELETED", "ADDED"]
    assert told[0]["object"] == put
    assert told[1]["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert told[1]["object"]["metadata"]["resourceVersion"] != put["metadata"]["resourceVersion"]
    assert told[2]["object"]["metadata"]["uid"] == again[1]["metadata"]["uid"]


async def test_watch_from_the_version_of_an_empty_list_reports_the_first_object(server: Server) -> None:
    new = lease()
    name = new["metadata"]["name"]
    listing = (await server.ask("GET", "", fieldSelector=f"metadata.name={name}"))[1]
    assert listing["items"] == []
    made = (await server.ask("POST", "", new))[1]
    told = await events(server, listing["metadata"]["resourceVersion"], name, 1)
    assert [(event["type"], event["object"]) for event in told] == [("ADDED", made)]


async def test_a_watch_without_a_version_begins_with_what_there_is(server: Server) -> None:
    made = await server.make()
    told = await events(server, None, made["metadata"]["name"], 1)
    assert [(event["type"], event["object"]) for event in told] == [("ADDED", made)]


async def test_a_watch_from_a_version_that_is_none(server: Server) -> None:
    assert refusal(await server.ask("GET", "", watch="true", resourceVersion="abc"))[0] in (400, 500)  # 500 in 1.20


async def test_a_watch_ends_after_its_time(server: Server) -> None:
    made = await server.make()
    params = {"watch": "true", "resourceVersion": made["metadata"]["resourceVersion"], "timeoutSeconds": "1"}
    params["fieldSelector"] = f"metadata.name={made['metadata']['name']}"
    response = await server.http.get(LEASES, params=params, headers=server.headers)
    assert (response.status_code, response.text) == (200, "")


# --- The promises of every backend ---------------------------------------------------------------------------------


class TestBackend(BackendContract):
    """The library's own contract, on both servers."""

    lease_s = 2.0  # a whole number, as Kubernetes has it
    cluster: Cluster

    @pytest.fixture(autouse=True, params=["fake", *(["real"] if REAL else [])])
    async def started(self, request: pytest.FixtureRequest) -> AsyncIterator[None]:
        async with FakeKubernetes() as fake:
            self.cluster = read_kubeconfig(Path(REAL)) if request.param == "real" and REAL else Cluster(fake.url)
            yield

    def make_backend(self, name: str, **settings: Any) -> Backend:
        store = LeaseStore(HttpLeaseClient(self.cluster, request_timeout_s=1), "default", name)
        return KubernetesBackend(store, **settings)
