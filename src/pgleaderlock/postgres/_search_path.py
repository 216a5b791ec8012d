"""The ``search_path`` of our own sessions: nothing but PostgreSQL's own catalogue, from the first statement on.

Another role may have functions and operators in a schema of the ``search_path``: in ``public`` up to PostgreSQL 14 and
after upgrades from there. One of them that matches a call better than the built-in one is called instead, with our
rights. So a session of ours is pinned before anything else is asked of it
(:class:`~pgleaderlock.postgres.connection.Connection`).

A session for locks is pinned by the first message on it: the statement :data:`PIN`, for that transaction, and in the
same message the set-up, which pins for good (:data:`PINNED`) unless it refuses the session. Everything else asks once
more (:func:`pin_own`).

Behind a pooler the session belongs to other clients too, whose own names must still be found afterwards. There every
statement brings its own pin, for its own transaction, and nothing is left behind.
"""

_SET = "pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', {is_local})"
PIN = f"SELECT {_SET.format(is_local='true')}; "
"""Before a statement, in the same message: for its transaction only."""
PINNED = _SET.format(is_local="false")
"""An expression that pins the session for good."""


def pin_own(pid: int) -> str:
    """Return a statement that pins the session for good if it is ours alone; otherwise its answer is NULL.

    ``pid`` is the one that the connection received at its start: the server's own, unless there is a pooler between.
    """
    return f"SELECT CASE WHEN pg_backend_pid() = {pid} THEN {PINNED} END"
