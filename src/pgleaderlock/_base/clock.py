"""The clock that leadership is measured with.

A leader that was suspended (a laptop lid, a paused VM) must wake up knowing that its time has passed.
``CLOCK_MONOTONIC`` stands still during a suspend on Linux, so ``CLOCK_BOOTTIME`` is used where it exists. On macOS
``CLOCK_MONOTONIC`` itself goes on counting. Readings are comparable within one boot of one host and never beyond:
no reading of this clock is ever sent to another host, and to another process only by ``pgleaderlock exec``, whose
processes are all of one boot, and by the demo and the torture, whose nodes are too.

Not promised: a hypervisor that pauses a guest may pause this clock with it.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""A function that returns seconds since an arbitrary start and never goes back."""


def _choose() -> Clock:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic

    def read_boottime() -> float:
        return time.clock_gettime(boottime)

    return read_boottime


suspend_aware_clock: Clock = _choose()
"""The best clock of this system."""
