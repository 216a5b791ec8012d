"""Calls that are cancelled: each ends at once, and whatever effect it had in the store, the lock becomes free."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from pgleaderlock.testing.contract._tools import (
    ContractTools,
    acquired,
    assert_growing,
    assert_refused,
    closed,
    released,
    renewed,
    token_of,
)


class CutShortTests(ContractTools):
    """A cancelled call ends at once, and leaves no lock behind."""

    async def test_an_attempt_that_is_cut_short_does_not_hold_the_lock_for_ever(self) -> None:
        """At whatever point it was cancelled."""
        async with self.candidates(2) as (first, second):
            for delay_s in (0.0, 0.0005, 0.002):
                await self._cut_short(first.try_acquire(), delay_s)
                await closed(first)
                await released(second, await self.taken_over(second))
                await first.open()

    async def test_a_renewal_that_is_cut_short_does_not_hold_the_lock_for_ever(self) -> None:
        """Nor does it affect the next term."""
        async with self.candidates(2) as (first, second):
            old = await acquired(first)
            await self._cut_short(first.renew(old), 0.0005)
            await closed(first)
            new = await self.taken_over(second)
            assert_growing([token_of(old), token_of(new)])
            await renewed(second, new)

    async def test_a_release_that_is_cut_short_does_not_hold_the_lock_for_ever(self) -> None:
        """Nor does it release the next term."""
        async with self.candidates(2) as (first, second):
            old = await acquired(first)
            await self._cut_short(first.release(old), 0.0005)
            await closed(first)
            new = await self.taken_over(second)
            assert_growing([token_of(old), token_of(new)])
            await renewed(second, new)

    async def test_a_wait_that_is_cut_short_ends_at_once(self) -> None:
        """And the candidate can go on afterwards."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            await assert_refused(second)
            await self._cut_short(second.wait(60), 0.05)
            await second.open()
            await released(first, grant)
            await self.taken_over(second)

    async def _cut_short(self, verb: Coroutine[Any, Any, object], delay_s: float) -> None:
        attempt = asyncio.create_task(verb)
        await asyncio.sleep(delay_s)
        attempt.cancel()
        await asyncio.wait({attempt}, timeout=self.lease_s)
        assert attempt.done(), "a call went on after it was cancelled"
