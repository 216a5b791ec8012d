"""Who holds it, from when to when, and under which number."""

import asyncio

from pgleaderlock.testing.contract._tools import (
    ContractTools,
    acquired,
    assert_growing,
    assert_over,
    assert_refused,
    closed,
    released,
    renewed,
    token_of,
)

__all__ = ["TermTests"]


class TermTests(ContractTools):
    """One holder at a time, and numbers that grow."""

    async def test_a_single_contender_acquires(self) -> None:
        """It is granted, with a token."""
        async with self.contenders(1) as (only,):
            token_of(await acquired(only))

    async def test_a_second_contender_is_blocked_while_the_first_holds(self) -> None:
        """Held by another is an answer, not an error."""
        async with self.contenders(2) as (first, second):
            await acquired(first)
            await assert_refused(second)

    async def test_a_release_lets_the_next_in_at_once(self) -> None:
        """Without waiting for a lease to end."""
        async with self.contenders(2) as (first, second):
            grant = await acquired(first)
            await assert_refused(second)
            await released(first, grant)
            assert_growing([token_of(grant), token_of(await acquired(second))])

    async def test_tokens_grow_from_term_to_term(self) -> None:
        """Whoever holds it, and also when it is the same again."""
        async with self.contenders(2) as backends:
            tokens = []
            for backend in [*backends, *backends]:
                grant = await acquired(backend)
                tokens.append(token_of(grant))
                await released(backend, grant)
            assert_growing(tokens)

    async def test_tokens_grow_for_contenders_that_were_not_there_before(self) -> None:
        """The number is the store's, not a contender's memory."""
        name, tokens = self.new_name(), []
        for _ in range(4):
            async with self.contender(name) as newcomer:
                grant = await acquired(newcomer)
                tokens.append(token_of(grant))
                await released(newcomer, grant)
        assert_growing(tokens)

    async def test_tokens_grow_for_one_who_never_saw_the_silent_holder(self) -> None:
        """A number that vanished with an expired term would come again."""
        name = self.new_name()
        async with self.contender(name) as silent:
            old = await acquired(silent)
            await asyncio.sleep(self.lease_s + self.margin_s / 2)
            async with self.contender(name) as newcomer:
                assert_growing([token_of(old), token_of(await self.taken_over(newcomer))])

    async def test_locks_of_other_names_are_other_locks(self) -> None:
        """Whoever holds one has no part in the other."""
        async with self.contender(self.new_name()) as one, self.contender(self.new_name()) as other:
            grant = await acquired(one)
            await released(other, await acquired(other))
            await renewed(one, grant)

    async def test_opening_again_changes_nothing(self) -> None:
        """The engine opens before each attempt, whether it is needed or not."""
        async with self.contenders(2) as (first, second):
            grant = await acquired(first)
            await first.open()
            await renewed(first, grant)
            await assert_refused(second)

    async def test_an_old_grant_cannot_renew_or_release_the_term_of_another(self) -> None:
        """The new holder keeps what it has."""
        async with self.contenders(2) as (first, second):
            old = await acquired(first)
            await assert_refused(second)
            new = await self.taken_over(second)
            assert_growing([token_of(old), token_of(new)])
            await assert_over(first, old)
            await renewed(second, new)

    async def test_an_old_grant_cannot_renew_or_release_a_later_term_of_its_own_holder(self) -> None:
        """A renewal that was forgotten somewhere, and comes to life in another term, is worth nothing."""
        async with self.contenders(2) as (first, second):
            old = await acquired(first)
            await released(first, old)
            new = await acquired(first)
            await assert_over(first, old)
            await renewed(first, new)
            await assert_refused(second)

    async def test_asking_often_changes_nothing(self) -> None:
        """Who asks is not in anybody's way, and is let in when it is free."""
        async with self.contenders(2) as (first, second):
            grant = await acquired(first)
            for _ in range(10):
                for _ in range(10):
                    await assert_refused(second)
                grant = await renewed(first, grant)
            await released(first, grant)
            await acquired(second)

    async def test_the_holder_is_named_while_there_is_one(self) -> None:
        """For people."""
        async with self.contenders(2) as (first, second):
            assert await second.holder() is None, "a holder is named where there is none"
            grant = await acquired(first)
            holder = await second.holder()
            assert holder is not None, "nobody is named while somebody holds"
            assert holder.name, "the holder has no name"
            own = await first.holder()
            assert own is not None
            assert own.name == holder.name, "the holder is called otherwise by itself"
            await released(first, grant)
            assert await second.holder() is None, "a holder is named where there is none any more"

    async def test_closing_lets_go_and_may_be_repeated(self) -> None:
        """At the latest after the lease, another can have it; and so can we, after opening again."""
        async with self.contenders(2) as (first, second):
            grant = await acquired(first)
            await assert_refused(second)
            await closed(first)
            await closed(first)
            new = await self.taken_over(second)
            assert_growing([token_of(grant), token_of(new)])
            await released(second, new)
            await first.open()
            await acquired(first)

    async def test_closing_too_late_frees_nothing(self) -> None:
        """Whoever was taken over from, and closes then, must not close its successor's term."""
        async with self.contenders(3) as (first, second, third):
            await acquired(first)
            await assert_refused(second)
            new = await self.taken_over(second)
            await closed(first)
            await assert_refused(third)
            await renewed(second, new)

    async def test_closing_a_contender_that_holds_nothing_frees_nothing(self) -> None:
        """It gives up what it has, which is not the lock."""
        async with self.contenders(3) as (holder, bystander, other):
            grant = await acquired(holder)
            await assert_refused(bystander)
            await closed(bystander)
            await assert_refused(other)
            await renewed(holder, grant)

    async def test_labels_name_the_lock(self) -> None:
        """In every log line."""
        async with self.contenders(1) as (only,):
            assert only.labels, "a lock without labels cannot be told from others in a log"
