"""Advice for errors of PostgreSQL whose own message does not say what to do.

Recognised by the SQLSTATE and by the names in the message, because the rest of the message is in the language of the
server. Commands to be copied are in backticks, here and in all advice: the command line never wraps them.
"""

_INSUFFICIENT_PRIVILEGE = "42501"
_UNDEFINED_OBJECT = "42704"
_UNDEFINED_TABLE = "42P01"

_VIEWS = (
    "Every candidate reads pg_stat_activity, pg_stat_bgwriter and pg_locks (whose session is whose, when the server "
    "started, who holds the lock): in this database, as a superuser, `GRANT SELECT ON pg_catalog.pg_stat_activity, "
    "pg_catalog.pg_stat_bgwriter, pg_catalog.pg_locks TO {user}`"
)
_LANGUAGE = (
    "A follower waits for the lock in a DO block in PL/pgSQL: in this database, as a superuser, "
    "`CREATE EXTENSION IF NOT EXISTS plpgsql` and `GRANT USAGE ON LANGUAGE plpgsql TO {user}`"
)
_FUNCTION = "In this database, as a superuser, GRANT EXECUTE ON this FUNCTION to this user"
_NO_ANSWERS = ("08", "57P")  # SQLSTATEs of a connection that broke, and of a server that stops or starts

_ADVICE = (
    (_INSUFFICIENT_PRIVILEGE, ("pg_stat_", "pg_locks"), _VIEWS),
    (_UNDEFINED_TABLE, ("pg_stat_", "pg_locks"), _VIEWS),
    (_INSUFFICIENT_PRIVILEGE, ("plpgsql",), _LANGUAGE),
    (_UNDEFINED_OBJECT, ("plpgsql",), _LANGUAGE),
    (_INSUFFICIENT_PRIVILEGE, ("pg_advisory_", "pg_try_advisory_", "pg_current_xact_id", "pg_logical_emit"), _FUNCTION),
)


def advice_for(error: Exception, user: str | None = None) -> str:
    """Return what this user can do about the error; an empty text when there is no advice beyond its message."""
    message = str(error).partition("\n")[0]  # the rest quotes our own statement
    for sqlstate, names, advice in _ADVICE:
        if sqlstate_of(error) == sqlstate and any(name in message for name in names):
            return advice.format(user="USER_NAME" if user is None else identifier(user))
    return ""


def has_answered(error: Exception) -> bool:
    """Return whether the error comes from a server that had accepted us. A refused connection has no SQLSTATE."""
    state = sqlstate_of(error)
    return state is not None and not state.startswith(_NO_ANSWERS)


def sqlstate_of(error: Exception) -> str | None:
    """Return the SQLSTATE of a driver's error, or of ours; None if it has none."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def identifier(name: str) -> str:
    """Return a name of a role or a database as it is written in SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
