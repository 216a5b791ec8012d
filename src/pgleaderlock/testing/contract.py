"""What every backend must do, as tests that anyone can run over theirs.

    class TestMyBackend(BackendContract):
        def make_backend(self, name: str, **settings) -> Backend:
            return MyBackend(name, **settings)

``name`` is new for each test; backends that are made with the same one compete for the same lock. With pytest and
pytest-asyncio (``asyncio_mode = "auto"``) that class is a complete test file. Time is real: some tests wait for a
lease, which is why :attr:`BackendContract.lease_s` is short.

The suite tests promises, not mechanisms: one holder at a time, trust that ends before anybody else's begins, tokens
that grow, a release that frees at once, silence that frees after a lease, and verbs that can be cut short.
"""

import asyncio
import contextlib
import itertools
import math
import os
from collections.abc import AsyncIterator
from typing import Any

from pgleaderlock.backends.base import Backend
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.election import Election
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import EventKind, Grant
from pgleaderlock.retry import FixedInterval

__all__ = ["BackendContract"]

_numbers = itertools.count(1)


class BackendContract:
    """The tests. Inherit, and say how a backend is made."""

    lease_s = 1.5
    """Long enough for the store to answer several times within a third of it."""
    margin_s = 1.0
    """How much later than its lease a silent holder's lock may become free."""
    tasks = 8
    """How many contenders compete in the test with many."""

    def make_backend(self, name: str, **settings: Any) -> Backend:
        """Return a contender for the lock of that name, with ``lease_s`` among the settings."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def contenders(self, number: int) -> AsyncIterator[list[Backend]]:
        """Open so many contenders for one new lock, and close them at the end."""
        name = f"contract-{os.getpid()}-{next(_numbers)}"
        backends = [self.make_backend(name, lease_s=self.lease_s) for _ in range(number)]
        try:
            for backend in backends:
                await backend.open()
            yield backends
        finally:
            for backend in backends:
                await backend.close()

    async def test_a_single_contender_acquires(self) -> None:
        """It is granted, with a token and a trust that ends within the lease."""
        async with self.contenders(1) as (only,):
            before = suspend_aware_clock()
            grant = await _acquired(only)
            assert isinstance(grant.token, int)
            assert before < grant.lost_at < grant.trusted_until < suspend_aware_clock() + self.lease_s

    async def test_a_second_contender_is_blocked_while_the_first_holds(self) -> None:
        """Held by another is an answer, not an error."""
        async with self.contenders(2) as (first, second):
            await _acquired(first)
            assert await second.try_acquire() is None

    async def test_silence_frees_the_lock_after_the_lease_and_not_before_trust_has_ended(self) -> None:
        """The old holder's trust is over when the new one's begins."""
        async with self.contenders(2) as (first, second):
            old = await _acquired(first)
            assert await second.try_acquire() is None
            new = await self._taken_over(second)
            assert suspend_aware_clock() > old.trusted_until
            assert _token(new) > _token(old)
            await self._assert_over(first, old)

    async def test_a_renewal_extends_trust_and_keeps_others_out(self) -> None:
        """For longer than a lease, without a gap."""
        async with self.contenders(2) as (first, second):
            grant = await _acquired(first)
            end = suspend_aware_clock() + 2 * self.lease_s
            while suspend_aware_clock() < end:
                await second.wait(self.lease_s / 4)
                assert await second.try_acquire() is None
                renewed = await first.renew(grant)
                assert renewed.token == grant.token
                assert renewed.trusted_until > grant.trusted_until
                grant = renewed

    async def test_a_release_lets_the_next_in_at_once(self) -> None:
        """Without waiting for a lease to end."""
        async with self.contenders(2) as (first, second):
            grant = await _acquired(first)
            assert await second.try_acquire() is None
            await first.release(grant)
            successor = await _acquired(second)
            assert suspend_aware_clock() < grant.trusted_until + self.margin_s
            assert _token(successor) > _token(grant)

    async def test_whoever_waits_is_woken_by_a_release(self) -> None:
        """Or looks again by itself: in either case before the lease would be over."""
        async with self.contenders(2) as (first, second):
            grant = await first.renew(await _acquired(first))
            assert await second.try_acquire() is None
            waiting = asyncio.create_task(second.wait(60))
            await asyncio.sleep(0.1)
            await first.release(grant)
            async with asyncio.timeout(self.lease_s + self.margin_s):
                await waiting
            await _acquired(second)

    async def test_tokens_grow_from_term_to_term(self) -> None:
        """Whoever holds it, and also when it is the same again."""
        async with self.contenders(2) as backends:
            tokens = []
            for backend in [*backends, *backends]:
                grant = await _acquired(backend)
                tokens.append(_token(grant))
                await backend.release(grant)
            assert tokens == sorted(set(tokens))

    async def test_an_old_grant_cannot_release_a_new_term(self) -> None:
        """The new holder keeps what it has."""
        async with self.contenders(2) as (first, second):
            old = await _acquired(first)
            assert await second.try_acquire() is None
            new = await self._taken_over(second)
            with contextlib.suppress(ConnectionError, LockError):
                await first.release(old)
            await second.renew(new)

    async def test_the_holder_is_named_while_there_is_one(self) -> None:
        """For people."""
        async with self.contenders(2) as (first, second):
            assert await second.holder() is None
            grant = await _acquired(first)
            holder = await second.holder()
            assert holder is not None
            assert holder.name
            await first.release(grant)
            assert await second.holder() is None

    async def test_closing_lets_go_and_may_be_repeated(self) -> None:
        """At the latest after the lease, another can have it; and so can we, after opening again."""
        async with self.contenders(2) as (first, second):
            grant = await _acquired(first)
            assert await second.try_acquire() is None
            await first.close()
            await first.close()
            new = await self._taken_over(second)
            assert _token(new) > _token(grant)
            await second.release(new)
            await first.open()
            await _acquired(first)

    async def test_an_attempt_that_is_cut_short_does_not_hold_the_lock_for_ever(self) -> None:
        """Whatever became of it in the store."""
        async with self.contenders(2) as (first, second):
            for delay_s in (0.0, 0.0005, 0.002):
                attempt = asyncio.create_task(first.try_acquire())
                await asyncio.sleep(delay_s)
                attempt.cancel()
                await asyncio.wait({attempt}, timeout=self.lease_s)
                assert attempt.done()
                await first.close()
                grant = await self._taken_over(second)
                await second.release(grant)
                await first.open()

    async def test_a_wait_that_is_cut_short_ends_at_once(self) -> None:
        """A stop must not wait for anybody."""
        async with self.contenders(2) as (first, second):
            await _acquired(first)
            assert await second.try_acquire() is None
            waiting = asyncio.create_task(second.wait(60))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=self.lease_s)
            assert waiting.done()

    async def test_labels_name_the_lock(self) -> None:
        """In every log line."""
        async with self.contenders(1) as (only,):
            assert only.labels

    async def test_of_many_contenders_exactly_one_leads_at_any_time(self) -> None:
        """Each leads for a moment and hands over, until all of them have."""
        name = f"contract-{os.getpid()}-{next(_numbers)}"
        elections = [self._make_election(name) for _ in range(self.tasks)]
        terms: list[tuple[float, float, int]] = []
        await asyncio.gather(*(self._lead_once(election, terms) for election in elections))
        terms.sort()
        assert len(terms) == self.tasks
        for (_, end, token), (start, _, next_token) in itertools.pairwise(terms):
            assert end <= start
            assert token < next_token

    # --- Helpers -----------------------------------------------------------------------------------------------

    def _make_election(self, name: str) -> Election:
        backend = self.make_backend(name, lease_s=self.lease_s)
        return Election(backend, health_interval_s=self.lease_s / 3, retry_strategy=FixedInterval(0.1))

    async def _lead_once(self, election: Election, terms: list[tuple[float, float, int]]) -> None:
        errors: list[object] = []
        election.subscribe(lambda event: errors.append(event.error) if event.kind is EventKind.ERROR else None)
        async with election:
            assert await election.wait_for_leadership(60), errors
            start, token = suspend_aware_clock(), election.token
            assert token is not None
            await asyncio.sleep(0.02)
            assert election.is_leader
            terms.append((start, suspend_aware_clock(), token))

    async def _taken_over(self, backend: Backend) -> Grant:
        """Wait, as a follower does, until the lock of a silent holder is ours."""
        deadline = suspend_aware_clock() + self.lease_s + self.margin_s
        while (grant := await backend.try_acquire()) is None:
            assert suspend_aware_clock() < deadline, "the lock of a silent holder did not become free"
            await backend.wait(max(0.01, deadline - suspend_aware_clock()))
        return grant

    async def _assert_over(self, backend: Backend, grant: Grant) -> None:
        """A holder that comes back must learn that it is one no longer."""
        try:
            renewed = await backend.renew(grant)
        except (ConnectionError, LockError):
            return
        raise AssertionError(f"a term that was taken over was renewed: {renewed}")


async def _acquired(backend: Backend) -> Grant:
    grant = await backend.try_acquire()
    assert grant is not None, "a free lock was not granted"
    assert not math.isinf(grant.trusted_until), "nothing ends this grant"
    return grant


def _token(grant: Grant) -> int:
    assert grant.token is not None
    return grant.token
