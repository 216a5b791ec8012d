"""Leader tasks when things are odd: exceptions of rare kinds, stray cancellations, a process that stood still."""

import asyncio
import contextlib
import threading

import pytest

from pgleaderlock import EventKind, Term, open_backend
from pgleaderlock import sync as blocking
from pgleaderlock.models import Grant
from tests.support.doubles import make_election, until
from tests.support.while_leader import Diary, leased, now

PATIENCE_S = 20


class Rare(BaseException):
    """Not an Exception, and nothing that ends a program."""


@pytest.mark.virtual_time
@pytest.mark.parametrize("rare", [Rare("odd"), BaseExceptionGroup("odd", [Rare()])])
async def test_an_exception_of_a_rare_kind_is_a_failure_like_any_other(rare: BaseException):
    election, _, witness = leased()
    runs = []

    @election.while_leader
    async def work(term: Term) -> None:
        runs.append(now())
        if len(runs) == 1:
            raise rare
        await asyncio.sleep(1e6)

    async with election:
        await until(lambda: len(runs) == 2)
        assert EventKind.WORK_FAILED in witness.kinds
        (error,) = witness.errors
        assert type(rare).__name__ in str(error)
        assert error.__cause__ is rare


@pytest.mark.parametrize("rare", [Rare("odd"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.slow
def test_what_a_thread_raises_does_not_end_the_event_loop(rare: BaseException):
    election = blocking.Election(open_backend(f"memory://rare-{type(rare).__name__}"))
    again = threading.Event()
    errors: list[Exception] = []
    runs = []

    @election.while_leader
    def work(term: Term) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise rare
        again.set()
        term.wait()

    election.on_error(errors.append)
    with election:
        assert again.wait(PATIENCE_S)
        assert election.is_leader
    assert [error.__cause__ for error in errors] == [rare]


@pytest.mark.virtual_time
async def test_work_that_swallowed_a_cancellation_of_its_own_is_still_cancelled_at_the_end():
    election, _, _ = leased()
    diary = Diary()

    @election.while_leader
    async def work(term: Term) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(1, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):  # as an application's time-out would do
            await asyncio.sleep(5)
        await diary.work(term)

    async with election:
        await until(lambda: diary.inside == 1)
        began_at = now()
        await election.step_down()
        assert now() - began_at < 1
    assert diary.inside == 0


@pytest.mark.virtual_time
async def test_renewal_that_comes_after_work_was_asked_to_stop_is_too_late():
    """Otherwise work that has looked at the clock would have ended for good, in a term that goes on."""
    stood_still_s = 0.0
    election, backend, witness = leased(clock=lambda: now() + stood_still_s)
    renew = backend.defaults["renew"]
    runs = 0

    @election.while_leader(drains=True)
    async def work(term: Term) -> None:
        nonlocal runs
        runs += 1
        while not term.is_ending:  # noqa: ASYNC110 - it looks at the clock, as work does
            await asyncio.sleep(0.001)

    async def renew_late() -> object:
        nonlocal stood_still_s
        grant = await renew()
        stood_still_s = 7.5
        await asyncio.sleep(0.01)  # the work looks first
        return grant

    backend.scripts["renew"] = [renew_late]
    backend.defaults["try_acquire"] = backend.defaults["renew"] = lambda: _grant(now() + stood_still_s)
    async with election:
        await until(lambda: runs == 2)
    assert witness.causes(EventKind.ERROR) == ["health_failed"]


async def _grant(at: float) -> Grant:
    return Grant(1, trusted_until=at + 10, lost_at=at + 8)


@pytest.mark.virtual_time
@pytest.mark.parametrize("when", ["at work", "in a pause"])
async def test_cancellation_by_other_code_does_not_leave_a_leader_without_work(when: str):
    election, _, witness = leased()
    tasks: list[asyncio.Task[None]] = []

    @election.while_leader
    async def work(term: Term) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if when == "at work" or len(tasks) > 1:
            await asyncio.sleep(1e6)

    async with election:
        await until(lambda: len(tasks) == 1)
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        await until(lambda: len(tasks) == 2)
        assert len(witness.errors) == (when == "at work")
        began_at = now()
        await election.step_down()
        assert now() - began_at < 1


async def test_a_thread_is_not_begun_again_because_its_task_was_cancelled():
    election = leased(health_interval_s=0.05)[0]
    begun: list[Term] = []

    @election.while_leader
    def work(term: Term) -> None:
        begun.append(term)
        term.wait(PATIENCE_S)

    async with election:
        await until(lambda: len(begun) == 1)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("pgleaderlock work")]
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        await election.shutdown()
    assert len(begun) == 1


def test_a_program_that_ends_without_a_shutdown_has_not_failed():
    heard: list[Exception] = []

    async def program() -> None:
        election, _, witness = make_election()
        election.while_leader(Diary().work)
        await election.start()
        await until(lambda: election.is_leader)
        heard.extend(witness.errors)
        election.on_error(heard.append)

    asyncio.run(program())
    assert [type(error).__name__ for error in heard] == ["ShutdownError"]
