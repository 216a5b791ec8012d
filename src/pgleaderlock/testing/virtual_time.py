"""An event loop whose clock jumps instead of waiting.

``asyncio.sleep(3600)`` on it takes microseconds, and every run of the same code sees the same times. When nothing is
ready, the loop asks its selector to wait for the next timer; this one moves the clock there and returns. When nothing
is ready and no timer is set either, nothing can ever happen again: that raises :class:`Deadlock`, with the tasks that
wait, instead of hanging.

Only for code without real I/O: time does not wait for a socket or a thread here.

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
"""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock

__all__ = ["Deadlock", "LoopClock", "VirtualTimeLoop"]


class Deadlock(RuntimeError):  # noqa: N818 - named after what happened
    """Every task waits for another, and no timer is set."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector that never blocks: it reports how long it would have, so that the clock can move on."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            waiting = "\n  ".join(sorted(map(repr, asyncio.all_tasks())))
            raise Deadlock(f"nothing is ready and no timer is set, so nothing can happen any more:\n  {waiting}")
        self.now_s += timeout
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The standard loop on a clock of its own, which starts at zero."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)
        # How far ahead a timer counts as due. asyncio's nanosecond is lost in the rounding of a float after half a
        # year, and a timer that is due but for the rounding would spin for ever.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._virtual.now_s


class LoopClock:
    """A clock for an election that is made before its loop: virtual time once it was read on a loop that has it."""

    def __init__(self) -> None:
        self._loop: VirtualTimeLoop | None = None

    def __call__(self) -> float:
        """Return the time of the virtual loop that this was first read on; until then, that of the system's clock."""
        if self._loop is None:
            self._loop = _running_virtual_loop()
        return suspend_aware_clock() if self._loop is None else self._loop.time()


def _running_virtual_loop() -> VirtualTimeLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a thread without a loop
        return None
    return loop if isinstance(loop, VirtualTimeLoop) else None
