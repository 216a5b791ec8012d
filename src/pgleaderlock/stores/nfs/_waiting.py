"""Waiting for the lock: notified by inotify on a local disk, by polling elsewhere; and fairness.

A process that releases the lock and requests it again at once would always be first, because it is awake while the
other candidates sleep. So it pauses for a moment when others have a claim. The order of waiting candidates is random,
so none of them starves.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pgleaderlock._base.files.watch import Watch

_POLL_S = 0.01
_LONGEST_POLL_S = 0.25
_COURTESY_S = 0.02
_GLANCE_S = 0.001
_CANCELLED_WITHIN_S = 0.02  # a thread that waits for inotify cannot wait for the event too, so it polls that
_LOOK_AGAIN_S = (0.0003, 0.002, 0.02)  # the kernel reports a holder's end a moment before it frees the lock


class Turnstile:
    """The waiting of one candidate for a lock."""

    def __init__(self, folder: Path, *, is_local: bool) -> None:
        self._is_local = is_local
        self._watch = Watch(folder, lambda name: name.startswith(b"released."))
        self._soon: list[float] = []

    def listen(self, epoch_path: Path | None) -> bool:
        """Subscribe to changes; call this before looking, so that none is missed. False without notifications."""
        return self._is_local and self._watch.start([] if epoch_path is None else [epoch_path])

    def wait(
        self, at_most_s: float, others: int, *, listens: bool, is_cancelled: threading.Event | None = None
    ) -> None:
        """Wait until a change is notified, for one poll interval where none can be, or until cancelled."""
        if not listens:
            pause_s = _poll_s(others) * random.uniform(0.5, 1.5)  # noqa: S311 - spreads the load
            pause_s = max(0.0, min(at_most_s, pause_s))
            time.sleep(pause_s) if is_cancelled is None else is_cancelled.wait(pause_s)
            return
        if self._soon:
            at_most_s = min(at_most_s, self._soon.pop(0))
        if self._is_notified(at_most_s, is_cancelled):
            self._soon = list(_LOOK_AGAIN_S)

    def _is_notified(self, at_most_s: float, is_cancelled: threading.Event | None) -> bool:
        if is_cancelled is None:
            return self._watch.wait(at_most_s)
        deadline = time.monotonic() + at_most_s
        while (left_s := deadline - time.monotonic()) > 0 and not is_cancelled.is_set():
            if self._watch.wait(min(left_s, _CANCELLED_WITHIN_S)):
                return True
        return False

    def step_back(self, others: int, is_free: Callable[[], bool]) -> None:
        """Give other candidates a moment to acquire the lock; return early when one of them has."""
        if not others:
            return
        deadline = time.monotonic() + (_COURTESY_S if self._is_local else 2 * _poll_s(others))
        while time.monotonic() < deadline and is_free():
            time.sleep(_GLANCE_S if self._is_local else _POLL_S)

    def close(self) -> None:
        self._watch.close()


def _poll_s(others: int) -> float:
    return min(_LONGEST_POLL_S, _POLL_S * (1 + others))
