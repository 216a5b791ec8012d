"""How long to wait before the next attempt.

A strategy is asked after each failed attempt and answers with a delay, or with None to give up, which stops the
election. Strategies are stateless: everything they may remember comes in with the :class:`RetryContext`, so one
instance can be shared by any number of locks, and equal contexts always give equal delays (except for the jitter, whose
random generator can be passed in).

A strategy decides how often a follower tries for a *held* lock. While the *store* is unreachable, no candidate can
lead, and a delay that has grown to half a minute would be added to every outage. So as long as the last attempt ended
in a ConnectionError, :class:`RetryCycle` waits no longer than a third of a lease, between 1 and 5 seconds
(:func:`away_ceiling_s`), and not in step with other candidates. A strategy that gives up still gives up.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pgleaderlock._base.checks import check_number, check_seconds
from pgleaderlock._base.clock import Clock
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import RetryContext

__all__ = ["DecorrelatedJitter", "ExponentialBackoff", "FixedInterval", "RetryCycle", "RetryStrategy", "away_ceiling_s"]

_AWAY_SHARE = 1 / 3
_AWAY_LEAST_S, _AWAY_MOST_S = 1.0, 5.0
_AWAY_JITTER = 0.25
"""By how much of itself a delay is shortened at random, so that candidates do not come back all at once."""


def away_ceiling_s(lease_s: float | None) -> float:
    """Return the longest delay between two attempts while the store is away; None is a store without a lease."""
    return _AWAY_MOST_S if lease_s is None else min(_AWAY_MOST_S, max(_AWAY_LEAST_S, lease_s * _AWAY_SHARE))


@runtime_checkable
class RetryStrategy(Protocol):
    """Any object with a method ``next_delay_s``."""

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        """Return the seconds to wait before the next attempt, or None to stop trying."""
        ...


def _check_range(base_s: float, max_s: float) -> None:
    check_seconds("base_s", base_s)
    check_seconds("max_s", max_s)
    if base_s > max_s:
        raise ValueError(f"base_s={base_s} must not be greater than max_s={max_s}")


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """``base_s``, then ``multiplier`` times as long after each failure, up to ``max_s``."""

    base_s: float = 1.0
    max_s: float = 30.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        _check_range(self.base_s, self.max_s)
        if check_number("multiplier", self.multiplier) < 1:
            raise ValueError(f"multiplier must be at least 1, got {self.multiplier}")

    def next_delay_s(self, ctx: RetryContext) -> float:
        """Return a delay that grows with the number of attempts."""
        try:
            delay_s = self.base_s * float(self.multiplier) ** (ctx.attempt - 1)
        except OverflowError:  # after some 1,000 attempts a float cannot hold the power; it was past max_s long ago
            return self.max_s
        return min(delay_s, self.max_s)


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """The same delay every time."""

    interval_s: float = 5.0

    def __post_init__(self) -> None:
        check_seconds("interval_s", self.interval_s)

    def next_delay_s(self, ctx: RetryContext) -> float:  # noqa: ARG002 - the protocol's signature
        """Return the interval."""
        return self.interval_s


@dataclass(frozen=True, slots=True)
class DecorrelatedJitter:
    """A random delay between ``base_s`` and three times the previous one, up to ``max_s``.

    Spreads out processes that failed together, which plain back-off keeps in step. Pass ``rng`` to make it
    repeatable.
    """

    base_s: float = 1.0
    max_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_range(self.base_s, self.max_s)
        if not isinstance(self.rng, random.Random):
            raise TypeError(f"rng must be a random.Random, not {type(self.rng).__name__}")

    def next_delay_s(self, ctx: RetryContext) -> float:
        """Return a random delay from the range that the previous delay defines."""
        previous_s = self.base_s if ctx.previous_delay_s is None else max(ctx.previous_delay_s, self.base_s)
        return min(self.max_s, self.rng.uniform(self.base_s, previous_s * 3))


class RetryCycle:
    """The attempts since the last success, which are the input of the strategy, as strategies keep no state.

    A new cycle begins with each start, each term and each reconnection.
    ``away_ceiling_s`` bounds the delay after a ConnectionError; without it the strategy decides alone.
    """

    def __init__(self, strategy: RetryStrategy, clock: Clock, *, away_ceiling_s: float = math.inf) -> None:
        self._strategy = strategy
        self._clock = clock
        self._away_ceiling_s = away_ceiling_s
        self._began_at: float | None = None
        self._failed = False
        self._previous_delay_s: float | None = None
        self.attempt = 0
        self.after_release = False
        """Whether the next delay lets other candidates go first, after a step-down. Reset by the next attempt."""
        self.last_error: Exception | None = None

    def begin_attempt(self) -> None:
        """Count one more attempt."""
        self.attempt += 1
        self.after_release = False
        if self._began_at is None:
            self._began_at = self._clock()

    def fail_attempt(self, error: Exception | None = None) -> None:
        """Note that the attempt failed; without an error, another candidate holds the lock."""
        self._failed = True
        self.last_error = error

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt."""
        return 0.0 if self._began_at is None else self._clock() - self._began_at

    def next_delay_s(self) -> float | None:
        """Return how long to wait before the next attempt: 0 before the first, None to give up."""
        if not self._failed:
            return 0.0
        context = RetryContext(self.attempt, self.elapsed_s, self.last_error, self._previous_delay_s)
        self._previous_delay_s = delay_s = self._checked(self._strategy.next_delay_s(context))
        if delay_s is None or delay_s <= self._away_ceiling_s or not isinstance(self.last_error, ConnectionError):
            return delay_s
        return self._away_ceiling_s * random.uniform(1 - _AWAY_JITTER, 1)  # noqa: S311 - spreads out candidates

    def _checked(self, delay_s: float | None) -> float | None:
        """Refuse a delay that cannot be slept: NaN would loop without a pause, infinity would never try again."""
        if delay_s is None:
            return None
        try:
            return check_seconds("the delay", delay_s, zero_ok=True)
        except (TypeError, ValueError) as error:
            name = type(self._strategy).__name__
            raise LockError(f"the retry strategy {name} returned something that is not a delay: {error}") from None
