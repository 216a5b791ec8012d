"""The term row: a record of the last term of a lock, which outlasts the lock's session.

A session advisory lock shows its present holder, and nothing about earlier ones. The row (``schema.sql``) adds that:
the last token, the lease of its holder, the timeline of the server, and whether it was released cleanly. It is
committed on the lock session before its leader leads, and decides three things:

- how long a former leader may still be valid (:func:`past_s`): not at all after a clean release, or where no term has
  ever begun; for the recorded lease after a promotion, or in ``takeover="strict"`` after any other end;
- the token, which goes on from the recorded one even where transaction ids went back (a dump restored elsewhere);
- whether a fenced transaction may go on (:meth:`Terms.fence_sql`).

A fenced transaction locks the row (``FOR SHARE``) until its end: so a new term, which rewrites the row, waits for
transactions in flight, and a transaction that comes later finds the new token and fails. One with an older snapshot, as
of REPEATABLE READ, would not see the new token; the row lock makes the server fail it. Besides, it shares an advisory
lock that a new term takes alone, for two reasons: row locks show in no view, but an error must name the transaction
that blocks the new term; and row locks are granted past a waiting writer, so that overlapping transactions would keep
it waiting for ever.

Nothing is written at a renewal: it would wait for fenced transactions, and leadership must not.

**A missing row means that no term has ever begun, if the table is older than the run of the server.** A leader commits
its row before it leads, and no row is ever deleted. So a leader of an earlier run, which is what the quiet period after
a server start waits for, left a row in a table that was there. A table that was made in the present run says nothing: a
leader of an earlier run had no table to write to. The command or candidate that makes the table notes on it which
server (``pg_control_system``), which file of the table and which run of the server (``pg_postmaster_start_time``) this
was. The present run must have started a lease later than the noted one: a leader of another server, whose name this
one has taken, may be valid so long. The two times are of the server's wall clock; stepped, it never makes one run two,
and costs at most that lease. A table that was emptied, rewritten or restored has another file, and a table without a
note counts as made just now. The note is written by ``pgleaderlock schema apply`` and by candidates with a term table,
not by a registry, which makes the same tables for candidates that keep no rows. A crash recovery leaves the start time
as it is, so that a table that was made before it counts as young: that costs one quiet period, and is safe.

**Another server than before** has none of the rows of that one, or old ones. A candidate that knew the other one waits
for a lease, whatever the row says.

Not promised: anything, where the candidates of one lock do not all keep rows. A leader without a row that is cut off
while the server starts is not waited for; so switch a role to ``term_table=True`` while no old node runs. A server that
was set back to an older state (a snapshot of its disk), or is a copy of another's files, lacks the terms since. A
primary that goes on beside its promoted standby keeps its leader: to fence such a server is the job of the operator
who promotes the other.
"""

import math
from dataclasses import dataclass

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.options import DEFAULT_SCHEMA, check_schema
from pgleaderlock.postgres._activity import holder_of, holder_query
from pgleaderlock.postgres._ownership import problems_sql, refusal
from pgleaderlock.postgres._schema_state import SchemaState, may_upgrade_sql
from pgleaderlock.postgres._schema_versions import LABEL, create_sql, version_sql
from pgleaderlock.postgres._sql import numbers
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, fence_key
from pgleaderlock.postgres.session import Row, Session

__all__ = ["LIMIT_IDLENESS", "NOTED", "NOT_THE_NEWEST", "Past", "Terms", "note_sql", "past_s"]

NOT_THE_NEWEST = "PGL01"
"""The SQLSTATE with which a fence fails a transaction."""

_FIRST_TIMELINE = 1
_NEEDS_SCHEMA = 1  # the lowest version of the schema that has the table as it is used here

# Checked before the first look into the table: code attached to it would run with our rights.
_LOOK_FOR_TABLE = """
SELECT {versions},
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE'), false),
       {may_upgrade}, current_user, current_database(), {problems}, {may_tell}
  FROM (SELECT) AS nothing
  LEFT JOIN pg_namespace AS n ON n.nspname = '{schema}'
  LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'terms'
"""

# As a number, because the text of a time depends on settings, and numeric, because that of a float does too.
_START = "extract(epoch FROM pg_postmaster_start_time())::numeric"
# A table that was emptied, rewritten, or restored from a dump has another file: its note says nothing.
_FILE = """concat(s.system_identifier, ' ', (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),
                  '/', pg_relation_filenode(to_regclass('{table}')))"""
_NOTE = """(SELECT col_description(a.attrelid, a.attnum) FROM pg_attribute AS a
             WHERE a.attrelid = to_regclass('{table}') AND a.attname = 'acquired_at')"""
