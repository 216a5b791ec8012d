"""The contract suite is worth what it catches: for each of its tests, a backend that is broken in that way."""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.lease_observation import LeaseObservation
from pgleaderlock.stores.record import Claim, Record, RecordBackend
from pgleaderlock.testing import BackendContract
from pgleaderlock.testing.contract import _tools
from tests.support.contract import ToyStore

LEASE_S = 0.4


class Sound(RecordBackend):
    """A backend that keeps its promises: each of the others breaks one."""

    store_type: ClassVar[type[ToyStore]] = ToyStore

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(self.store_type(name), **settings)


# --- Stores that are broken -------------------------------------------------------------------------------------------


class TornStore(ToyStore):
    """Looks, and then writes, and takes its time in between."""

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        now = self.shelf.get(self.name)
        is_unchanged = (now and now.version) is (replacing and replacing.version)
        await asyncio.sleep(0.001)
        if not is_unchanged:
            return None
        self.shelf[self.name] = record = Record(claim.holder, claim.token, claim.lease_s, object())
        return record


class OwnLeaseStore(ToyStore):
    """Takes every lease to be as long as its own."""

    async def read(self) -> Record | None:
        record = await super().read()
        return record and dataclasses.replace(record, lease_s=LEASE_S)


class HastyStore(OwnLeaseStore):
    """Loses patience in half the time."""

    async def read(self) -> Record | None:
        record = await super().read()
        return record and dataclasses.replace(record, lease_s=LEASE_S / 2)


class EternalStore(ToyStore):
    """Never frees a lock that is held."""

    async def read(self) -> Record | None:
        record = await super().read()
        return record and dataclasses.replace(record, lease_s=3600.0)


class SlowStore(ToyStore):
    """Writes at once, and says so a little later."""

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        record = await super().write(claim, replacing)
        for _ in range(6):
            await asyncio.sleep(0)
        return record


class ForgetfulStore(ToyStore):
    """Keeps nothing of a term once it is released, not even its number."""

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        record = await super().write(claim, replacing)
        if record is not None and not claim.holder:
            del self.shelf[self.name]
        return record


# --- Backends that are broken -----------------------------------------------------------------------------------------


class Torn(Sound):
    store_type = TornStore


class OwnLease(Sound):
    store_type = OwnLeaseStore


class Hasty(Sound):
    store_type = HastyStore


class Eternal(Sound):
    store_type = EternalStore

    async def close(self) -> None:
        self._held = None
        await super().close()


class Forgetful(Sound):
    store_type = ForgetfulStore


class TrustsTooLong(Sound):
    async def renew(self, grant: Grant) -> Grant:
        renewed = await super().renew(grant)
        return dataclasses.replace(renewed, trusted_until=renewed.trusted_until + LEASE_S)


class TrustsFromTheAnswer(Sound):
    store_type = SlowStore

    async def renew(self, grant: Grant) -> Grant:
        renewed = await super().renew(grant)
        return dataclasses.replace(renewed, trusted_until=self._clock() + 0.9 * LEASE_S)


class IsGrantedFromTheAnswer(Sound):
    store_type = SlowStore

    async def try_acquire(self) -> Grant | None:
        grant = await super().try_acquire()
        return grant and dataclasses.replace(grant, trusted_until=self._clock() + 0.9 * LEASE_S)


class RenewsForItselfOnly(Sound):
    async def renew(self, grant: Grant) -> Grant:
        return dataclasses.replace(
            grant, lost_at=self._clock() + LEASE_S / 2, trusted_until=self._clock() + 0.9 * LEASE_S
        )


class RenewsAndReleasesWhateverItHas(Sound):
    async def renew(self, grant: Grant) -> Grant:
        return await super().renew(dataclasses.replace(grant, token=self._observation.highest))

    async def release(self, grant: Grant) -> None:
        await super().release(dataclasses.replace(grant, token=self._observation.highest))


class ReleasesWithoutLooking(Sound):
    async def release(self, grant: Grant) -> None:
        with contextlib.suppress(ConnectionError, LockError):
            await super().release(grant)


class ReleasesNothing(Sound):
    async def release(self, grant: Grant) -> None:
        pass


class WithoutToken(Sound):
    async def try_acquire(self) -> Grant | None:
        grant = await super().try_acquire()
        return grant and dataclasses.replace(grant, token=None)


class SameToken(Sound):
    async def try_acquire(self) -> Grant | None:
        self._observation.highest = 6
        grant = await super().try_acquire()
        return grant and dataclasses.replace(grant, token=7)

    async def release(self, grant: Grant) -> None:
        await super().release(dataclasses.replace(grant, token=self._observation.highest))


class GrantsEverybody(Sound):
    async def try_acquire(self) -> Grant | None:
        self._attempted.clear()
        await self._look()
        return await super().try_acquire() or Grant(
            self._observation.highest + 1, self._clock() + LEASE_S / 2, self._clock()
        )


class YieldsToThoseWhoAskOften(Sound):
    asked = 0

    async def try_acquire(self) -> Grant | None:
        self.asked += 1
        if self.asked > 50:
            self._store.shelf.pop(self._store.name, None)  # type: ignore[attr-defined]
            self._observation.forget()
        return await super().try_acquire()


