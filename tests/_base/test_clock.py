"""The clock: never back, and counting through a suspend where the system can."""

import time
from itertools import pairwise

import pytest

from pgleaderlock._base import clock
from pgleaderlock._base.clock import suspend_aware_clock


def test_the_clock_never_goes_back() -> None:
    readings = [suspend_aware_clock() for _ in range(1000)]
    assert all(earlier <= later for earlier, later in pairwise(readings))


def test_the_clock_goes_on() -> None:
    before = suspend_aware_clock()
    time.sleep(0.01)
    assert suspend_aware_clock() - before >= 0.009


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts a suspend")
def test_time_suspended_counts_where_the_system_can_count_it() -> None:
    """CLOCK_MONOTONIC stands still meanwhile: a leader would wake up as if no time had passed."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    reading = suspend_aware_clock()
    assert before <= reading <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_boot_clock_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 77, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda which: {77: 1234.5}[which])
    assert clock._choose()() == 1234.5


def test_without_a_boot_clock_the_monotonic_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert clock._choose() is time.monotonic
