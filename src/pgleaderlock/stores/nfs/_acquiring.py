"""Acquiring the lock: look, wait, look again.

Of the system's errors, ENOENT and ESTALE mean that the files were modified concurrently, as happens on NFS. After
these, and after the errors that the caller adds to them, the candidate retries in a moment. All others are raised.
"""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pgleaderlock.stores.nfs._candidate import Candidate
from pgleaderlock.stores.nfs._errors import MissingFolder
from pgleaderlock.stores.nfs._waiting import Turnstile

_RETRIED = frozenset({errno.ENOENT, errno.ESTALE})
_TOUCH_EVERY_S = 20.0  # `pgleaderlock nfs` shows a claim as dead that was not touched for a minute
_SHORTEST_REST_S, _LONGEST_REST_S = 0.005, 0.25
_LONGEST_WAIT_S = 20.0
_LOOK_EVERY_S = 2.0  # the holder may have shortened its lifetime meanwhile


@dataclass
class Patience:
    """How long to try to acquire the lock, and which errors to retry."""

    deadline: float | None
    """On the monotonic clock; None for no limit."""
    extra_errnos: frozenset[int]
    is_cancelled: threading.Event | None = None
    """Set by another thread when the caller was cancelled; None where it cannot be."""
    began_at: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - as it is then
    rest_s: float = 0.0
    """How long to pause after a step that failed with an error to retry, which may last for a while."""

    @property
    def left_s(self) -> float:
        """Seconds to wait at most until the next look; 0 or less when the time is up or the caller was cancelled."""
        if self.is_over:
            return 0.0
        left_s = _LONGEST_WAIT_S if self.deadline is None else self.deadline - time.monotonic()
        return min(_LONGEST_WAIT_S, left_s)

    @property
    def waited_s(self) -> float:
        """Seconds since the attempt to acquire the lock began."""
        return time.monotonic() - self.began_at

    @property
    def is_over(self) -> bool:
        """Whether the caller was cancelled. Then no other step is begun: it might acquire the lock."""
        return self.is_cancelled is not None and self.is_cancelled.is_set()

    def attempt(self, step: Callable[[], bool]) -> bool:
        """Return the result of a step; False also after an error to retry, or when the caller was cancelled."""
        if self.is_over:
            return False
        try:
            is_done = step()
        except MissingFolder:  # an ENOENT, but a retry would not help
            raise
        except OSError as error:
            if error.errno not in _RETRIED | self.extra_errnos:
                raise
            self.rest_s = min(max(_SHORTEST_REST_S, 2 * self.rest_s), _LONGEST_REST_S)
            return False
        self.rest_s = 0.0
        return is_done

    def rest(self, at_most_s: float) -> None:
        """Pause after a failed step; return early when cancelled."""
        pause_s = min(at_most_s, self.rest_s)
        time.sleep(pause_s) if self.is_cancelled is None else self.is_cancelled.wait(pause_s)


def acquire(candidate: Candidate, turnstile: Turnstile, patience: Patience, *, steps_back: bool) -> bool:
    """Return True once this candidate holds the lock; False when the time is up or the caller was cancelled."""

    def may_take() -> bool:
        candidate.lay_claim()
        return candidate.may_take()

    if patience.attempt(may_take):
        if steps_back and candidate.others:
            turnstile.step_back(candidate.others, lambda: patience.attempt(candidate.may_take))
        elif patience.attempt(candidate.take_next) and patience.attempt(candidate.settle):
            return True
    touched_at = time.monotonic()
    while True:
        # Subscribe before looking: a change in between is then notified.
        listens = turnstile.listen(None if candidate.watched is None else Path(candidate.watched))
        if patience.attempt(candidate.try_take) and patience.attempt(candidate.settle):
            return True
        left_s = patience.left_s
        if left_s <= 0:
            return False
        if patience.rest_s:
            patience.rest(left_s)
            continue
        at_most_s = min(left_s, candidate.over_in_s, _LOOK_EVERY_S)
        turnstile.wait(at_most_s, candidate.others, listens=listens, is_cancelled=patience.is_cancelled)
        if time.monotonic() > touched_at + _TOUCH_EVERY_S:
            touched_at = time.monotonic()
            candidate.stay()
