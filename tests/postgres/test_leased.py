"""The decisions of the leased lock, on the session port alone: no server, virtual time."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pgleaderlock import ConnectionError, LockError
from pgleaderlock.models import Grant, LossCause
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.lease import Lease
from tests.support.model_session import KEY, LEASE_S, ModelSession, lead, make

pytestmark = pytest.mark.virtual_time

GONE = ConnectionError("gone")


async def test_one_round_trip_on_both_sessions_begins_a_term_and_validity_counts_from_it():
    lock, witness = ModelSession(), ModelSession(pid=101)
    grant = await lead(make(lock, witness))
    assert grant == Grant(7, trusted_until=13.5, lost_at=10.0)
    assert lock.kinds() == ["setup", "attempt", "token"]
    assert witness.kinds() == ["setup", "take"]


async def test_quiet_period_after_a_restart_is_full_however_long_the_answer_took():
    """The server started at 0. Its answer took 9 s, and the age in it was measured at the end of them.

    Found by the exhaustive check: counted from the question, the quiet period would have been over at 6 s, with a
    leader that was cut off by the restart valid until 13.5 s.
    """
    lock, witness = ModelSession(setup=("", 100, False, "12.5", 1.0, 9.0, "just now")), ModelSession(pid=101)
    lock.delay_s = 9.0
    backend = make(lock, witness)
    await backend.open()
    lock.delay_s = 0.0
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.lost_at == pytest.approx(LEASE_S + LEASE_S * 2 / 3)


async def test_a_server_without_tokens_is_refused_by_name():
    session = ModelSession(version=120000)
    with pytest.raises(ConnectionError, match="older than PostgreSQL 13"):
        await make(session).open()
    assert session.closed


async def test_a_standby_and_a_pooler_are_refused_and_closed():
    standby = ModelSession(setup=("", 100, True, "12.5", 1.0, 10_000.0, ""))
    with pytest.raises(ConnectionError, match=r"standby.*target_session_attrs"):
        await make(standby).open()
    pooled = ModelSession(pid=5, setup=("", 100, False, "12.5", 1.0, 10_000.0, ""))
    with pytest.raises(ConnectionError, match=r"pooler.*allow_pooler"):
        await make(pooled).open()
    assert standby.closed
    assert pooled.closed


async def test_a_server_that_says_nothing_of_itself_is_refused():
    with pytest.raises(ConnectionError, match="introduce"):
        await make(ModelSession(setup=None)).open()


async def test_a_connection_that_never_comes_is_given_up_within_the_lease():
    with pytest.raises(ConnectionError, match="no answer within 15 s"):
        await make(None).open()
    assert asyncio.get_running_loop().time() == pytest.approx(LEASE_S)


async def test_a_server_too_old_for_the_lease_is_warned_about_once(caplog):
    sessions = [ModelSession(version=130000, pid=pid) for pid in (1, 2)]
    for session in sessions:
        session.answers["setup"] = ("", session.facts.session_pid, False, "12.5", 1.0, 10_000.0, "")
    await lead(make(*sessions))
    assert caplog.text.count("lease_not_enforced") == 1


async def test_a_young_server_is_given_time_while_both_sessions_are_renewed():
    lock = ModelSession(setup=("", 100, False, "12.5", 1.0, 2.0, ""))
    witness = ModelSession(setup=("", 100, False, "12.5", 1.0, 2.0, ""))
    grant = await lead(make(lock, witness))
    assert asyncio.get_running_loop().time() == pytest.approx(13.0)
    assert grant.trusted_until == pytest.approx(13.0 + 13.5)
    gaps = [later - earlier for (earlier, _), (later, _) in zip(lock.asked, lock.asked[1:], strict=False)]
    assert max(gaps) <= LEASE_S / 3 + 0.001


async def test_lock_without_its_witness_lock_is_released():
    lock, witness = ModelSession(), ModelSession(pid=100, slice=("",), take=([], ""))

    async def slow(*arguments: Any, **more: Any) -> Any:
        await asyncio.sleep(0.9)
        return await fetch(*arguments, **more)

    fetch, witness.fetch = witness.fetch, slow  # type: ignore[method-assign]
    backend = make(lock, witness)
    await backend.open()
    with pytest.raises(LockError, match="witness"):
        await backend.try_acquire()
    assert lock.closed
    assert witness.closed
    assert asyncio.get_running_loop().time() == pytest.approx(LEASE_S, abs=2)


async def test_a_renewal_without_a_witness_adds_no_trust():
    lock, witness = ModelSession(), ModelSession(ping=[GONE])
    backend = make(lock, witness, GONE, ModelSession(pid=100))
    grant = await lead(backend)
    await asyncio.sleep(5)
    renewed = await backend.renew(grant)
    tried_again_at = 5 + LEASE_S / 15
    assert renewed == Grant(7, trusted_until=tried_again_at + 13.5, lost_at=tried_again_at + 10.0)


async def test_a_witness_that_does_not_answer_is_not_replaced_but_ends_the_leadership():
    """It may be alive: closed while we are valid, it would let the candidate lead that was just granted the lock."""
    silent = ConnectionError("no answer", cause=LossCause.RENEW_TIMEOUT)
    spare = ModelSession(pid=100)
    backend = make(ModelSession(), ModelSession(ping=[silent]), spare)
    grant = await lead(backend)
    with pytest.raises(ConnectionError, match="no answer"):
        await backend.renew(grant)
    assert spare.asked == []


async def test_a_slow_witness_is_waited_for_until_leadership_would_be_declared_lost():
    witness = ModelSession()
    bounds = []
    backend = make(ModelSession(), witness)
    grant = await lead(backend)

    async def note_bound(*_: Any, bound_s: float) -> Any:
        bounds.append(bound_s)
        return (1,)

    witness.fetch = note_bound  # type: ignore[method-assign, assignment]
    await asyncio.sleep(5)
    await backend.renew(grant)
    assert bounds == [pytest.approx(grant.lost_at - 5, abs=0.02)]


async def test_the_loss_of_the_lock_s_session_leaves_the_witness_for_the_recovery():
    lock, witness = ModelSession(ping=[GONE]), ModelSession()
    backend = make(lock, witness, ModelSession(token=(9, "")))
    grant = await lead(backend)
    with pytest.raises(ConnectionError):
        await backend.renew(grant)
    assert not witness.closed
    await backend.wait(20.0)
    pings = [at for at, kind in witness.asked if kind == "ping"]
    assert pings == pytest.approx([5.0, 10.0, 15.0, 20.0])
    again = await lead(backend)
    assert again.token == 9


async def test_a_witness_that_ends_while_recovering_is_not_kept():
    lock, witness = ModelSession(ping=[GONE]), ModelSession(ping=[GONE])
    backend = make(lock, witness)
    grant = await lead(backend)
    with pytest.raises(ConnectionError):
        await backend.renew(grant)
    await backend.wait(20.0)
    assert witness.closed


async def test_lock_that_another_took_frees_the_witness_lock_only_after_the_loss_was_reported():
    lock, witness = ModelSession(ping=[GONE]), ModelSession()
    backend = make(lock, witness, ModelSession(attempt=(None,), slice=("",)))
    grant = await lead(backend)
    with pytest.raises(ConnectionError):
        await backend.renew(grant)
    await backend.open()
    assert await backend.try_acquire() is None
    assert not witness.closed  # the engine notifies now, and then goes on
    await backend.open()
    assert witness.closed


async def test_a_recovery_that_fails_at_its_last_step_still_keeps_the_witness():
    lock, witness = ModelSession(ping=[GONE]), ModelSession()
    again = ModelSession(token=[GONE])
    backend = make(lock, witness, again)
    grant = await lead(backend)
    with pytest.raises(ConnectionError):
        await backend.renew(grant)
    await backend.open()
    with pytest.raises(ConnectionError):
        await backend.try_acquire()
    assert again.closed
    assert not witness.closed
    await backend.close()
    assert witness.closed


async def test_a_release_that_was_not_held_is_an_error_and_closes_everything():
    lock, witness = ModelSession(unlock=([], None, "")), ModelSession()
    backend = make(lock, witness)
    grant = await lead(backend)
    with pytest.raises(LockError, match="not held"):
        await backend.release(grant)
    assert lock.closed
    assert witness.closed


async def test_nothing_can_be_asked_before_there_is_a_session():
    with pytest.raises(ConnectionError, match="no session"):
        await make().try_acquire()


async def test_without_a_session_waiting_is_only_waiting():
    await make().wait(3.0)
    assert asyncio.get_running_loop().time() == 3.0


async def test_session_on_an_old_server_is_set_to_notice_a_dead_network_within_the_lease():
    asked: dict[int, str] = {}

    class OldSession(ModelSession):
        async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> Any:
            asked[self.facts.version] = asked.get(self.facts.version, "") + statement
            return await super().fetch(statement, parameters, bound_s=bound_s)

    for version in (130000, 140000):
        await make(OldSession(version), witness=False).open()
    assert all(limit in asked[130000] for limit in ("tcp_keepalives_idle', '5'", "tcp_user_timeout', '15000'"))
    assert "tcp_" not in asked[140000]


async def test_a_session_is_not_left_open_when_the_table_cannot_be_used():
    session = ModelSession(table=([1, 1], False, False, "app", "db", [], False))
    backend = make(session, term_table=True)
    with pytest.raises(ConnectionError, match="schema apply --grant-to app"):
        await backend.open()
    assert session.closed


async def test_the_witness_is_kept_alive_while_a_fenced_transaction_is_waited_for():
    refused_for_a_while = [("",)] * 40 + [("9",)]
    no_term_yet = (None, None, None, None, 1)
    lock = ModelSession(table=([1, 1], True, True, "", "", [], False), read=no_term_yet, claim=refused_for_a_while)
    witness = ModelSession()
    backend = make(lock, witness, term_table=True, fence_wait_s=60)
    await backend.open()
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 9
    assert witness.kinds().count("ping") == 40


async def test_a_strict_successor_renews_while_it_waits():
    lock = ModelSession(table=([1, 1], True, True, "", "", [], False), read=(5, 15.0, 1, False, 1), claim=("9",))
    witness = ModelSession()
    backend = make(lock, witness, term_table=True, takeover="strict")
    await backend.open()
    began = asyncio.get_running_loop().time()
    await backend.try_acquire()
    assert asyncio.get_running_loop().time() - began == pytest.approx(LEASE_S)
    for session in (lock, witness):
        times = [at for at, kind in session.asked if kind == "ping"]
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= LEASE_S / 3 + 0.1


@pytest.mark.parametrize("witness", [True, False])
async def test_trust_counts_from_when_a_request_was_sent_however_long_the_answer_took(witness):
    sessions = [ModelSession(), ModelSession()]
    backend = make(*sessions, witness=witness)
    clock = asyncio.get_running_loop().time
    await backend.open()
    for session in sessions:
        session.delay_s = 2.0
    grant = await backend.try_acquire()
    assert grant is not None
    # A term that began slowly is renewed at last; the witness session, where there is one, is asked second.
    renewed_at = max(at for at, kind in sessions[0].asked if kind == "ping")
    assert grant.trusted_until == pytest.approx(renewed_at + 0.9 * LEASE_S)
    renewed_at = clock()
    grant = await backend.renew(grant)
    assert clock() > renewed_at + 1.9
    assert grant.trusted_until == pytest.approx(renewed_at + 0.9 * LEASE_S)
    assert grant.lost_at == pytest.approx(renewed_at + LEASE_S * 2 / 3)


async def test_a_session_that_was_lost_is_replaced_with_the_patience_that_several_hosts_need():
    lost, late = ModelSession(), ModelSession()
    sessions = [lost, late]

    async def open_session() -> ModelSession:
        if len(sessions) == 1:
            await asyncio.sleep(LEASE_S + 5)  # a silent host is tried before the one that answers
        return sessions.pop(0)

    clock = asyncio.get_running_loop().time
    backend = LeasedLockBackend(KEY, open_session, Lease(LEASE_S), clock, "the model", connect_s=LEASE_S + 10)
    await backend.open()
    lost.closed = True
    await backend.open()
    assert not late.closed
