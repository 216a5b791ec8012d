"""The steps of a follower from a quiet session to the lead, on the session port alone: no server, virtual time."""

import asyncio
from typing import Any

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock._logging import get_logger
from pgleaderlock.models import LossCause
from pgleaderlock.postgres._session_setup import ReadySession
from pgleaderlock.postgres._sql import REHEARSAL, numbers
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, heir_key, next_heir_key, place_channel, waiting_name, witness_key
from pgleaderlock.postgres.warm_session import WarmSession
from tests.support.doubles import until
from tests.support.model_session import KEY, LEASE_S, ModelSession, make

pytestmark = pytest.mark.virtual_time

S1, S2 = numbers(heir_key(KEY)), numbers(next_heir_key(KEY))
SILENT = ConnectionError("no answer", cause=LossCause.RENEW_TIMEOUT)


class Follower(ModelSession):
    """A lock session that is given this, one after the other, by each try and each wait slice.

    A grant of the lock from the queue is announced ``announced_s`` before it is answered.
    """

    def __init__(self, *granted: str, slice_s: float = 0.9, announced_s: float | None = None, **answers: Any) -> None:
        super().__init__(setup=("", 100, False, "12.5", 1.0, 10_000.0, "run"), **answers)
        self._granted = list(granted)
        self._slice_s = slice_s
        self._announced_s = announced_s

    async def fetch(self, statement: str, parameters: Any = (), *, bound_s: float) -> Any:
        if "DO $slice$" in statement or "CASE WHEN pg_try" in statement:
            granted = self._granted.pop(0) if self._granted else ""
            token = ("8" if granted else "",) if "pg_current_xact_id()" in statement else ()
            self.answers |= {"slice": (granted, *token), "attempt": ([granted, ""] if granted else None,)}
            if granted == "lock" and "RAISE INFO" in statement and self._announced_s is not None:
                self.announced()
                await asyncio.sleep(self._announced_s)
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
    assert first_for_lock.index("pg_current_xact_id()::text,") < first_for_lock.index(" WHERE false")  # a rehearsal
    assert S2 not in second_for_lock
    assert f"pg_notify('{place_channel(KEY)}', '')" in second_for_lock  # and not while a new leader is about to lead
    assert second.kinds() == ["setup", "listen", "ping"]


async def test_an_heir_leads_with_its_warm_session_in_two_round_trips_and_leaves_its_place():
    lock, second = Follower("next heir", "heir", "lock"), ModelSession(pid=101)
    backend = make(lock, second)
    await follow(backend, 60)
    await asyncio.sleep(1)  # the second session opens meanwhile
    granted_at = len(lock.asked)
    grant = await backend.try_acquire()
    assert grant is not None
    assert [kind for _, kind in lock.asked[granted_at:]] == ["ping"]  # the token came with the grant
    await asyncio.sleep(0.1)  # the next heir wakes up only now
    assert lock.statements[-1] == f"SELECT pg_advisory_unlock({S1});SELECT 1"
    assert grant.token == 8
    assert second.kinds() == ["setup", "listen", "ping", "take", "ping"]
    assert second.statements[-1] == "UNLISTEN *;SELECT 1"  # not in the try: a new leader does it when it has begun
    assert backend.place == ""


async def test_a_recovery_does_not_use_the_lock_session_while_the_place_is_being_left_on_it():
    """A session is used by one caller at a time."""
    lock, second = Follower("next heir", "heir", "lock", "lock"), ModelSession(pid=101)
    backend = make(lock, second)
    await follow(backend, 60)
    await asyncio.sleep(1)
    assert await backend.try_acquire() is not None
    lock.delay_s = 1.0
    await asyncio.sleep(0.05)
    left_at, asked = lock.asked[-1][0], len(lock.asked)
    assert lock.statements[-1] == f"SELECT pg_advisory_unlock({S1});SELECT 1"
    assert await backend.try_acquire() is not None
    assert lock.asked[asked][0] == pytest.approx(left_at + 1.0)


async def announced_heir(**settings: Any) -> tuple[LeasedLockBackend, Follower, ModelSession]:
    """An heir with a warm session, which is granted the lock, and is notified of it some time before the answer."""
    lock, second = Follower("next heir", "heir", "", "", "lock", **settings), ModelSession(pid=101)
    backend = make(lock, second)
    await backend.open()
    return backend, lock, second


async def test_an_heir_waits_for_the_witness_lock_when_the_grant_is_announced_before_it_is_answered():
    backend, lock, second = await announced_heir(announced_s=0.2)
    await backend.wait(60)
    answered_at = now()
    assert second.asked[-1] == (pytest.approx(answered_at - 0.2), "slice")
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 8
    assert f"pg_advisory_lock({numbers(witness_key(KEY))})" in second.statements[-1]
    assert "set_config('lock_timeout', '20', true)" in second.statements[-1]
    assert "take" not in second.kinds()
    assert lock.asked[-1] == (answered_at, "ping")  # which the lock session answers last
    assert grant.lost_at == pytest.approx(answered_at - 0.2 + Lease(LEASE_S).grant(None, 0.0).lost_at)


