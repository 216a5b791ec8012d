"""Log lines about clients: a client must not be able to fill the log, so each kind of line comes once a minute."""

import logging

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.ops._rare_log import EVERY_S, RareLog

__all__ = ["EVERY_S", "FailedRequestFilter", "RareLog"]


class FailedRequestFilter(logging.Filter):
    """Passes one record a minute: uvicorn logs a traceback for each request whose handler raises."""

    def __init__(self, clock: Clock = suspend_aware_clock) -> None:
        super().__init__()
        self._clock = clock
        self._next_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this record is logged."""
        now = self._clock()
        if record.levelno < logging.ERROR or (self._next_at is not None and now < self._next_at):
            return False
        self._next_at = now + EVERY_S
        return True
