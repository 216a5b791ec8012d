"""Starlette and FastAPI: take part for as long as the application is up, and say over HTTP who leads.

    lock = LeaderLock(dsn, role="reports")
    app = FastAPI(lifespan=leader_lifespan(lock), routes=leader_routes(lock))

Needs ``pgleaderlock[starlette]``, or a FastAPI that is there already.

Not promised: that what ``/leader`` answers is still so when it is read. It is for load balancers and people; whatever
must happen once asks the lock.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pgleaderlock.engine.election import Election
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.answers import is_alive, is_ready, own_fields
from pgleaderlock.work.services import LeaderServices

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import BaseRoute, Route
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"the routes and the lifespan need the package {error.name}: pip install 'pgleaderlock[starlette]'"
    ) from error

__all__ = ["Lifespan", "leader_lifespan", "leader_routes"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What ``Starlette(lifespan=...)`` and ``FastAPI(lifespan=...)`` take."""

_UNCACHED = {"Cache-Control": "no-store"}


def leader_lifespan(
    lock: Election, services: LeaderServices | None = None, *, inner: Lifespan | None = None
) -> Lifespan:
    """Return a lifespan that takes part in the election, with these services if there are any.

    ``inner`` is a lifespan of your own. It is entered first, so that what leader tasks need is there, and left last.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            state = None if inner is None else await stack.enter_async_context(inner(app))
            if services is None:
                await stack.enter_async_context(lock)
            else:
                await stack.enter_async_context(services)
            yield state

    return lifespan


def leader_routes(lock: Election, prefix: str = "") -> list[BaseRoute]:
    """Return ``/leader``, ``/healthz`` and ``/readyz``, below ``prefix``.

    ``/leader`` answers 200 on the leader and 503 elsewhere, for a load balancer that wants the leader alone.
    ``/healthz`` answers 200 while the election runs: it has ended for good otherwise, and a restart helps.
    ``/readyz`` answers 200 until the end was asked for, on followers and while the database is away too.
    """

    async def leader(_: Request) -> JSONResponse:
        return _answer(lock, is_good=lock.is_leader)

    async def healthz(_: Request) -> JSONResponse:
        return _answer(lock, is_good=is_alive(lock))

    async def readyz(_: Request) -> JSONResponse:
        return _answer(lock, is_good=is_ready(lock))

    return [Route(f"{prefix}/{view.__name__}", view) for view in (leader, healthz, readyz)]


def _answer(lock: Election, *, is_good: bool) -> JSONResponse:
    return JSONResponse(own_fields(lock), status_code=200 if is_good else 503, headers=_UNCACHED)
