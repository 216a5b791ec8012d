"""The decisions about a lease that is a record, in virtual time: who may take it, for how long it is valid."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pgleaderlock import ConnectionError, Election, FixedInterval, LeadershipLost, LockError, LockState
from pgleaderlock.models import Grant, LossCause
from pgleaderlock.stores.record import Claim, Record, RecordBackend, RecordStore, default_identity
from tests.support.doubles import Witness

pytestmark = pytest.mark.virtual_time

LEASE_S = 15.0


class Shelf:
    """Where the stores of one test keep their record."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.version = 0

    def put(self, holder: str, token: int = 5, lease_s: float = LEASE_S) -> None:
        self.version += 1
        self.record = Record(holder, token, lease_s, self.version)


class ShelfStore(RecordStore):
    """A store that can be slow, fail, lose answers, and know of deaths."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.write_delay_s = 0.0
        self.failures: list[Exception | None] = []
        self.loses_answers = False
        self.dead: set[str] = set()
        self.writes: list[tuple[float, Claim]] = []
        self.opened = self.closed = 0

    @property
    def labels(self) -> Mapping[str, object]:
        return {"shelf": "a"}

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def read(self) -> Record | None:
        self._fail()
        return self.shelf.record

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        self.writes.append((asyncio.get_running_loop().time(), claim))
        self._fail()
        if self.shelf.record != replacing:
            return None
        self.shelf.put(claim.holder, claim.token, claim.lease_s)
        await asyncio.sleep(self.write_delay_s)
        if self.loses_answers:
            self.loses_answers = False
            raise ConnectionError("the answer was lost")
        return self.shelf.record

    def is_abandoned(self, record: Record) -> bool:
        return record.holder in self.dead

    def _fail(self) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure


def make(shelf: Shelf, identity: str = "me", **settings: Any) -> tuple[RecordBackend, ShelfStore]:
    store = ShelfStore(shelf)
    clock = asyncio.get_running_loop().time
    return RecordBackend(store, identity=identity, lease_s=LEASE_S, clock=clock, **settings), store


def now() -> float:
    return asyncio.get_running_loop().time()


# --- Who may take it --------------------------------------------------------------------------------------------------


async def test_the_first_term_has_token_zero_and_each_further_one_a_greater():
    shelf = Shelf()
    backend, _ = make(shelf)
    tokens = []
    for _ in range(3):
        grant = await backend.try_acquire()
        assert grant is not None
        tokens.append(grant.token)
        await backend.release(grant)
    assert tokens == [0, 1, 2]


async def test_another_s_record_is_over_when_it_has_not_changed_for_its_own_lease_since_we_first_saw_it():
    shelf = Shelf()
    shelf.put("other", lease_s=40.0)
    backend, _ = make(shelf)
    await asyncio.sleep(1000)  # however old it is: we have not watched it
    assert await backend.try_acquire() is None
    await asyncio.sleep(39.9)
    assert await backend.try_acquire() is None
    await asyncio.sleep(0.1)
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 6


async def test_lease_of_a_quicker_candidate_counts_from_the_failed_write_and_not_from_the_next_read():
    shelf = Shelf()
    shelf.put("")
    backend, store = make(shelf)
    write = store.write

    async def too_late(claim: Claim, replacing: Record | None) -> Record | None:
        shelf.put("other")
        return await write(claim, replacing)

    store.write = too_late  # type: ignore[method-assign]
    assert await backend.try_acquire() is None
    store.write = write  # type: ignore[method-assign]
    await asyncio.sleep(LEASE_S)
    assert await backend.try_acquire() is not None


async def test_what_waiting_has_shown_to_be_free_is_taken_without_reading_it_again():
    shelf = Shelf()
    shelf.put("other")
    backend, store = make(shelf)
    assert await backend.try_acquire() is None

    async def told(seen: Record | None, timeout_s: float) -> Record | None:
        shelf.put("", token=5)
        return shelf.record

    store.changed = told  # type: ignore[method-assign]
    reads = _counted_reads(store)
    await backend.wait(60)
    assert await backend.try_acquire() is not None
    assert reads == []


async def test_what_waiting_has_shown_is_worth_one_attempt_only():
    shelf = Shelf()
    shelf.put("")
    backend, store = make(shelf)
    await backend.wait(60)
    shelf.put("other")
    reads = _counted_reads(store)
    assert await backend.try_acquire() is None  # refused by the replacement, and then looked at
    assert len(reads) == 1
    assert await backend.try_acquire() is None
    assert len(reads) == 2


def _counted_reads(store: ShelfStore) -> list[float]:
    read, reads = store.read, []

    async def counted() -> Record | None:
        reads.append(now())
        return await read()

    store.read = counted  # type: ignore[method-assign]
    return reads


async def test_a_forgotten_grant_of_an_earlier_term_touches_nothing():
    shelf = Shelf()
    backend, store = make(shelf)
    old = await backend.try_acquire()
    assert old is not None
    await backend.release(old)
    new = await backend.try_acquire()
    assert new is not None
    written = len(store.writes)
    with pytest.raises(LeadershipLost, match="in term 1: our term 0 is over"):
        await backend.renew(old)
    with pytest.raises(LockError, match="nothing to release"):
        await backend.release(old)
    assert len(store.writes) == written
    await backend.renew(new)
    await backend.close()
    assert shelf.record is not None
    assert shelf.record.holder == ""


async def test_any_change_starts_the_time_anew():
    shelf = Shelf()
    shelf.put("other")
    backend, _ = make(shelf)
    assert await backend.try_acquire() is None
    await asyncio.sleep(14)
    shelf.put("other")
    assert await backend.try_acquire() is None
    await asyncio.sleep(14)
    assert await backend.try_acquire() is None
    await asyncio.sleep(1)
    assert await backend.try_acquire() is not None


async def test_a_holder_that_the_store_knows_to_be_dead_is_not_waited_for():
    shelf = Shelf()
    shelf.put("other")
    backend, store = make(shelf)
    assert await backend.try_acquire() is None
    store.dead.add("other")
    assert await backend.try_acquire() is not None


async def test_our_own_name_from_an_attempt_whose_answer_was_lost_is_ours_in_a_new_term():
    shelf = Shelf()
    backend, store = make(shelf)
    store.loses_answers = True
    with pytest.raises(ConnectionError):
        await backend.try_acquire()
    assert shelf.record is not None
    assert shelf.record.holder == "me"
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 1


class NumberingStore(ShelfStore):
    """A store that numbers its writes, and gives each new term the number of its write as its token."""

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        self.shelf.version += 100  # the writes of other records
        numbered = self.shelf.version + 1
        loses, self.loses_answers = self.loses_answers, False
        if await super().write(claim, replacing) is None or self.shelf.record is None:
            return None
        if claim.is_new_term:
            self.shelf.record = replace(self.shelf.record, token=numbered, claimed_token=claim.token)
        if loses:
            raise ConnectionError("the answer was lost")
        return self.shelf.record


async def test_a_store_may_assign_a_greater_token_which_renewals_and_the_release_then_have():
    backend = RecordBackend(NumberingStore(Shelf()), identity="me", lease_s=LEASE_S, clock=now)
    first = await backend.try_acquire()
    assert first is not None
    assert first.token == 101
    assert (await backend.renew(first)).token == 101
    await backend.release(first)
    second = await backend.try_acquire()
    assert second is not None
    assert second.token == 404


async def test_a_term_whose_token_the_store_assigned_is_found_again_when_the_answer_was_lost():
    store = NumberingStore(Shelf())
    backend = RecordBackend(store, identity="me", lease_s=LEASE_S, clock=now)
    store.loses_answers = True
    with pytest.raises(ConnectionError):
        await backend.try_acquire()
    grant = await backend.try_acquire()
    assert grant is not None, "the record is our own, and was not recognised"
    assert grant.token == 202


async def test_a_race_that_was_lost_is_an_answer():
    shelf = Shelf()
    backend, store = make(shelf)

    async def read_then_be_overtaken() -> Record | None:
        shelf.put("other")
        return None

    store.read = read_then_be_overtaken  # type: ignore[method-assign]
    assert await backend.try_acquire() is None


async def test_a_record_that_was_deleted_is_waited_out_and_its_tokens_go_on():
    shelf = Shelf()
    shelf.put("other", token=7)
    backend, _ = make(shelf)
    assert await backend.try_acquire() is None
    await asyncio.sleep(10)
    shelf.record = None  # by an operator who thought it would help; the holder may have just renewed
    assert await backend.try_acquire() is None
    await asyncio.sleep(14.9)
    assert await backend.try_acquire() is None
    await asyncio.sleep(0.1)
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 8


async def test_a_record_that_was_free_when_we_saw_it_last_is_waited_out_too_when_it_is_gone():
    """Another candidate may have taken it in between."""
    shelf = Shelf()
    shelf.put("", token=7, lease_s=1.0)
    backend, store = make(shelf)
    store.failures = [None, ConnectionError("not written")]
    with pytest.raises(ConnectionError):
        await backend.try_acquire()
    shelf.record = None
    assert await backend.try_acquire() is None
    await asyncio.sleep(LEASE_S - 0.1)
    assert await backend.try_acquire() is None
    await asyncio.sleep(0.1)
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 8


# --- Whose it is ------------------------------------------------------------------------------------------------------


async def test_our_own_record_is_known_after_any_number_of_failed_attempts():
    shelf = Shelf()
    backend, store = make(shelf)
    first = await backend.try_acquire()
    assert first is not None
    for _ in range(3):
        store.failures = [None, ConnectionError("not written")]
        with pytest.raises(ConnectionError):
            await backend.try_acquire()
    again = await backend.try_acquire()
    assert again is not None
    assert _token(again) > _token(first)


async def test_within_the_grace_period_our_own_record_comes_back_to_us():
    shelf = Shelf()
    election, store, heard = elect(shelf, "a", reconnect_grace_s=12.0)
    async with election:
        await election.wait_for_leadership()
        fail_until(store, now() + 13.0)
        store.changed = at_once  # type: ignore[method-assign]
        await asyncio.sleep(16)
        assert election.is_leader
        assert "on_lost" not in heard.words
        assert len(store.writes) < 40  # it is ours, so there is nothing to wait for; but the store is in trouble


async def at_once(seen: Record | None, timeout_s: float) -> None:
    """Have news, always."""


def fail_until(store: ShelfStore, end: float) -> None:
    """Let every write fail until then. Reading goes on."""
    write = store.write

    async def failing(claim: Claim, replacing: Record | None) -> Record | None:
        if now() < end:
            store.writes.append((now(), claim))
            raise ConnectionError("not written")
        return await write(claim, replacing)

    store.write = failing  # type: ignore[method-assign]


async def test_a_child_that_closes_what_it_inherited_frees_nothing(monkeypatch: pytest.MonkeyPatch):
    shelf = Shelf()
    backend, store = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        for attempt in (backend.renew(grant), backend.release(grant)):
            with pytest.raises(LockError, match="held by our parent"):
                await attempt
        await backend.close()
    assert len(store.writes) == 1
    assert store.closed == 0
    assert shelf.record is not None
    assert shelf.record.holder == "me"


async def test_a_release_that_failed_is_tried_again_by_close():
    shelf = Shelf()
    backend, store = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    store.failures = [ConnectionError("not written")]
    with pytest.raises(ConnectionError):
        await backend.release(grant)
    await backend.close()
    assert shelf.record is not None
    assert shelf.record.holder == ""


@pytest.mark.parametrize("error", [OSError("broken"), LockError("refused"), ValueError("odd")])
async def test_closing_does_not_raise_whatever_the_store_does(error: Exception):
    shelf = Shelf()
    backend, store = make(shelf)
    assert await backend.try_acquire() is not None
    store.failures = [error]
    await backend.close()
    assert store.closed == 1


async def test_closing_that_is_cancelled_closes_the_store_all_the_same():
    shelf = Shelf()
    backend, store = make(shelf)
    assert await backend.try_acquire() is not None
    store.write_delay_s = 1000.0
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0.1)
    closing.cancel()
    await asyncio.wait({closing})
    assert store.closed == 1


async def test_store_that_reports_changes_again_and_again_is_read_less_often():
    shelf = Shelf()
    shelf.put("other", lease_s=1000.0)
    backend, store = make(shelf)
    assert await backend.try_acquire() is None
    calls = 0

    async def news(seen: Record | None, timeout_s: float) -> None:
        nonlocal calls
        calls += 1

    store.changed = news  # type: ignore[method-assign]
    await backend.wait(10)
    assert calls <= 10 / 0.05 + 1


def _token(grant: Grant) -> int:
    assert grant.token is not None
    return grant.token


def test_identities_differ_between_two_of_one_process():
    assert default_identity() != default_identity()


# --- How long it is valid ---------------------------------------------------------------------------------------------


async def test_trust_counts_from_when_the_write_was_sent():
    backend, store = make(Shelf())
    store.write_delay_s = 4.0
    began = now()
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.trusted_until == began + 0.9 * LEASE_S
    began = now()
    grant = await backend.renew(grant)
    assert now() == began + 4
    assert grant.trusted_until == began + 0.9 * LEASE_S
    assert grant.lost_at == pytest.approx(began + LEASE_S * 2 / 3)


async def test_a_store_that_does_not_answer_is_not_waited_for_longer_than_it_is_of_use():
    backend, store = make(Shelf())
    store.write_delay_s = 3600.0
    began = now()
    with pytest.raises(ConnectionError, match="shelf=a did not answer within 10 s"):
        await backend.try_acquire()
    assert now() == began + 10


async def test_one_failed_renewal_is_tried_again():
    backend, store = make(Shelf())
    grant = await backend.try_acquire()
    assert grant is not None
    store.failures = [ConnectionError("once"), ConnectionError("twice")]
    renewed = await backend.renew(grant)
    assert renewed.trusted_until > grant.trusted_until


async def test_renewals_that_go_on_failing_end_before_leadership_is_declared_lost():
    backend, store = make(Shelf())
    grant = await backend.try_acquire()
    assert grant is not None
    store.failures = [ConnectionError("down")] * 100
    with pytest.raises(ConnectionError, match="down"):
        await backend.renew(grant)
    assert grant.lost_at - 1.1 < now() < grant.lost_at


async def test_a_renewal_whose_answer_was_lost_is_recognised():
    backend, store = make(Shelf())
    grant = await backend.try_acquire()
    assert grant is not None
    store.loses_answers = True
    assert (await backend.renew(grant)).token == grant.token


@pytest.mark.parametrize("found", ["other", "me in another term", "nobody", None])
async def test_a_renewal_that_finds_something_else_is_a_certain_loss(found: str | None):
    shelf = Shelf()
    backend, _ = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    if found is None:
        shelf.record = None
    else:
        shelf.put({"other": "other", "nobody": ""}.get(found, "me"), token=9)
    with pytest.raises(LeadershipLost, match="term 0 is over") as caught:
        await backend.renew(grant)
    assert caught.value.cause is LossCause.HELD_BY_ANOTHER


# --- Release ----------------------------------------------------------------------------------------------------------


async def test_a_release_keeps_the_token_and_empties_the_name():
    shelf = Shelf()
    backend, _ = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    await backend.release(grant)
    assert shelf.record is not None
    assert (shelf.record.holder, shelf.record.token) == ("", 0)


async def test_what_is_not_ours_cannot_be_released():
    shelf = Shelf()
    backend, _ = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    shelf.put("other", token=9)
    with pytest.raises(LockError, match="nothing to release"):
        await backend.release(grant)
    assert shelf.record is not None
    assert shelf.record.holder == "other"


async def test_closing_releases_what_is_held_but_never_another_s():
    shelf = Shelf()
    backend, store = make(shelf)
    await backend.try_acquire()
    await backend.close()
    assert shelf.record is not None
    assert shelf.record.holder == ""
    await backend.try_acquire()
    shelf.put("other", token=9)
    await backend.close()
    await backend.close()
    assert shelf.record.holder == "other"
    assert store.closed == 3


async def test_closing_does_not_wait_for_a_store_that_is_gone():
    backend, store = make(Shelf())
    await backend.try_acquire()
    store.write_delay_s = 3600.0
    began = now()
    await backend.close()
    assert now() <= began + 1
    assert store.closed == 1


# --- On the engine ----------------------------------------------------------------------------------------------------


def elect(shelf: Shelf, identity: str, **settings: Any) -> tuple[Election, ShelfStore, Witness]:
    backend, store = make(shelf, identity)
    election = Election(backend, clock=asyncio.get_running_loop().time, retry_strategy=FixedInterval(2.0), **settings)
    return election, store, Witness(election)


async def test_a_follower_does_not_report_every_renewal_of_the_leader_as_an_attempt():
    shelf = Shelf()
    leader, _, _ = elect(shelf, "a")
    follower, _, heard = elect(shelf, "b")
    async with leader, follower:
        await leader.wait_for_leadership(5)
        await asyncio.sleep(1000)
        assert follower.state in (LockState.FOLLOWER, LockState.ACQUIRING)
        assert leader.is_leader


async def test_leadership_of_a_leader_that_is_cut_off_ends_before_its_successor_leads():
    shelf = Shelf()
    leader, store, heard = elect(shelf, "a")
    follower, _, heard_by_successor = elect(shelf, "b")
    async with leader, follower:
        await leader.wait_for_leadership(5)
        await asyncio.sleep(60)
        store.failures = [ConnectionError("cut off")] * 10_000
        assert await follower.wait_for_leadership(100)
        assert not leader.is_leader
        lost = next(event for event in heard.events if event.kind.value == "on_lost")
        acquired = next(event for event in heard_by_successor.events if event.kind.value == "on_acquired")
        assert lost.at < acquired.at
        assert follower.token == 1


async def test_closing_after_a_lost_answer_releases_what_is_there():
    shelf = Shelf()
    backend, store = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None
    store.loses_answers = True
    renewing = asyncio.create_task(backend.renew(grant))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    renewing.cancel()  # while it pauses after the lost answer: the record is one version further than we know
    await asyncio.wait({renewing})
    await backend.close()
    assert shelf.record is not None
    assert shelf.record.holder == ""


async def test_waiting_for_a_record_that_was_deleted_does_not_spin():
    shelf = Shelf()
    shelf.put("other")
    backend, store = make(shelf)
    assert await backend.try_acquire() is None
    shelf.record = None
    looks = 0
    read = store.read

    async def counted() -> Record | None:
        nonlocal looks
        looks += 1
        return await read()

    async def changed(seen: Record | None, timeout_s: float) -> None:
        if seen is None and shelf.record is None:
            await asyncio.sleep(timeout_s)

    store.read, store.changed = counted, changed  # type: ignore[method-assign]
    await backend.wait(60)
    assert looks < 10
    assert await backend.try_acquire() is not None


async def test_another_of_our_own_name_is_another():
    shelf = Shelf()
    first, _ = make(shelf, "pod-0")
    second, _ = make(shelf, "pod-0")
    assert await first.try_acquire() is not None
    assert await second.try_acquire() is None


@pytest.mark.parametrize("identity", ["", "a\0b", "two\nlines", 7])
async def test_an_identity_that_is_no_name_is_refused(identity: Any):
    with pytest.raises(ValueError, match="identity"):
        make(Shelf(), identity)


async def test_a_backend_that_was_made_before_a_fork_gets_a_name_of_its_own_in_each_child(
    monkeypatch: pytest.MonkeyPatch,
):
    shelf = Shelf()
    clock = asyncio.get_running_loop().time
    backend = RecordBackend(ShelfStore(shelf), lease_s=LEASE_S, clock=clock)
    named, _ = make(shelf, "me")
    parent = backend.identity
    assert await backend.try_acquire() is not None
    monkeypatch.setattr("os.getpid", lambda: 1)  # as a child would find
    assert await backend.try_acquire() is None
    assert backend.identity != parent
    with pytest.raises(LockError, match="before a fork"):
        await named.open()


@pytest.mark.parametrize("lease_s", [float("nan"), float("inf"), -1.0])
async def test_a_lease_that_makes_no_sense_is_waited_out_for_one_of_ours(lease_s: float):
    shelf = Shelf()
    shelf.put("other", lease_s=lease_s)
    backend, _ = make(shelf)
    assert await backend.try_acquire() is None
    await asyncio.sleep(LEASE_S)
    assert await backend.try_acquire() is not None


async def test_leader_does_not_retry_for_ever_when_another_client_keeps_changing_the_record():
    shelf = Shelf()
    backend, store = make(shelf)
    grant = await backend.try_acquire()
    assert grant is not None

    async def write(claim: Claim, replacing: Record | None) -> Record | None:
        store.writes.append((0.0, claim))
        shelf.put("me", token=0)
        return None

    store.write = write  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="modified concurrently"):
        await backend.renew(grant)
    with pytest.raises(ConnectionError, match="not released"):
        await backend.release(grant)
    assert len(store.writes) < 100


async def test_tokens_do_not_go_back_for_one_who_has_seen_greater_ones():
    shelf = Shelf()
    shelf.put("other", token=9)
    backend, _ = make(shelf)
    assert await backend.try_acquire() is None
    shelf.put("", token=0)  # deleted and made anew by a client that knew nothing
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token == 10


async def test_a_wait_is_over_when_its_time_is_whatever_the_store_does():
    shelf = Shelf()
    shelf.put("other", lease_s=1000.0)
    backend, store = make(shelf)
    assert await backend.try_acquire() is None

    async def never(seen: Record | None, timeout_s: float) -> None:
        await asyncio.get_running_loop().create_future()

    store.changed = never  # type: ignore[method-assign]
    began = now()
    await backend.wait(2.0)
    assert began + 2.0 <= now() < began + 2.1  # the store's own end of waiting would have come first


async def test_a_store_in_trouble_is_asked_at_the_pace_of_the_retry_strategy():
    shelf = Shelf()
    election, store, heard = elect(shelf, "a")
    store.failures = [ConnectionError("down")] * 10_000
    async with election:
        await asyncio.sleep(60)
        assert len(heard.errors) < 40  # at every two seconds, each time in vain
    assert election.state is LockState.STOPPED


async def test_a_health_interval_longer_than_the_lease_does_not_keep_a_leader_from_renewing():
    shelf = Shelf()
    backend, _ = make(shelf)
    election = Election(backend, clock=asyncio.get_running_loop().time, health_interval_s=1000.0)
    async with election:
        await election.wait_for_leadership(5)
        for _ in range(100):
            await asyncio.sleep(1)
            assert election.is_leader


# --- A leader is shown that its record is another's ------------------------------------------------------------------


class ShowingStore(ShelfStore):
    """A store that shows changes by itself, as a watch does."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf)
        self.shown: asyncio.Queue[Record | Exception | None] = asyncio.Queue()

    async def overwritten(self, held: Record) -> Record | None:
        change = await self.shown.get()
        if isinstance(change, Exception):
            raise change
        return change


