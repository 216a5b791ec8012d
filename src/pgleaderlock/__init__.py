"""Leader election for Python on the PostgreSQL you already have.

Start at :class:`LeaderLock`. ``docs/`` has a tutorial, how-tos, the reference and the reasons.

Each name is imported when it is asked for: an election in a file or on Kubernetes loads no database driver, and the
command line can take a password out of the process list before it imports anything heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pgleaderlock._base.version import __version__ as __version__

if TYPE_CHECKING:
    from pgleaderlock.compat.election_service import LeaderElectionService as LeaderElectionService
    from pgleaderlock.engine.election import Election as Election
    from pgleaderlock.engine.term import Term as Term
    from pgleaderlock.errors import ConnectionError as ConnectionError
    from pgleaderlock.errors import LeadershipLost as LeadershipLost
    from pgleaderlock.errors import LockError as LockError
    from pgleaderlock.errors import PgLeaderLockError as PgLeaderLockError
    from pgleaderlock.errors import ShutdownError as ShutdownError
    from pgleaderlock.lock import LeaderLock as LeaderLock
    from pgleaderlock.models import Callback as Callback
    from pgleaderlock.models import ErrorCallback as ErrorCallback
    from pgleaderlock.models import Event as Event
    from pgleaderlock.models import EventKind as EventKind
    from pgleaderlock.models import LockState as LockState
    from pgleaderlock.models import RetryContext as RetryContext
    from pgleaderlock.models import StateChangeCallback as StateChangeCallback
    from pgleaderlock.postgres.keys import LockKey as LockKey
    from pgleaderlock.postgres.leader_group import LeaderGroup as LeaderGroup
    from pgleaderlock.retry import DecorrelatedJitter as DecorrelatedJitter
    from pgleaderlock.retry import ExponentialBackoff as ExponentialBackoff
    from pgleaderlock.retry import FixedInterval as FixedInterval
    from pgleaderlock.retry import RetryStrategy as RetryStrategy
    from pgleaderlock.stores import open_backend as open_backend
    from pgleaderlock.work.schedule.tick import Tick as Tick
    from pgleaderlock.work.services import LeaderServices as LeaderServices

_HOMES = {
    "Callback": "pgleaderlock.models",
    "ConnectionError": "pgleaderlock.errors",
    "DecorrelatedJitter": "pgleaderlock.retry",
    "Election": "pgleaderlock.engine.election",
    "ErrorCallback": "pgleaderlock.models",
    "Event": "pgleaderlock.models",
    "EventKind": "pgleaderlock.models",
    "ExponentialBackoff": "pgleaderlock.retry",
    "FixedInterval": "pgleaderlock.retry",
    "LeaderElectionService": "pgleaderlock.compat.election_service",
    "LeaderGroup": "pgleaderlock.postgres.leader_group",
    "LeaderLock": "pgleaderlock.lock",
    "LeaderServices": "pgleaderlock.work.services",
    "LeadershipLost": "pgleaderlock.errors",
    "LockError": "pgleaderlock.errors",
    "LockKey": "pgleaderlock.postgres.keys",
    "LockState": "pgleaderlock.models",
    "PgLeaderLockError": "pgleaderlock.errors",
    "RetryContext": "pgleaderlock.models",
    "RetryStrategy": "pgleaderlock.retry",
    "ShutdownError": "pgleaderlock.errors",
    "StateChangeCallback": "pgleaderlock.models",
    "Term": "pgleaderlock.engine.term",
    "Tick": "pgleaderlock.work.schedule.tick",
    "open_backend": "pgleaderlock.stores",
}
"""Where each name is defined. The imports above say the same to type checkers; a test compares the two."""

__all__ = [*_HOMES]  # noqa: PLE0604 - strings


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
