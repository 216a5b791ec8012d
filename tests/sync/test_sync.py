"""The blocking API: threads, callbacks on their own thread, Ctrl-C, forks and the interpreter's exit."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgleaderlock
from pgleaderlock import (
    ConnectionError,
    Event,
    EventKind,
    FixedInterval,
    LeadershipLost,
    LockError,
    LockKey,
    LockState,
    open_backend,
)
from pgleaderlock.sync import Election, LeaderLock
from tests.conftest import Postgres
from tests.support.processes import Process, candidate
from tests.support.sync import until

LOOP_THREAD = "pgleaderlock loop"
CALLBACK_THREAD = "pgleaderlock callbacks"


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not threads(LOOP_THREAD))
    until(lambda: not threads(CALLBACK_THREAD))


@pytest.fixture
def make(postgres: Postgres, key: LockKey) -> Iterator[Callable[..., LeaderLock]]:
    """Candidates for one key, all stopped at the end."""
    made: list[LeaderLock] = []

    def one(**settings: Any) -> LeaderLock:
        defaults = {"key": key, "settle_s": 0, "retry_strategy": FixedInterval(0.05)}
        made.append(LeaderLock(postgres.dsn, **{**defaults, **settings}))
        return made[-1]

    yield one
    for lock in made:
        lock.shutdown()


def memory(name: str, **settings: Any) -> Election:
    backend = open_backend(f"memory://{name}", lease_s=settings.pop("lease_s", 15.0))
    return Election(backend, retry_strategy=FixedInterval(0.02), **settings)


def holds(dsn: str, key: LockKey) -> bool:
    """Whether the lock is held, as a plain session sees it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", key.numbers).fetchone()
        return row != (True,)


def test_waiting_for_a_lock_that_was_never_started_is_an_error_and_not_a_lost_race(make):
    with pytest.raises(LockError, match=r"LeaderLock was not started.*call start\(\) first"):
        make().wait_for_leadership(20)


# --- The life of a lock ----------------------------------------------------------------------------------------


def test_a_lock_is_won_held_and_given_back(make, postgres: Postgres, key: LockKey):
    lock = make()
    assert (lock.state, lock.is_leader, lock.token, lock.trusted_until) == (LockState.STOPPED, False, None, None)
    with lock as entered:
        assert entered is lock
        assert lock.wait_for_leadership(20)
        assert lock.is_leader
        assert lock.state is LockState.LEADER
        assert lock.token is not None
        assert lock.trusted_until is not None
        assert 0 < lock.time_left_s <= 15
        assert holds(postgres.dsn, key)
    assert lock.state is LockState.STOPPED
    assert not lock.is_leader
    assert lock.time_left_s == 0
    assert not holds(postgres.dsn, key)


def test_a_lock_says_what_it_is(make, key: LockKey):
    lock = make()
    assert lock.key == key
    assert lock.labels["key1"] == key.numbers[0]
    assert repr(lock).startswith("<pgleaderlock.sync.LeaderLock key1=")
    assert repr(lock).endswith(" stopped>")


def test_all_locks_share_one_thread_which_ends_with_the_last_of_them():
    assert threads(LOOP_THREAD) == []
    first, second = memory("sync-share-1"), memory("sync-share-2")
    first.start()
    second.start()
    (thread,) = threads(LOOP_THREAD)
    assert thread.daemon
    first.shutdown()
    assert threads(LOOP_THREAD) == [thread]
    second.shutdown()
    until(lambda: not thread.is_alive())
    first.start()  # and again, on another
    assert first.wait_for_leadership(20)
    assert threads(LOOP_THREAD) not in ([], [thread])
    first.shutdown()


def test_of_two_locks_one_leads_and_the_other_takes_over(make):
    first, second = make(), make()
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    assert not second.wait_for_leadership(0.1)
    token = first.token
    first.step_down()
    assert not first.is_leader
    assert first.state is not LockState.STOPPED
    assert second.wait_for_leadership(20)
    assert second.token > token


