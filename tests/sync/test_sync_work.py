"""Leader tasks of the blocking API: threads that look at their term."""

import threading

import pytest

from pgleaderlock import LockError, LockKey, LockState, Term, Tick, open_backend
from pgleaderlock.sync import Election, LeaderLock
from tests.conftest import Postgres
from tests.support.registry import drop

PATIENCE_S = 20


def test_work_runs_in_a_thread_and_is_finished_before_the_lock_is_free(postgres: Postgres, key: LockKey):
    begun, ended = threading.Event(), threading.Event()
    lock = LeaderLock(postgres.dsn, key=key, settle_s=0)

    @lock.while_leader
    def work(term: Term) -> None:
        assert term.token == lock.token
        assert lock.is_in_leader_task
        begun.set()
        term.wait()
        assert lock.is_leader
        ended.set()

    with lock:
        assert begun.wait(PATIENCE_S)
        assert lock.term is not None
        assert not lock.is_in_leader_task
    assert ended.is_set()
    assert lock.term is None


@pytest.mark.parametrize("verb", ["shutdown", "step_down"])
def test_work_that_asks_for_the_end_does_not_wait_for_itself(verb: str):
    asked, again = threading.Event(), threading.Event()
    lock = Election(open_backend(f"memory://sync-work-{verb}"))

    @lock.while_leader
    def work(term: Term) -> None:
        if asked.is_set():
            again.set()
            term.wait()
            return
        getattr(lock, verb)()
        asked.set()
        assert term.wait(PATIENCE_S)

    with lock:
        assert asked.wait(PATIENCE_S)
        if verb == "step_down":
            assert again.wait(PATIENCE_S)
        else:
            lock.shutdown()
            assert lock.state is LockState.STOPPED


def test_what_is_registered_while_leading_begins_at_once():
    begun, from_callback = threading.Event(), threading.Event()
    lock = Election(open_backend("memory://sync-work-late"))

    def work(term: Term) -> None:
        begun.set()
        term.wait()

    def other(term: Term) -> None:
        from_callback.set()
        term.wait()

    @lock.on_acquired
    def add_more() -> None:
        lock.while_leader(other)

    with lock:
        assert lock.wait_for_leadership(PATIENCE_S)
        lock.while_leader(name="late")(work)
        assert begun.wait(PATIENCE_S)
        assert from_callback.wait(PATIENCE_S)


def test_run_while_leader_is_a_whole_program():
    lock = Election(open_backend("memory://sync-work-run"))
    assert lock.run_while_leader(lambda: 7, on_return="stop") == 7
    assert lock.state is LockState.STOPPED

    def fail(_term: Term) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lock.run_while_leader(fail, on_failure="stop")
    assert lock.state is LockState.STOPPED


def test_run_while_leader_in_an_election_that_runs():
    lock = Election(open_backend("memory://sync-work-in"))
    with lock:
        assert lock.run_while_leader(lambda: 8, on_return="stop") == 8


def test_where_it_would_wait_for_itself_it_is_refused():
    lock = Election(open_backend("memory://sync-work-self"))
    refused: list[Exception] = []

    def work(term: Term) -> None:
        try:
            lock.run_while_leader(lambda: None)
        except LockError as error:
            refused.append(error)

    lock.run_while_leader(work, on_return="stop")
    assert "would wait for itself" in str(refused[0])


def test_coroutine_functions_are_refused():
    lock = Election(open_backend("memory://sync-work-async"))

    async def work() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        lock.while_leader(work)
    with pytest.raises(TypeError, match="plain function"):
        lock.run_while_leader(work)


def test_scheduled_work_runs_in_threads_and_may_ask_for_its_own_end(postgres: Postgres, key: LockKey):
    schema = f"sync_ticks_{key.numbers[0]}_{key.numbers[1]}"
    lock = LeaderLock(postgres.dsn, key=key, settle_s=0, term_table=True, schema=schema)
    ticked, cronned = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @lock.every("100ms", name="quick")
    def quick(tick: Tick) -> None:
        threads.append(threading.current_thread())
        assert lock.is_in_leader_task
        if not ticked.is_set():
            ticked.set()
            lock.shutdown()

    @lock.cron("* * * * *", name="minutely")
    def minutely() -> None:
        cronned.set()

    async def never() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        lock.every("5m", never)
    try:
        with lock:
            assert ticked.wait(PATIENCE_S)
        assert threads[0] is not threading.main_thread()
    finally:
        drop(postgres.dsn, schema)


def test_registering_an_object_that_is_not_callable_inside_leader_work_is_an_error():
    election = Election(open_backend("memory://refused-in-work"))
    told: list[str] = []
    done = threading.Event()

    @election.while_leader
    def work(term: Term) -> None:
        try:
            election.while_leader(lambda one, two: None)
        except TypeError as error:
            told.append(str(error))
        done.set()
        term.wait()

    with election:
        assert done.wait(PATIENCE_S)
    assert "cannot be called" in told[0]
