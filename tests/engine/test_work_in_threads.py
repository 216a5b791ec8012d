"""Plain functions as leader tasks: in threads, which cannot be stopped and have to look."""

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from pgleaderlock import LeaderLock, LockState, Term
from pgleaderlock._base import threads as _threads
from pgleaderlock.models import Grant
from tests.support.doubles import ScriptedBackend, make_election, until, until_state

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="nobody's")


async def test_thread_is_notified_by_its_term_and_waited_for(postgres, key):
    lock = LeaderLock(postgres.dsn, key=key, settle_s=0)
    begun, ended = threading.Event(), threading.Event()

    @lock.while_leader
    def work(term: Term) -> None:
        begun.set()
        while not term.wait(60):
            pytest.fail("an hour in a test")
        assert lock.is_leader, "a hand-over waits for it"
        ended.set()

    async with lock:
        await lock.wait_for_leadership()
        await until(begun.is_set)
    assert ended.is_set()


async def test_thread_is_notified_of_the_end_of_its_term_although_the_loop_stands_still():
    """The loop is blocked for as long as the test looks: only the clock can notify the thread."""
    backend = ScriptedBackend()
    loop = asyncio.get_running_loop()
    backend.defaults["try_acquire"] = Grant(1, loop.time() + 0.6, loop.time() + 0.4)
    backend.defaults["renew"] = Grant(1, loop.time() + 0.6, loop.time() + 0.4)
    election, _, _ = make_election(backend, health_interval_s=60.0, auto_reacquire=False)
    ended = threading.Event()

    @election.while_leader
    def work(term: Term) -> None:
        term.wait()
        ended.set()

    await election.start()
    await election.wait_for_leadership()
    assert ended.wait(20)  # in the event loop's own thread
    await election.shutdown(1.0)


async def test_a_wait_that_is_over_before_the_term_is_says_so():
    election, _, _ = make_election(health_interval_s=60.0)
    answers: list[bool] = []

    @election.while_leader(on_return="stop")
    def work(term: Term) -> None:
        answers.append(term.wait(0.01))
        answers.append(term.wait(0))

    await election.start()
    await until_state(election, LockState.STOPPED)
    assert answers == [False, False]


async def test_thread_has_the_context_of_its_registration_and_its_failure_is_reported():
    election, _, heard = make_election(health_interval_s=60.0)
    seen: list[str] = []

    @election.while_leader(on_failure="stop")
    def work() -> None:
        seen.append(REQUEST.get())
        raise StopIteration

    REQUEST.set("mine")
    await election.start()
    await until_state(election, LockState.STOPPED)
    assert seen == ["mine"]
    assert isinstance(heard.errors[0], RuntimeError)


async def test_failure_of_a_thread_after_its_term_is_reported_too():
    election, _, heard = make_election(health_interval_s=60.0, drain_s=20)

    @election.while_leader
    def work(term: Term) -> None:
        term.wait()
        raise ZeroDivisionError

    await election.start()
    await election.wait_for_leadership()
    await election.step_down()
    await until(lambda: [type(error) for error in heard.errors] == [ZeroDivisionError])
    await election.shutdown()


async def test_cancelled_leader_task_reports_what_its_thread_raises_later():
    election, _, heard = make_election(health_interval_s=60.0, drain_s=0.05, auto_reacquire=False)
    free = threading.Event()

    @election.while_leader
    def work() -> None:
        free.wait()
        raise ZeroDivisionError

    await election.start()
    await election.wait_for_leadership()
    asked = asyncio.ensure_future(election.step_down())
    await until_state(election, LockState.RELEASING)
    free.set()
    await asked
    await until(lambda: [type(error) for error in heard.errors] == [ZeroDivisionError])
    await election.shutdown()


async def test_a_thread_whose_loop_is_closed_ends_in_silence():
    free, ended = threading.Event(), threading.Event()

    def work() -> None:
        free.wait()
        ended.set()

    def elsewhere() -> None:
        async def begin() -> None:
            _threads.begin(work, "test")

        asyncio.run(begin())

    await asyncio.to_thread(elsewhere)
    free.set()
    assert await asyncio.to_thread(ended.wait, 20)


def test_a_term_ends_with_its_event_loop_and_the_thread_of_the_next_run_never_doubles():
    """The first loop ends under a running thread: the second run leads, and waits for that thread."""
    inside, most = [0], [0]
    free, terms = threading.Event(), []
    election = None

    def work(term: Term) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        terms.append(term)
        free.wait()
        inside[0] -= 1

    async def first() -> None:
        nonlocal election
        election, _, _ = make_election(health_interval_s=60.0, drain_s=0.1)
        election.while_leader(work)
        await election.start()
        await election.wait_for_leadership()
        await until(lambda: bool(terms))

    async def second() -> None:
        assert election is not None
        await election.start()
        await election.wait_for_leadership()
        await asyncio.sleep(0.05)
        assert len(terms) == 1
        free.set()
        await until(lambda: len(terms) == 2)
        await election.shutdown(0.5)

    asyncio.run(first())  # which cancels the election
    assert terms[0].is_ending
    asyncio.run(second())
    assert most == [1]


CLOSED = """
    import asyncio, threading, sys
    from pgleaderlock import LeaderLock, LockKey

    ended = threading.Event()

    async def main():
        lock = LeaderLock(sys.argv[1], key=LockKey.parse(sys.argv[2]), settle_s=0)

        @lock.while_leader
        def work(term):
            term.wait()
            ended.set()

        await lock.start()
        await lock.wait_for_leadership()
        return lock

    loop = asyncio.new_event_loop()
    lock = loop.run_until_complete(main())
    term = lock.term
    loop.close()
    assert term.is_ending
    assert ended.wait(20)

    print("ended")
"""


def test_a_loop_that_is_closed_under_a_leader_ends_the_term_of_its_threads(postgres, key):
    command = [sys.executable, "-c", textwrap.dedent(CLOSED), postgres.dsn, str(key)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == "ended\n", done.stderr


HARD = """
    import asyncio, sys, time
    from pgleaderlock import LeaderLock, LockKey
    from pgleaderlock.options import LockOptions

    async def main():
        lock = LeaderLock(
            sys.argv[1], key=LockKey.parse(sys.argv[2]), settle_s=0, lease_s=1.5,
            health_interval_s=0.3, options=LockOptions(hard_fence=True, drain_s=0.3)
        )

        @lock.while_leader
        def deaf():
            print("begun", flush=True)
            time.sleep(1000)

        async with lock:
            await lock.wait_for_leadership()
            await asyncio.sleep(0.2)
            await lock.step_down()
            print("handed over", flush=True)
            time.sleep(1000)

    asyncio.run(main())
"""


def test_the_hard_fence_ends_a_process_whose_work_does_not_stop(postgres, key):
    """Without leader tasks a hand-over disarms it at once: here all callbacks were notified, and the work runs on."""
    command = [sys.executable, "-c", textwrap.dedent(HARD), postgres.dsn, str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=50)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert "begun" in out
    assert process.returncode in (
        1,
        -signal.SIGSEGV,
    )  # its way of reading stacks of running threads is not without risk
    assert "Timeout" in err or process.returncode != 1
