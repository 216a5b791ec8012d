"""The log lines of an election: one listener that turns events into ``key=value``.

A follower that asks and is refused does so for as long as it lives, so that goes to DEBUG; what changes who leads goes
to INFO, what went wrong to WARNING.
"""

import logging

from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Event, EventKind, Listener, LockState
from pgleaderlock.stream import CALLBACK_FAILED

__all__ = ["log_events"]

_TOLD = "_pgleaderlock_was_logged"
_ASKING = {LockState.FOLLOWER, LockState.ACQUIRING}


def _log_state_change(logger: NDLogger, event: Event) -> None:
    level = logging.DEBUG if {event.from_state, event.to_state} == _ASKING else logging.INFO
    logger.log(level, "state_change", **{"from": event.from_state.value, "to": event.to_state.value})


def _log_error(logger: NDLogger, event: Event) -> None:
    if event.cause == CALLBACK_FAILED:  # the stream logged that one, with its traceback
        return
    name = "health_check_failed" if event.cause == "health_failed" else event.cause
    logger.log(logging.DEBUG if _was_told(event.error) else logging.WARNING, name, error=event.error)


def _was_told(error: Exception | None) -> bool:
    """Whether this very error was logged already: all roles of a group have the same one, and may be thousands."""
    was_told = getattr(error, _TOLD, False)
    if isinstance(error, PgLeaderLockError):
        setattr(error, _TOLD, True)
    return bool(was_told)


def log_events(logger: NDLogger) -> Listener:
    """Return a listener that logs every event through ``logger``."""

    def log(event: Event) -> None:
        match event.kind:
            case EventKind.STATE_CHANGE:
                _log_state_change(logger, event)
            case EventKind.ACQUIRED:
                logger.info("lock_acquired", **logger.context, attempt=event.attempt)
            case EventKind.ACQUIRE_FAILED:
                logger.debug("lock_held_by_another", attempt=event.attempt)
            case EventKind.RELEASED:
                logger.info("lock_released")
            case EventKind.LOST if event.from_state is not LockState.ACQUIRING:  # where nothing was held
                logger.warning("leadership_lost", cause=event.loss.value if event.loss else event.cause)
            case EventKind.RECOVERED:
                logger.info("leadership_recovered", attempt=event.attempt)
            case EventKind.STOPPED:
                logger.info("stopped", cause=event.cause)
            case EventKind.ERROR:
                _log_error(logger, event)

    return log
