"""Retries of a failed renewal: one failure is not a loss."""

import asyncio
from collections.abc import Awaitable, Callable

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Grant
from pgleaderlock.stores.times import first_answer_s, retry_pause_s

_QUICK_TRIES = 3


async def renew_patiently(
    attempt: Callable[[], Awaitable[Grant | None]], grant: Grant, lease_s: float, clock: Clock, logger: NDLogger
) -> Grant:
    """Retry ``attempt`` until it succeeds, or until the next retry would come after leadership is declared lost.

    ``attempt`` returns None to be retried at once. LeadershipLost, which is certain, is raised at once. The pause
    counts from the beginning of an attempt: after one that took long to fail, the next follows at once.
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
        bound_s = None  # from the second attempt on, only the store's own time limit applies


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
    # Raised outside the except block: as its context, the TimeoutError would keep a driver's frames and socket alive.
    raise ConnectionError(f"no answer to a renewal within {bound_s:.3g} s", cause=LossCause.RENEW_TIMEOUT)