NOTED = "terms are kept since server run "
"""What the note begins with; then follow the server, the table's file and the server's start."""
_MAY_TELL_RUN = "has_function_privilege('pg_control_system()', 'EXECUTE')"

# Once: a table that was noted in an earlier run keeps that note. A comment needs no grant to be read. A crash empties a
# table that is not logged.
_NOTE_RUN = """
DO $note$ BEGIN
    IF {may_tell} AND (SELECT c.relpersistence = 'p' FROM pg_class AS c WHERE c.oid = to_regclass('{table}'))
       AND starts_with(coalesce({note}, '{noted}'), '{noted}')
       AND NOT starts_with(coalesce({note}, ''), (SELECT '{noted}' || {file} || ' ' FROM pg_control_system() AS s)) THEN
        EXECUTE format('COMMENT ON COLUMN {table}.acquired_at IS %L',
                       (SELECT '{noted}' || {file} || ' ' || {start} FROM pg_control_system() AS s));
    END IF;
EXCEPTION WHEN insufficient_privilege THEN  -- not the owner: the table stays without a note
END $note$;
"""

_LOOK_FOR_RUN = "SELECT s.system_identifier::text, {file} || ' ' || {start}, {note} FROM pg_control_system() AS s"

# The name of the file that is being written begins with the timeline; the control file may lag after a promotion.
_TIMELINE = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"

_READ = """
SELECT t.token, t.lease_s, t.timeline, t.released_at IS NOT NULL, here.timeline
  FROM (SELECT {timeline} AS timeline) AS here LEFT JOIN {table} AS t ON t.lock = '{lock}'
"""

# The time-out is caught on the server, as in the queue. A token never decreases, even if transaction ids do. It is
# drawn here, where its commit reaches the disk with the row.
_CLAIM = """
DO $claim$ DECLARE
    claimed bigint := NULL;
BEGIN
    PERFORM set_config('pgleaderlock.claimed', '', false);
    BEGIN
        PERFORM set_config('lock_timeout', '{slice_ms}', true);
        PERFORM pg_advisory_xact_lock({fence});
        INSERT INTO {table} AS t (lock, role, token, lease_s, timeline, holder, backend_pid, acquired_at)
        VALUES ('{lock}', {role}, pg_current_xact_id()::text::bigint, {lease_s}, {timeline},
                current_setting('application_name'), pg_backend_pid(), clock_timestamp())
        ON CONFLICT (lock) DO UPDATE SET
            role = coalesce(excluded.role, t.role), token = greatest(excluded.token, t.token + 1),
            lease_s = excluded.lease_s, timeline = excluded.timeline, holder = excluded.holder,
            backend_pid = excluded.backend_pid, acquired_at = excluded.acquired_at, released_at = NULL
        RETURNING t.token INTO claimed;
        PERFORM set_config('pgleaderlock.claimed', claimed::text, false);
    EXCEPTION WHEN lock_not_available THEN
    END;
END $claim$;
SELECT current_setting('pgleaderlock.claimed')
"""

# Not waited for: while a fenced transaction of ours is open, its lock is not to be had alone, the row stays unmarked,
# and a strict successor waits.
_MARK_RELEASED = """
BEGIN;
DO $mark$ BEGIN
    PERFORM set_config('lock_timeout', '50', true);
    UPDATE {table} SET released_at = clock_timestamp()
     WHERE lock = '{lock}' AND token = {token} AND pg_try_advisory_xact_lock({fence});
EXCEPTION WHEN OTHERS THEN  -- whatever becomes of the mark, the lock is released
END $mark$;
COMMIT;
"""

# It runs in sessions of users, whose search_path is their own: there, an unqualified name or operator may be another's.
LIMIT_IDLENESS = """
    PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', CASE
              WHEN s.setting OPERATOR(pg_catalog.=) '0' OR s.setting::bigint OPERATOR(pg_catalog.>) {lease_ms}
              THEN '{lease_ms}' ELSE s.setting END, true)
       FROM pg_catalog.pg_settings AS s
      WHERE s.name OPERATOR(pg_catalog.=) 'idle_in_transaction_session_timeout';"""
"""In such a session, in PL/pgSQL: a transaction that is left idle for longer than a lease ends, if not before."""

