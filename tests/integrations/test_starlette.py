"""Starlette and FastAPI, the real ones: lifespan and routes."""

import contextlib
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from pgleaderlock import LeaderLock, LeaderServices, LockKey, LockState
from pgleaderlock.integrations.starlette import leader_lifespan, leader_routes
from tests.conftest import Postgres


def make_lock(postgres: Postgres, key: LockKey) -> LeaderLock:
    return LeaderLock(postgres.dsn, key=key, lease_s=3.0, health_interval_s=1.0, settle_s=0)


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """The application between its start and its end, as a server would run it."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app")
    async with app.router.lifespan_context(app), client:
        yield client


async def test_one_of_two_applications_is_the_leader_and_both_are_healthy(postgres: Postgres, key: LockKey):
    words: list[str] = []
    apps = []
    for name in ("first", "second"):
        lock = make_lock(postgres, key)
        services = LeaderServices(lock)
        services.add("job", start=lambda name=name: words.append(f"+{name}"), stop=lambda: None)  # type: ignore[misc]
        apps.append(FastAPI(lifespan=leader_lifespan(lock, services), routes=leader_routes(lock)))
    async with served(apps[0]) as first:
        answer = await first.get("/leader")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        body = answer.json()
        assert body["is_leader"] is True
        assert body["state"] == "leader"
        assert body["token"] > 0
        assert 0 < body["time_left_s"] <= 3
        async with served(apps[1]) as second:
            assert (await second.get("/leader")).status_code == 503
            assert (await second.get("/leader")).json()["is_leader"] is False
            assert [(await second.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert words[0] == "+first"


async def test_without_services_the_election_runs_for_as_long_as_the_application_and_its_own_lifespan_around_it(
    postgres: Postgres, key: LockKey
):
    lock = make_lock(postgres, key)
    seen: list[LockState] = []

    @contextlib.asynccontextmanager
    async def pool(_: Starlette) -> AsyncIterator[dict[str, str]]:
        seen.append(lock.state)
        yield {"pool": "of connections"}
        seen.append(lock.state)

    app = Starlette(lifespan=leader_lifespan(lock, inner=pool), routes=[Mount("/internal", routes=leader_routes(lock))])
    async with served(app) as client:
        assert (await client.get("/internal/healthz")).status_code == 200
    assert seen == [LockState.STOPPED, LockState.STOPPED]


async def test_an_election_that_has_ended_is_neither_healthy_nor_ready(postgres: Postgres, key: LockKey):
    lock = make_lock(postgres, key)
    app = Starlette(routes=leader_routes(lock, "/pg"))
    async with served(app) as client:
        answers = [await client.get(f"/pg/{path}") for path in ("leader", "healthz", "readyz")]
    assert [answer.status_code for answer in answers] == [503, 503, 503]
    assert answers[0].json() == {"is_leader": False, "state": "stopped", "token": None, "time_left_s": 0.0}
    assert "postgres" not in answers[0].text
