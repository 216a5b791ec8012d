"""The log lines of an election: one listener that turns events into ``key=value``.

A follower tries and is refused for as long as it runs, so that is logged at DEBUG; a change of leader at INFO; an error
at WARNING.
"""

import logging
from collections.abc import Callable

from pgleaderlock._logging import NDLogger
from pgleaderlock.engine.fsm import Input
from pgleaderlock.errors import LockError, PgLeaderLockError
from pgleaderlock.models import Event, EventKind, Listener

__all__ = ["log_events"]

_LOGGED = "_pgleaderlock_was_logged"


def _log_state_change(logger: NDLogger, event: Event) -> None:
    is_attempt = event.from_state.is_following and event.to_state.is_following
    level = logging.DEBUG if is_attempt else logging.INFO
    logger.log(level, "state_change", **{"from": event.from_state.value, "to": event.to_state.value})


def _log_error(logger: NDLogger, event: Event) -> None:
    name = "health_check_failed" if event.cause == "health_failed" else event.cause
    logger.log(_level_of(event), name, error=event.error)


def _level_of(event: Event) -> int:
    if _was_logged(event.error):
        return logging.DEBUG
    if event.cause == Input.RETRIES_EXHAUSTED.value and type(event.error) is LockError:
        return logging.INFO  # another candidate leads: not an error
    return logging.WARNING


def _was_logged(error: Exception | None) -> bool:
    """Return whether this error was logged already: thousands of roles of a group may report the same one."""
    was_logged = getattr(error, _LOGGED, False)
    if isinstance(error, PgLeaderLockError):
        setattr(error, _LOGGED, True)
    return bool(was_logged)


# CALLBACK_FAILED and WORK_FAILED are logged where they happen, with a traceback; ATTEMPT_FAILED by its ERROR.
_LINES: dict[EventKind, Callable[[NDLogger, Event], None]] = {
    EventKind.STATE_CHANGE: _log_state_change,
    EventKind.ACQUIRED: lambda logger, event: logger.info("lock_acquired", **logger.context, attempt=event.attempt),
    EventKind.ACQUIRE_FAILED: lambda logger, event: logger.debug("lock_held_by_another", attempt=event.attempt),
    EventKind.RELEASED: lambda logger, _: logger.info("lock_released"),
    EventKind.LOST: lambda logger, event: logger.warning("leadership_lost", cause=event.cause),
    EventKind.RECOVERED: lambda logger, event: logger.info("leadership_recovered", attempt=event.attempt),
    EventKind.STOPPED: lambda logger, event: logger.info("stopped", cause=event.cause),
    EventKind.OVERRUN: lambda logger, event: logger.error(event.cause, error=event.error),
    EventKind.ERROR: _log_error,
}


def log_events(logger: NDLogger) -> Listener:
    """Return a listener that logs every event through ``logger``."""

    def log(event: Event) -> None:
        line = _LINES.get(event.kind)
        if line is not None:
            line(logger, event)

    return log
