"""Many candidates at once, as tasks of one process and as processes."""

import asyncio
import itertools
import multiprocessing
import os
from multiprocessing.connection import Connection

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.engine.election import Election
from pgleaderlock.models import EventKind
from pgleaderlock.retry import FixedInterval
from pgleaderlock.testing.contract._tools import ContractTools, acquired, assert_growing, assert_refused

_Term = tuple[float, float, int]
"""When a term began and ended, and its token."""
_PATIENCE_S = 60.0


class CrowdTests(ContractTools):
    """Of many candidates in one process, at most one is granted at any time."""

    async def test_of_many_candidates_exactly_one_leads_at_any_time(self) -> None:
        """Each candidate leads for a moment and hands over, until all of them have led."""
        name = self.new_name()
        terms = await asyncio.gather(*(self.lead_once(name) for _ in range(self.tasks)))
        assert_in_turn(terms)

    async def test_of_many_who_wait_for_a_silent_holder_one_takes_over(self) -> None:
        """All followers see the lease expire at the same moment: the store must grant the lock to one of them."""
        async with self.candidates(1 + self.tasks) as (holder, *followers):
            await acquired(holder)
            for follower in followers:
                await assert_refused(follower)
            takeovers = [asyncio.create_task(self.taken_over(follower, 2 * self.lease_s)) for follower in followers]
            await asyncio.wait(takeovers, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self.lease_s / 4)
            granted = [takeover.result() for takeover in takeovers if takeover.done()]
            for takeover in takeovers:
                takeover.cancel()
            await asyncio.wait(takeovers)
            assert len(granted) == 1, f"{len(granted)} candidates were granted one lock"

    async def lead_once(self, name: str) -> _Term:
        """Take part in an election, lead for a moment, and release."""
        backend = self.make_backend(name, lease_s=self.lease_s)
        election = Election(backend, health_interval_s=self.lease_s / 3, retry_strategy=FixedInterval(0.1))
        errors: list[object] = []
        election.subscribe(lambda event: errors.append(event.error) if event.kind is EventKind.ERROR else None)
        async with election:
            assert await election.wait_for_leadership(_PATIENCE_S), errors
            start, token = suspend_aware_clock(), election.token
            assert token is not None, "a leader without a token"
            await asyncio.sleep(0.02)
            assert election.is_leader, "leadership did not last for 20 ms"
            return start, suspend_aware_clock(), token


class ProcessTests(CrowdTests):
    """The same between processes, which share nothing but the store."""

    async def test_of_many_processes_exactly_one_leads_at_any_time(self) -> None:
        """Each process leads and hands over, then leads again and exits without a release."""
        name = self.new_name()
        terms = await asyncio.gather(*(asyncio.to_thread(self._spawn, name) for _ in range(self.processes)))
        assert_in_turn([term for of_one in terms for term in of_one])

    def _spawn(self, name: str) -> list[_Term]:
        """Run one candidate in a separate process, and return its terms."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_lead_and_die, args=(self, name, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            return [_received(ours), _received(ours)]
        finally:
            process.kill()
            process.join()


def assert_in_turn(terms: list[_Term]) -> None:
    """Check that no two terms overlap, and that each has a greater token than the one before."""
    in_time = sorted(terms)
    for (_, end, _), (start, _, _) in itertools.pairwise(in_time):
        assert end <= start, "two led at the same time"
    assert_growing([token for _, _, token in in_time])


def _received(answers: Connection) -> _Term:
    assert answers.poll(_PATIENCE_S), "a candidate in a separate process never led"
    try:
        term: _Term = answers.recv()
    except EOFError:
        raise AssertionError("a candidate in a separate process failed: see its error output") from None
    return term


def _lead_and_die(contract: ProcessTests, name: str, answers: Connection) -> None:  # pragma: no cover - elsewhere
    """Run in such a process: lead twice. The second term ends with the process, without a release."""
    answers.send(asyncio.run(contract.lead_once(name)))

    async def lead_until_death() -> None:
        async with contract.candidate(name) as backend:
            while (grant := await backend.try_acquire()) is None:
                await backend.wait(contract.lease_s)
            assert grant.token is not None
            start = suspend_aware_clock()
            await asyncio.sleep(0.02)
            answers.send((start, suspend_aware_clock(), grant.token))
            os._exit(0)

    asyncio.run(lead_until_death())