def test_it_contends_with_the_asyncio_api(make, postgres: Postgres, key: LockKey):
    lock = make()
    with candidate(postgres.dsn, key) as other:
        other.wait_for("acquired")
        lock.start()
        assert not lock.wait_for_leadership(0.1)
        other.signal(signal.SIGKILL)
        assert lock.wait_for_leadership(20)


def test_a_stopped_lock_is_waited_for_in_vain_and_stopped_again_without_harm(make):
    lock = make()
    lock.shutdown()
    lock.step_down()
    with lock:
        pass
    assert lock.wait_for_leadership() is False
    lock.shutdown()
    lock.step_down()
    until(lambda: not threads(LOOP_THREAD))


def test_waiting_caller_returns_when_the_election_stops(make):
    first, second = make(), make()
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(second.wait_for_leadership()))
    waiter.start()
    second.shutdown()
    waiter.join(20)
    assert answers == [False]


def test_a_lock_whose_strategy_gives_up_stops_and_frees_the_thread(make):
    class Never:
        def next_delay_s(self, ctx: object) -> None:
            return None

    first, second = make(), make(retry_strategy=Never())
    first.start()
    assert first.wait_for_leadership(20)
    errors: list[Exception] = []
    second.on_error(errors.append)
    second.start()
    assert second.wait_for_leadership(20) is False
    assert second.state is LockState.STOPPED
    assert isinstance(errors[0], LockError)


@pytest.mark.slow
def test_state_is_asked_from_many_threads_while_terms_come_and_go():
    lock = memory("sync-many")
    stop = threading.Event()
    odd: list[object] = []

    def ask() -> None:
        while not stop.is_set():
            token, left_s = lock.token, lock.time_left_s
            if (token is not None and token < 0) or not 0 <= left_s <= 15 or lock.is_leader not in (True, False):
                odd.append((token, left_s))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        with lock:
            for _ in range(10):
                assert lock.wait_for_leadership(20)
                lock.step_down()
    finally:
        stop.set()
        for asker in askers:
            asker.join()
    assert odd == []


def test_many_threads_start_and_stop_one_lock_at_once():
    lock = memory("sync-crowd")
    errors: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(10):
                lock.start()
                lock.wait_for_leadership(0.001)
                lock.shutdown()
        except BaseException as error:
            errors.append(error)

    crowd = [threading.Thread(target=use) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(30)
    lock.shutdown()
    assert errors == []
    assert lock.state is LockState.STOPPED


# --- Callbacks -------------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_on_one_thread_of_the_locks_own(make):
    lock, heard, where = make(), [], set()

    def note(what: str) -> Callable[..., None]:
        def callback(*arguments: object) -> None:
            heard.append(what)
            where.add(threading.current_thread())

        return callback

    lock.on_acquired(note("acquired"))
    lock.before_release(note("draining"))
    lock.on_released(note("released"))
    lock.on_stopped(note("stopped"))
    lock.on_state_change(lambda old, new: heard.append(f"{old.value}-{new.value}"))
    with lock:
        assert lock.wait_for_leadership(20)
        assert heard[-2:] == ["acquiring-leader", "acquired"]
        (thread,) = where
        assert thread.name == CALLBACK_THREAD
        assert threads(LOOP_THREAD) != [thread]
    assert heard[4:] == ["draining", "leader-releasing", "releasing-stopped", "released", "stopped"]
    assert where == {thread}


def test_decorators_return_the_function_and_stack():
    lock = memory("sync-stack")

    @lock.on_lost
    @lock.on_released
    @lock.on_acquire_failed
    def stop() -> None: ...

    assert stop() is None
    assert lock.subscribe(print) is print


def test_subscriber_is_notified_of_every_event():
    lock = memory("sync-subscribe")
    heard: list[EventKind] = []
    lock.subscribe(lambda event: heard.append(event.kind))
    with lock:
        assert lock.wait_for_leadership(20)
    assert EventKind.ACQUIRED in heard
    assert heard[-1] is EventKind.STOPPED


def test_a_callback_that_blocks_delays_no_renewal(make):
    lock = make(lease_s=1.5, health_interval_s=0.1)
    go_on = threading.Event()
    lock.on_acquired(lambda: go_on.wait(30))
    with lock:
        until(lambda: lock.is_leader)
        token, trusted_until = lock.token, lock.trusted_until
        until(lambda: (lock.trusted_until or 0) > trusted_until + 2)  # more than the whole lease
        assert lock.token == token
        go_on.set()


def test_on_lost_is_waited_for_with_the_lock_still_out_of_reach_of_others(make, postgres: Postgres, key: LockKey):
    first, second = make(lease_s=15), make()
    told, go_on, order = threading.Event(), threading.Event(), []

    @first.on_lost
    def stop() -> None:
        told.set()
        go_on.wait(20)
        order.append("first stopped")

    second.on_acquired(lambda: order.append("second leads"))
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND classid = %s::int::oid AND objid = %s::int::oid",
            key.numbers,
        )
    assert told.wait(20)
    assert not first.is_leader
    assert not second.wait_for_leadership(0.3)
    go_on.set()
    assert second.wait_for_leadership(20)
    assert order == ["first stopped", "second leads"]


