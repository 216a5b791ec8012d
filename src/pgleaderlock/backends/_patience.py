"""Renewing in a store that may fail now and then: one failure is not a loss."""

import asyncio
from collections.abc import Awaitable, Callable

from pgleaderlock._logging import NDLogger
from pgleaderlock.backends.times import first_answer_s, retry_pause_s
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Grant

__all__ = ["renew_patiently"]

_QUICK_TRIES = 3


async def renew_patiently(
    attempt: Callable[[], Awaitable[Grant | None]], grant: Grant, lease_s: float, clock: Clock, logger: NDLogger
) -> Grant:
    """Try until it works, or until another try would come after leadership is declared lost anyway.

    ``attempt`` returns None to be tried again at once. What is certain, LeadershipLost, is raised at once. An attempt
    that took long to fail was pause enough: the time that is left is for the next.
    """
    left_s = grant.lost_at - clock()
    bound_s = first_answer_s(left_s, lease_s) if left_s > 0 else None
    while True:
        next_at = clock() + retry_pause_s(grant.lost_at - clock(), lease_s)
        try:
            return await _try_quickly(attempt, bound_s)
        except ConnectionError as error:
            pause_s = max(0.0, next_at - clock())
            if clock() + pause_s >= grant.lost_at:
                raise
            logger.warning("renewal_failed", error=error, tried_again_in_s=pause_s)
            await asyncio.sleep(pause_s)
        bound_s = None  # from now on an answer is waited for as long as it is of use


async def _try_quickly(attempt: Callable[[], Awaitable[Grant | None]], bound_s: float | None) -> Grant:
    try:
        async with asyncio.timeout(bound_s):
            for _ in range(_QUICK_TRIES):
                if (renewed := await attempt()) is not None:
                    return renewed
    except TimeoutError:
        pass
    else:
        raise ConnectionError("the record was modified concurrently, again and again")
    # Raised here: as its context, the time-out would keep a driver's frames alive, and the socket in them open.
    raise ConnectionError(f"no answer to a renewal within {bound_s:.3g} s", cause=LossCause.RENEW_TIMEOUT)
