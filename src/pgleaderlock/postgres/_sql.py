"""The statements of the protocol. :mod:`.pair` and :mod:`.advisory` decide by their answers.

Only numbers are ever filled in, because ``DO`` takes no parameters.
"""

from pgleaderlock._base.server_settings import NO_FORMER_LEADER
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres._durability import FLUSHED
from pgleaderlock.postgres._search_path import PINNED
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease

__all__ = [
    "ANNOUNCEMENT",
    "END_BACKEND",
    "END_LEASE",
    "HOLDER_AND_OWN_NAME",
    "NEXT_TOKEN",
    "NOTIFY_OF_NOMINEE",
    "OLDEST_VERSION",
    "PING",
    "REHEARSAL",
    "SESSIONS_AT",
    "SESSION_NAMES",
    "STOP_LISTENING",
    "STUCK_HOLDERS",
    "LockStatements",
    "notify_first",
    "numbers",
    "set_up",
]

PING = "SELECT 1"

END_LEASE = "SELECT set_config('idle_session_timeout', '0', false)"
"""Takes a session that holds nothing any more out of the lease."""

# Of a lock, as pg_locks shows it. The holder is compared with the session that sent a notification.
HOLDER_AND_OWN_NAME = """
SELECT (SELECT min(l.pid) FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND l.classid::text::bigint = %s AND l.objid::text::bigint = %s AND l.objsubid = %s),
       current_setting('application_name')
"""

SESSION_NAMES = """
SELECT current_setting('application_name'), coalesce(array_agg(DISTINCT a.application_name), '{}')
  FROM pg_stat_activity AS a WHERE a.datname = current_database() AND a.application_name <> ''
"""

# The sessions that hold or wait for some locks: the number of the lock, whether it was granted, and the name.
SESSIONS_AT = """
SELECT coalesce(array_agg(k.i::text || ' ' || l.granted::text || ' ' || coalesce(a.application_name, '')), '{}')
  FROM unnest(%s::int[], %s::bigint[], %s::bigint[], %s::int[]) AS k (i, a, b, c)
  JOIN pg_locks AS l ON l.locktype = 'advisory' AND l.classid::text::bigint = k.a
       AND l.objid::text::bigint = k.b AND l.objsubid = k.c
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
"""

# The commit waits neither for the disk nor for a standby.
NOTIFY_OF_NOMINEE = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"

# By pid *and* start, because pids are used again. Terminated and never cancelled: a commit that waits for a synchronous
# standby answers *success* when it is cancelled.
END_BACKEND = """
SELECT pg_terminate_backend(pid), coalesce(wait_event, '')
  FROM pg_stat_activity WHERE pid = %s AND extract(epoch FROM backend_start)::text = %s
"""

# Sessions that hold one of these locks and whose commit waits for a synchronous standby. Their client may be long gone.
STUCK_HOLDERS = """
SELECT coalesce(array_agg(DISTINCT a.pid::text || ' ' || extract(epoch FROM a.backend_start)::text), '{}')
  FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS k (a, b, c)
  JOIN pg_locks AS l ON l.locktype = 'advisory' AND l.granted AND l.classid::text::bigint = k.a
       AND l.objid::text::bigint = k.b AND l.objsubid = k.c
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  JOIN pg_stat_activity AS a ON a.pid = l.pid AND a.wait_event = 'SyncRep'
"""

_IDLE_SESSION_TIMEOUT_SINCE = 140000
_TRANSACTION_TIMEOUT_SINCE = 170000

OLDEST_VERSION = 130000  # pg_current_xact_id

# Nothing is set on a session that will be refused: behind a pooler other clients use it too.
# The statistics are reset by a crash recovery too, which frees every lock and leaves the start time as it was.
_SET_UP = """
SELECT CASE WHEN pg_backend_pid() = %s::int AND NOT pg_is_in_recovery() THEN ARRAY[
           {pinned}, set_config('statement_timeout', %s, false), set_config('lock_timeout', '0', false),
           set_config('default_transaction_read_only', 'off', false),
           set_config('default_transaction_isolation', 'read committed', false),
           {flushing}
           {more}] END,
       pg_backend_pid(), pg_is_in_recovery(),
       (SELECT extract(epoch FROM backend_start)::text FROM pg_stat_get_activity(pg_backend_pid()))
       {facts}
"""

