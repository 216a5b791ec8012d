"""Waiting for the lock: the follower is woken in time, and does not poll busily before."""

import asyncio
import time

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.testing.contract._tools import ContractTools, acquired, assert_refused, closed, released, renewed

_MOST_RETURNS_PER_S = 20


class WaitingTests(ContractTools):
    """``wait`` returns when another attempt may succeed, and not otherwise."""

    async def test_follower_that_waits_is_woken_by_a_release(self) -> None:
        """Or it checks again by itself: in either case before the lease would have ended."""
        async with self.candidates(2) as (first, second):
            grant = await renewed(first, await acquired(first))
            await assert_refused(second)
            waiting = asyncio.create_task(second.wait(60))
            await asyncio.sleep(0.1)
            await released(first, grant)
            await asyncio.wait({waiting}, timeout=self.lease_s + self.margin_s)
            assert waiting.done(), "the follower was not woken, neither by the release nor by its own clock"
            await waiting
            await acquired(second)

    async def test_a_wait_is_over_when_its_time_is(self) -> None:
        """The engine calls ``wait()``, and must be able to go on."""
        async with self.candidates(2) as (first, second):
            await acquired(first)
            await assert_refused(second)
            waiting = asyncio.create_task(second.wait(self.lease_s / 4))
            await asyncio.wait({waiting}, timeout=self.lease_s + self.margin_s)
            assert waiting.done(), "a wait went on after its time"
            await waiting

    async def test_closed_backend_can_still_wait(self) -> None:
        """The engine waits between two attempts to connect, too."""
        async with self.candidates(1) as (only,):
            await closed(only)
            waiting = asyncio.create_task(only.wait(self.lease_s / 10))
            await asyncio.wait({waiting}, timeout=self.lease_s + self.margin_s)
            assert waiting.done(), "a wait went on after its time"
            await waiting

    async def test_closing_leaves_no_task_behind(self) -> None:
        """Nor the resources of a task."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            await assert_refused(second)
            await second.wait(self.lease_s / 10)
            await released(first, grant)
        await asyncio.sleep(0.1)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left after closing: {left}"

    async def test_waiting_is_not_asking_in_a_circle(self) -> None:
        """A ``wait()`` that returns at once, again and again, would keep a processor and the store busy."""
        async with self.candidates(2) as (first, second):
            await acquired(first)
            await assert_refused(second)
            returns, spell_s, busy_s = 0, self.lease_s / 2, time.process_time()
            end = suspend_aware_clock() + spell_s
            while (left_s := end - suspend_aware_clock()) > 0:
                await second.wait(left_s)
                returns += 1
                await asyncio.sleep(0)
            assert returns <= 1 + _MOST_RETURNS_PER_S * spell_s, f"wait returned {returns} times for nothing"
            busy_s = time.process_time() - busy_s
            assert busy_s < spell_s / 2, f"waiting for {spell_s:g} s took {busy_s:g} s of the processor"
            await assert_refused(second)