def test_what_a_callback_raises_is_an_error_and_ends_nothing():
    lock = memory("sync-raise")
    errors: list[Exception] = []
    failures = iter([ValueError("first"), SystemExit(3), StopIteration(), KeyboardInterrupt()])

    @lock.on_acquired
    def fail() -> None:
        raise next(failures)

    lock.on_error(errors.append)
    with lock:
        for _ in range(4):
            assert lock.wait_for_leadership(20)
            lock.step_down()
    assert [type(error) for error in errors] == [ValueError, LockError, LockError, LockError]
    assert "SystemExit: 3" in str(errors[1])
    assert isinstance(errors[1].__cause__, SystemExit)


def test_a_callback_may_take_the_event_and_leave_out_attempts_that_failed():
    backend = open_backend("memory://sync-events", lease_s=15.0)
    lock = Election(backend, retry_strategy=FixedInterval(0.02))
    heard: list[tuple[str, str]] = []
    real, failures = backend.try_acquire, iter([ConnectionError("away")])

    async def try_acquire() -> Any:
        for failure in failures:
            raise failure
        return await real()

    backend.try_acquire = try_acquire  # type: ignore[method-assign]

    @lock.on_acquired
    def begin(event: Event) -> None:
        heard.append(("begin", event.cause))

    @lock.on_lost
    def note(event: Event) -> None:
        heard.append(("note", event.kind.value))

    @lock.on_lost(attempts=False)
    def stop() -> None:
        heard.append(("stop", ""))

    with lock:
        assert lock.wait_for_leadership(20)
    assert heard == [("note", "attempt_failed"), ("begin", "acquire_succeeded")]


def test_a_coroutine_function_is_refused_and_a_coroutine_reported():
    lock = memory("sync-coroutines")

    async def callback() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        lock.on_acquired(callback)
    with pytest.raises(TypeError, match="callable"):
        lock.on_acquired(3)  # type: ignore[type-var]
    errors: list[Exception] = []
    lock.on_acquired(lambda *_: callback())
    lock.on_error(errors.append)
    with lock:
        assert lock.wait_for_leadership(20)
    assert "returned a coroutine" in str(errors[0])


