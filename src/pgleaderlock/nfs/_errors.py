"""What goes wrong with a lock in a shared folder. The names are those that users of such locks know."""

from pgleaderlock import errors

__all__ = ["AlreadyLockedError", "LockError", "MissingFolder", "NotLockedError", "TimeOutError"]


class LockError(errors.LockError):
    """The base of what a :class:`~pgleaderlock.nfs.Lock` raises on its own account."""


class MissingFolder(LockError, FileNotFoundError):  # noqa: N818 - a FileNotFoundError says so in its name
    """The folder in which the lock is to be made does not exist. It is not waited for."""


class AlreadyLockedError(LockError):
    """This very object holds the lock already, or another task or thread is acquiring it through this object."""


class NotLockedError(LockError):
    """This object does not hold the lock, or holds it no longer: it was too slow, and somebody else has it."""


class TimeOutError(LockError):
    """The lock was not to be had in the time that was given."""
