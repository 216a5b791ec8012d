"""Leader tasks: it begins with a term, ends with it, and never runs twice at once in one process."""

import asyncio
import functools
import threading
from itertools import pairwise

import pytest

from pgleaderlock import ConnectionError, EventKind, LeadershipLost, LockError, LockState, Term
from pgleaderlock.errors import WorkOverrun
from pgleaderlock.models import Grant
from tests.support.doubles import HANG, ScriptedBackend, make_election, until, until_state
from tests.support.while_leader import Diary, leased, now

pytestmark = pytest.mark.virtual_time


async def be_deaf_until(free: asyncio.Event) -> None:
    """Swallow every cancellation."""
    while not free.is_set():
        try:
            await free.wait()
        except asyncio.CancelledError:
            continue


async def test_it_runs_while_leading_and_is_awaited_before_the_lock_is_released():
    election, backend, _ = leased()
    diary = Diary()

    @election.while_leader
    async def work(term: Term) -> None:
        assert term.token == 1
        assert term is election.term
        diary.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(2)  # it takes its time, and leads meanwhile
            assert election.is_leader
            diary.leave()

    await election.start()
    await election.wait_for_leadership()
    await asyncio.sleep(5)
    await election.shutdown()
    assert diary.lines == [(0.0, "begin"), (7.0, "end")]
    assert backend.times("release") == pytest.approx([7.0])
    assert election.term is None


async def test_it_begins_before_a_slow_on_acquired_has_run():
    election, _, _ = leased()
    diary = Diary()
    election.while_leader(diary.work)
    election.on_acquired(functools.partial(asyncio.sleep, 100))
    await election.start()
    await until(lambda: diary.inside == 1)
    assert now() < 1
    await election.shutdown(200)


async def test_leader_task_is_cancelled_at_once_on_a_loss_whatever_callbacks_do():
    election, backend, _ = leased()
    diary = Diary()
    election.while_leader(diary.work)
    election.on_state_change(lambda *_: asyncio.sleep(3))
    await election.start()
    await until(lambda: diary.inside == 1)
    await until(lambda: backend.loss is not None and not backend.loss.done())
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    lost_at = now()
    await until(lambda: diary.inside == 0)
    assert now() - lost_at < 0.1
    await election.shutdown(1.0)


async def test_after_a_loss_the_session_is_kept_until_the_work_has_stopped():
    election, backend, heard = leased(auto_reacquire=False)

    @election.while_leader
    async def slow_to_stop() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(4)

    await election.start()
    await election.wait_for_leadership()
    await until(lambda: backend.loss is not None)
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until_state(election, LockState.STOPPED)
    await until(lambda: "close" in backend.verbs)
    assert backend.times("close") == pytest.approx([4.0], abs=0.1)
    assert "on_overrun" not in heard.words


@pytest.mark.parametrize("how", ["coroutine", "thread"])
async def test_work_that_does_not_stop_is_an_overrun_when_trust_has_run_out(how: str, caplog):
    election, backend, heard = leased(auto_reacquire=False)
    told: list[Exception] = []
    election.on_overrun(told.append)
    free, thread_free = asyncio.Event(), threading.Event()

    async def deaf() -> None:
        await be_deaf_until(free)

    def deaf_thread() -> None:
        thread_free.wait()

    election.while_leader(name="deaf")(deaf if how == "coroutine" else deaf_thread)
    await election.start()
    await election.wait_for_leadership()
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until(lambda: "close" in backend.verbs)
    assert backend.times("close") == pytest.approx([10.0], abs=0.1), "no longer than the lease is valid"
    await until(lambda: bool(told) or "work_overrun" in caplog.text)
    assert "deaf did not stop in time" in caplog.text
    if told:
        assert isinstance(told[0], WorkOverrun)
        assert told[0].names == ("deaf",)
    assert caplog.text.count("deaf did not stop in time") == 1
    free.set()
    thread_free.set()
    await until(lambda: election._leader_tasks.is_idle)