_FENCE = """
DO $fence$ BEGIN{limit_idleness}
    PERFORM pg_catalog.pg_advisory_xact_lock_shared({fence});
    PERFORM 1 FROM {table} AS t
      WHERE t.lock OPERATOR(pg_catalog.=) '{lock}' AND t.token OPERATOR(pg_catalog.=) {token}
        AND t.released_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '{not_the_newest}',
            MESSAGE = 'pgleaderlock: token {token} of lock {lock} is not the newest: leadership has ended, '
                      'or this transaction began before it',
            HINT = 'Roll back the whole transaction. What it did must be left to the leader.';
    END IF;
END $fence$
"""


def note_sql(schema: str) -> str:
    """Return the statement that notes that terms are kept in the table from this run of the server on."""
    return _run_sql(_NOTE_RUN, schema)


def _run_sql(statement: str, schema: str) -> str:
    table = f"{_quoted(schema)}.terms"
    note, file = _NOTE.format(table=table), _FILE.format(table=table)
    return statement.format(table=table, note=note, noted=NOTED, file=file, start=_START, may_tell=_MAY_TELL_RUN)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a comment of the table's owner
        return math.nan


def _quoted(schema: str) -> str:
    return f'"{check_schema(schema)}"'


@dataclass(frozen=True, slots=True)
class Past:
    """The last term, as its row shows it, and the present server."""

    token: int | None
    """None when there was no earlier term."""
    lease_s: float
    timeline: int
    was_released: bool
    timeline_here: int
    is_whole: bool = False
    """Whether the table was there before the server started, so that every leader of an earlier run has a row in it."""


def past_s(past: Past, lease: Lease, *, ours: int | None) -> float | None:
    """Return for how long, from now that the lock is ours, the last leader may still be valid; None: unknown.

    A predecessor's last renewal was answered before its session ended, and that was before we were granted the lock.
    So its recorded lease, counted from here on our own clock, is always enough; no clock of another host is read.
    """
    if past.token is None:
        if past.timeline_here != _FIRST_TIMELINE:
            return lease.lease_s  # a promotion may have lost the row with what never reached the standby
        return 0.0 if past.is_whole else None
    # An impossible number was not written by any candidate: then our own lease is used instead.
    lease_s = past.lease_s if 0 < past.lease_s < math.inf else lease.lease_s
    if past.timeline_here != past.timeline:
        return max(lease_s, lease.lease_s)  # whatever the row says: a later one may be lost
    if past.was_released or past.token == ours:
        return 0.0
    return lease_s if lease.takeover == "strict" else None


