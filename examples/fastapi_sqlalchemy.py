"""FastAPI with SQLAlchemy and asyncpg: the application's own engine is all that the lock needs.

    pip install 'pgleaderlock[starlette]' fastapi 'uvicorn[standard]' 'sqlalchemy[asyncio]' asyncpg
    DATABASE_URL=postgresql+asyncpg://app:secret@db/app uvicorn --app-dir examples --workers 4 fastapi_sqlalchemy:app

Four workers, on uvloop, and one of them runs the job. Kill that one with -9: another goes on within milliseconds.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from pgleaderlock import LeaderLock, Term
from pgleaderlock.integrations.starlette import leader_lifespan, leader_routes

engine = create_async_engine(os.environ["DATABASE_URL"], pool_size=2)
lock = LeaderLock(engine, role="examples/fastapi-sqlalchemy")


@lock.while_leader
async def job(term: Term) -> None:
    """Runs in one worker at a time. Cancelled when leadership ends."""
    print(f"the job begins in worker {os.getpid()} with token {term.token}", flush=True)
    while True:
        async with engine.connect() as connection:
            at = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        print(f"the job ran in worker {os.getpid()} at {at}", flush=True)
        await asyncio.sleep(1)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Whatever else the application opens and closes."""
    print(f"worker {os.getpid()} serves on {type(asyncio.get_running_loop()).__module__}", flush=True)
    yield
    await engine.dispose()


app = FastAPI(lifespan=leader_lifespan(lock, inner=lifespan), routes=leader_routes(lock))


@app.get("/")
async def index() -> dict[str, object]:
    """Every worker serves."""
    return {"worker": os.getpid(), "leads": lock.is_leader}
