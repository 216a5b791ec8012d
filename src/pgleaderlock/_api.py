"""The names that the package offers. They are imported when the first of them is asked for."""

from pgleaderlock.backends import open_backend
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.election import Election
from pgleaderlock.election_service import LeaderElectionService
from pgleaderlock.errors import (
    ConnectionError,
    EmbeddedServerError,
    IllegalTransition,
    LeadershipLost,
    LockError,
    MissingExtra,
    PgLeaderLockError,
    ServiceFailed,
    ShutdownError,
    WorkOverrun,
)
from pgleaderlock.group import GroupPatience, GroupRole, LeaderGroup
from pgleaderlock.keys import LockKey
from pgleaderlock.lock import LeaderLock
from pgleaderlock.models import (
    Callback,
    ErrorCallback,
    Event,
    EventKind,
    Grant,
    Holder,
    Listener,
    LockState,
    RetryContext,
    StateChangeCallback,
)
from pgleaderlock.retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryStrategy
from pgleaderlock.services import LeaderServices
from pgleaderlock.term import Term
from pgleaderlock.ticks import Tick

__all__ = [
    "Callback",
    "ConnectionError",
    "DecorrelatedJitter",
    "Election",
    "EmbeddedServerError",
    "ErrorCallback",
    "Event",
    "EventKind",
    "ExponentialBackoff",
    "FixedInterval",
    "Grant",
    "GroupPatience",
    "GroupRole",
    "Holder",
    "IllegalTransition",
    "LeaderElectionService",
    "LeaderGroup",
    "LeaderLock",
    "LeaderServices",
    "LeadershipLost",
    "Listener",
    "LockError",
    "LockKey",
    "LockState",
    "LossCause",
    "MissingExtra",
    "PgLeaderLockError",
    "RetryContext",
    "RetryStrategy",
    "ServiceFailed",
    "ShutdownError",
    "StateChangeCallback",
    "Term",
    "Tick",
    "WorkOverrun",
    "open_backend",
    "suspend_aware_clock",
]