async def test_the_lock_session_is_asked_last_as_soon_as_the_witness_lock_is_held_and_only_once():
    backend, lock, second = await announced_heir(announced_s=0.2)
    second.delay_s = 0.25  # longer than the token takes
    await backend.wait(60)
    answered_at = now()
    await asyncio.sleep(0.04)
    assert lock.kinds()[-1] == "slice"
    await asyncio.sleep(0.02)  # the engine has yet to ask for the term
    assert lock.asked[-1] == (pytest.approx(answered_at + 0.05), "ping")
    asked = len(lock.asked)
    assert await backend.try_acquire() is not None
    assert len(lock.asked) == asked


@pytest.mark.parametrize("ends", ["before the token is answered", "before the term is asked for"])
async def test_the_lock_session_is_asked_again_if_the_witness_session_was_replaced_after_its_answer(ends: str):
    """Its answer is older than the witness lock that is held now: another could have led in between."""
    lock, second = Follower("next heir", "heir", "", "", "lock", announced_s=0.2), ModelSession(pid=101)
    fresh = ModelSession(pid=102)
    fresh.delay_s = 0.05
    backend = make(lock, second, fresh)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(60))
    await until(lambda: "slice" in second.kinds())
    await asyncio.sleep(0.05 if ends == "before the token is answered" else 0.21)
    second.end(ConnectionError("gone", cause=LossCause.SESSION_TERMINATED))
    await waiting
    await asyncio.sleep(0.001)
    assert await backend.try_acquire() is not None
    assert fresh.kinds() == ["setup", "take"]
    assert lock.asked[-1] == (pytest.approx(fresh.asked[-1][0] + fresh.delay_s), "ping")
    await asyncio.sleep(0.1)
    assert lock.statements[-1] == f"SELECT pg_advisory_unlock({S1});SELECT 1"  # once, though asked twice


@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("verb", ["close", "try_acquire"])
async def test_a_close_that_is_cancelled_leaves_no_session_open(verb: str, turns: int):
    backend, lock, second = await announced_heir(announced_s=0.2)
    second.delay_s = 0.25
    await backend.wait(60)
    await asyncio.sleep(0)
    task = asyncio.ensure_future(getattr(backend, verb)())
    if verb == "try_acquire":
        await asyncio.sleep(0.01)
        task.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert (lock.closed, second.closed) == (True, True)


async def test_a_session_has_one_user_when_a_term_is_lost_while_its_witness_session_stops_listening():
    lock, second = Follower("next heir", "heir", "lock"), ModelSession(pid=101)
    at_once, fetch = [0], second.fetch

    async def counted(statement: str, parameters: Any = (), *, bound_s: float) -> Any:
        at_once.append(at_once[-1] + 1)
        try:
            return await fetch(statement, parameters, bound_s=bound_s)
        finally:
            at_once.append(at_once[-1] - 1)

    second.fetch = counted  # type: ignore[method-assign]
    backend = make(lock, second, ConnectionError("refused"))
    await follow(backend, 60)
    await asyncio.sleep(1)
    assert await backend.try_acquire() is not None
    second.delay_s = 2.0
    await asyncio.sleep(0.05)
    assert second.statements[-1].startswith("UNLISTEN *;")
    lock.end(ConnectionError("gone", cause=LossCause.SESSION_TERMINATED))
    with pytest.raises(ConnectionError, match="refused"):
        await backend.open()
    await backend.wait(1.0)
    assert max(at_once) == 1


async def test_a_lock_session_whose_heir_was_refused_the_witness_lock_is_asked_after_the_queue_for_it():
    backend, lock, second = await announced_heir(announced_s=0.2)
    second.answers["slice"] = [("",), ("lock",)]
    await backend.wait(60)
    await asyncio.sleep(0.1)
    assert lock.kinds()[-1] == "slice"
    assert await backend.try_acquire() is not None
    assert second.kinds()[-2:] == ["slice", "slice"]
    assert lock.kinds()[-1] == "ping"


@pytest.mark.parametrize("what", ["close", "session"])
async def test_the_last_question_ends_with_the_grant_that_is_dropped(what: str):
    backend, lock, _ = await announced_heir(announced_s=0.2)
    await backend.wait(60)
    lock.delay_s = 60.0
    await asyncio.sleep(0.1)
    assert lock.kinds()[-1] == "ping"
    granted = backend._granted
    assert granted is not None
    if what == "session":
        lock.end(ConnectionError("gone", cause=LossCause.SESSION_TERMINATED))
        with pytest.raises(ConnectionError, match="no further session"):
            await backend.open()
    else:
        await backend.close()
    assert granted.last_answer is not None
    assert granted.last_answer.done()


