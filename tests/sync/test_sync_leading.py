"""``with lock.leading()`` of the blocking API where it meets an end: of the election, of the wait, of the context."""

import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pgleaderlock import LockState, open_backend
from pgleaderlock.sync import Election
from tests.support.sync import until

PATIENCE_S = 20


@contextlib.contextmanager
def kept_loop() -> Iterator[None]:
    """Keep the event loop's thread, as another election in the same process does."""
    with Election(open_backend("memory://sync-leading-other")) as other:
        assert other.wait_for_leadership(PATIENCE_S)
        yield


class Slow:
    """Holds one callback or verb back until it may go on."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE_S)


@pytest.mark.parametrize("is_loop_kept", [False, True])
def test_a_block_that_is_entered_while_the_election_stops_ends_what_it_starts(*, is_loop_kept: bool):
    lock = Election(open_backend("memory://sync-leading-turns"))
    slow = Slow()
    lock.on_stopped(slow)

    def lead() -> bool:
        with lock.leading(PATIENCE_S) as term:
            return not term.is_over and lock.is_leader

    with kept_loop() if is_loop_kept else contextlib.nullcontext(), ThreadPoolExecutor(2) as threads:
        first = threads.submit(lead)
        assert slow.begun.wait(PATIENCE_S)
        second = threads.submit(lead)  # waits until the first run has ended
        threading.Timer(0.05, slow.may_go_on.set).start()
        assert first.result(PATIENCE_S)
        assert second.result(PATIENCE_S)
        until(lambda: lock.state is LockState.STOPPED)
        with lock:  # and it can be used as before
            assert lock.wait_for_leadership(PATIENCE_S)
        assert lock.state is LockState.STOPPED


def test_a_block_that_is_left_in_a_copy_of_its_context_gives_leadership_up():
    lock = Election(open_backend("memory://sync-leading-copy"))
    block = lock.leading(PATIENCE_S)
    block.__enter__()
    contextvars.copy_context().run(block.__exit__, None, None, None)
    until(lambda: lock.state is LockState.STOPPED)
    assert not lock.is_leader


def test_an_interrupt_before_the_event_loop_has_begun_to_leave_gives_leadership_up():
    lock = Election(open_backend("memory://sync-leading-interrupt"))
    blocked, go_on = threading.Event(), threading.Event()

    def block_loop() -> None:
        blocked.set()
        assert go_on.wait(PATIENCE_S)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        go_on.set()

    with kept_loop():
        with pytest.raises(KeyboardInterrupt), lock.leading(PATIENCE_S):
            engine: Any = lock._engine
            engine._running.loop.call_soon_threadsafe(block_loop)
            assert blocked.wait(PATIENCE_S)
            threading.Timer(0.05, interrupt).start()
        until(lambda: lock.state is LockState.STOPPED)
        with lock.leading(PATIENCE_S):
            assert lock.is_leader


def test_work_that_is_begun_while_the_election_stops_ends_what_it_starts():
    lock = Election(open_backend("memory://sync-leading-work"))
    slow, led = Slow(), threading.Event()
    lock.on_stopped(slow)

    def work() -> str:
        led.set()
        return "done"

    lock.start()
    assert lock.wait_for_leadership(PATIENCE_S)
    with ThreadPoolExecutor(2) as threads:
        stopping = threads.submit(lock.shutdown)
        assert slow.begun.wait(PATIENCE_S)
        working = threads.submit(lock.run_while_leader, work, on_return="stop")
        threading.Timer(0.05, slow.may_go_on.set).start()
        stopping.result(PATIENCE_S)
        assert working.result(PATIENCE_S) == "done"
        assert led.is_set()
    until(lambda: lock.state is LockState.STOPPED)