# These take longer than all the rest, and a witness need not know them. The last names this run of the server: locks
# that an earlier run held are gone. As numbers, because the text of a time depends on settings.
# The statistics of a run without a crash are older than its start.
_FACTS = """
     , extract(epoch FROM current_setting('deadlock_timeout')::interval)::float,
       CASE WHEN current_setting('{no_former_leader}', true) = 'on'
                 AND (SELECT stats_reset FROM pg_stat_bgwriter) < pg_postmaster_start_time() THEN 'Infinity'
            ELSE extract(epoch FROM clock_timestamp() - greatest(
                pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter)))::float END,
       concat(extract(epoch FROM pg_postmaster_start_time()), ' ',
              extract(epoch FROM (SELECT stats_reset FROM pg_stat_bgwriter)))
"""

ANNOUNCEMENT = "pgleaderlock: the lock is granted"
"""What the server sends in the middle of a wait slice of the heir."""

# Makes the commit of the transaction reach the disk, or a crash would hand out the same id again.
_FLUSH = "pg_logical_emit_message(true, 'pgleaderlock', '')::text"

# Nothing is written here: the token of such a term comes from a statement of its own, after the grant (`NEXT_TOKEN`).
_TRY = " WHEN pg_try_advisory_lock({numbers}) THEN {answer}"

# The time-out is caught here: left to the client it would be an ERROR in the server's log, once per slice and follower.
# It undoes what the block has set; so the answer is set before the wait, and nothing is left to do after a grant.
# It may come at the same moment as the grant (SQLSTATE 55P03); the session then holds the lock, so the handler looks.
_WAIT_SLICE = """
DO $slice$ BEGIN
    PERFORM set_config('pgleaderlock.granted', '', false), {come_under_lease}{no_token};{rehearse}
    BEGIN
        PERFORM set_config('lock_timeout', '{slice_ms}', true),
                set_config('pgleaderlock.granted', '{granted}', false);
        PERFORM pg_advisory_lock({numbers});{announce}
    EXCEPTION WHEN lock_not_available THEN
        PERFORM set_config('pgleaderlock.granted', CASE WHEN EXISTS (
            SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
               AND classid::text::bigint = {classid} AND objid::text::bigint = {objid} AND objsubid = {objsubid})
            THEN '{granted}'{otherwise} ELSE '' END, false);
    END;{draw_token}
END $slice$;
SELECT current_setting('pgleaderlock.granted'){more}
"""

# A message of this kind is sent at once, whatever client_min_messages says, and is not logged. The rest of the
# statement, which flushes the token to the disk, then runs while the client waits for the witness lock.
_ANNOUNCE = f"""
        RAISE INFO '{ANNOUNCEMENT}';"""
_CLEAR_DRAWN = ", set_config('pgleaderlock.token', '', false)"
_DRAWN = ", current_setting('pgleaderlock.token')"
# The transaction has no id yet, so this one is assigned after the grant.
_DRAW = f"""
    IF current_setting('pgleaderlock.granted') <> '' THEN
        PERFORM set_config('pgleaderlock.token', pg_current_xact_id()::text, false), {_FLUSH};
    END IF;"""

# A server process that meets a function or a block for the first time looks it up, for some tenths of a millisecond; so
# it meets them before the failover in which they are needed. ``WHERE false`` keeps them from being executed: an id that
# is assigned before the lock is granted would be an old token, and a lock of the key 0 may be an application's.
_REHEARSE_DRAW = f"""
    PERFORM pg_current_xact_id()::text, {_FLUSH} WHERE false;"""
REHEARSAL = f"""
DO $rehearsal$ BEGIN
    PERFORM set_config('pgleaderlock.granted', '', false), pg_advisory_lock(0) WHERE false;
EXCEPTION WHEN lock_not_available THEN NULL; END $rehearsal$;
{PING}
"""
"""A heartbeat of a session that will soon have to execute a wait slice."""

# A commit that notifies others waits neither for the disk nor for a standby here. The unlock comes before it, or they
# would look too early.
_LEAVE_PLACE = """
BEGIN; SELECT set_config('synchronous_commit', 'off', true), pg_advisory_unlock({numbers}), pg_notify('{channel}', '');
COMMIT;
"""

# In a transaction of its own, after the grant: an id that was assigned before it could be older than that of a leader
# in between.
NEXT_TOKEN = f"SELECT pg_current_xact_id()::text::bigint, {_FLUSH}"

STOP_LISTENING = "UNLISTEN *;"


# To be followed by another statement, and as with a place that is left.
_NOTIFY_FIRST = """
BEGIN; SELECT set_config('synchronous_commit', 'off', true), pg_notify('{channel}', ''); COMMIT;
"""


