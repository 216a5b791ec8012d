"""``async with lock.leading()``: when the block begins, how it ends, and which exception leaves it."""

import asyncio
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgleaderlock import ConnectionError, Election, FixedInterval, LeadershipLost, LockError, LockState, RetryContext
from pgleaderlock._base.causes import LossCause
from pgleaderlock.engine import _unused
from pgleaderlock.errors import UnusedLeadershipWarning
from pgleaderlock.models import EventKind, Grant
from tests.support.doubles import ScriptedBackend, make_election, until, until_state
from tests.support.while_leader import Diary, leased, now

pytestmark = pytest.mark.virtual_time


def fail(backend: ScriptedBackend) -> ConnectionError:
    """End the leadership, as a store does that reports the end of a session."""
    error = ConnectionError("the session ended", cause=LossCause.SESSION_TERMINATED)
    assert backend.loss is not None
    backend.loss.set_result(error)
    return error


async def test_the_block_runs_as_the_leader_and_ends_what_it_began():
    election, backend, _ = leased()
    async with election.leading() as term:
        assert election.is_leader
        assert term.token == 1
        assert not term.is_over
    assert election.state is LockState.STOPPED
    assert not backend.holds
    async with election.leading():  # again
        assert election.is_leader
    assert backend.verbs.count("release") == 2


async def test_an_election_that_was_running_steps_down_and_goes_on():
    election, backend, _ = leased()
    async with election:
        block = election.leading()
        async with block:
            assert election.is_leader
        assert election.state is LockState.FOLLOWER
        assert not backend.holds
        async with block:
            assert election.is_leader


async def test_a_loss_cancels_the_block_and_says_why():
    election, backend, _ = leased()
    cut_off: list[bool] = []
    with pytest.raises(LeadershipLost, match="the session ended") as raised:
        async with election.leading() as term:
            error = fail(backend)
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                cut_off.append(term.is_over)
                raise
    assert cut_off == [True]
    assert raised.value.__cause__ is error
    assert raised.value.cause is LossCause.SESSION_TERMINATED
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(1)  # no cancellation is left over


async def test_a_cancellation_from_outside_stays_one():
    election, backend, _ = leased()

    async def lead() -> None:
        async with election.leading():
            await asyncio.sleep(1e6)

    task = asyncio.create_task(lead())
    await until(lambda: backend.holds)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert election.state is LockState.STOPPED
    assert not backend.holds


async def test_a_cancellation_from_outside_beside_a_loss_stays_one():
    election, backend, _ = leased()
    ending = asyncio.Event()

    async def lead() -> None:
        async with election.leading():
            try:
                await asyncio.sleep(1e6)
            finally:
                ending.set()
                await asyncio.sleep(1)

    task = asyncio.create_task(lead())
    await until(lambda: backend.holds)
    await asyncio.sleep(1)
    fail(backend)
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_time_limit_around_the_block_is_not_taken_for_a_loss():
    election = leased()[0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3), election.leading():
            await asyncio.sleep(1e6)
    assert election.state is LockState.STOPPED


async def test_an_error_of_the_block_wins_over_a_loss():
    election, backend, _ = leased()
    with pytest.raises(KeyError):
        async with election.leading():
            fail(backend)
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                raise KeyError from None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_block_that_swallows_its_cancellation_still_raises_leadership_lost_at_its_end():
    election, backend, _ = leased()
    with pytest.raises(LeadershipLost):
        async with election.leading():
            fail(backend)
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(2)


async def test_a_block_that_outlives_its_term_is_an_overrun_and_the_lock_is_kept_until_then():
    election, backend, witness = leased()
    closed_at: list[bool] = []
    with pytest.raises(LeadershipLost):
        async with election.leading():
            fail(backend)
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(5)
                closed_at.append("close" in backend.verbs)
                await asyncio.sleep(20)
    assert closed_at == [False]
    assert witness.kinds.count(EventKind.OVERRUN) == 1


async def test_block_that_ends_at_the_instant_of_the_loss_raises_leadership_lost():
    election, backend, _ = leased()
    with pytest.raises(LeadershipLost):
        async with election.leading() as term:
            fail(backend)
            while not term.is_over:  # noqa: ASYNC110 - counted in steps of the loop
                await asyncio.sleep(0)  # the step in which the loss is declared, and before the cancellation comes