async def test_an_overrun_is_an_event_that_callbacks_hear():
    election, backend, heard = leased()
    told: list[Exception] = []
    election.on_overrun(told.append)
    free = asyncio.Event()

    @election.while_leader(name="deaf")
    async def deaf() -> None:
        await be_deaf_until(free)

    await election.start()
    await election.wait_for_leadership()
    backend.scripts["try_acquire"] = [None] * 100
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until(lambda: bool(told))
    assert now() == pytest.approx(10.0, abs=0.2)
    assert EventKind.OVERRUN in heard.kinds
    assert isinstance(told[0], WorkOverrun)
    free.set()
    await election.shutdown()


async def test_a_new_term_waits_for_the_work_of_the_old_one(caplog):
    election, backend, _ = leased()
    diary = Diary()
    free = asyncio.Event()

    @election.while_leader
    async def deaf() -> None:
        diary.enter()
        await be_deaf_until(free)
        diary.leave()

    await election.start()
    await election.wait_for_leadership()
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until(lambda: backend.verbs.count("try_acquire") == 2)
    await asyncio.sleep(5)
    assert election.is_leader
    assert diary.words == ["begin"]
    assert "work_still_running" in caplog.text
    free.set()
    await until(lambda: diary.words.count("begin") == 2)
    assert diary.most == 1
    await election.shutdown()


async def test_a_stale_start_never_outlives_its_term():
    """Three terms, the first one's work still there: the second's never runs, the third's waits."""
    election, backend, _ = leased()
    free = asyncio.Event()
    tokens: list[object] = []
    backend.scripts["try_acquire"] = [Grant(number, now() + 1000, now() + 900) for number in (1, 2, 3)]
    backend.defaults["renew"] = Grant(0, now() + 1000, now() + 900)

    @election.while_leader
    async def work(term: Term) -> None:
        tokens.append(term.token)
        await be_deaf_until(free)

    for count in (1, 2):
        await election.start()
        assert await election.wait_for_leadership(5)
        assert backend.verbs.count("try_acquire") == count
        await election.shutdown(1.0)
    await election.start()
    assert await election.wait_for_leadership(5)
    free.set()
    await until(lambda: len(tokens) == 2)
    assert tokens == [1, 3]
    await election.shutdown(1.0)


async def test_reconnecting_ends_the_work_and_recovery_begins_it_anew():
    election, backend, heard = leased(reconnect_grace_s=5.0)
    diary = Diary()
    election.while_leader(diary.work)
    await election.start()
    await election.wait_for_leadership()
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until(lambda: diary.words == ["begin", "end", "begin"])
    assert "on_lost" not in heard.words
    assert diary.most == 1
    await election.shutdown()


async def test_task_that_overruns_while_the_process_leads_again_is_not_counted_as_an_overrun():
    election, backend, heard = leased(reconnect_grace_s=5.0)
    free = asyncio.Event()

    @election.while_leader
    async def slow() -> None:
        try:
            await free.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(15)

    await election.start()
    await election.wait_for_leadership()
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await asyncio.sleep(14)
    assert election.is_leader
    assert "on_overrun" not in heard.words
    free.set()
    await election.shutdown()


# --- Handing over ------------------------------------------------------------------------------------------------


async def test_with_drains_it_is_asked_first_and_may_finish():
    election, backend, _ = leased()
    seen: list[float | None] = []

    @election.while_leader(drains=True)
    async def work(term: Term) -> None:
        await term.wait_until_ending()
        seen.append(term.hand_over_at)
        await asyncio.sleep(3)

    await election.start()
    await election.wait_for_leadership()
    await asyncio.sleep(1)
    await election.step_down()
    assert seen == [pytest.approx(11.0, abs=0.1)]
    assert backend.times("release") == pytest.approx([4.0], abs=0.1)
    assert len(backend.times("renew")) >= 3
    await election.shutdown()


async def test_what_does_not_finish_within_the_drain_is_cancelled_and_then_waited_for(caplog):
    election, backend, _ = leased(drain_s=2.0)
    diary = Diary()

    @election.while_leader(drains=True)
    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            diary.note("cancelled")
            await asyncio.sleep(3)

    await election.start()
    await election.wait_for_leadership()
    await election.shutdown()
    assert diary.lines == [(2.0, "cancelled")]
    assert "drain_unfinished" in caplog.text
    assert backend.times("release") == pytest.approx([5.0], abs=0.1)