class NamesNobody(Sound):
    async def holder(self) -> Holder | None:
        return None


class FreesWhateverItCloses(Sound):
    async def close(self) -> None:
        self._held = self._held or await self._store.read()
        await super().close()


class FreesItsSuccessor(Sound):
    async def close(self) -> None:
        if self._held is not None:
            self._held = await self._store.read()
        await super().close()


class ForgetsAtOpen(Sound):
    async def open(self) -> None:
        self._held = None
        self._observation.highest += 1


class Needy(Sound):
    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s if self._held is None and self._observation.current is not None else 3600)


class Untidy(Sound):
    async def wait(self, timeout_s: float) -> None:
        self.task = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        await super().wait(timeout_s)


class OneForAll(Sound):
    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__("all" if name else "", **settings)
        self._store.shelf.pop("all", None)  # type: ignore[attr-defined]


class Expiring(Sound):
    """Its record dies with its lease, and the number with it."""

    async def _look(self) -> Record | None:
        record = await super()._look()
        if record is not None and self._observation.current is record and self._clock() > self._born.get(record, 1e18):
            self._store.shelf.pop(self._store.name, None)  # type: ignore[attr-defined]
            self._observation = LeaseObservation(self._lease_s)
            return await super()._look()
        return record

    _born: ClassVar[dict[Record, float]] = {}

    async def try_acquire(self) -> Grant | None:
        grant = await super().try_acquire()
        if self._held is not None:
            self._born[self._held] = self._clock() + self._lease_s
        return grant


class NamesItself(Sound):
    async def holder(self) -> Holder | None:
        holder = await super().holder()
        return holder and Holder(f"{holder.name}, says {self.identity}")


class ClosesOnce(Sound):
    closed = False

    async def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True
        await super().close()


class Nameless(Sound):
    @property
    def labels(self) -> Mapping[str, object]:
        return {}


class Impatient(Sound):
    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(0)


class Deaf(Sound):
    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(3600)


class Alarmist(Sound):
    async def lost(self) -> None:
        await asyncio.sleep(0)