async def test_block_that_blocked_the_event_loop_for_too_long_raises_leadership_lost():
    election, backend, _ = make_election(health_interval_s=1.0)
    backend.defaults["try_acquire"] = Grant(1, trusted_until=1e9, lost_at=1e9)
    seen = Grant(1, trusted_until=0.0, lost_at=0.0)
    with pytest.raises(LeadershipLost):
        async with election.leading():
            backend.look = lambda grant: seen  # type: ignore[method-assign] # no await in which a loss could come
    assert election.state is LockState.STOPPED


async def test_a_nested_task_group_is_cancelled_with_the_block():
    election, backend, _ = leased()
    diary = Diary()

    async def child() -> None:
        diary.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            diary.leave()

    with pytest.raises(LeadershipLost):
        async with election.leading(), asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
            await asyncio.sleep(0)
            fail(backend)
    assert diary.words == ["begin", "begin", "end", "end"]


async def test_a_leading_block_inside_a_task_group_fails_only_with_its_loss():
    election, backend, _ = leased()

    async def lead() -> None:
        async with election.leading():
            fail(backend)
            await asyncio.sleep(1e6)

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(lead())
    assert [type(error) for error in raised.value.exceptions] == [LeadershipLost]


async def test_a_leadership_that_ends_before_the_block_begins_is_waited_for_again():
    election, backend, witness = make_election(retry_strategy=FixedInterval(1.0))
    tokens = iter((1, 2))

    async def grant() -> Grant:
        return Grant(next(tokens))

    backend.defaults["try_acquire"] = grant
    look = backend.look

    @election.on_state_change
    def end_the_first_term(_: LockState, to_state: LockState) -> None:  # before the waiting caller has its turn
        if to_state is LockState.LEADER and election.token == 1:
            backend.look = lambda grant: replace(grant, trusted_until=0.0, lost_at=0.0)  # type: ignore[method-assign]

    async def report_the_loss() -> None:
        await until(lambda: backend.loss is not None)
        backend.look = look  # type: ignore[method-assign]
        fail(backend)

    reporting = asyncio.create_task(report_the_loss())
    async with election.leading() as term:
        assert term.token == 2
        assert election.is_leader
    await reporting
    assert witness.kinds.count(EventKind.LOST) == 1


async def test_a_requested_hand_over_cancels_the_block():
    election, backend, _ = leased()
    entered = asyncio.Event()

    async def lead() -> None:
        async with election.leading():
            entered.set()
            await asyncio.sleep(1e6)

    async with election:
        task = asyncio.create_task(lead())
        await entered.wait()
        await election.step_down()
        with pytest.raises(LeadershipLost, match="hand-over was requested") as raised:
            await task
        assert raised.value.cause is LossCause.STEPPED_DOWN
        assert backend.verbs.count("release") == 1


async def test_a_step_down_inside_the_block_does_not_wait_for_the_block():
    election, backend, _ = leased()
    began_at = now()
    async with election.leading():
        await election.step_down()
    assert now() - began_at < 1
    assert backend.verbs.count("release") == 1
    with pytest.raises(LeadershipLost):
        async with election.leading():
            await election.shutdown()
            await asyncio.sleep(1e6)


async def test_one_block_at_a_time():
    election = leased()[0]

    async def also() -> None:
        async with election.leading():
            pass

    async with election.leading():
        with pytest.raises(LockError, match="would wait for itself"):
            await also()
    entered = asyncio.Event()

    async def lead() -> None:
        async with election.leading():
            entered.set()
            await asyncio.sleep(1e6)

    task = asyncio.create_task(lead())
    await entered.wait()
    with pytest.raises(LockError, match="one at a time"):
        await also()
    task.cancel()
    await asyncio.wait({task})


async def test_the_wait_ends_in_time_or_with_the_election():
    election, backend, _ = leased(retry_strategy=FixedInterval(1.0))
    backend.defaults["try_acquire"] = None
    with pytest.raises(TimeoutError, match="within 3 s"):
        async with election.leading(timeout_s=3):
            pass
    assert election.state is LockState.STOPPED

    async def lead() -> None:
        async with election.leading():
            pass

    task = asyncio.create_task(lead())
    await until_state(election, LockState.FOLLOWER)
    await election.shutdown()
    with pytest.raises(LockError, match="stopped before this process led"):
        await task
    with pytest.raises(ValueError, match="timeout_s"):
        election.leading(-1)


class GiveUp:
    def next_delay_s(self, context: RetryContext) -> float | None:
        return None if context.attempt else 0.0


async def test_an_election_that_gives_up_says_why():
    election, backend, _ = leased(retry_strategy=GiveUp())
    backend.defaults["try_acquire"] = ConnectionError("no route to the store")
    with pytest.raises(LockError, match="no route to the store") as raised:
        async with election.leading():
            pass
    assert raised.value.__cause__ is not None