class Terms:
    """The row of one lock, which one candidate reads and writes on its own session."""

    def __init__(self, key: LockKey, lease: Lease, where: str) -> None:
        self._key = key
        self._lease = lease
        self._where = where
        self._fence_key = fence_key(key)
        self._server: str | None = None  # the last one that was met
        self._is_whole = False  # as of the session that was made ready last

    async def make_ready(self, session: Session) -> bool | None:
        """Make sure that the table can be used: create it where this user may, else raise an error with advice.

        Return whether this is another server than the last one; None where this user is not allowed to find out.
        """
        self._is_whole = False
        found, usable, may_tell_run = await self._look_for_table(session)
        if found.version < _NEEDS_SCHEMA and found.may_upgrade:
            schema, owner = self._lease.schema, self._lease.schema_owner
            create = create_sql(schema, owner, from_version=found.version, note=note_sql(schema))
            await session.fetch(create, bound_s=self._lease.lease_s)
            found, usable, may_tell_run = await self._look_for_table(session)
        if found.version:
            found.check(self._lease.schema, _NEEDS_SCHEMA, self._where)
        if not usable:
            raise self._not_allowed(found)
        return await self._look_for_run(session) if may_tell_run else None

    async def _look_for_run(self, session: Session) -> bool:
        """Find out which run of which server this is, and whether the table is older than the run."""
        statement = _run_sql(_LOOK_FOR_RUN, self._lease.schema)
        row = await session.fetch(statement, bound_s=self._lease.answer_bound_s)
        if row is None:
            raise ConnectionError(f"the server did not say which one it is ({self._where})")
        server, run, note = row
        table, _, started = run.rpartition(" ")
        noted_table, _, noted_start = str(note).rpartition(" ")
        # Not in another run alone: a leader of another server, whose name this one has taken, may be valid for a lease.
        is_older = _seconds(started) - _seconds(noted_start) >= self._lease.lease_s
        self._is_whole = noted_table == NOTED + table and is_older
        former, self._server = self._server, server
        return former not in (None, server)

    def _not_allowed(self, found: SchemaState) -> ConnectionError:
        may_not = f"read and write {self._table}" if found.version else f"create {self._table}, needed by"
        named = "" if self._lease.schema == DEFAULT_SCHEMA else f" --schema {self._lease.schema}"
        advice = f"pgleaderlock schema apply{named} --grant-to {found.user}"
        return ConnectionError(
            f"user {found.user} may not {may_not} lock {self._key.described} with term_table=True in database "
            f"{found.database} ({self._where}): as its owner, run {advice}",
            answered=True,
        )

    async def _look_for_table(self, session: Session) -> tuple[SchemaState, bool, bool]:
        """Return what is there, whether the table can be used, and whether the run of the server may be read.

        Raise if it does not belong to a trusted role.
        """
        schema = self._lease.schema
        statement = _LOOK_FOR_TABLE.format(
            schema=schema,
            versions=version_sql(schema, ["terms"]),
            may_upgrade=may_upgrade_sql(schema),
            problems=problems_sql(schema, ["terms", LABEL], self._lease.schema_owner),
            may_tell=_MAY_TELL_RUN,
        )
        row = await session.fetch(statement, bound_s=self._lease.answer_bound_s)
        if row is None:
            raise ConnectionError(f"the server did not say whether there is a {self._table} ({self._where})")
        versions, usable, may_upgrade, user, database, problems, may_tell_run = row
        if problems:
            raise refusal(schema, problems, user, self._where)
        return SchemaState(versions, may_upgrade, user, database), usable, may_tell_run

    def read_sql(self) -> str:
        """Return the statement that reads the last term, for :meth:`past`."""
        return _READ.format(timeline=_TIMELINE, table=self._table, lock=self._key)

    def past(self, row: Row | None) -> Past:
        """Return what the row shows about the last term."""
        if row is None:
            raise ConnectionError(f"the term of lock {self._key.described} could not be read ({self._where})")
        token, lease_s, timeline, was_released, timeline_here = row
        return Past(token, lease_s or 0.0, timeline or 0, bool(was_released), timeline_here, self._is_whole)

    async def claim(self, session: Session, slice_s: float) -> int | None:
        """Write our term, and return its token; None while fenced transactions of the last leader are still open."""
        role = "NULL" if self._key.name is None else f"'{self._key.name}'"  # LockKey lets no quote in
        statement = self._sql(_CLAIM, role=role, lease_s=self._lease.lease_s, slice_ms=max(1, round(slice_s * 1000)))
        row = await session.fetch(statement, bound_s=slice_s + self._lease.answer_bound_s)
        return int(row[0]) if row is not None and row[0] else None

    async def refused(self, session: Session, waited_s: float) -> LockError:
        """Return the error for a term that could not begin because of a transaction that does not end."""
        statement, parameters = holder_query(self._fence_key)
        row = await session.fetch(statement, parameters, bound_s=self._lease.answer_bound_s)
        if row is None:
            return LockError(
                f"lock {self._key.described} is held, but its row in {self._table} could not be written within "
                f"{waited_s:g} s ({self._where}): a transaction that is not a fence of ours has it locked. pg_locks "
                "and pg_stat_activity show who has that table open"
            )
        holder = holder_of(row)
        if holder.pid is None:
            return LockError(
                f"lock {self._key.described} is held, but a fenced transaction of the last leader was prepared and not "
                f"yet decided ({self._where}): see pg_prepared_xacts, and COMMIT PREPARED or ROLLBACK PREPARED it"
            )
        named = visible(f"{holder.name}, user {holder.detail}")
        return LockError(
            f"lock {self._key.described} is held, but a transaction that the last leader fenced is still open after "
            f"{waited_s:g} s, in the session with pid {holder.pid} ({named}; "
            f"{self._where}): no term can begin before it ends. To end it: SELECT pg_terminate_backend({holder.pid})"
        )

    def mark_released_sql(self, token: int) -> str:
        """Return the statements that mark a clean release, to be sent before the lock is unlocked."""
        return self._sql(_MARK_RELEASED, token=token)

    def fence_sql(self, token: int) -> str:
        """Return the statement that fails its transaction unless this token is still the newest."""
        limit = LIMIT_IDLENESS.format(lease_ms=self._lease.lease_ms)
        return self._sql(_FENCE, token=token, limit_idleness=limit, not_the_newest=NOT_THE_NEWEST)

    @property
    def _table(self) -> str:
        return f"{_quoted(self._lease.schema)}.terms"

    def _sql(self, statement: str, **more: object) -> str:
        """Fill in numbers and checked names, which is all that is ever filled in: DO takes no parameters."""
        return statement.format(
            table=self._table,
            lock=self._key,
            fence=numbers(self._fence_key),
            timeline=_TIMELINE,
            **more,
        )
