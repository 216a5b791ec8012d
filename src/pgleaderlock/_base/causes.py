"""Why leadership ended, in one word each, for log lines, metrics and whoever counts."""

import enum

__all__ = ["LossCause"]


class LossCause(enum.StrEnum):
    """Why a term ended without being asked to."""

    SESSION_TERMINATED = "session_terminated"
    """The server ended the session: ``pg_terminate_backend``, or a fast shutdown."""
    SERVER_RESTART = "server_restart"
    """The server crashed, or is starting up or shutting down."""
    SILENCED = "silenced"
    """The server ended the session because it had heard nothing for a whole lease."""
    CONNECTION_LOST = "connection_lost"
    """The connection ended without a word from the server."""
    RENEW_TIMEOUT = "renew_timeout"
    """The server did not answer in time."""
    WITNESS_LOST = "witness_lost"
    """The witness session ended, and could not be replaced before leadership had to be declared lost."""
    REFUSED = "refused"
    """The server answered with an error of its own instead of renewing: it is not well, or we may not any more."""
    STALLED = "stalled"
    """This process, or its event loop, stood still for too long to be sure of anything."""
    HELD_BY_ANOTHER = "held_by_another"
    """Another took the lock while we were reconnecting."""
    GRACE_EXPIRED = "grace_expired"
    """The lock did not come back within the grace period."""
    FENCED = "fenced"
    """A fenced transaction found a newer token than its own."""
    STEPPED_DOWN = "stepped_down"
    """Somebody asked for it while we were reconnecting."""
    ABORTED = "aborted"
    """The election was cancelled, or its shutdown ran out of time."""
    UNKNOWN = "unknown"
    """An error that this library has no word for; the event's ``error`` says more."""