async def leading() -> tuple[RecordBackend, ShowingStore, Grant]:
    store = ShowingStore(Shelf())
    backend = RecordBackend(store, identity="me", lease_s=LEASE_S, clock=asyncio.get_running_loop().time)
    grant = await backend.try_acquire()
    assert grant is not None
    return backend, store, grant


@pytest.mark.parametrize("now_there", [Record("you", 1, LEASE_S, 7), Record("", 0, 1.0, 7), Record("me", 5, 1.0, 7)])
async def test_a_leader_whose_record_is_shown_to_be_another_s_has_lost_at_once(now_there: Record):
    backend, store, grant = await leading()
    store.shown.put_nowait(now_there)
    error = await backend.lost()
    assert isinstance(error, LeadershipLost)
    assert error.cause is LossCause.HELD_BY_ANOTHER
    assert now() == 0
    store.shelf.put("you", 1)
    await backend.close()
    assert [claim.holder for _, claim in store.writes] == ["me"]  # what is lost is not released


async def test_change_that_keeps_our_record_is_no_loss_and_a_notification_without_a_record_is_checked():
    backend, store, _ = await leading()
    store.shown.put_nowait(Record("me", 0, LEASE_S, 8))
    losing = asyncio.ensure_future(backend.lost())
    await asyncio.sleep(60)
    assert not losing.done()
    store.shown.put_nowait(None)
    assert await losing is None