async def test_a_shutdown_that_runs_out_of_time_says_what_still_ran(caplog):
    election, backend, _ = leased()
    free = asyncio.Event()

    @election.while_leader(name="deaf")
    async def deaf() -> None:
        await be_deaf_until(free)

    await election.start()
    await election.wait_for_leadership()
    await election.shutdown(1.0)
    assert election.state is LockState.STOPPED
    assert now() < 5
    assert "deaf did not stop in time" in caplog.text
    free.set()
    await asyncio.sleep(1)


async def test_a_step_down_that_runs_out_of_time_still_waits_for_work_while_it_leads():
    election, backend, _ = leased()

    @election.while_leader
    async def slow() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(4)

    await election.start()
    await election.wait_for_leadership()
    await election.step_down(1.0)
    assert not backend.holds
    assert now() == pytest.approx(4.0, abs=0.2)
    await election.shutdown()


async def test_a_cancelled_election_waits_for_its_work():
    election, backend, _ = leased()

    @election.while_leader
    async def slow() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(2)

    await election.start()
    await election.wait_for_leadership()
    assert election._running is not None
    election._running.task.cancel()
    await until(lambda: "close" in backend.verbs)
    assert backend.times("close")[0] == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("verb", ["step_down", "shutdown"])
async def test_work_that_asks_for_the_end_does_not_wait_for_itself(verb: str):
    election, backend, _ = leased(auto_reacquire=False)
    diary = Diary()

    @election.while_leader(drains=True)
    async def work(term: Term) -> None:
        assert election.is_in_leader_task
        await getattr(election, verb)()
        diary.note("asked")
        await term.wait_until_ending()
        diary.note("told")

    await election.start()
    await until_state(election, LockState.STOPPED)
    assert diary.words == ["asked", "told"]
    assert backend.times("release") == pytest.approx([0.0], abs=0.1)
    assert not election.is_in_leader_task


# --- Work that ends by itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_by_default_it_is_begun_again_after_pauses_that_grow(how: str):
    election, _, heard = leased()
    diary = Diary()

    @election.while_leader
    async def short() -> None:
        diary.note("begin")
        if how == "raises":
            raise ZeroDivisionError

    await election.start()
    await until(lambda: len(diary.lines) == 5, 200)
    begun = diary.times("begin")
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert all(pause >= 0.4 for pause in pauses)
    assert pauses[-1] > pauses[0]
    assert len(heard.errors) == (5 if how == "raises" else 0)
    await election.shutdown()


async def test_after_a_long_run_the_pauses_begin_anew():
    election, _, _ = leased()
    begun: list[float] = []

    @election.while_leader
    async def work() -> None:
        begun.append(now())
        await asyncio.sleep(100 if len(begun) == 5 else 0)
        raise ZeroDivisionError

    await election.start()
    await until(lambda: len(begun) == 6, 1000)
    assert begun[5] - begun[4] - 100 < begun[4] - begun[3]
    await election.shutdown()


async def test_failure_of_a_leader_task_is_logged_with_its_name_and_reported_once(caplog):
    election, _, heard = leased()

    @election.while_leader(name="mails", on_failure="stop")
    async def work() -> None:
        raise ZeroDivisionError("of the work")

    await election.start()
    await until_state(election, LockState.STOPPED)
    assert [type(error) for error in heard.errors] == [ZeroDivisionError]
    assert "work_failed" in caplog.text
    assert "work=mails" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(("when", "policy"), [("returns", {"on_return": "stop"}), ("raises", {"on_failure": "stop"})])
async def test_stop_ends_the_election_gracefully(when: str, policy: dict[str, str]):
    election, backend, _ = leased()

    @election.while_leader(**policy)
    async def work() -> None:
        await asyncio.sleep(3)
        if when == "raises":
            raise ZeroDivisionError

    await election.start()
    await until_state(election, LockState.STOPPED)
    assert backend.times("release") == pytest.approx([3.0], abs=0.1)


