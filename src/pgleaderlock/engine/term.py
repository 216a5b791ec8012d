"""One term of leadership, as the leader tasks that run in it see it.

Everything here may be called from any thread, and looks at the clock at each call: a thread finds out that its term is
over even while the event loop is blocked and cannot notify it.
"""

import asyncio
import math
import threading
from collections.abc import Callable

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock
from pgleaderlock.engine.functions import is_on_a_loop
from pgleaderlock.errors import LeadershipLost, LockError
from pgleaderlock.models import Grant

__all__ = ["Term", "loss_of"]

_LOOK_AGAIN_S = 1.0  # a thread's wait does not count the time in which the host was suspended; the clock does


class Term:
    """The term that a leader task gets as its argument: its fencing token, its validity, and when to stop."""

    def __init__(self, grant: Grant, grant_now: Callable[[], Grant | None], clock: Clock, described: str) -> None:
        self._grant = grant
        self._grant_now = grant_now
        self._clock = clock
        self._described = described
        self._asked = threading.Event()
        self._asked_here = asyncio.Event()
        self._hand_over_at: float | None = None
        self._ended_by: Exception | None = None

    @property
    def token(self) -> int | None:
        """The fencing token: greater than every earlier leader's. None where the store has none."""
        return self._grant.token

    @property
    def trusted_until(self) -> float:
        """Until when, on the election's clock, no other can lead. Grows with each renewal of the term."""
        return (self._grant_now() or self._grant).trusted_until

    @property
    def time_left_s(self) -> float:
        """For how many seconds no other can lead, without a renewal. This is also the time in which to stop."""
        return max(0.0, self.trusted_until - self._clock())

    @property
    def is_ending(self) -> bool:
        """Whether to stop now: leadership was lost, is to be handed over, or could not be confirmed in time."""
        return self._ends_in_s() <= 0

    @property
    def is_over(self) -> bool:
        """Whether leadership has ended. False while a requested hand-over still waits for this work."""
        return self._grant_now() is None

    @property
    def hand_over_at(self) -> float | None:
        """Until when, on the election's clock, a requested hand-over waits for this work. None without a request."""
        return self._hand_over_at

    def check(self) -> None:
        """Raise :class:`LeadershipLost` if the term is ending. Call it before each action that must happen once."""
        if self.is_ending:
            raise loss_of(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        """In a thread: sleep until the term is ending. Return False when the time was up before.

        ``while not term.wait(5):`` does something every five seconds, and stops at once when it must.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, zero_ok=True)
        if is_on_a_loop():
            raise LockError("term.wait() would stop the event loop, and the renewals: await term.wait_until_ending()")
        wakes_at = math.inf if timeout_s is None else self._clock() + timeout_s
        while (ends_in_s := self._ends_in_s()) > 0:
            left_s = wakes_at - self._clock()
            if left_s <= 0:
                return False
            self._asked.wait(min(left_s, ends_in_s, _LOOK_AGAIN_S))
        return True

    async def wait_until_ending(self) -> None:
        """In a coroutine: wait until the term is ending."""
        await self._asked_here.wait()

    def _ends_in_s(self) -> float:
        grant = self._grant_now()
        return 0.0 if grant is None or self._asked.is_set() else grant.lost_at - self._clock()

    def __repr__(self) -> str:
        how = "ending" if self.is_ending else f"{self.time_left_s:.1f} s left"
        return f"<Term token={self.token} {how}>"


def loss_of(term: Term) -> LeadershipLost:
    """Return the error that says why this term ended, or is about to; the store's error is its ``__cause__``."""
    ended_by, cause, why = term._ended_by, LossCause.UNKNOWN, ""  # noqa: SLF001 - of this module
    if ended_by is not None:
        cause, why = getattr(ended_by, "cause", cause), f": {ended_by}"
    elif term.hand_over_at is not None:
        cause, why = LossCause.STEPPED_DOWN, ": a hand-over was requested"
    loss = LeadershipLost(
        f"the term of {term._described} is over, or about to be, so nothing may be begun in it{why}",  # noqa: SLF001
        cause=cause,
    )
    loss.__cause__ = ended_by
    return loss
