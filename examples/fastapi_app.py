"""A FastAPI application of which one worker runs the job, whichever leads.

    PG_DSN=postgresql://... uvicorn --app-dir examples --workers 4 fastapi_app:app

Ask it: curl -i localhost:8000/leader. Kill the worker that leads: another goes on within milliseconds. With $JOURNAL
the job writes what it does to that file, which is how the tests see that it never runs twice at once.
"""

import asyncio
import os
import sys
import time

from fastapi import FastAPI

from pgleaderlock import LeaderLock, LeaderServices, Term
from pgleaderlock.integrations.starlette import leader_lifespan, leader_routes

BEAT_S = 0.005

lock = LeaderLock(os.environ["PG_DSN"], role="examples/fastapi", health_interval_s=1.0)
services = LeaderServices(lock)
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "JOURNAL" in os.environ else None


def note(what: str) -> None:
    """Write one line, stamped with a clock that all processes of this host share, and which outlives a kill -9."""
    line = f"{time.clock_gettime(time.CLOCK_BOOTTIME):.6f} {os.getpid()} {what}\n".encode()
    os.write(sys.stdout.fileno() if journal is None else journal, line)


@lock.while_leader
async def job(term: Term) -> None:
    """Runs in one worker at a time. Cancelled when leadership ends."""
    note(f"begin in term {term.token}")
    try:
        while True:
            await asyncio.sleep(1.0 if journal is None else BEAT_S)
            note("beat")
    finally:
        note("end")


async def warm_up() -> None:
    """Stands for a scheduler, or whatever else has a start and a stop and runs on the leader alone."""
    note("the scheduler starts")


async def cool_down() -> None:
    """And is stopped with the leadership."""
    note("the scheduler stops")


services.add("scheduler", start=warm_up, stop=cool_down)
app = FastAPI(lifespan=leader_lifespan(lock, services), routes=leader_routes(lock))


@app.get("/")
async def index() -> dict[str, object]:
    """Every worker serves."""
    return {"worker": os.getpid(), "leads": lock.is_leader}
