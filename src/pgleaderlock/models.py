"""The data types: states, grants, events, and the types of callbacks.

All records are frozen. Callbacks, log lines, metrics and everything else outside the engine are driven by one stream of
:class:`Event` objects.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pgleaderlock._base.causes import LossCause

__all__ = [
    "ERROR_KINDS",
    "Callback",
    "ErrorCallback",
    "Event",
    "EventKind",
    "Grant",
    "Holder",
    "LeaderSeen",
    "LeaderUnknown",
    "Listener",
    "LockState",
    "LossCause",
    "RetryContext",
    "StateChangeCallback",
]


class LockState(enum.Enum):
    """The state of one election. Only in ``LEADER`` may the process act as the leader."""

    STOPPED = "stopped"
    FOLLOWER = "follower"
    ACQUIRING = "acquiring"
    LEADER = "leader"
    RECONNECTING = "reconnecting"
    RELEASING = "releasing"

    # What code outside the table asks a state, so that it need not list states.

    @property
    def is_stopped(self) -> bool:
        """Whether the election does not run."""
        return self is LockState.STOPPED

    @property
    def is_following(self) -> bool:
        """Whether it takes part without a term: it waits for the lock, or tries to acquire it."""
        return self in (LockState.FOLLOWER, LockState.ACQUIRING)

    @property
    def leads(self) -> bool:
        """Whether leadership is valid in this state, as long as its grant is."""
        return self is LockState.LEADER

    @property
    def is_recovering(self) -> bool:
        """Whether the lock was lost and the term goes on, for the grace period."""
        return self is LockState.RECONNECTING

    @property
    def is_in_term(self) -> bool:
        """Whether a term is open."""
        return self in (LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING)


class EventKind(enum.Enum):
    """What happened. The value is the name of the decorator that listens to it, where there is one."""

    STATE_CHANGE = "on_state_change"
    ACQUIRED = "on_acquired"
    RELEASED = "on_released"
    LOST = "on_lost"
    """A term ended without a request. ``cause`` is a :class:`LossCause`."""
    ATTEMPT_FAILED = "attempt_failed"
    """An attempt to acquire the lock ended in an error; no term had begun. ``on_lost`` callbacks get it by default."""
    ACQUIRE_FAILED = "on_acquire_failed"
    """An attempt found the lock held by another candidate."""
    ERROR = "on_error"
    """The store or the engine failed. ``error`` says how."""
    CALLBACK_FAILED = "callback_failed"
    """A callback or listener raised ``error``. ``on_error`` callbacks get it."""
    WORK_FAILED = "work_failed"
    """A leader task, service or scheduled job raised ``error``. ``on_error`` callbacks get it."""
    STOPPED = "on_stopped"
    OVERRUN = "on_overrun"
    """Leader tasks still run although another candidate may lead by now. ``error`` says which."""
    RECOVERED = "recovered"
    """Leadership was recovered within the grace period. By specification no callback is called; it is logged."""
    RENEWED = "renewed"
    """A renewal succeeded, in ``took_s`` seconds. The state does not change; for metrics."""


ERROR_KINDS = (EventKind.ERROR, EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED)
"""The events that ``on_error`` callbacks get."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock that a store has granted, and until when that is valid without a renewal.

    ``trusted_until`` is on the election's own clock, counted from when the request was **sent**: the answer may have
    been on its way for any length of time. It is infinite where nothing ends a silent holder's lock.
    ``token`` grows from leader to leader where the store can provide one.
    """

    token: int | None = None
    """The fencing token; None where the store has none."""
    trusted_until: float = math.inf
    """Until when, on the election's clock, the grant is valid without a renewal."""
    lost_at: float = math.inf
    """When leadership is declared lost unless a renewal succeeded; before ``trusted_until``, so that work can stop."""
    kept_until: float | None = None
    """After an early end: until when, at most, the store still keeps a successor out, for listeners to be notified."""

    @property
    def successor_from(self) -> float:
        """When, at the earliest, another could lead: ``trusted_until``, also of a grant that ended before its time."""
        return self.trusted_until if self.kept_until is None else self.kept_until

    def ended(self) -> "Grant":
        """Return this grant, ended."""
        return Grant(self.token, -math.inf, -math.inf, self.successor_from)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the lock as the store shows it. For display only: it may have changed by the time it is read."""

    name: str
    pid: int | None = None
    address: str | None = None
    since: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The leader as its store showed it to a process that takes no part in the election.

    A hint, not a promise: the leader may have changed by the time this is read. Whatever the leader writes elsewhere
    must be protected by its fencing token.
    """

    name: str
    """The identity of the leader; on PostgreSQL sessions their ``application_name``."""
    address: str | None = None
    """The setting ``address`` of the leader; None if it has none."""
    token: int | None = None
    """The fencing token of its term; None where the store does not show it."""
    since: str | None = None
    """When the term began, as the store has it; for display. None where the store does not show it."""


@dataclass(frozen=True, slots=True)
class LeaderUnknown:
    """The store did not answer, so it is not known which process leads. It is false, as None is."""

    error: str = field(default="", compare=False)
    """The error of the store."""

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one election. Listeners get them in the order in which they happened."""

    kind: EventKind
    from_state: LockState
    to_state: LockState
    cause: str
    """Why, in one word. Of a LOST event a :class:`LossCause`, such as ``silenced``; of what a callback or a leader task
    did, the name of its log line (``callback_failed``, ``work_failed``, ``work_overrun``); otherwise the input of the
    state machine, such as ``stop_requested``."""
    at: float
    """When, on the election's own clock. Comparable within one process only."""
    error: Exception | None = None
    """The error that caused it, if there is one."""
    attempt: int | None = None
    """How many attempts have failed since the last success."""
    token: int | None = None
    """The fencing token of the term; None outside a term, and where the store has no tokens."""
    took_s: float | None = None
    """How long the store took to answer, on ``renewed`` events."""
    trusted_until: float | None = None
    """Until when, at most, the term was valid. A process that was frozen then reports the end later than it was."""


@dataclass(frozen=True, slots=True)
class RetryContext:
    """The input of a retry strategy. Strategies keep no state of their own, so one can serve many locks."""

    attempt: int
    """How many attempts of this cycle have failed, so 1 after the first."""
    elapsed_s: float
    """Seconds since the first attempt of this cycle."""
    last_error: Exception | None = None
    """Why the last attempt failed; None when another candidate held the lock."""
    previous_delay_s: float | None = None
    """What the strategy returned the last time in this cycle."""


# What a callback returns is awaited if it can be, and ignored otherwise: plain functions and coroutines both fit.
# A callback that requires one parameter more than these gets the event as the last.
Callback = Callable[[], object]
"""A callback that is called as ``fn()``."""
StateChangeCallback = Callable[[LockState, LockState], object]
"""A callback that is called as ``fn(from_state, to_state)``."""
ErrorCallback = Callable[[Exception], object]
"""A callback that is called as ``fn(exception)``."""
Listener = Callable[[Event], object]
"""Called with every event, in order. An exception that it raises becomes a CALLBACK_FAILED event, never a crash."""
