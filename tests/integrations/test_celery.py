"""Celery's beat, the real one, with a broker in memory: it ticks in one process, and only while that one leads."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals

from pgleaderlock import ConnectionError, FixedInterval, LeadershipLost, LockState
from pgleaderlock.integrations import celery as ours
from pgleaderlock.integrations.celery import gate_beat
from pgleaderlock.models import Grant
from proofs.beat_torture import Verdict, judge
from tests.support.doubles import ScriptedBackend, make_election, until

EVERY_S = 0.05


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("under-test", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": EVERY_S}}
    yield app
    app.close()


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Which tasks were sent, and in which thread."""
    seen: list[str] = []

    def note(sender: str | None = None, **_: object) -> None:
        seen.append(threading.current_thread().name)

    signals.before_task_publish.connect(note)
    yield seen
    signals.before_task_publish.disconnect(note)


async def test_beat_ticks_in_each_term_and_not_between(app: Celery, sent: list[str], tmp_path: Path):
    backend = ScriptedBackend(try_acquire=[Grant(), None])
    election, _, heard = make_election(backend, health_interval_s=60.0, retry_strategy=FixedInterval(0.5))
    gate_beat(election, app, schedule_file=tmp_path / "schedule")
    async with election:
        await until(lambda: len(sent) >= 2)
        assert backend.loss is not None
        backend.loss.set_result(ConnectionError("gone"))
        await until(lambda: election.state is LockState.FOLLOWER)
        await until(lambda: election._leader_tasks.is_idle)
        between = len(sent)
        assert heard.words.count("on_acquired") == 1
        await until(lambda: len(sent) >= between + 2)
        assert heard.words.count("on_acquired") == 2
    assert set(sent) == {"pgleaderlock work celery beat"}
    assert [type(error) for error in heard.errors] == [ConnectionError]


async def test_a_send_that_waited_until_after_its_term_is_not_made(app: Celery, sent: list[str]):
    """As if the broker had been away: the scheduler is inside a tick when the term ends."""
    inside, go_on = threading.Event(), threading.Event()
    refused: list[type[Exception]] = []

    from celery.beat import Scheduler

    class Waiting(Scheduler):  # type: ignore[misc]
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            inside.set()
            assert go_on.wait(20)
            try:
                self.apply_async(entry, producer=producer, advance=False)
            except LeadershipLost as error:
                refused.append(type(error))

    backend = ScriptedBackend(try_acquire=[Grant(), *[None] * 100])
    election, _, _ = make_election(backend, health_interval_s=60.0, retry_strategy=FixedInterval(0.5))
    gate_beat(election, app, scheduler=Waiting)
    async with election:
        await until(inside.is_set)
        assert backend.loss is not None
        backend.loss.set_result(ConnectionError("gone"))
        await until(lambda: not election.is_leader)
        go_on.set()
        await until(lambda: bool(refused))
    assert sent == []


async def test_the_schedule_is_kept_now_and_then(app: Celery, sent: list[str], tmp_path: Path):
    app.conf.beat_sync_every = 1
    election, _, _ = make_election()
    gate_beat(election, app, schedule_file=tmp_path / "schedule", max_interval_s=0.05)
    async with election:
        await until(lambda: len(sent) >= 3)
    assert ours.__all__ == ["gate_beat"]


def test_the_count_of_the_torture_sees_two_beats_and_every_tick():
    """Slots of five seconds from 50 on: on time, missing, late, twice, and one from before that does not count."""
    times = [49.0, 50.1, 61.0, 65.1, 66.0]
    lines = [f"{at} {7 + (at > 65)} sent {at}" for at in times] + ["65.5 7 beat 0.0"]
    verdict = Verdict(failovers=3, in_broker=5)
    judge(lines, verdict, 10, 14)
    assert (verdict.slots, verdict.on_time, verdict.missing, verdict.late, verdict.twice) == (4, 2, 1, 1, 1)
    assert len(verdict.overlaps) == 1
    assert not verdict.is_good
    verdict.overlaps, verdict.twice = [], 0
    assert verdict.is_good
    assert "1 missing" in str(verdict)
