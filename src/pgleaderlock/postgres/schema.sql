-- What pgleaderlock keeps in a database, beside its advisory locks: one row per lock, the term of its last leader.
--
-- Advisory locks decide who leads. This row outlasts the session of a lock. It records the last token, on which
-- timeline it was, for how long its holder could be valid without a renewal, and whether it was released cleanly. A
-- successor writes it before it leads; `lock.fence(...)` compares with it inside the user's own transaction.
--
-- Every name is qualified: run by hand, it must mean the same whatever the search_path is.
--
-- Applied by `pgleaderlock schema apply`, or by the first candidate with term_table=True that may. Can be repeated.
-- By hand, run it in one transaction (psql --single-transaction).

-- === Version 1, for programs that know version 1 or later: the tables of 0.1.0

-- IF NOT EXISTS would ask for a right on the database even where the schema is there.
DO $make$ BEGIN
    IF pg_catalog.to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $make$;

CREATE TABLE IF NOT EXISTS {schema}.terms (
    lock         pg_catalog.text        PRIMARY KEY,
    role         pg_catalog.text,
    token        bigint      NOT NULL,
    lease_s      double precision NOT NULL,
    timeline     integer     NOT NULL,
    holder       pg_catalog.text        NOT NULL,
    backend_pid  integer     NOT NULL,
    acquired_at  pg_catalog.timestamptz NOT NULL,
    released_at  pg_catalog.timestamptz
);

COMMENT ON TABLE {schema}.terms IS 'pgleaderlock: the last term of each lock';
COMMENT ON COLUMN {schema}.terms.lock IS 'the advisory lock, as LockKey prints it';
COMMENT ON COLUMN {schema}.terms.token IS 'the fencing token: greater with each term';
COMMENT ON COLUMN {schema}.terms.lease_s IS 'lease duration: how long a silent holder may be valid';
COMMENT ON COLUMN {schema}.terms.timeline IS 'the timeline of the server; a promotion changes it';
COMMENT ON COLUMN {schema}.terms.released_at IS 'set by a clean release, after which the term is not valid';