async def test_step_down_gives_the_others_a_chance_and_drains_other_work_first():
    election, backend, _ = leased()
    diary = Diary()

    @election.while_leader(on_failure="step_down")
    async def work() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError

    @election.while_leader
    async def other() -> None:
        diary.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(2)
            diary.leave()

    await election.start()
    await until(lambda: bool(backend.times("release")))
    assert backend.times("release") == pytest.approx([3.0], abs=0.1)
    await until(lambda: diary.words == ["begin", "end", "begin"])
    await election.shutdown()


async def test_work_that_cancels_itself_is_a_failure_and_not_the_end():
    election, _, heard = leased()
    runs: list[int] = []

    @election.while_leader
    async def work() -> None:
        runs.append(1)
        raise asyncio.CancelledError

    await election.start()
    await until(lambda: len(runs) == 2)
    assert isinstance(heard.errors[0], LockError)
    await election.shutdown()


async def test_failure_of_work_while_it_stops_is_reported_and_the_lock_is_released():
    election, backend, heard = leased()

    @election.while_leader
    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            raise ZeroDivisionError

    await election.start()
    await election.wait_for_leadership()
    await election.shutdown()
    assert [type(error) for error in heard.errors] == [ZeroDivisionError]
    assert len(backend.times("release")) == 1


async def test_work_that_stops_by_asking_its_term_has_not_failed():
    election, _, heard = leased()

    @election.while_leader(drains=True)
    async def work(term: Term) -> None:
        while True:
            term.check()
            await asyncio.sleep(0.5)

    await election.start()
    await election.wait_for_leadership()
    await election.shutdown()
    assert heard.errors == []


async def test_a_start_waits_for_a_shutdown_that_finishes_work_first():
    election, backend, _ = leased()

    @election.while_leader(drains=True)
    async def work(term: Term) -> None:
        await term.wait_until_ending()
        await asyncio.sleep(2)

    await election.start()
    await election.wait_for_leadership()
    stopping = asyncio.ensure_future(election.shutdown())
    await asyncio.sleep(1)
    await election.start()
    assert len(backend.times("release")) == 1
    await stopping
    assert await election.wait_for_leadership(5)
    await election.shutdown()


async def test_election_that_has_stopped_logs_an_overrun_and_has_nothing_to_leave(caplog):
    election, _, heard = leased()
    election._report(EventKind.OVERRUN, WorkOverrun("late", names=("w",)))
    election._report(EventKind.WORK_FAILED, LockError("was logged where it happened"))
    assert caplog.text.count("work_overrun") == 1
    assert heard.events == []
    election._leave_for_work("stop")
    await election._until_stopped()
    assert election.state is LockState.STOPPED


# --- Registration ------------------------------------------------------------------------------------------------


async def test_what_is_registered_while_leading_begins_at_once():
    election, _, _ = leased()
    diary = Diary()
    await election.start()
    await election.wait_for_leadership()
    election.while_leader(diary.work)
    await until(lambda: diary.inside == 1)
    assert now() < 1
    await election.shutdown()


def with_two(term: Term, other: object) -> None: ...


@pytest.mark.parametrize(
    ("fn", "complaint"),
    [("work", "must be callable"), (with_two, "cannot be called with a term, nor without")],
)
async def test_work_that_could_never_be_called_is_refused(fn, complaint: str):
    election, _, _ = leased()
    with pytest.raises(TypeError, match=complaint):
        election.while_leader(fn)


@pytest.mark.parametrize("policy", [{"on_return": "again"}, {"on_failure": None}])
async def test_unknown_policies_are_refused(policy):
    election, _, _ = leased()
    with pytest.raises(ValueError, match="must be one of restart, step_down, stop"):
        election.while_leader(**policy)(with_two)


class WorkingObject:
    def __init__(self) -> None:
        self.terms: list[Term] = []

    async def __call__(self, term: Term) -> None:
        self.terms.append(term)
        await asyncio.sleep(1e6)


async def test_partials_and_objects_are_called_as_what_they_are():
    election, _, _ = leased()
    work, got = WorkingObject(), []

    async def two(extra: str, term: Term) -> None:
        got.append((extra, term))
        await asyncio.sleep(1e6)

    election.while_leader(work)
    election.while_leader(functools.partial(two, "extra"))
    await election.start()
    await election.wait_for_leadership()
    await until(lambda: bool(got))
    assert [type(term).__name__ for term in work.terms] == [type(got[0][1]).__name__]
    assert got[0][0] == "extra"
    await election.shutdown()