def notify_first(channel: str) -> str:
    """Return the statements that notify the followers that places may be taken again."""
    return _NOTIFY_FIRST.format(channel=channel)


def numbers(key: LockKey) -> str:
    """Return the key as SQL. Quoted, because a bare -2147483648 is a bigint to PostgreSQL."""
    kind = "int" if key.space == "pair" else "bigint"
    return ", ".join(f"'{number}'::{kind}" for number in key.numbers)


def can_end_silent_sessions(version: int) -> bool:
    """Return whether this server has ``idle_session_timeout``."""
    return version >= _IDLE_SESSION_TIMEOUT_SINCE


def set_up(lease: Lease, version: int, *, with_facts: bool = True) -> str:
    """Return the first statement of a session. It takes the pid that is ours, and a limit.

    An old server cannot end a silent session, but it can notice a dead network: keepalive settings make its side of
    the connection give up within the lease.
    """
    # A limit that the user has by default would end a poller between two tries, or a follower in the queue.
    settings = {"idle_session_timeout": 0} if can_end_silent_sessions(version) else _network_limits(lease)
    if version >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = 0
    more = "".join(f", set_config('{name}', '{value}', false)" for name, value in settings.items())
    facts = _FACTS.format(no_former_leader=NO_FORMER_LEADER) if with_facts else ""
    return _SET_UP.format(pinned=PINNED, flushing=FLUSHED, more=more, facts=facts)


def _network_limits(lease: Lease) -> dict[str, int]:
    third_s = max(1, int(lease.renew_every_s))  # silence for a third, then probes for the rest
    limits = {"tcp_keepalives_idle": third_s, "tcp_keepalives_interval": third_s, "tcp_keepalives_count": 2}
    limits["tcp_user_timeout"] = lease.lease_ms
    return limits


class LockStatements:
    """The statements about one lock. ``granted`` is the answer of those that acquire it; others answer nothing."""

    def __init__(self, key: LockKey, lease: Lease, *, is_enforced: bool, granted: str = "lock") -> None:
        self._key = key
        self._lease_ms = lease.lease_ms
        self._draws_token = not lease.term_table
        self._is_enforced = is_enforced
        self.granted = granted

    def attempt(self, otherwise: "LockStatements | None" = None) -> str:
        """Return the statement that tries for the lock once; and if it is held, for another one."""
        return f"SELECT CASE{self.first_try}{'' if otherwise is None else otherwise.first_try} END"

    @property
    def first_try(self) -> str:
        """The part of a try for this lock. One that acquires it brings the session under the lease."""
        return _TRY.format(numbers=numbers(self._key), answer=f"ARRAY['{self.granted}', {self._lease_limit}]")

    @property
    def last_try(self) -> str:
        """The part of a wait slice, under the lease already, that tries for this lock at its end."""
        return _TRY.format(numbers=numbers(self._key), answer=f"'{self.granted}'")

    def slice(
        self,
        slice_s: float,
        otherwise: "LockStatements | None" = None,
        *,
        begins_term: bool = False,
        more: str = "",
    ) -> str:
        """Return the statement that queues for one wait slice, and at its end tries for another lock.

        With ``begins_term`` a grant is announced at once, and the token is drawn and answered too, unless the claim of
        a term row draws it. ``more`` follows in the answer. A limit of 0 would be none.
        """
        draws = begins_term and self._draws_token
        classid, objid, objsubid = lock_columns(self._key)
        return _WAIT_SLICE.format(
            numbers=numbers(self._key),
            granted=self.granted,
            slice_ms=max(1, round(slice_s * 1000)),
            come_under_lease=self._lease_limit,
            classid=classid,
            objid=objid,
            objsubid=objsubid,
            otherwise="" if otherwise is None else otherwise.last_try,
            announce=_ANNOUNCE if begins_term else "",
            no_token=_CLEAR_DRAWN if draws else "",
            draw_token=_DRAW if draws else "",
            rehearse=_REHEARSE_DRAW if draws else "",
            more=(_DRAWN if draws else "") + more,
        )

    @property
    def unlock(self) -> str:
        """The statement that unlocks it, to be followed by another one."""
        return f"SELECT pg_advisory_unlock({numbers(self._key)});"

    def leave(self, channel: str) -> str:
        """Return the statements that unlock it and notify the followers that wait for it to be free."""
        return _LEAVE_PLACE.format(numbers=numbers(self._key), channel=channel)

    @property
    def _lease_limit(self) -> str:
        return f"set_config('idle_session_timeout', '{self._lease_ms}', false)" if self._is_enforced else "''"
