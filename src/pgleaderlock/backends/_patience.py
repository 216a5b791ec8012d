"""Renewing in a store that may fail now and then: one failure is not a loss."""

import asyncio
from collections.abc import Awaitable, Callable

from pgleaderlock._logging import NDLogger
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Grant

__all__ = ["renew_patiently"]

_TRIES_PER_LEASE = 15
_QUICK_TRIES = 3


async def renew_patiently(
    attempt: Callable[[], Awaitable[Grant | None]], grant: Grant, lease_s: float, clock: Clock, logger: NDLogger
) -> Grant:
    """Try until it works, or until another try would come after leadership is declared lost anyway.

    ``attempt`` returns None to be tried again at once. What is certain, LeadershipLost, is raised at once. An attempt
    that took long to fail was pause enough: the time that is left is for the next.
    """
    while True:
        next_at = clock() + lease_s / _TRIES_PER_LEASE
        try:
            for _ in range(_QUICK_TRIES):
                if (renewed := await attempt()) is not None:
                    return renewed
            raise ConnectionError("the record changes under our hands")  # noqa: TRY301 - to be tried again, later
        except ConnectionError as error:
            pause_s = max(0.0, next_at - clock())
            if clock() + pause_s >= grant.lost_at:
                raise
            logger.warning("renewal_failed", error=error, tried_again_in_s=pause_s)
            await asyncio.sleep(pause_s)
