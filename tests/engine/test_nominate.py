"""A nomination beside the life of an election: on a double, and on virtual time."""

import asyncio

import pytest

from pgleaderlock import LockError, LockState
from pgleaderlock.models import Grant
from tests.support.doubles import ScriptedBackend, make_election, until_state

pytestmark = pytest.mark.virtual_time


class NominatingBackend(ScriptedBackend):
    """Takes a while to nominate, and may refuse."""

    def __init__(self, took_s: float, error: Exception | None = None) -> None:
        super().__init__()
        self.took_s, self.error = took_s, error
        self.nominated: list[str] = []
        self.was_cancelled = False

    async def nominate(self, grant: Grant, to: str) -> None:
        try:
            await asyncio.sleep(self.took_s)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        self.nominated.append(to)


async def test_the_release_comes_after_the_nomination():
    backend = NominatingBackend(1.5)
    election, _, _ = make_election(backend)
    async with election:
        await election.wait_for_leadership()
        began = asyncio.get_running_loop().time()
        await election.step_down(to="web-2")
        assert backend.nominated == ["web-2"]
        assert backend.times("release")[0] - began == 1.5


async def test_a_nomination_that_is_refused_releases_nothing():
    backend = NominatingBackend(1.0, LockError("no such candidate"))
    election, _, _ = make_election(backend)
    async with election:
        await election.wait_for_leadership()
        with pytest.raises(LockError, match="no such candidate"):
            await election.step_down(to="web-2")
        assert election.is_leader
        assert "release" not in backend.verbs


async def test_a_term_that_ends_meanwhile_ends_the_waiting_and_not_the_call():
    backend = NominatingBackend(5.0, LockError("too late"))
    election, _, _ = make_election(backend)
    async with election:
        await election.wait_for_leadership()
        handing_over = asyncio.create_task(election.step_down(to="web-2"))
        await asyncio.sleep(1)
        await election.shutdown()
        await handing_over
        assert election.state is LockState.STOPPED
    await asyncio.sleep(10)
    assert not backend.was_cancelled


async def test_a_caller_that_is_cancelled_does_not_cut_the_nomination_short():
    backend = NominatingBackend(5.0)
    election, _, _ = make_election(backend)
    async with election:
        await election.wait_for_leadership()
        handing_over = asyncio.create_task(election.step_down(to="web-2"))
        await asyncio.sleep(1)
        handing_over.cancel()
        await asyncio.sleep(10)
        assert backend.nominated == ["web-2"]
        assert not backend.was_cancelled
        assert election.is_leader


@pytest.mark.parametrize("error", [None, LockError("no such candidate")])
async def test_in_a_callback_the_request_is_put_and_a_refusal_is_logged(error: Exception | None, caplog):
    backend = NominatingBackend(1.0, error)
    election, _, _ = make_election(backend)

    @election.on_acquired
    async def leave() -> None:
        await election.step_down(to="web-2")
        assert not backend.nominated

    async with election:
        await until_state(election, LockState.LEADER)
        await asyncio.sleep(1.5)
        assert ("release" in backend.verbs) is (error is None)
        assert ("nomination_refused" in caplog.text) is (error is not None)