class Stubborn(Sound):
    """Goes on when it is asked to stop."""

    async def _go_on(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
        await asyncio.sleep(3 * LEASE_S)

    async def try_acquire(self) -> Grant | None:
        await self._go_on()
        return await super().try_acquire()


class StubbornHolder(Stubborn):
    async def try_acquire(self) -> Grant | None:
        return await RecordBackend.try_acquire(self)

    async def renew(self, grant: Grant) -> Grant:
        await self._go_on()
        return await super().renew(grant)

    async def release(self, grant: Grant) -> None:
        await self._go_on()
        await super().release(grant)

    async def wait(self, timeout_s: float) -> None:
        await self._go_on()
        await super().wait(timeout_s)


class TakesHeldForAnError(Sound):
    async def try_acquire(self) -> Grant | None:
        grant = await super().try_acquire()
        if grant is None:
            raise LockError("another has it")
        return grant


class LosesInItsOwnWords(Sound):
    async def renew(self, grant: Grant) -> Grant:
        try:
            return await super().renew(grant)
        except LockError:
            raise KeyError("lease") from None


class FailsToClose(Sound):
    async def close(self) -> None:
        await super().close()
        raise ConnectionError("the store is gone")


class Hanging(Sound):
    """Never ends, unless it is asked to."""

    async def renew(self, grant: Grant) -> Grant:
        await asyncio.get_running_loop().create_future()
        return grant


class HangingAtItsEnd(Sound):
    async def close(self) -> None:
        await asyncio.get_running_loop().create_future()


class NeverGrants(Sound):
    async def try_acquire(self) -> Grant | None:
        return None


class TrustsForEver(Sound):
    async def try_acquire(self) -> Grant | None:
        grant = await super().try_acquire()
        return grant and dataclasses.replace(grant, trusted_until=math.inf)


# --- Which test notices -----------------------------------------------------------------------------------------------

BROKEN: list[tuple[type[Sound], str, str]] = [
    (NeverGrants, "a_single_candidate_acquires", "was not granted"),
    (WithoutToken, "a_single_candidate_acquires", "without a token"),
    (TrustsForEver, "a_single_candidate_acquires", "never ends"),
    (GrantsEverybody, "a_second_candidate_is_blocked_while_the_first_holds", "another holds was granted"),
    (ReleasesNothing, "a_release_lets_the_next_in_at_once", "was not granted"),
    (SameToken, "tokens_grow_from_term_to_term", "must grow"),
    (Forgetful, "tokens_grow_for_candidates_that_were_not_there_before", "must grow"),
    (ReleasesWithoutLooking, "an_old_grant_cannot_renew_or_release_the_term_of_another", "was over was released"),
    (RenewsForItselfOnly, "an_old_grant_cannot_renew_or_release_the_term_of_another", "was over was renewed"),
    (
        RenewsAndReleasesWhateverItHas,
        "an_old_grant_cannot_renew_or_release_a_later_term_of_its_own_holder",
        "was over was renewed",
    ),
    (YieldsToThoseWhoAskOften, "asking_often_changes_nothing", "another holds was granted"),
    (NamesNobody, "the_holder_is_named_while_there_is_one", "no holder is named"),
    (ClosesOnce, "closing_releases_and_may_be_repeated", "closed twice"),
    (Eternal, "closing_releases_and_may_be_repeated", "did not become free"),
    (FreesItsSuccessor, "closing_too_late_frees_nothing", "another holds was granted"),
    (Expiring, "tokens_grow_for_one_who_never_saw_the_silent_holder", "must grow"),
    (OneForAll, "locks_of_other_names_are_other_locks", "was not granted"),
    (ForgetsAtOpen, "opening_again_changes_nothing", "could not be renewed"),
    (NamesItself, "the_holder_is_named_while_there_is_one", "another name for itself"),
    (Needy, "closed_backend_can_still_wait", "after its time"),
    (Untidy, "closing_leaves_no_task_behind", "tasks are left"),
    (FreesWhateverItCloses, "closing_a_candidate_that_holds_nothing_frees_nothing", "another holds was granted"),
    (Nameless, "labels_name_the_lock", "without labels"),
    (TrustsTooLong, "trust_ends_within_the_lease", "within the lease"),
    (Hasty, "silence_frees_the_lock_after_the_lease_and_not_before_trust_has_ended", "before validity had ended"),
    (Eternal, "silence_frees_the_lock_after_the_lease_and_not_before_trust_has_ended", "did not become free"),
    (OwnLease, "silence_lasts_as_long_as_the_lease_of_the_holder", "before validity had ended"),
    (RenewsForItselfOnly, "a_renewal_extends_trust_and_keeps_others_out", "another holds was granted"),
    (TrustsFromTheAnswer, "an_answer_that_takes_its_time_adds_no_trust", "count from sending"),
    (IsGrantedFromTheAnswer, "a_grant_that_takes_its_time_adds_no_trust", "also for an acquisition"),
    (
        TakesHeldForAnError,
        "a_second_candidate_is_blocked_while_the_first_holds",
        "is an answer, None, and not an error",
    ),
    (LosesInItsOwnWords, "an_old_grant_cannot_renew_or_release_the_term_of_another", "raised KeyError"),
    (FailsToClose, "a_single_candidate_acquires", "must not raise"),
    (Hanging, "trust_ends_within_the_lease", r"renew\(\) did not end within"),
    (HangingAtItsEnd, "a_single_candidate_acquires", r"close\(\) did not end within"),
    (Alarmist, "a_holder_in_good_health_is_not_called_lost", "for a healthy holder"),
    (Deaf, "follower_that_waits_is_woken_by_a_release", "was not woken"),
    (Deaf, "a_wait_is_over_when_its_time_is", "after its time"),
    (Impatient, "waiting_is_not_asking_in_a_circle", "for nothing"),
    (Stubborn, "an_attempt_that_is_cut_short_does_not_hold_the_lock_for_ever", "went on"),
    (StubbornHolder, "a_renewal_that_is_cut_short_does_not_hold_the_lock_for_ever", "went on"),
    (StubbornHolder, "a_release_that_is_cut_short_does_not_hold_the_lock_for_ever", "went on"),
    (StubbornHolder, "a_wait_that_is_cut_short_ends_at_once", "went on"),
    (Torn, "of_many_candidates_exactly_one_leads_at_any_time", "at the same time|did not last"),
    (Torn, "of_many_who_wait_for_a_silent_holder_one_takes_over", "were granted one lock"),
    (
        Sound,
        "of_many_processes_exactly_one_leads_at_any_time",
        "at the same time|must grow",
    ),  # its dictionary is in one process only
]


class Contract(BackendContract):
    """The suite over one of them."""

    lease_s = LEASE_S
    margin_s = 0.3

    def __init__(self, backend_type: type[Sound]) -> None:
        self.backend_type = backend_type

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return self.backend_type(name, **settings)


@pytest.mark.parametrize(
    ("backend_type", "promise", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
async def test_a_broken_backend_is_noticed(
    monkeypatch: pytest.MonkeyPatch, backend_type: type[Sound], promise: str, reason: str
):
    if backend_type in (Hanging, HangingAtItsEnd):
        monkeypatch.setattr(_tools, "PATIENCE_S", 0.2)
    with pytest.raises(AssertionError, match=reason):
        for _ in range(
            5
        ):  # some wait for real milliseconds, which a busy machine may stretch beyond what they look for
            await getattr(Contract(backend_type), f"test_{promise}")()


def test_every_test_of_the_contract_has_something_to_notice():
    promises = {name.removeprefix("test_") for name in dir(BackendContract) if name.startswith("test_")}
    assert {promise for _, promise, _ in BROKEN} == promises


@pytest.mark.parametrize("promise", sorted({promise for _, promise, _ in BROKEN} - {BROKEN[-1][1]}))
async def test_a_sound_backend_is_not(promise: str):
    await getattr(Contract(Sound), f"test_{promise}")()
