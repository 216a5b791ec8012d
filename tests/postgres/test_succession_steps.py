"""The steps of a follower from a quiet session to the lead, on the session port alone: no server, virtual time."""

import asyncio
from typing import Any

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock._logging import get_logger
from pgleaderlock.models import LossCause
from pgleaderlock.postgres._session_setup import ReadySession
from pgleaderlock.postgres._sql import numbers
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, heir_key, next_heir_key, place_channel
from pgleaderlock.postgres.warm_session import WarmSession
from tests.support.model_session import KEY, LEASE_S, ModelSession, make

pytestmark = pytest.mark.virtual_time

S1, S2 = numbers(heir_key(KEY)), numbers(next_heir_key(KEY))
SILENT = ConnectionError("no answer", cause=LossCause.RENEW_TIMEOUT)


class Follower(ModelSession):
    """A lock session that is given this, one after the other, by each try and each wait slice."""

    def __init__(self, *granted: str, slice_s: float = 0.9, **answers: Any) -> None:
        super().__init__(setup=("", 100, False, "12.5", 1.0, 10_000.0, "run"), **answers)
        self._granted = list(granted)
        self._slice_s = slice_s

    async def fetch(self, statement: str, parameters: Any = (), *, bound_s: float) -> Any:
        if "DO $slice$" in statement or "CASE WHEN pg_try" in statement:
            granted = self._granted.pop(0) if self._granted else ""
            self.answers |= {"slice": (granted,), "attempt": ([granted, ""] if granted else None,)}
            if "DO $slice$" in statement and not granted:
                await asyncio.sleep(self._slice_s)
        return await super().fetch(statement, parameters, bound_s=bound_s)


def now() -> float:
    return asyncio.get_running_loop().time()


async def follow(backend: LeasedLockBackend, seconds: float) -> None:
    await backend.open()
    await backend.wait(seconds)


@pytest.mark.parametrize(
    ("key", "heir", "next_heir", "channel"),
    [
        (LockKey.pair(1, 2), -8470376095618586990, -6192406022342956241, "pgleaderlock_8a732dd1aab1a692"),
        (
            LockKey.named("billing/scheduler"),
            8066118765921100980,
            8419292539395134520,
            "pgleaderlock_6ff09c480ed6e4b4",
        ),
    ],
)
async def test_the_keys_of_the_places_are_frozen(key: LockKey, heir: int, next_heir: int, channel: str):
    assert (heir_key(key), next_heir_key(key)) == (LockKey.bigint(heir), LockKey.bigint(next_heir))
    assert place_channel(key) == channel


async def test_a_follower_becomes_next_heir_then_heir_and_opens_its_second_session_while_it_is_queued():
    lock, second = Follower("next heir", "heir", "", "lock"), ModelSession(pid=101)
    backend = make(lock, second)
    await follow(backend, 60)
    assert lock.kinds() == ["setup", "listen", "attempt", "slice", "slice", "stuck", "slice"]
    try_, for_s1, first_for_lock, _, second_for_lock = lock.statements[1:]
    assert S2 in try_
    assert f"pg_advisory_lock({S1})" in for_s1
    assert f"pg_try_advisory_lock({numbers(KEY)})" in for_s1  # a place is never a precondition for the lock
    assert first_for_lock.startswith(f"UNLISTEN *;SELECT pg_advisory_unlock({S2});")  # an heir's lock session is deaf
    assert f"pg_advisory_lock({numbers(KEY)})" in first_for_lock
    assert S2 not in second_for_lock
    assert f"pg_notify('{place_channel(KEY)}', '')" in second_for_lock  # and not while a new leader is about to lead
    assert second.kinds() == ["setup", "listen"]


async def test_an_heir_leads_with_its_warm_session_in_two_round_trips_and_leaves_its_place():
    lock, second = Follower("next heir", "heir", "lock"), ModelSession(pid=101)
    backend = make(lock, second)
    await follow(backend, 60)
    await asyncio.sleep(1)  # the second session opens meanwhile
    granted_at = len(lock.asked)
    grant = await backend.try_acquire()
    assert grant is not None
    assert [kind for _, kind in lock.asked[granted_at:]] == ["token"]
    assert lock.statements[-1].startswith(f"SELECT pg_advisory_unlock({S1});")
    assert second.kinds() == ["setup", "listen", "take"]
    assert second.statements[-1].startswith("UNLISTEN *;")
    assert backend.place == ""


async def test_a_first_try_on_a_new_session_leaves_no_place_of_the_last_one():
    lost, lock = Follower("next heir", "heir"), ModelSession(token=(9, ""))
    backend = make(lost, ModelSession(pid=103), lock, ModelSession(pid=101))
    await backend.open()
    await backend.wait(0.5)  # it is the heir, and has yet to leave the place of the next heir
    backend._succession._leaves_next = True
    lost.end(ConnectionError("gone", cause=LossCause.SESSION_TERMINATED))
    await backend.open()
    assert await backend.try_acquire() is not None
    drawn = next(statement for statement in lock.statements if "pg_current_xact_id()" in statement)
    assert drawn.startswith("SELECT pg_current_xact_id()")


async def test_the_place_is_shown_while_its_session_is_open():
    lock = Follower("next heir", "", "heir", slice_s=1.0)
    backend = make(lock, ModelSession(pid=101))
    await follow(backend, 0.5)
    assert backend.place == "next heir"
    await backend.wait(2.5)
    assert backend.place == "heir"
    lock.end(ConnectionError("gone"))
    assert backend.place == ""


