"""Log lines that may repeat without end: each kind of line comes at most once a minute."""

from typing import Final

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._logging import NDLogger

EVERY_S: Final = 60.0


class RareLog:
    """Logs each event at most once a minute, with how often it happened since the last line."""

    def __init__(self, logger: NDLogger, clock: Clock = suspend_aware_clock) -> None:
        self._logger, self._clock = logger, clock
        self._next_at: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Count the event, and log it if its last line is a minute old."""
        count = self._counts[event] = self._counts.get(event, 0) + 1
        now = self._clock()
        if now >= self._next_at.get(event, now):
            self._next_at[event] = now + EVERY_S
            self._counts[event] = 0
            self._logger.warning(event, count=count, **fields)