async def test_a_second_wait_does_not_use_the_lock_session_of_a_grant():
    backend, lock, _ = await announced_heir(announced_s=0.2)
    await backend.wait(60)
    asked = len(lock.asked)
    await backend.wait(60)
    await asyncio.sleep(0.1)
    assert [kind for _, kind in lock.asked[asked:]] == ["ping"]
    assert await backend.try_acquire() is not None


async def test_validity_is_renewed_if_the_answer_to_a_grant_came_long_after_its_announcement():
    backend, lock, second = await announced_heir(announced_s=8.0, slice_s=0.9)
    await backend.wait(60)
    grant = await backend.try_acquire()
    assert grant is not None
    assert lock.kinds()[-2:] == ["ping", "ping"]
    assert second.kinds()[-2:] == ["slice", "ping"]


@pytest.mark.parametrize("how", ["ended", "cancelled", "not granted"])
async def test_a_witness_lock_that_was_waited_for_early_is_freed_when_no_grant_follows(how: str):
    backend, lock, second = await announced_heir(announced_s=3.0)
    waiting = asyncio.ensure_future(backend.wait(60))
    await asyncio.sleep(0)
    await asyncio.wait({waiting}, timeout=4)  # between the announcement and the answer
    assert "slice" in second.kinds()
    if how == "cancelled":
        waiting.cancel()
    lock.answers["slice"] = SILENT if how == "ended" else ("", "")
    await asyncio.wait({waiting}, timeout=3)
    assert second.closed


@pytest.mark.parametrize("cause", [LossCause.UNKNOWN, LossCause.SESSION_TERMINATED])
async def test_a_warm_session_that_ended_on_our_side_only_keeps_no_witness_lock(cause: LossCause):
    """Its backend may have been granted the lock by the early try, and does not know that we are gone."""
    taken: dict[str, Any] = {"take": [([], ""), ([0], "")]} if cause is LossCause.UNKNOWN else {}
    lock, second = Follower("next heir", "heir", "", "", "lock", announced_s=0.2), ModelSession(pid=101)
    fresh = ModelSession(pid=102, **taken)
    backend = make(lock, second, fresh)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(60))
    await until(lambda: "slice" in second.kinds())
    second.end(ConnectionError("reset by peer", cause=cause))
    await waiting
    assert await backend.try_acquire() is not None
    is_ended = [] if cause is LossCause.SESSION_TERMINATED else ["former", "take"]  # the server had ended it itself
    assert fresh.kinds() == ["setup", *is_ended, "take"]


async def test_a_warm_session_with_an_early_try_that_is_given_up_is_terminated_by_the_next_session():
    """The close may not reach its backend, which then keeps the witness lock for a lease."""
    lock, second = Follower("next heir", "heir", "", "", "lock", announced_s=3.0), ModelSession(pid=101)
    again = ModelSession()
    backend = make(lock, second, again)
    await backend.open()
    waiting = asyncio.ensure_future(backend.wait(60))
    await until(lambda: "slice" in second.kinds())
    lock.answers["slice"] = SILENT
    await asyncio.wait({waiting}, timeout=4)
    waiting.exception()
    await backend.open()
    assert again.kinds().count("former") == 2  # of the lock session, and of the warm session


async def test_the_sessions_of_a_release_are_closed_a_moment_after_it():
    """The ends of two backends would take processor time from the successor."""
    backend, lock, second = await announced_heir(announced_s=0.2)
    await backend.wait(60)
    grant = await backend.try_acquire()
    assert grant is not None
    releasing = asyncio.ensure_future(backend.release(grant))
    await asyncio.sleep(0.005)
    assert lock.kinds()[-1] == second.kinds()[-1] == "unlock"
    assert not second.closed
    await asyncio.sleep(0.01)
    assert releasing.done()
    assert second.closed


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
    assert first.kinds().count("ping") == 3  # the first at once: it rehearses
    assert first.statements[-1] == REHEARSAL
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


async def test_a_candidate_shows_that_it_no_longer_waits_also_when_the_quiet_period_ends_while_it_says_that_it_does():
    almost_over_s = LEASE_S - 0.05  # which passes while the second session answers for the third time
    lock = ModelSession(setup=("", 100, False, "12.5", 1.0, almost_over_s, "run"))
    second = ModelSession(pid=101)
    second.delay_s = 0.02
    backend = make(lock, second)
    await backend.open()
    assert await backend.try_acquire() is not None
    assert [kind for kind in second.kinds() if kind != "setup"] == ["take", "ping", "ping"]
    assert waiting_name(100) in second.statements[-2]
    assert second.statements[-1].startswith("RESET application_name")
