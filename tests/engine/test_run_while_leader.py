"""``run_while_leader`` at awkward moments: cancelled twice, called again, interrupted, with threads that take long."""

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from pgleaderlock import LockState, Term, open_backend
from pgleaderlock import sync as blocking
from pgleaderlock.sync._loop_thread import Attempt
from tests.support.doubles import until, until_state
from tests.support.while_leader import Diary, leased, now

PATIENCE_S = 20


@pytest.mark.virtual_time
async def test_run_while_leader_that_is_cancelled_twice_leaves_nothing_registered():
    election, _, _ = leased()
    diary = Diary()

    async def stubborn(term: Term) -> None:
        diary.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(3)
            diary.leave()

    running = asyncio.create_task(election.run_while_leader(stubborn))
    await until(lambda: diary.inside == 1)
    running.cancel()
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    again = asyncio.create_task(election.run_while_leader(stubborn))
    await until(lambda: len(diary.times("begin")) == 2)
    await asyncio.sleep(5)
    assert diary.most == 1
    again.cancel()
    await asyncio.wait({again})
    await election.shutdown()
    assert diary.inside == 0


async def test_the_same_function_is_not_begun_while_a_thread_of_an_earlier_call_still_runs():
    election = leased(health_interval_s=0.05, drain_s=0.1)[0]
    go = threading.Event()
    inside: list[int] = []
    most: list[int] = []
    begun: list[int] = []

    def work(term: Term) -> None:
        inside.append(1)
        begun.append(1)
        most.append(len(inside))
        if len(begun) == 1:
            go.wait(PATIENCE_S)  # it does not look
        else:
            term.wait()
        inside.pop()

    first = asyncio.create_task(election.run_while_leader(work))
    await until(lambda: len(begun) == 1)
    await election.shutdown(0.1)
    await asyncio.wait({first})
    second = asyncio.create_task(election.run_while_leader(work))
    await until_state(election, LockState.LEADER)
    await asyncio.sleep(0.2)
    assert len(begun) == 1
    go.set()
    await until(lambda: len(begun) == 2)
    assert max(most) == 1
    second.cancel()
    await asyncio.wait({second})


@pytest.mark.virtual_time
async def test_run_while_leader_does_not_raise_what_only_ended_a_term():
    election, _, _ = leased()
    runs = []

    async def work(term: Term) -> None:
        runs.append(now())
        if len(runs) == 1:
            raise ValueError("not today")
        await asyncio.sleep(1e6)

    running = asyncio.create_task(election.run_while_leader(work, on_failure="step_down"))
    await until(lambda: len(runs) == 2)
    await election.shutdown()
    await running


async def test_thread_whose_run_while_leader_is_cancelled_is_notified_although_its_term_goes_on():
    election = leased(health_interval_s=0.05)[0]
    begun, told = threading.Event(), threading.Event()

    def work(term: Term) -> None:
        begun.set()
        if term.wait(PATIENCE_S):
            told.set()

    async with election:
        running = asyncio.create_task(election.run_while_leader(work))
        await until(begun.is_set)
        running.cancel()
        await asyncio.wait({running}, timeout=5)
        assert running.cancelled()
        assert told.is_set()
        assert election.is_leader
        assert election.term is not None
        assert not election.term.is_ending


def test_an_interrupted_run_while_leader_stops_the_election():
    election = blocking.Election(open_backend("memory://interrupted"))
    begun, told, stopped = threading.Event(), threading.Event(), threading.Event()
    election.on_stopped(stopped.set)

    def work(term: Term) -> None:
        begun.set()
        if term.wait(PATIENCE_S):
            told.set()

    def interrupt() -> None:
        begun.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        election.run_while_leader(work)
    assert told.wait(PATIENCE_S)
    assert stopped.wait(PATIENCE_S)


def test_ctrl_c_while_the_call_is_being_handed_over_stops_the_election_too(monkeypatch: pytest.MonkeyPatch):
    election = blocking.Election(open_backend("memory://interrupted-early"))
    begun, stopped = threading.Event(), threading.Event()
    election.on_stopped(stopped.set)
    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(*args: Any) -> None:
        hand_over(*args)
        monkeypatch.undo()
        assert begun.wait(PATIENCE_S)
        raise KeyboardInterrupt  # before the caller has been given the future of a call that runs already

    def work(term: Term) -> None:
        begun.set()
        term.wait(PATIENCE_S)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        election.run_while_leader(work)
    assert stopped.wait(PATIENCE_S / 2)


async def test_a_call_that_is_given_up_before_it_began_is_not_made():
    made = False

    async def call() -> None:
        nonlocal made
        made = True

    attempt = Attempt(call())
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt.run()
    assert not made


def test_work_that_is_refused_leaves_no_election_behind():
    election = blocking.Election(open_backend("memory://refused"))
    with pytest.raises(TypeError, match="cannot be called"):
        election.run_while_leader(lambda one, two: None)
    with pytest.raises(ValueError, match="on_return"):
        election.run_while_leader(lambda: None, on_return="never")  # type: ignore[arg-type]
    assert election.state is LockState.STOPPED