-- Leases for those who cannot hold a session (postgresql+lease://): the row itself is the lease.
CREATE TABLE IF NOT EXISTS {schema}.leases (
    role         pg_catalog.text        PRIMARY KEY,
    holder       pg_catalog.text        NOT NULL,
    token        bigint      NOT NULL,
    lease_s      double precision NOT NULL,
    version      pg_catalog.uuid        NOT NULL,
    acquired_at  pg_catalog.timestamptz NOT NULL,
    renewed_at   pg_catalog.timestamptz NOT NULL
);

COMMENT ON TABLE {schema}.leases IS 'pgleaderlock: leases that need no session. Do not delete rows: tokens go on from them';
COMMENT ON COLUMN {schema}.leases.holder IS 'the leader; empty when there is none';
COMMENT ON COLUMN {schema}.leases.version IS 'another with every write; a write replaces the version that it has read';

-- The registry: for people to look at. Nothing here decides who leads. Written by each node on a connection of its own,
-- a moment after the fact; all times are by this server's clock, as each node reckons it from the round trips of its own.

CREATE TABLE IF NOT EXISTS {schema}.nodes (
    instance     pg_catalog.uuid        PRIMARY KEY,
    node         pg_catalog.text        NOT NULL,
    host         pg_catalog.text        NOT NULL,
    process_id   integer     NOT NULL,
    version      pg_catalog.text        NOT NULL,
    about        pg_catalog.jsonb       NOT NULL,
    started_at   pg_catalog.timestamptz NOT NULL,
    seen_at      pg_catalog.timestamptz NOT NULL,
    heartbeat_s  double precision NOT NULL
);

COMMENT ON TABLE {schema}.nodes IS 'pgleaderlock: processes that take part in elections; one that leaves in order removes its row';
COMMENT ON COLUMN {schema}.nodes.seen_at IS 'older than three heartbeats: dead, or cut off from this database';

CREATE TABLE IF NOT EXISTS {schema}.candidates (
    instance     pg_catalog.uuid        NOT NULL,
    lock         pg_catalog.text        NOT NULL,
    role         pg_catalog.text        NOT NULL,
    state        pg_catalog.text        NOT NULL,
    since        pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (instance, lock)
) WITH (fillfactor = 70);

COMMENT ON TABLE {schema}.candidates IS 'pgleaderlock: which node stands for which role, and in what state';

CREATE TABLE IF NOT EXISTS {schema}.leaders (
    lock         pg_catalog.text        PRIMARY KEY,
    role         pg_catalog.text        NOT NULL,
    instance     pg_catalog.uuid        NOT NULL,
    node         pg_catalog.text        NOT NULL,
    token        bigint,
    acquired_at  pg_catalog.timestamptz NOT NULL,
    renewed_at   pg_catalog.timestamptz NOT NULL,
    lease_until  pg_catalog.timestamptz,
    backend_pid  integer,
    host         pg_catalog.text        NOT NULL,
    process_id   integer     NOT NULL,
    version      pg_catalog.text        NOT NULL,
    about        pg_catalog.jsonb       NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE {schema}.leaders IS 'pgleaderlock: who leads each role, as its leader said last; removed on a graceful hand-over';
COMMENT ON COLUMN {schema}.leaders.lease_until IS 'until when the leader is valid without a renewal; null where nothing ends it';

CREATE TABLE IF NOT EXISTS {schema}.history (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock         pg_catalog.text        NOT NULL,
    role         pg_catalog.text        NOT NULL,
    node         pg_catalog.text        NOT NULL,
    instance     pg_catalog.uuid        NOT NULL,
    number       bigint,
    event        pg_catalog.text        NOT NULL,
    cause        pg_catalog.text,
    token        bigint,
    at           pg_catalog.timestamptz NOT NULL,
    within_s     double precision NOT NULL,
    missing      integer     NOT NULL DEFAULT 0,
    detail       pg_catalog.text,
    UNIQUE (instance, number)
);

CREATE INDEX IF NOT EXISTS history_at ON {schema}.history (lock, at);

COMMENT ON TABLE {schema}.history IS 'pgleaderlock: what happened; pruned by the leader';
COMMENT ON COLUMN {schema}.history.number IS 'counts the events of one instance, so that what is sent again is known';
COMMENT ON COLUMN {schema}.history.within_s IS 'how exactly the time is known';
COMMENT ON COLUMN {schema}.history.missing IS 'so many events of this instance before this one could not be kept';

-- The tick ledger: which slot of which scheduled job was claimed in which term, and what became of it. A claim moves
-- tick_jobs.through and writes its rows in one statement, which a term that is over cannot get through.

CREATE TABLE IF NOT EXISTS {schema}.tick_jobs (
    lock         pg_catalog.text        NOT NULL,
    job          pg_catalog.text        NOT NULL,
    role         pg_catalog.text,
    schedule     pg_catalog.text        NOT NULL,
    token        bigint      NOT NULL,
    since        pg_catalog.timestamptz NOT NULL,
    through      pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (lock, job)
) WITH (fillfactor = 50);

COMMENT ON TABLE {schema}.tick_jobs IS 'pgleaderlock: scheduled jobs. A job whose row is deleted begins anew';
COMMENT ON COLUMN {schema}.tick_jobs.token IS 'the newest term that took the job over: no older one can claim any more';
COMMENT ON COLUMN {schema}.tick_jobs.through IS 'every slot up to here is accounted for';

CREATE TABLE IF NOT EXISTS {schema}.ticks (
    lock         pg_catalog.text        NOT NULL,
    job          pg_catalog.text        NOT NULL,
    slot         pg_catalog.timestamptz NOT NULL,
    attempt      integer     NOT NULL,
    state        pg_catalog.text        NOT NULL,
    token        bigint      NOT NULL,
    holder       pg_catalog.text        NOT NULL,
    claimed_at   pg_catalog.timestamptz NOT NULL,
    ended_at     pg_catalog.timestamptz,
    skipped_from pg_catalog.timestamptz,
    detail       pg_catalog.text,
    PRIMARY KEY (lock, job, slot, attempt)
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS ticks_running ON {schema}.ticks (lock, job) WHERE state OPERATOR(pg_catalog.=) 'running';

COMMENT ON TABLE {schema}.ticks IS 'pgleaderlock: the runs of scheduled jobs, a row per slot and attempt; pruned by the leader';
COMMENT ON COLUMN {schema}.ticks.state IS 'running, done, failed, killed, repeated (killed, and run again as the next attempt) or skipped';
COMMENT ON COLUMN {schema}.ticks.skipped_from IS 'this row stands for every slot after this time too';

-- === Version 2, for programs that know version 1 or later: the table of asks, and the version itself

-- It has neither columns nor rows: its comment is the version.
CREATE TABLE IF NOT EXISTS {schema}.schema_version ();

-- Asks to leaders to hand over. An operator inserts the first columns; who asked, and when, is this server's word. So grant
-- INSERT on those columns only, never on the table: pgleaderlock schema apply --grant-asks-to OPERATOR.

CREATE TABLE IF NOT EXISTS {schema}.asks (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock         pg_catalog.text        NOT NULL,
    instance     pg_catalog.uuid,
    token        bigint,
    claimed_by   pg_catalog.text,
    reason       pg_catalog.text,
    wait_s       double precision NOT NULL DEFAULT 30 CHECK (wait_s OPERATOR(pg_catalog.>) 0 AND wait_s OPERATOR(pg_catalog.<=) 3600),
    asked_by     pg_catalog.text        NOT NULL DEFAULT session_user,
    asked_at     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    answer       pg_catalog.text,
    why          pg_catalog.text,
    answered_by  pg_catalog.text,
    answered_at  pg_catalog.timestamptz
);

CREATE INDEX IF NOT EXISTS asks_open ON {schema}.asks (lock) WHERE answer IS NULL;

COMMENT ON TABLE {schema}.asks IS 'pgleaderlock: asks to leaders to hand over, and their answers; a leader obeys one per lease';
COMMENT ON COLUMN {schema}.asks.instance IS 'the leader that is asked, with its token: a later term is not meant; null is any';
COMMENT ON COLUMN {schema}.asks.claimed_by IS 'who asks, in the words of the session that asked';
COMMENT ON COLUMN {schema}.asks.wait_s IS 'an ask that is older is not obeyed any more';
COMMENT ON COLUMN {schema}.asks.asked_by IS 'the database role that asked: written by the server';
COMMENT ON COLUMN {schema}.asks.answer IS 'obeyed or refused; null while no leader has answered';

-- === Version 3, for programs that know version 1 or later: the history by time, whatever the lock

CREATE INDEX IF NOT EXISTS history_by_time ON {schema}.history (at);

-- === Version 4, for programs that know version 1 or later: the address of the holder of a lease row

ALTER TABLE {schema}.leases ADD COLUMN IF NOT EXISTS address pg_catalog.text;

COMMENT ON COLUMN {schema}.leases.address IS 'where clients reach the leader: its token, a space, its address';