@pytest.mark.parametrize("verb", ["shutdown", "step_down"])
def test_in_a_callback_an_end_is_only_asked_for(verb: str):
    lock = memory(f"sync-ask-{verb}")
    heard: list[str] = []

    @lock.on_acquired
    def leave() -> None:
        if "asked" not in heard:
            getattr(lock, verb)(5)
            heard.append("asked")

    lock.on_released(lambda: heard.append("released"))
    lock.start()
    until(lambda: "released" in heard)
    assert heard == ["asked", "released"]
    if verb == "step_down":
        assert lock.wait_for_leadership(20)
    lock.shutdown()


def test_in_a_callback_what_would_wait_for_itself_is_refused():
    lock = memory("sync-self")
    refusals: list[str] = []

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
            refusals.append("done")
        except LockError as error:
            refusals.append(str(error))

    lock.on_acquired(lambda: attempt(lock.start))
    lock.on_acquired(lambda: attempt(lock.wait_for_leadership))
    lock.on_stopped(lambda: attempt(lock.start))
    with lock:
        assert lock.wait_for_leadership(20)
    assert refusals[0] == "done"  # it runs: nothing to do
    assert refusals[1].startswith("wait_for_leadership() in a callback would wait for itself")
    assert refusals[2].startswith("start() in a callback while stopping would wait for itself")


def test_on_the_event_loops_thread_a_blocking_call_is_refused():
    refusals: list[Exception] = []

    class Meddler:
        def next_delay_s(self, ctx: object) -> float:
            try:
                second.shutdown()
            except LockError as error:
                refusals.append(error)
            return 0.02

    first = memory("sync-meddler")
    second = Election(open_backend("memory://sync-meddler"), retry_strategy=Meddler())
    with first:
        assert first.wait_for_leadership(20)
        with second:
            until(lambda: refusals)
    assert "own event loop's thread" in str(refusals[0])


def test_the_callbacks_thread_is_there_before_one_is_due_at_exit_and_only_for_callbacks():
    lock = memory("sync-early")
    with lock:
        assert lock.wait_for_leadership(20)
        assert not threads(CALLBACK_THREAD)
        lock.on_stopped(lambda: None)
        assert threads(CALLBACK_THREAD)
    until(lambda: not threads(CALLBACK_THREAD))
    with lock:
        assert threads(CALLBACK_THREAD)
    until(lambda: not threads(CALLBACK_THREAD))


def test_a_callback_that_never_returns_costs_a_shutdown_its_time_out_only():
    lock = memory("sync-stuck")
    go_on, stopped = threading.Event(), []
    lock.on_acquired(lambda: go_on.wait(30))
    lock.on_stopped(lambda: stopped.append("late"))
    lock.start()
    until(lambda: lock.is_leader)
    lock.shutdown(0.1)
    assert lock.state is LockState.STOPPED
    go_on.set()
    until(lambda: not threads(CALLBACK_THREAD))
    assert stopped == []  # given up before its turn came


# --- Interruptions ---------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_wait_and_leaves_the_lock_usable(make):
    first, second = make(), make()
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        second.wait_for_leadership(30)
    assert time.monotonic() - before < 20
    first.shutdown()
    assert second.wait_for_leadership(20)


def test_a_signals_handler_may_shut_down_the_lock_that_is_waited_for(make):
    first, second = make(), make()
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    before = signal.signal(signal.SIGUSR1, lambda *_: second.shutdown())
    try:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        assert second.wait_for_leadership(30) is False
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert second.state is LockState.STOPPED


def test_a_block_that_ends_in_an_exception_gives_the_lock_back(make, postgres: Postgres, key: LockKey):
    lock = make()
    with pytest.raises(KeyboardInterrupt), lock:
        assert lock.wait_for_leadership(20)
        raise KeyboardInterrupt
    assert lock.state is LockState.STOPPED
    assert not holds(postgres.dsn, key)


