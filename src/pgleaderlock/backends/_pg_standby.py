"""Commits that wait for a synchronous standby: which sessions of an election wait, and for what.

Such a wait has no end of its own. No time-out of a statement or of an idle session counts in it, and a session whose
client is gone goes on waiting, with the lock in its hands. For people; nothing decides by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock.backends._pg_activity import lock_columns
from pgleaderlock.backends.lease import witness_key
from pgleaderlock.keys import LockKey

__all__ = ["REMEDY", "StandbyWait", "described", "standby_waits"]

REMEDY = (
    "connect a standby that synchronous_standby_names names, or take it out (ALTER SYSTEM SET "
    "synchronous_standby_names = '', then SELECT pg_reload_conf()). A session whose client is gone holds the lock "
    "until a candidate ends it, after one lease, or pg_terminate_backend(pid) does. Never pg_cancel_backend: it "
    "reports a commit as done that no standby has"
)
"""What to do about a session that waits for a standby."""

# Without a key, every session that has a name of ours. What other users' sessions wait for is hidden from many.
_WAITS = """
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.query_start)::float8,
       current_setting('synchronous_standby_names'), current_setting('synchronous_commit')
  FROM pg_stat_activity AS a
 WHERE a.wait_event_type = 'IPC' AND a.wait_event = 'SyncRep' AND a.datname = current_database()
   AND (a.pid IN (SELECT l.pid FROM pg_locks AS l
                   WHERE l.locktype = 'advisory' AND l.database = a.datid
                     AND (l.classid::text, l.objid::text, l.objsubid::text) IN ((%s, %s, %s), (%s, %s, %s)))
        OR (%s AND a.application_name LIKE 'pgleaderlock %%'))
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


async def standby_waits(connection: Any, key: LockKey | None) -> list[StandbyWait]:
    """Return the sessions that wait, of this lock and its witness; of all elections in this database without a key."""
    columns: Sequence[object] = (*lock_columns(key), *lock_columns(witness_key(key))) if key else (None,) * 6
    parameters = [*(None if column is None else str(column) for column in columns), key is None]
    rows = await (await connection.execute(_WAITS, parameters)).fetchall()
    return [StandbyWait(*row) for row in rows]


def described(waits: Sequence[StandbyWait]) -> str:
    """Return in words what they wait for; nothing when none does."""
    if not waits:
        return ""
    sessions = " and ".join(f"pid {wait.pid} ({wait.name}) for {wait.waiting_s:.3g} s" for wait in waits)
    names, mode = waits[0].standby_names, waits[0].commit_mode
    settings = f"synchronous_standby_names = {names!r}, synchronous_commit = {mode} for this user"
    return f"waiting in SyncRep for a synchronous standby to confirm a commit: {sessions} ({settings})"