async def test_a_watch_that_fails_leaves_it_to_the_renewals():
    backend, store, grant = await leading()
    store.shown.put_nowait(ZeroDivisionError())
    losing = asyncio.ensure_future(backend.lost())
    await asyncio.sleep(1)
    assert not losing.done()
    losing.cancel()
    assert (await backend.renew(grant)).token == grant.token


async def test_a_renewal_without_an_answer_ends_when_the_record_is_shown_to_be_another_s():
    backend, store, grant = await leading()
    store.write_delay_s = 3600.0
    renewing = asyncio.ensure_future(backend.renew(grant))
    await asyncio.sleep(1)
    store.shown.put_nowait(Record("you", 1, LEASE_S, 9))
    with pytest.raises(LeadershipLost, match="held by you in term 1: our term 0 is over"):
        await renewing
    assert now() == 1


async def test_a_renewal_goes_on_when_a_change_is_only_to_be_looked_at():
    backend, store, grant = await leading()
    store.write_delay_s = 2.0
    renewing = asyncio.ensure_future(backend.renew(grant))
    await asyncio.sleep(1)
    store.shown.put_nowait(None)
    assert (await renewing).token == grant.token
    assert now() == 2


async def test_a_renewal_that_took_long_to_fail_is_tried_again_at_once():
    backend, store = make(Shelf())
    grant = await backend.try_acquire()
    assert grant is not None
    slow = iter([4.0, 0.0])

    async def write(claim: Claim, replacing: Record | None) -> Record | None:
        if (delay_s := next(slow)) > 0:
            await asyncio.sleep(delay_s)
            raise ConnectionError("no answer")
        return await ShelfStore.write(store, claim, replacing)

    store.write = write  # type: ignore[method-assign]
    await backend.renew(grant)
    assert now() == 4