async def test_a_quiet_follower_tries_at_most_three_or_four_times_a_lease_and_when_it_is_notified():
    lock = Follower()
    backend = make(lock)
    await follow(backend, LEASE_S * 10)
    tries = [at for at, kind in lock.asked if kind == "attempt"]
    assert 30 <= len(tries) <= 41
    assert set(lock.kinds()) == {"setup", "listen", "attempt"}
    waiting = asyncio.ensure_future(backend.wait(LEASE_S))
    await asyncio.sleep(0.01)
    before = lock.kinds().count("attempt")
    for _ in range(300):
        lock.notification.set()
        await asyncio.sleep(0.01)
    assert 1 <= lock.kinds().count("attempt") - before <= 4  # not as often as it is notified
    await waiting


async def test_the_end_of_a_quiet_follower_s_session_is_raised():
    lock = Follower()
    backend = make(lock)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(LEASE_S))
    await asyncio.sleep(1)
    lock.end(ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        await waiting
    assert now() == pytest.approx(1.0)


async def test_a_server_that_cannot_end_silent_sessions_has_no_places():
    lock = Follower("", "", "lock", slice_s=0.9)
    lock._facts = type(lock._facts)(130000, 100)
    backend = make(lock)
    await follow(backend, 60)
    assert lock.kinds()[:1] == ["setup"]
    assert "listen" not in lock.kinds()
    assert all(S1 not in statement and S2 not in statement for statement in lock.statements)


# --- The warm session -------------------------------------------------------------------------------------------------


async def test_a_warm_session_is_pinged_and_one_that_ended_is_replaced():
    lock, first, second = Follower("next heir", "heir"), ModelSession(pid=101), ModelSession(pid=102)
    backend = make(lock, first, second)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(60))
    await asyncio.sleep(2 * LEASE_S / 3 + 2)
    assert first.kinds().count("ping") == 2
    first.end(ConnectionError("ended", cause=LossCause.SESSION_TERMINATED))
    await asyncio.sleep(LEASE_S / 3)
    assert second.kinds()[:1] == ["setup"]
    waiting.cancel()
    await asyncio.wait({waiting})
    await backend.close()
    assert second.closed


async def test_where_there_is_no_room_for_a_warm_session_it_is_logged_once_and_the_heir_leads(
    caplog: pytest.LogCaptureFixture,
):
    refused = [ConnectionError("too many connections") for _ in range(3)]
    lock, late = Follower("next heir", "heir"), ModelSession(pid=101)
    backend = make(lock, *refused, late)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(3 * LEASE_S))
    await asyncio.sleep(LEASE_S)
    assert caplog.text.count("warm_session_missing") == 1
    await waiting
    lock._granted = ["lock"]
    assert await backend.try_acquire() is not None
    await backend.close()


async def test_a_warm_session_that_is_silent_is_replaced_by_a_fresh_one_after_a_tenth_of_a_second():
    lock, silent, fresh = Follower("next heir", "heir", "lock"), ModelSession(pid=101), ModelSession(pid=102)
    backend = make(lock, silent, fresh)
    await follow(backend, 60)
    await asyncio.sleep(1)
    silent.delay_s = 3600.0
    began = now()
    assert await backend.try_acquire() is not None
    assert now() - began == pytest.approx(0.1)
    assert silent.closed
    assert fresh.kinds() == ["setup", "former", "take"]  # the silent one's backend may hold the lock: it is terminated


async def test_a_warm_session_that_is_only_slow_is_used_if_it_answers_before_a_fresh_one_is_open():
    lock, slow = Follower("next heir", "heir", "lock"), ModelSession(pid=101)
    backend = make(lock, slow, None)
    await follow(backend, 60)
    await asyncio.sleep(1)
    slow.delay_s = 0.3
    assert await backend.try_acquire() is not None
    assert not slow.closed


async def test_a_session_that_is_being_opened_is_waited_for_when_the_lock_is_granted():
    lock, second = Follower("next heir", "heir", "", "lock", slice_s=0.12), ModelSession(pid=101)
    second.delay_s = 0.05
    backend = make(lock, second)
    await follow(backend, 60)
    assert await backend.try_acquire() is not None
    assert second.kinds() == ["setup", "take"]


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("how", ["close", "take"])
async def test_a_session_that_is_opened_in_the_moment_in_which_it_is_given_up_is_closed(turns: int, how: str):
    session, may_open, opened = ModelSession(), asyncio.Event(), []

    async def open_ready() -> ReadySession:
        await may_open.wait()
        opened.append(session)
        return ReadySession(session, 100, 0.0, "12.5")

    warm = WarmSession(open_ready, Lease(LEASE_S), get_logger(), lambda *_: None)
    warm.keep()
    await asyncio.sleep(1)
    may_open.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    given_up = asyncio.ensure_future(getattr(warm, how)())
    if how == "take":
        await asyncio.sleep(0)
        given_up.cancel()
    await asyncio.wait({given_up})
    await warm.close()
    if how == "close" or given_up.cancelled():
        assert all(each.closed for each in opened)


async def test_a_session_that_is_opened_into_silence_is_waited_for_a_tenth_of_a_second():
    lock, fresh = Follower("next heir", "heir", "", "lock"), ModelSession(pid=102)
    backend = make(lock, None, fresh)
    await follow(backend, 60)
    began = now()
    assert await backend.try_acquire() is not None
    assert now() - began == pytest.approx(0.1)


async def test_without_a_witness_no_second_session_is_opened():
    lock = Follower("next heir", "heir", "", "lock")
    backend = make(lock, witness=False)
    await follow(backend, 60)
    assert await backend.try_acquire() is not None
