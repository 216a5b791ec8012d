"""Why leadership ended, in one word each: in log lines, metrics and the history."""

import enum

__all__ = ["LossCause"]


class LossCause(enum.StrEnum):
    """Why a term ended without a release."""

    SESSION_TERMINATED = "session_terminated"
    """The server ended the session: ``pg_terminate_backend``, or a fast shutdown."""
    SERVER_RESTART = "server_restart"
    """The server crashed, or is starting up or shutting down."""
    SILENCED = "silenced"
    """The server ended the session because it had received nothing for a whole lease."""
    CONNECTION_LOST = "connection_lost"
    """The connection ended without a message from the server."""
    RENEW_TIMEOUT = "renew_timeout"
    """The server did not answer in time."""
    WITNESS_LOST = "witness_lost"
    """The witness session ended, and could not be replaced before leadership had to be declared lost."""
    REFUSED = "refused"
    """The server answered the renewal with an error: it has a problem, or has withdrawn a privilege."""
    STALLED = "stalled"
    """This process, or its event loop, stood still until the lease could have ended."""
    HELD_BY_ANOTHER = "held_by_another"
    """Another candidate acquired the lock while this one was reconnecting."""
    GRACE_EXPIRED = "grace_expired"
    """The lock was not acquired again within the grace period."""
    FENCED = "fenced"
    """A fenced transaction found a newer token than its own."""
    STEPPED_DOWN = "stepped_down"
    """A step-down was requested while this candidate was reconnecting."""
    ABORTED = "aborted"
    """The election was cancelled, or its shutdown ran out of time."""
    UNKNOWN = "unknown"
    """Any other error: see the event's ``error``."""
