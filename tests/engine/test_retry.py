"""The delays: bounds, growth, no memory, and a clear word about every value that makes no sense."""

import dataclasses
import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import RetryContext
from pgleaderlock.retry import (
    DecorrelatedJitter,
    ExponentialBackoff,
    FixedInterval,
    RetryCycle,
    RetryStrategy,
    away_ceiling_s,
)

seconds = st.floats(min_value=1e-6, max_value=1e9)
multipliers = st.floats(min_value=1.0, max_value=1e6)
attempts = st.integers(min_value=1, max_value=10**6)
errors = st.sampled_from([None, LockError("refused"), OSError("down")])
previous_delays = st.none() | st.floats(min_value=0, max_value=1e12)
contexts = st.builds(RetryContext, attempts, st.floats(min_value=0, max_value=1e9), errors, previous_delays)
ranges = st.tuples(seconds, seconds).map(sorted)

properties = settings(deadline=None, max_examples=60)


def after(attempt: int, previous_delay_s: float | None = None) -> RetryContext:
    return RetryContext(attempt=attempt, elapsed_s=1.0, previous_delay_s=previous_delay_s)


# --- ExponentialBackoff ----------------------------------------------------------------------------------------


def test_exponential_backoff_doubles_from_one_second_to_thirty_by_default() -> None:
    strategy = ExponentialBackoff()
    assert [strategy.next_delay_s(after(n)) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert (strategy.base_s, strategy.max_s, strategy.multiplier) == (1.0, 30.0, 2.0)


def test_exponential_backoff_grows_by_its_multiplier() -> None:
    strategy = ExponentialBackoff(base_s=0.5, max_s=100, multiplier=3)
    assert [strategy.next_delay_s(after(n)) for n in range(1, 6)] == [0.5, 1.5, 4.5, 13.5, 40.5]


def test_a_multiplier_of_one_never_grows() -> None:
    strategy = ExponentialBackoff(base_s=2, max_s=30, multiplier=1)
    assert {strategy.next_delay_s(after(n)) for n in (1, 2, 1000, 10**6)} == {2}


@properties
@given(limits=ranges, multiplier=multipliers, context=contexts)
def test_exponential_backoff_stays_between_base_and_max(
    limits: list[float], multiplier: float, context: RetryContext
) -> None:
    base_s, max_s = limits
    assert base_s <= ExponentialBackoff(base_s, max_s, multiplier).next_delay_s(context) <= max_s


@properties
@given(limits=ranges, multiplier=multipliers, attempt=attempts)
def test_exponential_backoff_never_shrinks_with_the_attempts(
    limits: list[float], multiplier: float, attempt: int
) -> None:
    base_s, max_s = limits
    strategy = ExponentialBackoff(base_s, max_s, multiplier)
    assert strategy.next_delay_s(after(attempt)) <= strategy.next_delay_s(after(attempt + 1))


@pytest.mark.parametrize("multiplier", [1.0000001, 1.5, 2.0, 2, 10, 1e300])
def test_exponential_backoff_does_not_overflow_after_a_million_attempts(multiplier: float) -> None:
    """A float holds powers of two up to some 1,000; a follower that asks each second gets there in minutes."""
    strategy = ExponentialBackoff(base_s=1.0, max_s=30.0, multiplier=multiplier)
    for attempt in (1_000, 1_024, 1_025, 1_100, 10**6):
        assert 1.0 <= strategy.next_delay_s(after(attempt)) <= 30.0
    if multiplier > 1.001:
        assert strategy.next_delay_s(after(10**6)) == 30.0


# --- FixedInterval ---------------------------------------------------------------------------------------------


def test_fixed_interval_is_five_seconds_by_default() -> None:
    assert FixedInterval().next_delay_s(after(1)) == 5.0


@properties
@given(interval_s=seconds, context=contexts)
def test_fixed_interval_never_changes(interval_s: float, context: RetryContext) -> None:
    assert FixedInterval(interval_s).next_delay_s(context) == interval_s


# --- DecorrelatedJitter ----------------------------------------------------------------------------------------


def test_jitter_ranges_from_one_second_to_thirty_by_default() -> None:
    strategy = DecorrelatedJitter()
    assert (strategy.base_s, strategy.max_s) == (1.0, 30.0)


@properties
@given(limits=ranges, context=contexts, seed=st.integers())
def test_jitter_stays_between_base_and_three_times_the_previous_delay_and_max(
    limits: list[float], context: RetryContext, seed: int
) -> None:
    base_s, max_s = limits
    delay_s = DecorrelatedJitter(base_s, max_s, random.Random(seed)).next_delay_s(context)
    previous_s = max(context.previous_delay_s or 0.0, base_s)
    assert base_s <= delay_s <= min(max_s, previous_s * 3 * (1 + 1e-12))


@properties
@given(context=contexts, seed=st.integers())
def test_jitter_is_repeatable_with_a_seed(context: RetryContext, seed: int) -> None:
    one, other = (DecorrelatedJitter(rng=random.Random(seed)) for _ in range(2))
    assert [one.next_delay_s(context) for _ in range(5)] == [other.next_delay_s(context) for _ in range(5)]


def test_jitter_spreads_out_those_who_failed_together() -> None:
    """The whole point of it: with the plain back-off these ten would all come back at the same moment."""
    delays = [DecorrelatedJitter(rng=random.Random(seed)).next_delay_s(after(1)) for seed in range(10)]
    assert len(set(delays)) == 10


def test_jitter_reaches_up_to_three_times_the_previous_delay_and_no_further() -> None:
    class Top(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    strategy = DecorrelatedJitter(base_s=1, max_s=30, rng=Top())
    assert strategy.next_delay_s(after(1)) == 3
    assert strategy.next_delay_s(after(2, previous_delay_s=3)) == 9
    assert strategy.next_delay_s(after(3, previous_delay_s=9)) == 27
    assert strategy.next_delay_s(after(4, previous_delay_s=27)) == 30


def test_jitter_begins_at_base_even_after_a_shorter_delay() -> None:
    """A delay of zero may come from another strategy; three times nothing would be a busy loop."""
    strategy = DecorrelatedJitter(base_s=2, max_s=30, rng=random.Random(1))
    assert all(2 <= strategy.next_delay_s(after(2, previous_delay_s=0.0)) <= 6 for _ in range(100))


def test_two_jitters_do_not_share_their_randomness_by_default() -> None:
    assert DecorrelatedJitter().rng is not DecorrelatedJitter().rng


# --- All three -------------------------------------------------------------------------------------------------

STRATEGIES = [ExponentialBackoff(), FixedInterval(), DecorrelatedJitter(rng=random.Random(0))]


def strategy_name(strategy: object) -> str:
    return type(strategy).__name__


@pytest.mark.parametrize("strategy", [ExponentialBackoff(), FixedInterval()], ids=strategy_name)
def test_the_same_question_always_gets_the_same_answer(strategy: RetryStrategy) -> None:
    """No memory: whatever was asked in between, by whichever lock, the answer depends on the context alone."""
    questions = [after(n) for n in (1, 7, 2, 10**6, 1)]
    answers = [strategy.next_delay_s(question) for question in questions]
    assert [strategy.next_delay_s(question) for question in reversed(questions)] == answers[::-1]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=strategy_name)
def test_a_strategy_cannot_be_changed(strategy: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(strategy, dataclasses.fields(strategy)[0].name, 1.0)
    with pytest.raises((AttributeError, TypeError)):  # TypeError by a quirk of frozen dataclasses with slots
        strategy.attempts_so_far = 1


@pytest.mark.parametrize("strategy", STRATEGIES, ids=strategy_name)
def test_the_bundled_strategies_are_strategies(strategy: object) -> None:
    assert isinstance(strategy, RetryStrategy)


def test_anything_with_the_method_is_a_strategy_and_nothing_else_is() -> None:
    class Mine:
        def next_delay_s(self, ctx: RetryContext) -> float | None:
            return None

    assert isinstance(Mine(), RetryStrategy)
    assert not isinstance(5.0, RetryStrategy)
    assert not isinstance(lambda ctx: 5.0, RetryStrategy)
    assert not isinstance(None, RetryStrategy)


def test_strategies_of_equal_settings_are_equal_and_print_them() -> None:
    assert ExponentialBackoff(1, 2, 3) == ExponentialBackoff(1, 2, 3)
    assert DecorrelatedJitter(1, 2, random.Random(1)) == DecorrelatedJitter(1, 2, random.Random(2))
    assert repr(FixedInterval(2.5)) == "FixedInterval(interval_s=2.5)"
    assert "rng" not in repr(DecorrelatedJitter())


# --- Values that make no sense ---------------------------------------------------------------------------------

DURATIONS = [
    (FixedInterval, "interval_s"),
    (ExponentialBackoff, "base_s"),
    (ExponentialBackoff, "max_s"),
    (ExponentialBackoff, "multiplier"),
    (DecorrelatedJitter, "base_s"),
    (DecorrelatedJitter, "max_s"),
]


@pytest.mark.parametrize(("strategy", "name"), DURATIONS, ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize("value", [True, False, "1", "", None, b"1", [1.0], 1j, Fraction(1, 2)], ids=repr)
def test_a_value_of_the_wrong_type_is_refused_by_name(strategy: Any, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^{name} .*{type(value).__name__}"):
        strategy(**{name: value})


@pytest.mark.parametrize(("strategy", "name"), DURATIONS, ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -1, -0.001, 0, 0.0, -0.0, 10**400], ids=lambda v: str(v)[:6]
)
def test_a_value_that_is_no_duration_is_refused_by_name(strategy: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} "):
        strategy(**{name: value})


@pytest.mark.parametrize("strategy", [ExponentialBackoff, DecorrelatedJitter])
def test_a_base_above_the_maximum_is_refused_naming_both(strategy: Any) -> None:
    with pytest.raises(ValueError, match=r"base_s=31.* max_s=30"):
        strategy(base_s=31, max_s=30)
    assert strategy(base_s=30, max_s=30).base_s == 30


@pytest.mark.parametrize("multiplier", [0.999, 0.5, 1e-9])
def test_a_multiplier_that_shrinks_is_refused(multiplier: float) -> None:
    with pytest.raises(ValueError, match=r"^multiplier must be at least 1"):
        ExponentialBackoff(multiplier=multiplier)


@pytest.mark.parametrize("rng", [None, 7, random, random.random, "seed"], ids=lambda rng: type(rng).__name__)
def test_randomness_that_is_not_a_random_is_refused(rng: Any) -> None:
    with pytest.raises(TypeError, match=rf"^rng must be a random\.Random, not {type(rng).__name__}$"):
        DecorrelatedJitter(rng=rng)


# --- RetryCycle ------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Noting:
    """A strategy that notes what it was asked and answers from a list."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[RetryContext] = []

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        self.asked.append(ctx)
        answer: float | None = self.answers.pop(0)
        return answer


def test_first_attempt_has_no_delay_and_does_not_ask_the_strategy() -> None:
    strategy = Noting()
    cycle = RetryCycle(strategy, Clock())
    assert cycle.next_delay_s() == 0.0
    cycle.begin_attempt()
    assert cycle.next_delay_s() == 0.0
    assert strategy.asked == []


def test_strategy_receives_what_happened_in_this_cycle() -> None:
    strategy, clock = Noting(2, 4.5, 8.0), Clock()
    cycle = RetryCycle(strategy, clock)
    down = OSError("down")

    cycle.begin_attempt()
    clock.now_s += 0.5
    cycle.fail_attempt(down)
    assert cycle.next_delay_s() == 2.0

    clock.now_s += 2.0
    cycle.begin_attempt()
    cycle.fail_attempt()
    assert cycle.next_delay_s() == 4.5

    clock.now_s += 4.5
    cycle.begin_attempt()
    cycle.fail_attempt(down)
    assert cycle.next_delay_s() == 8.0

    assert strategy.asked == [
        RetryContext(1, 0.5, down, None),
        RetryContext(2, 2.5, None, 2.0),
        RetryContext(3, 7.0, down, 4.5),
    ]


def test_no_time_has_passed_before_the_first_attempt() -> None:
    clock = Clock()
    cycle = RetryCycle(FixedInterval(), clock)
    clock.now_s += 60
    assert cycle.elapsed_s == 0.0
    assert cycle.attempt == 0
    cycle.begin_attempt()
    clock.now_s += 3
    assert cycle.elapsed_s == 3.0
    assert cycle.attempt == 1


def test_retry_cycle_ends_when_the_strategy_gives_up() -> None:
    cycle = RetryCycle(Noting(None), Clock())
    cycle.begin_attempt()
    cycle.fail_attempt()
    assert cycle.next_delay_s() is None


@pytest.mark.parametrize("delay_s", [0, 0.0, 1, 2.5, 86_400 * 365])
def test_a_delay_comes_back_as_a_float_zero_included(delay_s: float) -> None:
    cycle = RetryCycle(Noting(delay_s), Clock())
    cycle.begin_attempt()
    cycle.fail_attempt()
    answer = cycle.next_delay_s()
    assert answer == delay_s
    assert type(answer) is float


class Unusable(Noting):
    """Named, so that the message can be looked at."""


@pytest.mark.parametrize(
    "answer",
    [math.nan, math.inf, -math.inf, -1, -0.5, "1", "", True, False, [1.0], object(), 10**400, 10**5000],
    ids=lambda answer: f"{type(answer).__name__} {str(answer)[:4]}" if answer != 10**5000 else "int of 5001 digits",
)
def test_an_answer_that_cannot_be_waited_for_is_an_error_that_names_the_strategy(answer: object) -> None:
    cycle = RetryCycle(Unusable(answer), Clock())
    cycle.begin_attempt()
    cycle.fail_attempt()
    with pytest.raises(LockError, match="the retry strategy Unusable returned") as caught:
        cycle.next_delay_s()
    assert caught.value.__cause__ is None


def test_what_a_strategy_raises_is_passed_on_untouched() -> None:
    class Broken:
        def next_delay_s(self, ctx: RetryContext) -> float | None:
            raise ZeroDivisionError

    cycle = RetryCycle(Broken(), Clock())
    cycle.begin_attempt()
    cycle.fail_attempt()
    with pytest.raises(ZeroDivisionError):
        cycle.next_delay_s()


def test_one_strategy_serves_two_cycles_without_mixing_them_up() -> None:
    strategy, clock = ExponentialBackoff(), Clock()
    busy, fresh = RetryCycle(strategy, clock), RetryCycle(strategy, clock)
    for _ in range(4):
        busy.begin_attempt()
        busy.fail_attempt()
        busy.next_delay_s()
    fresh.begin_attempt()
    fresh.fail_attempt()
    assert fresh.next_delay_s() == 1.0
    busy.begin_attempt()
    assert busy.next_delay_s() == 16.0


# --- While the store is away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lease_s", "ceiling_s"), [(0.5, 1.0), (3.0, 1.0), (6.0, 2.0), (15.0, 5.0), (60.0, 5.0), (None, 5.0)]
)
def test_while_the_store_is_away_it_is_asked_every_third_of_a_lease_between_one_and_five_seconds(
    lease_s: float | None, ceiling_s: float
) -> None:
    assert away_ceiling_s(lease_s) == ceiling_s


def failed(strategy: RetryStrategy, error: Exception | None) -> float | None:
    cycle = RetryCycle(strategy, Clock(), away_ceiling_s=2.0)
    cycle.begin_attempt()
    cycle.fail_attempt(error)
    return cycle.next_delay_s()


def test_a_long_delay_is_cut_to_the_ceiling_and_spread_out_while_the_store_is_away() -> None:
    delays = [failed(FixedInterval(30.0), ConnectionError("away")) for _ in range(50)]
    assert all(delay_s is not None and 1.5 <= delay_s <= 2.0 for delay_s in delays)
    assert len(set(delays)) > 10


@pytest.mark.parametrize("error", [None, LockError("not ours to take"), OSError("not of this library")])
def test_a_long_delay_stays_what_it_is_when_the_store_answered(error: Exception | None) -> None:
    assert failed(FixedInterval(30.0), error) == 30.0


def test_a_short_delay_stays_what_it_is_while_the_store_is_away() -> None:
    assert failed(FixedInterval(0.3), ConnectionError("away")) == 0.3


def test_a_strategy_that_gives_up_gives_up_while_the_store_is_away() -> None:
    assert failed(Noting(None), ConnectionError("away")) is None


def test_strategy_receives_its_own_last_delay_and_not_the_one_that_was_waited() -> None:
    strategy = Noting(30.0, 60.0)
    cycle = RetryCycle(strategy, Clock(), away_ceiling_s=2.0)
    for _ in range(2):
        cycle.begin_attempt()
        cycle.fail_attempt(ConnectionError("away"))
        cycle.next_delay_s()
    assert [asked.previous_delay_s for asked in strategy.asked] == [None, 30.0]


@properties
@given(seed=st.integers(), limits=ranges)
def test_jitter_driven_by_a_cycle_stays_in_range_for_ever(seed: int, limits: list[float]) -> None:
    base_s, max_s = limits
    cycle = RetryCycle(DecorrelatedJitter(base_s, max_s, random.Random(seed)), Clock())
    for _ in range(50):
        cycle.begin_attempt()
        cycle.fail_attempt()
        delay_s = cycle.next_delay_s()
        assert delay_s is not None
        assert base_s <= delay_s <= max_s
