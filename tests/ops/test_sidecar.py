"""The sidecar: what it answers on each store, and that it never answers what it does not know."""

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from pgleaderlock import Election, FixedInterval, LeaderLock, LockError, open_backend
from pgleaderlock.models import LeaderSeen, LeaderUnknown
from pgleaderlock.ops.answers import host_of
from pgleaderlock.ops.sidecar import Sidecar
from pgleaderlock.stores.observer import LOOK_EVERY_S
from pgleaderlock.stores.watching import LeaderView
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.sidecars import ask, until_answer

ADDRESS = "http://10.0.0.7:8080"
LEASE_S = 6.0
WAIT_S = 60.0
HOST = socket.gethostname()
_numbers = count(1)


@pytest.fixture
async def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server


@pytest.fixture(params=["sessions", "rows", "kubernetes", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The arguments of open_backend and of LeaderView."""
    role = f"sidecar/{os.getpid()}/{next(_numbers)}"
    if request.param == "file":
        return {"url": f"file://{tmp_path}/lock"}
    if request.param == "kubernetes":
        request.getfixturevalue("kubernetes")
        return {"url": "k8s://default/sidecar"}
    dsn = cast("Postgres", request.getfixturevalue("postgres")).dsn
    return {"url": dsn if request.param == "sessions" else dsn.replace("://", "+lease://", 1), "role": role}


def candidate(url: str, role: str | None = None, **more: Any) -> Election:
    if url.startswith("postgresql://"):
        more["settle_s"] = 0
    backend = open_backend(url, role=role, lease_s=LEASE_S, address=ADDRESS, **more)
    return Election(backend, retry_strategy=FixedInterval(0.05), health_interval_s=LEASE_S / 3)


@contextlib.asynccontextmanager
async def served(election: Election, **store: Any) -> AsyncIterator[str]:
    async with Sidecar(election, LeaderView(**store), port=0) as sidecar, election:
        yield sidecar.url


class FixedView(LeaderView):
    """A store whose last answer is given."""

    def __init__(self, leader: LeaderSeen | LeaderUnknown | None) -> None:
        super().__init__(f"memory://fixed-{next(_numbers)}")
        self.fixed = leader

    async def keep(self) -> None:
        await asyncio.Event().wait()

    @property
    def leader(self) -> LeaderSeen | LeaderUnknown | None:
        return self.fixed


# --- Every store -----------------------------------------------------------------------------------------------------


async def test_the_leader_and_a_follower_name_the_same_leader_in_both_formats(store: dict[str, Any]):
    first, second = candidate(**store), candidate(**store)
    is_named_alike = first.identity == second.identity  # as sessions of one process are: tests/cli has two processes
    async with served(first, **store) as leader:
        assert await first.wait_for_leadership(WAIT_S)
        own = await until_answer(leader, "leader", 200)
        assert (own["is_leader"], own["state"], own["leadership"], own["age_s"]) == (True, "leader", "led", 0.0)
        assert 0 < own["time_left_s"] <= LEASE_S
        shown = own["leader"]
        assert (shown["address"], shown["token"]) == (ADDRESS, first.token)
        assert own["token"] == first.token
        assert await ask(leader, "") == (200, {"name": HOST})
        async with served(second, **store) as follower:
            if is_named_alike:
                await until_answer(follower, "election", 503, error="the store shows this process, which does not lead")
                return
            seen = await until_answer(follower, "election", 200, leadership="led")
            assert (seen["is_leader"], seen["state"] in ("follower", "acquiring")) == (False, True)
            assert seen["token"] is None
            assert seen["leader"]["address"] == ADDRESS
            assert seen["leader"]["name"] == shown["name"]
            assert 0 <= seen["age_s"] <= LOOK_EVERY_S + 1
            assert (await ask(follower, "leader"))[0] == 503
            assert await ask(follower, "") == (200, {"name": HOST})
            for url in (leader, follower):
                assert (await ask(url, "healthz"))[0] == 200
                await until_answer(url, "readyz", 200)


async def test_without_a_leader_that_is_answered_and_not_that_it_is_unknown(store: dict[str, Any]):
    election = candidate(**store)
    async with Sidecar(election, LeaderView(**store), port=0) as sidecar:  # the election is not started
        body = await until_answer(sidecar.url, "election", 200, leadership="none")
        assert (body["leader"], body["error"]) == (None, None)
        assert await ask(sidecar.url, "") == (200, {"name": ""})
        assert (await ask(sidecar.url, "leader"))[0] == 503
        assert (await ask(sidecar.url, "healthz"))[0] == 503


# --- A store that does not answer ------------------------------------------------------------------------------------


async def test_until_the_store_has_answered_once_a_candidate_is_alive_and_not_ready(kubernetes: FakeKubernetes):
    """Or a rolling update to a wrong password, address or Role would replace every pod that works."""
    store = {"url": "k8s://default/never"}
    await kubernetes.stop()
    async with served(candidate(**store), **store) as url:
        await until_answer(url, "election", 503, leadership="unknown")
        assert [(await ask(url, path))[0] for path in ("healthz", "readyz")] == [200, 503]
        await kubernetes.start()
        await until_answer(url, "readyz", 200)


@pytest.mark.slow
async def test_while_the_api_server_is_away_the_leader_is_unknown_and_a_leader_says_so_once_its_time_is_over(
    kubernetes: FakeKubernetes,
):
    store = {"url": "k8s://default/away"}
    first, second = candidate(**store), candidate(**store)
    async with served(first, **store) as leader:
        assert await first.wait_for_leadership(WAIT_S)
        await _lose_store(kubernetes, leader, second, store)


async def _lose_store(kubernetes: FakeKubernetes, leader: str, second: Election, store: dict[str, str]) -> None:
    async with served(second, **store) as follower:
        await until_answer(follower, "election", 200, leadership="led")
        await kubernetes.stop()
        body = await until_answer(follower, "election", 503, leadership="unknown")
        assert (body["leader"], body["age_s"]) == (None, None)
        assert body["error"]
        assert await ask(follower, "") == (503, {"name": ""})
        await until_answer(leader, "leader", 503, is_leader=False, leadership="unknown")
        assert await ask(leader, "") == (503, {"name": ""})
        assert (await ask(leader, "healthz"))[0] == (await ask(leader, "readyz"))[0] == 200
        await kubernetes.start()
        await until_answer(follower, "election", 200, leadership="led")


@pytest.mark.slow
async def test_while_the_database_is_away_the_leader_is_unknown(own_server: Server):
    role = uuid.uuid4().hex
    election = LeaderLock(own_server.dsn, role=role, settle_s=0, retry_strategy=FixedInterval(0.05))
    async with served(election, url=own_server.dsn, role=role) as url:
        await until_answer(url, "leader", 200)
        await asyncio.to_thread(own_server.stop, "immediate")
        body = await until_answer(url, "leader", 503, leadership="unknown")
        assert body["error"]
        assert await ask(url, "") == (503, {"name": ""})
        await asyncio.to_thread(own_server.start)
        await until_answer(url, "leader", 200)


async def test_an_answer_of_the_store_is_not_given_once_it_is_old():
    now = 100.0
    view = LeaderView(f"memory://old-{next(_numbers)}", clock=lambda: now)
    assert isinstance(view.leader, LeaderUnknown)
    assert view.age_s is None
    task = asyncio.create_task(view.keep())
    await until(lambda: view.age_s is not None)
    assert view.leader is None
    task.cancel()  # from here on the store is silent
    await asyncio.wait({task})
    now += LOOK_EVERY_S + 1.0
    assert view.leader is None
    now += 0.1
    assert view.leader == LeaderUnknown()
    assert isinstance(view.leader, LeaderUnknown)
    assert "has not answered for 6 s" in view.leader.error


# --- This process ----------------------------------------------------------------------------------------------------


async def test_a_store_that_still_shows_this_process_after_its_term_is_not_repeated(tmp_path: Path):
    url = f"file://{tmp_path}/lock"
    election = candidate(url)
    view = FixedView(LeaderSeen(str(election.identity)))
    async with Sidecar(election, view, port=0) as sidecar:
        body = (await ask(sidecar.url, "election"))[1]
        assert body["leadership"] == "unknown"
        assert "which does not lead" in body["error"]
        async with election:
            assert await election.wait_for_leadership(WAIT_S)
            assert (await ask(sidecar.url, "leader"))[0] == 200
        assert (await ask(sidecar.url, "leader"))[0] == 503
        assert await ask(sidecar.url, "") == (503, {"name": ""})
        view.fixed = LeaderSeen("web-2_17_0123abcd")
        assert await ask(sidecar.url, "") == (200, {"name": "web-2"})


async def test_from_the_request_to_stop_on_this_process_does_not_lead_although_it_holds_the_lock(tmp_path: Path):
    url = f"file://{tmp_path}/lock"
    election, released = candidate(url), asyncio.Event()
    election.before_release(released.wait)
    async with Sidecar(election, LeaderView(url), port=0) as sidecar:
        await election.start()
        assert await election.wait_for_leadership(WAIT_S)
        assert (await ask(sidecar.url, "leader"))[1]["leader"]["since"].endswith("Z")
        stopping = asyncio.create_task(election.shutdown())
        body = await until_answer(sidecar.url, "leader", 503)
        assert (body["is_leader"], body["token"], body["time_left_s"]) == (False, None, 0.0)
        assert body["leadership"] == "unknown"
        assert election.is_leader  # so no other candidate leads yet
        assert [(await ask(sidecar.url, path))[0] for path in ("healthz", "readyz")] == [200, 503]
        released.set()
        await stopping
        await until_answer(sidecar.url, "election", 200, leadership="none")


async def test_a_candidate_without_a_name_of_its_own_is_named_by_its_host(postgres: Postgres):
    """An application_name in the connection string is the same in all candidates."""
    separator = "&" if "?" in postgres.dsn else "?"
    dsn, role = f"{postgres.dsn}{separator}application_name=shop", uuid.uuid4().hex
    lock = LeaderLock(dsn, role=role, settle_s=0)
    assert lock.identity is None
    async with served(lock, url=dsn, role=role) as url:
        body = await until_answer(url, "leader", 200)
        assert body["leader"]["name"] == HOST
        assert await ask(url, "") == (200, {"name": HOST})


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("web-1_17_0123abcd", "web-1"),
        ("my_host_17_0123abcd", "my_host"),
        ("web-1_01234567-89ab-cdef-0123-456789abcdef", "web-1"),  # client-go
        ("pgleaderlock web-1:17 15s wf", "web-1"),
        ("web-1", "web-1"),
        ("shop", "shop"),
    ],
)
def test_the_host_of_a_candidate_is_what_its_identity_begins_with(name: str, host: str):
    assert host_of(name) == host


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def test_the_answer_for_clients_of_the_leader_elector_is_that_of_the_image_to_the_byte(tmp_path: Path):
    """It marshalled a struct with one field."""
    url = f"file://{tmp_path}/lock"
    view = FixedView(LeaderSeen("leader-elector-inmr1"))
    async with Sidecar(candidate(url), view, port=0) as sidecar, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(sidecar.url)
        assert (answer.status_code, answer.content) == (200, b'{"name":"leader-elector-inmr1"}')
        assert answer.headers["cache-control"] == "no-store"
        head = await client.head(f"{sidecar.url}election")
        assert (head.status_code, head.content) == (200, b"")


async def test_other_paths_and_methods_are_refused(tmp_path: Path):
    async with Sidecar(candidate(f"file://{tmp_path}/lock"), FixedView(None), port=0) as sidecar:
        assert (await ask(sidecar.url, "leader", "POST"))[0] == 405
        status, body = await ask(sidecar.url, "leaders")
        assert status == 404
        assert "/leader" in body["error"]


async def test_an_address_that_cannot_be_had_is_an_error_that_names_it(tmp_path: Path):
    election, view = candidate(f"file://{tmp_path}/lock"), FixedView(None)
    with pytest.raises(ValueError, match="host must not be empty"):
        Sidecar(election, view, host="")
    async with Sidecar(election, view, port=0) as first:
        port = int(first.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(LockError, match=f"cannot listen on 127.0.0.1:{port}"):
            await Sidecar(election, view, port=port).start()
    assert Sidecar(election, view, host="::1").url == "http://[::1]:4040/"
