"""Which candidate holds the lock, from when to when, and with which token."""

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


class TermTests(ContractTools):
    """One holder at a time, and tokens that grow."""

    async def test_a_single_candidate_acquires(self) -> None:
        """The lock is granted, with a token."""
        async with self.candidates(1) as (only,):
            token_of(await acquired(only))

    async def test_a_second_candidate_is_blocked_while_the_first_holds(self) -> None:
        """The attempt returns None and raises no error."""
        async with self.candidates(2) as (first, second):
            await acquired(first)
            await assert_refused(second)

    async def test_a_release_lets_the_next_in_at_once(self) -> None:
        """The next candidate does not wait for a lease to end."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            await assert_refused(second)
            await released(first, grant)
            assert_growing([token_of(grant), token_of(await acquired(second))])

    async def test_tokens_grow_from_term_to_term(self) -> None:
        """They grow for every next holder, also if it is the same candidate again."""
        async with self.candidates(2) as backends:
            tokens = []
            for backend in [*backends, *backends]:
                grant = await acquired(backend)
                tokens.append(token_of(grant))
                await released(backend, grant)
            assert_growing(tokens)

    async def test_tokens_grow_for_candidates_that_were_not_there_before(self) -> None:
        """The store keeps the last token, not the candidate."""
        name, tokens = self.new_name(), []
        for _ in range(4):
            async with self.candidate(name) as newcomer:
                grant = await acquired(newcomer)
                tokens.append(token_of(grant))
                await released(newcomer, grant)
        assert_growing(tokens)

    async def test_tokens_grow_for_one_who_never_saw_the_silent_holder(self) -> None:
        """A token that was deleted with its expired term would be assigned again."""
        name = self.new_name()
        async with self.candidate(name) as silent:
            old = await acquired(silent)
            await asyncio.sleep(self.lease_s + self.margin_s / 2)
            async with self.candidate(name) as newcomer:
                assert_growing([token_of(old), token_of(await self.taken_over(newcomer))])

    async def test_locks_of_other_names_are_other_locks(self) -> None:
        """The holder of one lock does not affect the other."""
        async with self.candidate(self.new_name()) as one, self.candidate(self.new_name()) as other:
            grant = await acquired(one)
            await released(other, await acquired(other))
            await renewed(one, grant)

    async def test_opening_again_changes_nothing(self) -> None:
        """The engine opens before each attempt, whether it is needed or not."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            await first.open()
            await renewed(first, grant)
            await assert_refused(second)

    async def test_an_old_grant_cannot_renew_or_release_the_term_of_another(self) -> None:
        """The new holder keeps its term."""
        async with self.candidates(2) as (first, second):
            old = await acquired(first)
            await assert_refused(second)
            new = await self.taken_over(second)
            assert_growing([token_of(old), token_of(new)])
            await assert_over(first, old)
            await renewed(second, new)

    async def test_an_old_grant_cannot_renew_or_release_a_later_term_of_its_own_holder(self) -> None:
        """A renewal that was delayed until a later term must fail."""
        async with self.candidates(2) as (first, second):
            old = await acquired(first)
            await released(first, old)
            new = await acquired(first)
            await assert_over(first, old)
            await renewed(first, new)
            await assert_refused(second)

    async def test_asking_often_changes_nothing(self) -> None:
        """A candidate that asks often does not disturb the holder, and is granted the lock when it is free."""
        async with self.candidates(2) as (first, second):
            grant = await acquired(first)
            for _ in range(10):
                for _ in range(10):
                    await assert_refused(second)
                grant = await renewed(first, grant)
            await released(first, grant)
            await acquired(second)

    async def test_the_holder_is_named_while_there_is_one(self) -> None:
        """``holder()`` shows an operator who holds the lock."""
        async with self.candidates(2) as (first, second):
            assert await second.holder() is None, "a holder is named where there is none"
            grant = await acquired(first)
            holder = await second.holder()
            assert holder is not None, "no holder is named while the lock is held"
            assert holder.name, "the holder has no name"
            own = await first.holder()
            assert own is not None
            assert own.name == holder.name, "the holder has another name for itself than for others"
            await released(first, grant)
            assert await second.holder() is None, "a holder is named where there is none any more"

    async def test_closing_releases_and_may_be_repeated(self) -> None:
        """At the latest after the lease, another candidate gets the lock; and so does the first, once reopened."""
        async with self.candidates(2) as (first, second):
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
        """A former holder that closes after the take-over must not end its successor's term."""
        async with self.candidates(3) as (first, second, third):
            await acquired(first)
            await assert_refused(second)
            new = await self.taken_over(second)
            await closed(first)
            await assert_refused(third)
            await renewed(second, new)

    async def test_closing_a_candidate_that_holds_nothing_frees_nothing(self) -> None:
        """A follower that closes does not release the holder's lock."""
        async with self.candidates(3) as (holder, bystander, other):
            grant = await acquired(holder)
            await assert_refused(bystander)
            await closed(bystander)
            await assert_refused(other)
            await renewed(holder, grant)

    async def test_labels_name_the_lock(self) -> None:
        """The labels are part of every log line."""
        async with self.candidates(1) as (only,):
            assert only.labels, "a lock without labels cannot be distinguished from others in a log"
