"""How much processor time the server's thread may use before anonymous clients have to wait."""

import time
from collections.abc import Callable

_SAVED_S = 0.5  # what an idle second or two saves for a burst, such as a page with all its files


class ProcessorTime:
    """An account that fills with time and is drawn on by the thread that asks. Used on that thread only.

    It is the thread's processor time that counts, not the time on the clock: on a busy machine a thread that is kept
    waiting has not delayed anybody.
    """

    def __init__(
        self, share: float, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = time.thread_time
    ) -> None:
        self._share, self._clock, self._used = share, clock, used
        self._saved_s = _SAVED_S
        self._at, self._used_s = clock(), used()

    @property
    def is_left(self) -> bool:
        """Whether the thread has used less than its share."""
        now, used_s = self._clock(), self._used()
        earned_s = (now - self._at) * self._share - (used_s - self._used_s)
        self._saved_s = min(_SAVED_S, max(-_SAVED_S, self._saved_s + earned_s))
        self._at, self._used_s = now, used_s
        return self._saved_s > 0
