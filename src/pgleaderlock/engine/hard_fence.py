"""The last resort: end the process when its leadership is over and its work cannot be stopped.

``is_leader`` turns False in time by itself, so work that checks it is safe. Work that does not, such as a call into C
that holds the GIL for minutes, goes on while a new leader leads. With the hard fence on, a watchdog of the
interpreter (:func:`faulthandler.dump_traceback_later`), a thread that needs neither the event loop nor that lock,
prints every thread's stack to stderr and ends the process with status 1 at ``trusted_until``, unless a renewal or an
orderly end came first. There is no clean-up then: no ``atexit``, no ``finally``. The server frees the lock.

The watchdog exists once in a process. So elections share it, armed for the earliest of their deadlines, and a program
that uses ``dump_traceback_later`` itself, as pytest's ``faulthandler_timeout`` does, cannot have this as well.

An event loop that is closed without a ``shutdown()`` leaves the watchdog armed: no listener was notified that work must
stop.

Not promised: a process that is stopped (SIGSTOP) or swapped out ends only when it runs again, and may execute some
instructions before it does.
"""

import faulthandler
import os
import sys
import threading
import time

from pgleaderlock._base.clock import Clock

__all__ = ["HardFence"]

_deadlines: dict["HardFence", float] = {}  # on time.monotonic(), as the watchdog counts
_null: int | None = None
_guard = threading.Lock()  # elections may run in several threads, each with its loop


class HardFence:
    """The deadline of one election."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def arm(self, deadline: float) -> None:
        """End the process at this time on the election's clock, unless armed anew or disarmed before."""
        with _guard:
            _deadlines[self] = time.monotonic() + deadline - self._clock()
            _set_watchdog()

    def disarm(self) -> None:
        """Remove this election's deadline."""
        with _guard:
            if _deadlines.pop(self, None) is not None:
                _set_watchdog()


def _set_watchdog() -> None:
    if not _deadlines:
        faulthandler.cancel_dump_traceback_later()
        return
    left_s = max(0.001, min(_deadlines.values()) - time.monotonic())
    faulthandler.dump_traceback_later(left_s, exit=True, file=_where_to_write())


def _where_to_write() -> int:
    """Return stderr's descriptor, or the null device's if stderr was closed: another file may have its number now."""
    global _null  # noqa: PLW0603 - one for the process, as the watchdog is
    try:
        if sys.__stderr__ is not None:
            return sys.__stderr__.fileno()
    except (OSError, ValueError):
        pass  # it was closed since
    if _null is None:
        _null = os.open(os.devnull, os.O_WRONLY)
    return _null
