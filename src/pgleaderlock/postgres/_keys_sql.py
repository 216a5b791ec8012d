"""The statements about any number of locks at once, each one round trip.

Keys travel as arrays. Both kinds of advisory locks are tried in one statement, in the order in which they are given,
and no more of them than are wanted: rows are looked at one by one until the limit is reached. Only one key has a
shorter statement, which the server plans in a fraction of the time.

Every statement that may take a lock also sets the lease (``idle_session_timeout``) of its session.
"""

from collections.abc import Sequence
from typing import Any

from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres._sql import PING, numbers
from pgleaderlock.postgres.keys import LockKey

__all__ = ["CAPACITY", "FREE", "Statement", "columns", "ping_as", "rename", "take_all", "unlock_all"]

Statement = tuple[str, tuple[Any, ...]]
"""A statement and its parameters. Its answer begins with the indices, in the given keys, of those that succeeded."""

CAPACITY = """
SELECT current_setting('max_locks_per_transaction')::bigint
       * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
       current_setting('max_locks_per_transaction')::bigint
"""

FREE = """
SELECT coalesce(array_agg(i), '{}') FROM unnest(%s::int[], %s::bigint[], %s::bigint[], %s::int[]) AS k (i, a, b, c)
 WHERE NOT EXISTS (
    SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND classid::text::bigint = a AND objid::text::bigint = b AND objsubid = c)
"""

_FOR_EACH = """
SELECT coalesce(array_agg(i), '{{}}'){more} FROM (
    SELECT i FROM unnest(%s::int[], %s::bigint[]) AS k (i, n) WHERE {function}(n)
     UNION ALL
    SELECT i FROM unnest(%s::int[], %s::int[], %s::int[]) AS k (i, a, b) WHERE {function}(a, b)
     LIMIT %s
) AS done
"""

_FOR_ONE = "SELECT CASE WHEN {function}({numbers}) THEN ARRAY[0] ELSE ARRAY[]::int[] END{more}"


def take_all(
    keys: Sequence[LockKey], idle_ms: int | None, limit: int | None = None, *, name: str | None = None
) -> Statement:
    """Try each of these locks, until ``limit`` are ours. ``idle_ms`` is the lease, None where it is not enforced.

    ``name`` is the new name of the session; None leaves it as it is.
    """
    return _for_each("pg_try_advisory_lock", keys, _idle_limit(idle_ms) + rename(name), limit)


def ping_as(name: str | None) -> str:
    """Return the statement of a heartbeat that gives its session this name; None is the name it was opened with."""
    return f"RESET application_name; {PING}" if name is None else PING + rename(name)


def unlock_all(keys: Sequence[LockKey], *, are_all: bool, is_enforced: bool) -> Statement:
    """Unlock each, once. With ``are_all``, also free what the session holds twice, and end its lease.

    A wait slice that times out while it is granted leaves a lock held that is then taken once more (SQLSTATE 55P03).
    """
    more = f", pg_advisory_unlock_all(){_idle_limit(0 if is_enforced else None)}" if are_all else ""
    return _for_each("pg_advisory_unlock", keys, more, None)


def _for_each(function: str, keys: Sequence[LockKey], more: str, limit: int | None) -> Statement:
    if len(keys) == 1:
        return _FOR_ONE.format(function=function, numbers=numbers(keys[0]), more=more), ()
    return _FOR_EACH.format(function=function, more=more), _arrays(keys, limit)


def _idle_limit(limit_ms: int | None) -> str:
    return "" if limit_ms is None else f", set_config('idle_session_timeout', '{limit_ms}', false)"


def rename(name: str | None) -> str:
    """Return the part of an answer that gives the session this name; None leaves it as it is."""
    return "" if name is None else f", set_config('application_name', '{name}', false)"


def _arrays(keys: Sequence[LockKey], limit: int | None) -> tuple[Any, ...]:
    """Bigints and pairs, each with its place in ``keys``; and the limit."""
    bigints = [(place, *key.numbers) for place, key in enumerate(keys) if key.space == "bigint"]
    pairs = [(place, *key.numbers) for place, key in enumerate(keys) if key.space == "pair"]
    columns = [[row[column] for row in bigints] for column in range(2)]
    return (*columns, *([row[column] for row in pairs] for column in range(3)), limit)


def columns(keys: Sequence[LockKey]) -> tuple[Any, ...]:
    """Return the parameters of :data:`FREE`: each lock as pg_locks shows it, with its place in ``keys``."""
    rows = [(place, *lock_columns(key)) for place, key in enumerate(keys)]
    return tuple([row[column] for row in rows] for column in range(4))