# --- What makes no sense in a record ---------------------------------------------------------------------------------


async def test_a_record_that_lasts_longer_than_a_day_is_reported_and_not_taken():
    shelf = Shelf()
    shelf.put("you", lease_s=86_401.0)
    backend, _ = make(shelf)
    with pytest.raises(LockError, match=r"shelf=a is held by you for 86401 s after each renewal.* by hand$"):
        await backend.try_acquire()
    shelf.put("you", lease_s=86_400.0)
    assert await backend.try_acquire() is None
    await asyncio.sleep(86_400)
    assert await backend.try_acquire() is not None


async def test_a_record_that_lasts_longer_than_a_day_is_waited_for_by_a_candidate_with_such_a_lease():
    shelf = Shelf()
    shelf.put("you", lease_s=100_000.0)
    backend = RecordBackend(ShelfStore(shelf), identity="me", lease_s=100_000.0)
    assert await backend.try_acquire() is None


async def test_one_failed_look_at_the_end_of_a_lease_costs_a_third_of_a_lease_and_not_the_whole_back_off():
    """Seen on Kubernetes after the leader's permission was withdrawn: 9.6 s instead of a lease of 6 s."""
    shelf = Shelf()
    shelf.put("silent")
    backend, store = make(shelf)
    async with Election(backend, clock=now) as election:  # the default retry strategy, whose delays have grown by then
        await asyncio.sleep(LEASE_S - 0.1)
        store.failures = [ConnectionError("no answer")]
        assert await election.wait_for_leadership(60)
        assert now() <= LEASE_S + LEASE_S / 3


async def test_attempt_after_a_wait_reads_no_record_that_was_just_found_held():
    shelf = Shelf()
    shelf.put("another", lease_s=600.0)
    store = ShelfStore(shelf)
    backend = RecordBackend(store, lease_s=LEASE_S, clock=asyncio.get_running_loop().time)
    await backend.wait(1.0)
    store.failures = [ConnectionError("a read")]
    assert await backend.try_acquire() is None
    with pytest.raises(ConnectionError, match="a read"):
        await backend.try_acquire()


async def test_attempt_after_a_wait_reads_a_record_that_has_expired_since():
    shelf = Shelf()
    shelf.put("another", lease_s=600.0)
    store = ShelfStore(shelf)
    loop = asyncio.get_running_loop()
    backend = RecordBackend(store, lease_s=LEASE_S, clock=loop.time)
    await backend.wait(599.0)
    shelf.put("another", lease_s=600.0)  # renewed, while this process stood still
    await asyncio.sleep(2.0)
    assert await backend.try_acquire() is None
    assert store.writes == []
