"""Locks between hosts that share a file system and nothing else.

    from pgleaderlock.stores.nfs import Lock

    with Lock("/mnt/shared/nightly.lock", lifetime=60) as lock:
        ...
        lock.refresh()

A drop-in replacement for flufl.lock, without its race in which two processes hold a lock that was stale. For elections,
with heartbeats and callbacks, see the backend ``nfs://``.
"""

from pgleaderlock.stores.nfs._errors import AlreadyLockedError, LockError, NotLockedError, TimeOutError
from pgleaderlock.stores.nfs._lock import SEP, Lock, LockState

__all__ = ["SEP", "AlreadyLockedError", "Lock", "LockError", "LockState", "NotLockedError", "TimeOutError"]
