"""The exceptions that leave this library.

::

    PgLeaderLockError
    ├── ConnectionError      the store cannot be reached, or does not answer: who leads is unknown
    ├── LockError            the store answered, and the answer is an error: acquire, release or retry failed
    │   └── LeadershipLost   the lock is no longer ours, for certain
    ├── WorkOverrun          a leader task still ran when leadership was no longer valid
    ├── ServiceFailed        a service could not be started or stopped, or not in time
    ├── ShutdownError        shutdown() ran out of time and ended the session by force
    ├── MissingExtra         a backend needs a package that is not installed
    ├── IllegalTransition    the state machine was fed an input that has no row: a bug in this library
    └── EmbeddedServerError  the embedded PostgreSQL could not be found, made or started

Every error may carry a ``cause``: why leadership ended, or could not be had, as one typed value for metrics and
log lines (:class:`~pgleaderlock._base.causes.LossCause`).

Wrong arguments are ``ValueError`` or ``TypeError``, raised by the constructor that got them, before anything runs.
A driver's own exceptions never leave a backend: they are translated there, and stay reachable as ``__cause__``.
"""

from pgleaderlock._base.causes import LossCause

__all__ = [
    "ConnectionError",
    "EmbeddedServerError",
    "IllegalTransition",
    "LeadershipLost",
    "LockError",
    "MissingExtra",
    "PgLeaderLockError",
    "ServiceFailed",
    "ShutdownError",
    "UnusedLeadershipWarning",
    "WorkOverrun",
]


class PgLeaderLockError(Exception):
    """The base class of all exceptions of this library."""

    def __init__(self, message: str = "", *, cause: LossCause = LossCause.UNKNOWN) -> None:
        super().__init__(message)
        self.cause = cause


class ConnectionError(PgLeaderLockError):  # noqa: A001 - the specified name
    """The store could not be reached or did not answer, so nothing is known about the lock.

    Shadows the builtin on purpose: the name is part of the specified API. Import it as
    ``from pgleaderlock import errors`` where both are needed.

    ``answered`` is True if a server accepted the connection: its address is right, and the message says what it refused
    or what is missing there. ``sqlstate`` is the code of PostgreSQL's own error, where there was one.
    """

    def __init__(
        self,
        message: str = "",
        *,
        cause: LossCause = LossCause.UNKNOWN,
        answered: bool = False,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause)
        self.answered = answered
        self.sqlstate = sqlstate


class LockError(PgLeaderLockError):
    """The store answered, and the lock could not be acquired, kept or released."""


class LeadershipLost(LockError):  # noqa: N818 - reads as the fact that it is
    """The lock is no longer ours, for certain: no retry on the same grant can succeed."""


class ShutdownError(PgLeaderLockError):
    """A shutdown did not finish within its time-out and was completed by closing the session."""


class WorkOverrun(PgLeaderLockError):  # noqa: N818 - named after what happened
    """Leader tasks still ran when another candidate could lead. ``names`` says which."""

    def __init__(self, message: str = "", *, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class ServiceFailed(PgLeaderLockError):  # noqa: N818 - named after what happened
    """A service could not be started or stopped, or not in time. ``name`` says which; its own error is the cause."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class MissingExtra(PgLeaderLockError, ImportError):  # noqa: N818 - named after what is missing
    """A backend was asked for whose package is not installed; the message says what to install."""


class IllegalTransition(PgLeaderLockError):  # noqa: N818 - named after what happened
    """An input that the current state has no row for. The state did not change."""


class EmbeddedServerError(PgLeaderLockError):
    """The embedded PostgreSQL could not be found, made or started."""


class UnusedLeadershipWarning(UserWarning):
    """A ``with lock:`` block ended, and the program never asked whether it leads. Issued once in a process.

    The block takes part in the election; it does not wait until this process leads. So work in it that asks nothing is
    done by every process. ``with lock.leading():`` waits. Not issued where the block is in a generator, whose body is
    elsewhere, or ended in an exception. A program that only takes part calls ``start()`` and ``shutdown()``.
    """
