"""Locks between hosts that share nothing but a file system.

    from pgleaderlock.nfs import Lock

    with Lock("/mnt/shared/nightly.lock", lifetime=60) as lock:
        ...
        lock.refresh()

A drop-in for flufl.lock, without the race in which two hold a lock that was stale. For elections, with heartbeats and
callbacks, see the backend ``nfs://``.
"""

from pgleaderlock.nfs._errors import AlreadyLockedError, LockError, NotLockedError, TimeOutError
from pgleaderlock.nfs._lock import SEP, Lock, LockState

__all__ = ["SEP", "AlreadyLockedError", "Lock", "LockError", "LockState", "NotLockedError", "TimeOutError"]