async def test_a_wait_that_is_cancelled_leaves_a_running_election_alone():
    election, _, _ = leased()
    async with election:
        assert await election.wait_for_leadership()
        waiting = asyncio.create_task(election.leading().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert election.is_leader
        async with election.leading():
            pass


async def test_a_forked_child_does_not_lead_and_releases_nothing(monkeypatch):
    election, backend, _ = leased()
    parent, child = os.getpid(), os.getpid() + 1
    block = election.leading()
    term = await block.__aenter__()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: child)
        assert term.is_over
        with pytest.raises(LeadershipLost):
            await block.__aexit__(None, None, None)
    assert os.getpid() == parent
    assert "release" not in backend.verbs
    assert election.is_leader
    await block._block.leave(None)  # as the parent does
    assert "release" in backend.verbs


# --- A block that asks nothing ---------------------------------------------------------------------------------------


@pytest.fixture
def issued(monkeypatch) -> Iterator[list[warnings.WarningMessage]]:
    monkeypatch.setattr(_unused, "_was_issued", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnusedLeadershipWarning)
        yield caught


async def test_a_block_that_never_asks_who_leads_is_warned_about_once(issued):
    for _ in range(2):
        async with leased_unused():
            await asyncio.sleep(1)
    assert [each.category for each in issued] == [UnusedLeadershipWarning]
    assert issued[0].filename == __file__
    assert "async with lock.leading() waits" in str(issued[0].message)


def leased_unused():

    return Election(ScriptedBackend())


@pytest.mark.parametrize(
    "use",
    [
        lambda election: election.is_leader,
        lambda election: election.token,
        lambda election: election.state,
        lambda election: election.term,
        lambda election: election.place,
        lambda election: election.on_acquired(lambda: None),
        lambda election: election.subscribe(lambda event: None),
        lambda election: election.before_release(lambda: None),
        lambda election: election.while_leader(lambda: None),
    ],
)
async def test_a_block_that_uses_leadership_is_not_warned_about(issued, use):
    election = leased_unused()
    async with election:
        use(election)
    assert not issued


async def test_a_wait_a_step_down_and_a_leading_block_are_uses(issued):
    election = leased_unused()
    async with election:
        await election.wait_for_leadership()
    election = leased_unused()
    async with election:
        await election.step_down()
    election = leased_unused()
    async with election, election.leading():
        pass
    assert not issued


async def test_a_block_in_a_generator_or_one_that_fails_is_not_warned_about(issued):
    async def lifespan():
        async with leased_unused():
            yield

    async for _ in lifespan():
        pass
    with pytest.raises(KeyError):
        async with leased_unused():
            raise KeyError
    assert not issued


async def test_a_block_that_is_cancelled_while_it_waits_for_the_cause_of_its_loss_gives_leadership_up(monkeypatch):
    election, backend, _ = leased()
    ended = asyncio.Event()

    async def lead() -> None:
        async with election.leading():
            monkeypatch.setattr(backend, "look", lambda grant: grant.ended())  # its session shows the end
            ended.set()

    task = asyncio.create_task(lead())
    await ended.wait()
    await asyncio.sleep(0)
    task.cancel()
    monkeypatch.undo()  # what it saw was not the end after all: the engine goes on
    with pytest.raises(asyncio.CancelledError):
        await task
    assert election.state is LockState.STOPPED
    assert not backend.holds


async def test_a_block_that_outlives_its_loss_does_not_give_up_a_later_term():
    election, backend, _ = leased(retry_strategy=FixedInterval(0.5))
    tokens: list[int | None] = []
    async with election:
        with pytest.raises(LeadershipLost):
            async with election.leading():
                fail(backend)
                try:
                    await asyncio.sleep(1e6)
                except asyncio.CancelledError:
                    await asyncio.sleep(30)  # the lock is kept for less than that
                    assert election.is_leader
                    tokens.append(election.token)
        assert election.is_leader
        assert [election.token] == tokens
        assert "release" not in backend.verbs


async def test_a_block_that_is_cut_off_by_a_recovery_gives_leadership_up():
    """The engine goes on with the same term, and no code would run in it."""
    election, backend, _ = leased(reconnect_grace_s=5.0, retry_strategy=FixedInterval(0.1))
    async with election:
        with pytest.raises(LeadershipLost):
            async with election.leading():
                fail(backend)
                try:
                    await asyncio.sleep(1e6)
                finally:
                    await asyncio.sleep(0.5)
                    assert election.state is LockState.LEADER  # again
        assert not election.is_leader
