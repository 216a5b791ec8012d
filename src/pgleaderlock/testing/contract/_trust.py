"""How long a grant is valid, and that no other candidate is granted the lock before its validity has ended."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.models import Grant
from pgleaderlock.testing.contract._tools import (
    ContractTools,
    acquired,
    assert_growing,
    assert_refused,
    renewed,
    token_of,
)

_STAGGERED_S = (0.001, 0.0005, 0.0005, 0.0, 0.0, 0.0)
"""How long after each of several attempts the next one begins; after the last, the event loop blocks."""


class TrustTests(ContractTools):
    """Validity ends first, then the lease."""

    async def test_trust_ends_within_the_lease(self) -> None:
        """Leadership is declared lost a little before validity ends, so that leader tasks can stop."""
        async with self.candidates(1) as (only,):
            before = suspend_aware_clock()
            grant = await acquired(only)
            self._assert_within_the_lease(grant, before)
            for _ in range(3):
                before = suspend_aware_clock()
                grant = await renewed(only, grant)
                self._assert_within_the_lease(grant, before)

    async def test_silence_frees_the_lock_after_the_lease_and_not_before_trust_has_ended(self) -> None:
        """The old holder's validity has ended when the new one's begins."""
        async with self.candidates(2) as (first, second):
            old = await acquired(first)
            await assert_refused(second)
            await asyncio.sleep(self.lease_s / 4)
            old = await renewed(first, old)
            new = await self.taken_over(second)
            assert_not_valid(old)
            assert_growing([token_of(old), token_of(new)])

    async def test_silence_lasts_as_long_as_the_lease_of_the_holder(self) -> None:
        """Not as long as the lease of the follower: the two may differ, during an upgrade for example."""
        name, lease_s = self.new_name(), 2 * self.lease_s
        async with self.candidate(name, lease_s=lease_s) as holder, self.candidate(name) as follower:
            old = await acquired(holder)
            await assert_refused(follower)
            await self.taken_over(follower, lease_s)
            assert_not_valid(old)

    async def test_a_renewal_extends_trust_and_keeps_others_out(self) -> None:
        """A renewed term lasts longer than a lease, without a gap."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            end = suspend_aware_clock() + 1.5 * self.lease_s
            while suspend_aware_clock() < end:
                await second.wait(self.lease_s / 4)
                await assert_refused(second)
                longer = await renewed(first, grant)
                assert longer.trusted_until > grant.trusted_until, "a renewal did not extend trusted_until"
                grant = longer

    async def test_an_answer_that_takes_its_time_adds_no_trust(self) -> None:
        """The lease runs while an answer is on its way: validity counts from when the request was sent.

        Here the answer waits because our event loop is blocked. The follower runs in a thread, and is not blocked.
        """
        name, was_refused = self.new_name(), threading.Event()
        async with self.candidate(name) as holder:
            grant = await acquired(holder)
            takeover = asyncio.create_task(asyncio.to_thread(asyncio.run, self._take_over(name, was_refused)))
            await asyncio.to_thread(was_refused.wait, self.lease_s / 3)
            renewal = asyncio.create_task(holder.renew(grant))
            for _ in range(3):
                await asyncio.sleep(0)
            time.sleep(self.lease_s * 0.3)  # noqa: ASYNC251 - that is the point
            grant = await renewal
            assert (await takeover)[0] > grant.trusted_until, "split brain: trusted_until must count from sending"

    async def test_a_grant_that_takes_its_time_adds_no_trust(self) -> None:
        """The same for an acquisition. The test cannot see how far an attempt has come: so it makes several.

        They begin one after the other, and then the event loop blocks all of them, while followers in threads begin to
        ask. An attempt that had not reached the store yet may be granted after its follower, which shows nothing.
        """
        names, stalled = [self.new_name() for _ in _STAGGERED_S], threading.Event()
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(len(names))
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(pool.shutdown)
            stack.callback(stalled.set)
            holders = [await stack.enter_async_context(self.candidate(name)) for name in names]
            takeovers = [loop.run_in_executor(pool, self._take_over_when, stalled, name) for name in names]
            attempts = []
            for holder, pause_s in zip(holders, _STAGGERED_S, strict=True):
                attempts.append(asyncio.create_task(holder.try_acquire()))
                await asyncio.sleep(pause_s)
            stalled.set()
            time.sleep(self.lease_s * 0.3)  # noqa: ASYNC251 - that is the point
            for attempt, takeover in zip(attempts, takeovers, strict=True):
                grant, (at, token) = await attempt, await takeover
                is_first = grant is not None and token_of(grant) < token
                assert not is_first or grant is None or at > grant.trusted_until, (
                    "split brain: trusted_until must count from sending, also for an acquisition"
                )

    async def test_a_holder_in_good_health_is_not_called_lost(self) -> None:
        """And a call of ``lost()`` can be cancelled."""
        async with self.candidates(1) as (only,):
            grant = await acquired(only)
            watch = asyncio.create_task(only.lost())
            await asyncio.wait({watch}, timeout=self.lease_s / 4)
            assert not watch.done(), "lost() returned for a healthy holder"
            watch.cancel()
            await asyncio.wait({watch}, timeout=self.lease_s)
            assert watch.cancelled(), "lost() went on after it was cancelled"
            await renewed(only, grant)

    def _assert_within_the_lease(self, grant: Grant, before: float) -> None:
        end = suspend_aware_clock() + self.lease_s
        assert before < grant.lost_at < grant.trusted_until < end, f"validity must end within the lease: {grant}"

    def _take_over_when(self, stalled: threading.Event, name: str) -> tuple[float, int]:
        stalled.wait(self.lease_s)
        return asyncio.run(self._take_over(name, threading.Event()))

    async def _take_over(self, name: str, was_refused: threading.Event) -> tuple[float, int]:
        """Try repeatedly, on a separate event loop, and return when the lock was granted, and the token."""
        deadline = suspend_aware_clock() + 2 * self.lease_s + self.margin_s
        async with self.candidate(name) as follower:
            while (grant := await follower.try_acquire()) is None:
                was_refused.set()
                assert suspend_aware_clock() < deadline, "the lock of a silent holder did not become free"
                await asyncio.sleep(self.lease_s / 50)
            return suspend_aware_clock(), token_of(grant)


def assert_not_valid(grant: Grant) -> None:
    """Check that the former holder's validity has ended, now that another candidate was granted the lock."""
    assert suspend_aware_clock() > grant.trusted_until, "split brain: the lock was granted before validity had ended"
