"""The errors of a lock in a shared folder, with the names that flufl.lock gives them."""

from pgleaderlock import errors


class LockError(errors.LockError):
    """The base class of the errors of a :class:`~pgleaderlock.stores.nfs.Lock`."""


class MissingFolder(LockError, FileNotFoundError):  # noqa: N818 - a FileNotFoundError says so in its name
    """The folder in which the lock is to be created does not exist. Acquiring fails at once, without waiting for it."""


class AlreadyLockedError(LockError):
    """This object holds the lock already, or another task or thread is acquiring it through this object."""


class NotLockedError(LockError):
    """This object does not hold the lock, or lost it: it was not refreshed in time, and another process acquired it."""


class TimeOutError(LockError):
    """The lock was not acquired within the time-out."""
