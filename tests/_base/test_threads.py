"""Work in threads, where no thread can be had."""

import threading

import pytest

from pgleaderlock._base import threads as _threads


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.fixture
def main_thread_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Python 3.12 exits. The other versions that we support start threads even then."""
    monkeypatch.setattr(_threads, "has_main_thread_ended", lambda: True)


async def test_at_exit_short_work_is_done_without_a_thread(no_thread: None, main_thread_ended: None):
    assert await _threads.begin(threading.current_thread, "short", is_short=True) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await _threads.begin(lambda: 1 / 0, "short", is_short=True)


async def test_at_exit_long_work_is_not_begun_where_it_would_hold_the_event_loop_up(
    no_thread: None, main_thread_ended: None
):
    with pytest.raises(RuntimeError, match="interpreter shutdown"):
        _threads.begin(pytest.fail, "long")


async def test_short_work_does_not_hold_the_event_loop_up_where_threads_are_only_scarce(no_thread: None):
    with pytest.raises(RuntimeError, match="can't create new thread"):
        _threads.begin(pytest.fail, "short", is_short=True)