# --- run_while_leader --------------------------------------------------------------------------------------------


async def test_run_while_leader_takes_part_and_returns_what_the_work_returned():
    election, backend, _ = leased()

    async def work(term: Term) -> int:
        await asyncio.sleep(2)
        return 7

    assert await election.run_while_leader(work, on_return="stop") == 7
    assert election.state is LockState.STOPPED
    assert backend.times("release") == pytest.approx([2.0], abs=0.1)
    await election.start()
    await election.wait_for_leadership()
    await asyncio.sleep(5)
    assert len(backend.times("release")) == 1, "the work belonged to that call"
    await election.shutdown()


async def test_run_while_leader_raises_what_stopped_it():
    election, _, _ = leased()

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await election.run_while_leader(work, on_failure="stop")
    assert election.state is LockState.STOPPED


async def test_a_cancelled_run_while_leader_releases_first():
    election, backend, _ = leased()
    diary = Diary()
    task = asyncio.ensure_future(election.run_while_leader(diary.work))
    await until(lambda: diary.inside == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary.words == ["begin", "end"]
    assert len(backend.times("release")) == 1


async def test_in_an_election_that_runs_already_it_takes_only_its_work_away():
    election, backend, _ = leased()
    diary = Diary()

    async def slow_to_stop(term: Term) -> None:
        diary.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(1)
            diary.leave()

    async with election:
        await election.wait_for_leadership()
        task = asyncio.ensure_future(election.run_while_leader(slow_to_stop))
        await until(lambda: diary.inside == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert diary.words == ["begin", "end"]
        assert election.is_leader
        assert backend.times("release") == []


# --- The term ----------------------------------------------------------------------------------------------------


async def test_term_shows_its_remaining_time_and_keeps_its_last_deadline_when_it_is_over():
    election, backend, _ = leased(auto_reacquire=False)
    await election.start()
    await election.wait_for_leadership()
    term = election.term
    assert term is not None
    assert not term.is_ending
    assert term.hand_over_at is None
    term.check()
    await asyncio.sleep(2.5)
    assert term.trusted_until == pytest.approx(12.0, abs=0.1)
    assert "s left" in repr(term)
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until_state(election, LockState.STOPPED)
    assert term.is_ending
    assert term.time_left_s == pytest.approx(9.5, abs=0.1)
    with pytest.raises(LeadershipLost, match="key1=1 key2=2"):
        term.check()
    assert "ending" in repr(term)


async def test_a_term_that_is_over_knows_nothing_of_the_next():
    election, backend, _ = leased(reconnect_grace_s=5.0)
    await election.start()
    await election.wait_for_leadership()
    old = election.term
    assert old is not None
    assert backend.loss is not None
    backend.loss.set_result(ConnectionError("gone"))
    await until(lambda: election.term not in (old, None))
    await asyncio.sleep(5)
    assert old.is_ending
    assert old.trusted_until == pytest.approx(10.0, abs=0.1)
    await election.shutdown()


async def test_a_term_is_ending_by_the_clock_alone():
    """The loop stands still, no renewal and no notification is possible: a caller that asks gets the clock's answer."""
    clock = [0.0]
    backend = ScriptedBackend()
    backend.defaults["try_acquire"] = Grant(1, trusted_until=10.0, lost_at=8.0)
    backend.defaults["renew"] = HANG
    election, _, _ = make_election(backend, clock=lambda: clock[0], health_interval_s=5.0)
    await election.start()
    await election.wait_for_leadership()
    term = election.term
    assert term is not None
    clock[0] = 7.9
    assert not term.is_ending
    clock[0] = 8.0
    assert term.is_ending
    assert election.state is LockState.LEADER
    await election.shutdown(0.5)


async def test_waiting_on_the_loop_is_refused():
    election, _, _ = leased()
    await election.start()
    await election.wait_for_leadership()
    assert election.term is not None
    with pytest.raises(LockError, match="wait_until_ending"):
        election.term.wait(1)
    await election.shutdown()
