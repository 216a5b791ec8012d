"""APScheduler, the real one: its jobs run while leading, and have ended before another leads."""

import asyncio
import threading
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED

from pgleaderlock import ConnectionError, FixedInterval, LockState
from pgleaderlock.integrations.apscheduler import SchedulerService, gate_scheduler
from pgleaderlock.models import Grant
from tests.support.doubles import ScriptedBackend, make_election, until, until_state

EVERY_S = 0.03


def gated(scheduler: Any, **scripts: list[Any]):
    backend = ScriptedBackend(**scripts)
    election, _, heard = make_election(backend, health_interval_s=0.2, retry_strategy=FixedInterval(1.0))
    gate_scheduler(election, scheduler)
    return election, backend, heard


@pytest.mark.parametrize("kind", [AsyncIOScheduler, BackgroundScheduler])
async def test_jobs_run_in_each_term_and_not_between(kind: type[Any]):
    led: list[bool] = []
    scheduler = kind()
    election, _, heard = gated(scheduler, try_acquire=[Grant(), None], renew=[ConnectionError("gone")])
    scheduler.add_job(lambda: led.append(election.is_leader), "interval", seconds=EVERY_S)
    assert scheduler.state == STATE_STOPPED
    async with election:
        await until(lambda: len(led) >= 2)
        await until(lambda: "on_lost" in heard.words)
        await until(lambda: scheduler.state == STATE_PAUSED)
        between = len(led)
        await asyncio.sleep(5 * EVERY_S)
        assert election.state is not LockState.LEADER
        assert len(led) == between
        await until(lambda: heard.words.count("on_acquired") == 2)
        await until(lambda: len(led) >= between + 2)
        assert scheduler.state == STATE_RUNNING
    assert scheduler.state == STATE_PAUSED
    assert led.count(False) <= 1  # both run a plain function in a thread: it may be under way at the loss
    scheduler.shutdown()
    await asyncio.sleep(0.01)


async def test_the_lock_is_kept_until_a_job_under_way_has_ended():
    scheduler = BackgroundScheduler()
    election, backend, _ = gated(scheduler)
    begun, go_on = threading.Event(), threading.Event()
    released_before_the_end: list[bool] = []

    def job() -> None:
        begun.set()
        assert go_on.wait(20)
        released_before_the_end.append("release" in backend.verbs)

    scheduler.add_job(job, "interval", seconds=EVERY_S)
    await election.start()
    await until(begun.is_set)
    stepping_down = asyncio.create_task(election.step_down())
    await until(lambda: scheduler.state == STATE_PAUSED)
    await asyncio.sleep(0.1)
    assert "release" not in backend.verbs
    go_on.set()
    await stepping_down
    assert released_before_the_end == [False]
    assert "release" in backend.verbs
    await election.shutdown()
    scheduler.shutdown()


async def test_a_scheduler_that_was_shut_down_meanwhile_needs_no_pause():
    scheduler = AsyncIOScheduler()
    election, _, heard = gated(scheduler)
    async with election:
        await until(lambda: scheduler.state == STATE_RUNNING)
        scheduler.shutdown()
        await until(lambda: scheduler.state == STATE_STOPPED)
    await until_state(election, LockState.STOPPED)
    assert heard.errors == []


def test_what_is_no_scheduler_is_refused():
    with pytest.raises(TypeError, match="APScheduler"):
        SchedulerService(object())
