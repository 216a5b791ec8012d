"""The statements of a group: about many locks at once, each one round trip.

Keys travel as arrays. Both kinds of advisory locks are tried in one statement, in the order in which they are given,
and no more of them than are wanted: rows are looked at one by one until the limit is reached.
"""

from collections.abc import Sequence
from typing import Any

from pgleaderlock.backends._pg_activity import lock_columns
from pgleaderlock.keys import LockKey

__all__ = ["CAPACITY", "FREE", "NEXT_TOKEN", "arrays", "columns", "try_all", "unlock_all"]

# In a transaction of its own, after the grants: an id that was assigned before a grant could be older than that of a
# leader in between. The message makes its commit reach the disk, or a crash would hand out the same number again.
NEXT_TOKEN = "SELECT pg_current_xact_id()::text::bigint, pg_logical_emit_message(true, 'pgleaderlock', '')::text"  # noqa: S105 - a statement

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
SELECT coalesce(array_agg(i), '{{}}') FROM (
    SELECT i FROM unnest(%s::int[], %s::bigint[]) AS k (i, n) WHERE {function}(n)
     UNION ALL
    SELECT i FROM unnest(%s::int[], %s::int[], %s::int[]) AS k (i, a, b) WHERE {function}(a, b)
     LIMIT %s
) AS done
"""


def try_all() -> str:
    """Try each of these locks, until so many are ours; answer with the places of those in the arrays."""
    return _FOR_EACH.format(function="pg_try_advisory_lock")


def unlock_all() -> str:
    """Let go of each; answer with the places of those that were held."""
    return _FOR_EACH.format(function="pg_advisory_unlock")


def arrays(keys: Sequence[LockKey], limit: int | None = None) -> tuple[Any, ...]:
    """Return the parameters of both: bigints and pairs, each with its place in ``keys``; and the limit."""
    bigints = [(place, *key.numbers) for place, key in enumerate(keys) if key.space == "bigint"]
    pairs = [(place, *key.numbers) for place, key in enumerate(keys) if key.space == "pair"]
    columns = [[row[column] for row in bigints] for column in range(2)]
    return (*columns, *([row[column] for row in pairs] for column in range(3)), limit)


def columns(keys: Sequence[LockKey]) -> tuple[Any, ...]:
    """Return the parameters of :data:`FREE`: each lock as pg_locks shows it, with its place in ``keys``."""
    rows = [(place, *lock_columns(key)) for place, key in enumerate(keys)]
    return tuple([row[column] for row in rows] for column in range(4))
