"""Commits that wait for a synchronous standby: which sessions of an election wait, and for what.

Such a wait has no end of its own. No time-out of a statement or of an idle session counts in it, and a session whose
client is gone goes on waiting while it holds the lock. For display only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.postgres.session import FetchAll

REMEDY = (
    "connect a standby that synchronous_standby_names names, or take it out: "
    "`ALTER SYSTEM SET synchronous_standby_names = ''` and `SELECT pg_reload_conf()`. A session whose client is gone "
    "holds the lock until a candidate ends it, after one lease, or pg_terminate_backend(pid) does. Never "
    "pg_cancel_backend: it reports a commit as done that no standby has"
)
"""What to do about a session that waits for a standby."""

# One row with both settings if a commit of this user would wait for a standby and none is connected. Of others'
# connections an ordinary user sees that they are there, but not whether they are synchronous.
MISSING_SQL = """
SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')
 WHERE current_setting('synchronous_standby_names') <> ''
   AND current_setting('synchronous_commit') NOT IN ('off', 'local')
   AND NOT EXISTS (SELECT FROM pg_stat_replication
                    WHERE coalesce(sync_state, 'hidden') IN ('sync', 'quorum', 'hidden'))
"""

# Without a key, every session that has a name of ours. What other users' sessions wait for is hidden from many.
_WAITS = """
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.query_start)::float8,
       current_setting('synchronous_standby_names'), current_setting('synchronous_commit')
  FROM pg_stat_activity AS a
 WHERE a.wait_event_type = 'IPC' AND a.wait_event = 'SyncRep' AND a.datname = current_database()
   AND (a.pid IN (SELECT l.pid FROM pg_locks AS l
                   WHERE l.locktype = 'advisory' AND l.database = a.datid
                     AND (l.classid::text, l.objid::text, l.objsubid::text) IN ((%s, %s, %s), (%s, %s, %s)))
        OR (%s AND a.application_name ~ '^(pgleaderlock |pgl:)'))
 ORDER BY a.query_start
"""


@dataclass(frozen=True, slots=True)
class StandbyWait:
    """One session whose commit is not confirmed by a standby yet."""

    pid: int
    name: str
    waiting_s: float
    standby_names: str
    commit_mode: str


async def standby_waits(fetch_all: FetchAll, key: LockKey | None) -> list[StandbyWait]:
    """Return the sessions that wait, of this lock and its witness; of all elections in this database without a key."""
    columns: Sequence[object] = (*lock_columns(key), *lock_columns(witness_key(key))) if key else (None,) * 6
    parameters = [*(None if column is None else str(column) for column in columns), key is None]
    return [StandbyWait(*row) for row in await fetch_all(_WAITS, parameters)]


async def missing_standby(fetch_all: FetchAll) -> str:
    """Return that commits wait for a standby and none is connected, with the setting; nothing when that is not so."""
    return missing_text(await fetch_all(MISSING_SQL, ()))


async def standby_problem(fetch_all: FetchAll, key: LockKey) -> str:
    """Return what an absent synchronous standby does to the election of this lock, and what to do; nothing if none."""
    waits = await standby_waits(fetch_all, key)
    return _with_remedy(described(waits) or await missing_standby(fetch_all))


def missing_problem(rows: Sequence[Sequence[Any]]) -> str:
    """Return a text about what :data:`MISSING_SQL` has found, and what to do; empty when it has found nothing."""
    return _with_remedy(missing_text(rows))


def missing_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return a text about what :data:`MISSING_SQL` has found; empty when it has found nothing."""
    if not rows:
        return ""
    return (
        f"no synchronous standby is connected, and commits wait for one ({_settings(*rows[0])}): a present leader "
        "leads on, but no new leader can be elected"
    )


def described(waits: Sequence[StandbyWait]) -> str:
    """Return a text about what they wait for; empty when none does."""
    if not waits:
        return ""
    sessions = " and ".join(f"pid {wait.pid} ({wait.name}) for {wait.waiting_s:.3g} s" for wait in waits)
    settings = _settings(waits[0].standby_names, waits[0].commit_mode)
    return f"waiting in SyncRep for a synchronous standby to confirm a commit: {sessions} ({settings})"


def _with_remedy(found: str) -> str:
    return f"{found}. To mend it: {REMEDY}" if found else ""


def _settings(names: str, mode: str) -> str:
    return f"synchronous_standby_names = {names!r}, synchronous_commit = {mode} for this user"
