"""From wanting the lock to having it: look, wait, look again.

Of the system's errors, ENOENT and ESTALE mean that the files changed under our hands, as they do on NFS, and whatever a
user adds to them is treated alike: we look again in a moment. Any other is the user's to see.
"""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pgleaderlock.nfs._contender import Contender
from pgleaderlock.nfs._errors import MissingFolder
from pgleaderlock.nfs._waiting import Turnstile

__all__ = ["Patience", "acquire"]

_RETRIED = frozenset({errno.ENOENT, errno.ESTALE})
_TOUCH_EVERY_S = 20.0  # whoever has not for a minute is taken for dead by people who look
_SHORTEST_REST_S, _LONGEST_REST_S = 0.005, 0.25
_LONGEST_WAIT_S = 20.0
_LOOK_EVERY_S = 2.0  # a holder may have said meanwhile that it will be over sooner


@dataclass
class Patience:
    """For how long, and in spite of what."""

    deadline: float | None
    """On the monotonic clock; None for ever."""
    extra_errnos: frozenset[int]
    is_cancelled: threading.Event | None = None
    """Set by another thread when nobody wants the lock any more; None where nobody can."""
    began_at: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - as it is then
    rest_s: float = 0.0
    """How long to do nothing, because the last step failed: what passes may take a while to."""

    @property
    def left_s(self) -> float:
        """How long to wait for the next look; none at all when time is up."""
        if self.is_over:
            return 0.0
        left_s = _LONGEST_WAIT_S if self.deadline is None else self.deadline - time.monotonic()
        return min(_LONGEST_WAIT_S, left_s)

    @property
    def waited_s(self) -> float:
        """For how long it has been wanted."""
        return time.monotonic() - self.began_at

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled. Then no other step is begun: it might succeed."""
        return self.is_cancelled is not None and self.is_cancelled.is_set()

    def attempt(self, step: Callable[[], bool]) -> bool:
        """Take a step. False also when it failed in a way that passes, and when nobody wants it any more."""
        if self.is_over:
            return False
        try:
            is_done = step()
        except MissingFolder:  # which would be tried again, and in vain
            raise
        except OSError as error:
            if error.errno not in _RETRIED | self.extra_errnos:
                raise
            self.rest_s = min(max(_SHORTEST_REST_S, 2 * self.rest_s), _LONGEST_REST_S)
            return False
        self.rest_s = 0.0
        return is_done

    def rest(self, at_most_s: float) -> None:
        """Do nothing for a while, unless it is cancelled."""
        pause_s = min(at_most_s, self.rest_s)
        time.sleep(pause_s) if self.is_cancelled is None else self.is_cancelled.wait(pause_s)


def acquire(contender: Contender, turnstile: Turnstile, patience: Patience, *, steps_back: bool) -> bool:
    """Return whether the lock is ours; False when patience has run out."""

    def may_take() -> bool:
        contender.lay_claim()
        return contender.may_take()

    if patience.attempt(may_take):
        if steps_back and contender.others:
            turnstile.step_back(contender.others, lambda: patience.attempt(contender.may_take))
        elif patience.attempt(contender.take_next) and patience.attempt(contender.settle):
            return True
    touched_at = time.monotonic()
    while True:
        # To listen comes before looking: what happens in between is then heard.
        listens = turnstile.listen(None if contender.watched is None else Path(contender.watched))
        if patience.attempt(contender.try_take) and patience.attempt(contender.settle):
            return True
        left_s = patience.left_s
        if left_s <= 0:
            return False
        if patience.rest_s:
            patience.rest(left_s)
            continue
        at_most_s = min(left_s, contender.over_in_s, _LOOK_EVERY_S)
        turnstile.wait(at_most_s, contender.others, listens=listens, is_cancelled=patience.is_cancelled)
        if time.monotonic() > touched_at + _TOUCH_EVERY_S:
            touched_at = time.monotonic()
            contender.stay()