def test_a_background_thread_that_is_ended_from_within_leaves_locks_that_can_be_started_again():
    class Quitter:
        def next_delay_s(self, ctx: object) -> float:
            if quits.is_set():
                raise SystemExit
            return 0.02

    quits = threading.Event()
    first = memory("sync-quitter")
    second = Election(open_backend("memory://sync-quitter"), retry_strategy=Quitter())
    first.start()
    assert first.wait_for_leadership(20)
    second.start()
    quits.set()
    assert second.wait_for_leadership(20) is False
    until(lambda: not threads(LOOP_THREAD))
    assert not first.is_leader
    quits.clear()
    with first:
        assert first.wait_for_leadership(20)
    second.shutdown()


def test_where_no_thread_can_be_had_a_start_is_refused(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    lock = memory("sync-no-thread")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(LockError, match="can't start new thread"):
            lock.start()
    with lock:
        assert lock.wait_for_leadership(20)


# --- Arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(Election, pgleaderlock.Election), (LeaderLock, pgleaderlock.LeaderLock)])
def test_the_signature_is_that_of_the_asyncio_api(ours: type, theirs: type):
    assert inspect.signature(ours) == inspect.signature(theirs)


@pytest.mark.parametrize(("ours", "theirs"), [(Election, pgleaderlock.Election), (LeaderLock, pgleaderlock.LeaderLock)])
def test_the_public_methods_are_those_of_the_asyncio_api(ours: type, theirs: type):
    offered = {name for name in dir(ours) if name[0] != "_"}
    for_supervisors = {"lifeline"}  # descriptors of the background thread's own connections
    assert offered == {name for name in dir(theirs) if name[0] != "_"} - for_supervisors


@pytest.mark.parametrize("event", [threading.Event(), asyncio.Event()])
def test_a_shutdown_event_is_refused(event: Any, postgres: Postgres):
    with pytest.raises(TypeError, match="call shutdown"):
        LeaderLock(postgres.dsn, 1, 2, shutdown_event=event)
    with pytest.raises(TypeError, match="call shutdown"):
        Election(open_backend("memory://sync-event"), shutdown_event=event)


def test_wrong_arguments_are_refused_before_anything_runs(postgres: Postgres):
    with pytest.raises(ValueError, match="exactly one way"):
        LeaderLock(postgres.dsn)
    lock = LeaderLock(postgres.dsn, 1, 2)
    for verb in (lock.shutdown, lock.step_down, lock.wait_for_leadership):
        with pytest.raises(ValueError, match="timeout_s"):
            verb(-1)


# --- The fence -------------------------------------------------------------------------------------------------


def test_a_fence_holds_in_a_blocking_transaction(make, postgres: Postgres):
    lock = make(term_table=True)
    with psycopg.connect(postgres.dsn) as connection:
        with pytest.raises(LeadershipLost):
            lock.fence(connection)
        connection.rollback()
        with lock:
            assert lock.wait_for_leadership(20)
            with connection.transaction():
                lock.fence(connection)
                connection.execute(lock.fence_sql())
        with pytest.raises(TypeError, match=r"psycopg\.Connection"):
            lock.fence(object())


# --- Forks and exits, in real processes ------------------------------------------------------------------------

_PRELUDE = """
import logging, os, signal, sys, threading, time
from pgleaderlock import FixedInterval, LockError, LockKey
from pgleaderlock.sync import LeaderLock

dsn, key = sys.argv[1], LockKey.parse(sys.argv[2])
lock = LeaderLock(dsn, key=key, settle_s=0, retry_strategy=FixedInterval(0.05), lease_s=3, health_interval_s=0.5)
def say(*words): print(*words, flush=True)
"""


def script(text: str, dsn: str, key: LockKey) -> Process:
    warnings = ["-W", "always", "-W", "ignore:This process (pid=:DeprecationWarning"]  # of forks, from Python 3.12 on
    return Process(sys.executable, *warnings, "-c", _PRELUDE + text, dsn, str(key))


_FORK = """
lock.start(); assert lock.wait_for_leadership(20)
child = os.fork()
if child == 0:
    assert not lock.is_leader and lock.token is None and lock.time_left_s == 0, "the child leads"
    assert lock.state.value == "stopped", lock.state
    calls = [lock.start, lock.shutdown, lock.step_down, lock.wait_for_leadership, lock.fence_sql, lock.__enter__]
    for call in [*calls, lambda: lock.on_lost(print), lambda: lock.fence(None)]:
        try:
            call()
            say("not refused", call)
        except LockError as error:
            assert "post_fork" in str(error) and "--preload" in str(error) and "spawn" in str(error), error
    own = LeaderLock(dsn, key=key, settle_s=0, lease_s=3, health_interval_s=0.5)
    own.start(); say("child waits", own.wait_for_leadership(0.2)); own.shutdown()
    say("child done", lock)
    sys.exit(0)
say("child ended", os.waitpid(child, 0)[1])
before = lock.trusted_until
while lock.is_leader and lock.trusted_until < before + 1: time.sleep(0.05)
say("parent leads", lock.is_leader)
lock.shutdown()
say("parent done")
"""


def test_forked_child_leads_nothing_gets_advice_and_does_not_harm_its_parent(postgres: Postgres, key: LockKey):
    with script(_FORK, postgres.dsn, key) as process:
        process.wait_for("parent done")
        assert process.wait() == 0
    assert [line.partition(" <")[0] for line in process.lines] == [
        "child waits False",
        "child done",
        "child ended 0",
        "parent leads True",
        "parent done",
    ]


_FORK_AND_DIE = """
lock.start(); assert lock.wait_for_leadership(20)
if os.fork() == 0:
    say("child lives"); sys.stdin.readline(); os._exit(0)
sys.stdin.readline()
"""


def test_child_that_outlives_its_killed_parent_does_not_keep_the_lock(make, postgres: Postgres, key: LockKey):
    lock = make(lease_s=3, health_interval_s=0.5)
    with script(_FORK_AND_DIE, postgres.dsn, key) as process:
        process.wait_for("child lives")
        process.signal(signal.SIGKILL)
        with lock:
            assert lock.wait_for_leadership(2)  # well before the lease of the dead would end
        process.say()


def test_a_lock_that_was_never_started_may_be_used_after_a_fork(postgres: Postgres, key: LockKey):
    text = """
if os.fork() == 0:
    with lock: say("child leads", lock.wait_for_leadership(20))
    sys.exit(0)
os.wait()
with lock: say("parent leads", lock.wait_for_leadership(20))
"""
    with script(text, postgres.dsn, key) as process:
        process.wait_for("parent leads True")
        assert process.wait() == 0
    assert process.lines == ["child leads True", "parent leads True"]


_LEAD = """
lock.on_released(lambda: say("released"))
lock.on_stopped(lambda: say("stopped"))
lock.start(); assert lock.wait_for_leadership(20); say("leads")
"""


@pytest.mark.parametrize(
    ("text", "code", "also"),
    [
        pytest.param("", 0, [], id="falls off its end"),
        pytest.param("sys.exit(3)", 3, [], id="exits"),
        pytest.param(
            "thread = threading.Thread(target=sys.exit); thread.start(); thread.join()", 0, [], id="exits in a thread"
        ),
        pytest.param("lock.__enter__(); del lock", 0, [], id="forgets the lock"),
        pytest.param(
            "threading.Thread(target=lock.wait_for_leadership, daemon=True).start()", 0, [], id="while others wait"
        ),
        pytest.param(
            "threading.Thread(target=lambda: [lock.wait_for_leadership() for _ in iter(int, 1)], daemon=True).start()",
            0,
            [],
            id="while others wait for ever",
        ),
        pytest.param(
            "import atexit; atexit.register(lambda: say('last', lock.is_leader)); "
            "lock.before_release(lambda: say('drains'))",
            0,
            ["last True", "drains"],
            id="with other exit handlers",
        ),
        pytest.param("lock.shutdown()", 0, [], id="after a shutdown"),
    ],
)
def test_at_exit_the_lock_is_released_without_superfluous_output(
    text: str, code: int, also: list[str], postgres: Postgres, key: LockKey
):
    with script(_LEAD + text, postgres.dsn, key) as process:
        process.wait_for("stopped")
        assert process.wait() == code
    assert process.lines == ["leads", *also, "released", "stopped"]
    assert not holds(postgres.dsn, key)


@pytest.mark.parametrize("kind", ["nfs", "file"])
def test_at_exit_a_lock_in_a_folder_is_released_too(kind: str, tmp_path: Path):
    """Python 3.12 starts no thread at exit, in which to give an NFS lock back, or to end the executor of the loop."""
    url = f"{kind}://{tmp_path / 'lock'}"
    text = """
import logging, sys
from pgleaderlock import open_backend
from pgleaderlock.sync import Election
logging.getLogger("pgleaderlock").setLevel(logging.ERROR)
election = Election(open_backend(sys.argv[1]))
election.on_released(lambda: print("released", flush=True))
election.start(); print("leads", election.wait_for_leadership(20), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", text, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["leads True", "released"]

    async def follow() -> bool:
        backend = open_backend(url)
        try:
            return await backend.try_acquire() is not None
        finally:
            await backend.close()

    assert asyncio.run(follow()), "the lock was left to the end of its lease"


def test_unhandled_exception_is_the_only_one_that_is_printed(postgres: Postgres, key: LockKey):
    with script(_LEAD + "raise ValueError('the only one')", postgres.dsn, key) as process:
        process.wait_for("stopped")
        assert process.wait() == 1
    assert "\n".join(process.lines).count("Traceback") == 1
    assert "ValueError: the only one" in process.lines
    assert not holds(postgres.dsn, key)


@pytest.mark.slow
def test_a_callback_that_hangs_at_exit_delays_it_for_seconds_and_no_more(postgres: Postgres, key: LockKey):
    text = "lock.on_released(threading.Event().wait)"
    with script(_LEAD + text, postgres.dsn, key) as process:
        process.wait_for("released")
        before = time.monotonic()
        assert process.wait(30) == 0
    assert time.monotonic() - before < 15
    assert "Traceback" not in "\n".join(process.lines)
    assert not holds(postgres.dsn, key)


def test_once_the_interpreter_exits_nothing_new_is_started(postgres: Postgres, key: LockKey):
    text = """
import atexit
def late():
    try: lock.start()
    except LockError as error: say(error)
    say(lock.wait_for_leadership(), lock.shutdown())
atexit.register(late)
"""
    with script(text + _LEAD, postgres.dsn, key) as process:
        process.wait_for("False None")
        assert process.wait() == 0
    assert process.lines[:3] == ["leads", "released", "stopped"]
    assert "no election can be started any more" in process.lines[3]


def test_while_the_interpreter_exits_nothing_is_started_either(postgres: Postgres, key: LockKey):
    text = """
other = LeaderLock(dsn, key=LockKey.named("other"))
@lock.before_release
def late():
    try: other.start()
    except LockError as error: say(error)
"""
    with script(text + _LEAD, postgres.dsn, key) as process:
        process.wait_for("stopped")
        assert process.wait() == 0
    assert process.lines[1].startswith("the interpreter is about to exit")


def test_ctrl_c_in_a_script_that_waits_ends_it_as_any_other(postgres: Postgres, key: LockKey):
    with candidate(postgres.dsn, key, lease_s=3) as other:
        other.wait_for("acquired")
        with script("with lock:\n    say('waits'); lock.wait_for_leadership()", postgres.dsn, key) as process:
            process.wait_for("waits")
            process.signal(signal.SIGINT)
            assert process.wait() == -signal.SIGINT
            process.wait_for("KeyboardInterrupt")
