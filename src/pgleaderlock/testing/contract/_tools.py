"""Helpers of the contract's tests."""

import asyncio
import contextlib
import itertools
import math
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import Grant
from pgleaderlock.stores.base import Backend

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long one call may take before it counts as hanging, so that the suite reports it and does not hang itself."""
_numbers = itertools.count(1)


class ContractTools:
    """The settings of the suite, and the making of candidates."""

    lease_s = 1.5
    """Long enough for the store to answer several times within a third of it."""
    margin_s = 1.0
    """How much later than its lease a silent holder's lock may become free."""
    tasks = 8
    """How many candidates compete in the tests with many."""
    processes = 3
    """How many of them are processes, in the test with processes."""

    def make_backend(self, name: str, **settings: Any) -> Backend:
        """Return a candidate for the lock of that name, with ``lease_s`` among the settings."""
        raise NotImplementedError

    def new_name(self) -> str:
        """Return the name of a lock that was never used before."""
        return f"contract-{os.getpid()}-{next(_numbers)}"

    @contextlib.asynccontextmanager
    async def candidate(self, name: str, *, lease_s: float | None = None) -> AsyncIterator[Backend]:
        """Open one candidate for that lock, and close it at the end."""
        backend = self.make_backend(name, lease_s=lease_s or self.lease_s)
        try:
            await ended(backend.open(), "open()")
            yield backend
        finally:
            await closed(backend)

    @contextlib.asynccontextmanager
    async def candidates(self, number: int) -> AsyncIterator[list[Backend]]:
        """Open so many candidates for one new lock, and close them at the end."""
        name = self.new_name()
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.candidate(name)) for _ in range(number)]

    async def taken_over(self, backend: Backend, lease_s: float | None = None) -> Grant:
        """Wait, as a follower does, until ``backend`` is granted the lock of a silent holder with that lease."""
        deadline = suspend_aware_clock() + (lease_s or self.lease_s) + self.margin_s
        while (grant := await ended(backend.try_acquire(), "try_acquire()")) is None:
            assert suspend_aware_clock() < deadline, "the lock of a silent holder did not become free"
            await ended(backend.wait(max(0.01, deadline - suspend_aware_clock())), "wait()")
        return grant


async def ended(verb: Coroutine[Any, Any, T], name: str) -> T:
    """Return the result of a call; fail with its name if it does not end in time."""
    call = asyncio.ensure_future(verb)
    try:
        await asyncio.wait({call}, timeout=PATIENCE_S)
        assert call.done(), f"{name} did not end within {PATIENCE_S:g} s"
        return call.result()
    finally:
        call.cancel()


async def closed(backend: Backend) -> None:
    """Close the backend, and check that this does not raise."""
    try:
        await ended(backend.close(), "close()")
    except (ConnectionError, LockError) as error:
        raise AssertionError(f"close() must not raise, whatever goes wrong: {error}") from error


async def acquired(backend: Backend) -> Grant:
    """Acquire a lock that is free, and return the grant."""
    grant = await ended(backend.try_acquire(), "try_acquire()")
    assert grant is not None, "a free lock was not granted"
    assert not math.isinf(grant.trusted_until), "this grant never ends: trusted_until is infinite"
    return grant


async def assert_refused(backend: Backend) -> None:
    """Check that an attempt returns None while another candidate holds the lock."""
    try:
        grant = await ended(backend.try_acquire(), "try_acquire()")
    except LockError as error:
        raise AssertionError(f"held by another is an answer, None, and not an error: {error}") from error
    assert grant is None, f"a lock that another holds was granted: {grant}"


def assert_growing(tokens: list[int]) -> None:
    """Check that tokens grow: a repeated or smaller one would let an old leader through a fence."""
    assert tokens == sorted(set(tokens)), f"tokens must grow from term to term: {tokens}"


async def assert_over(backend: Backend, grant: Grant) -> None:
    """Check that a former holder can neither renew nor release, and that both raise errors of this library."""
    for name, done, verb in (("renew()", "renewed", backend.renew), ("release()", "released", backend.release)):
        try:
            answer = await ended(verb(grant), name)
        except (ConnectionError, LockError):
            continue
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(
                f"{name} of a term that was over raised {type(error).__name__}, which the engine does not know: "
                "raise LeadershipLost if the term is certainly lost, and ConnectionError if that is unknown"
            ) from error
        raise AssertionError(f"a term that was over was {done}: {answer}")


async def released(backend: Backend, grant: Grant) -> None:
    try:
        await ended(backend.release(grant), "release()")
    except (ConnectionError, LockError) as error:
        raise AssertionError(f"a valid term could not be released: {error}") from error


async def renewed(backend: Backend, grant: Grant) -> Grant:
    """Renew a grant that is valid, and return the new grant."""
    try:
        new = await ended(backend.renew(grant), "renew()")
    except (ConnectionError, LockError) as error:
        raise AssertionError(f"a valid term could not be renewed: {error}") from error
    assert new.token == grant.token, "a renewal changed the token"
    return new


def token_of(grant: Grant) -> int:
    """Return the grant's token, which every grant must have."""
    assert isinstance(grant.token, int), "a grant without a token fences nothing"
    return grant.token
