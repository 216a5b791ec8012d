-- What pgleaderlock keeps in a database, beside its advisory locks: one row per lock, the term of its last leader.
--
-- Advisory locks decide who leads. This row is what a lock cannot remember once its session is gone: which token was
-- the last, on which timeline, for how long its holder could go on believing, and whether it said good-bye. A
-- successor writes it before it leads; `lock.fence(...)` compares with it inside the user's own transaction.
--
-- Applied by `pgleaderlock schema apply`, or by the first contender with term_table=True that may. Can be repeated.

-- IF NOT EXISTS would ask for a right on the database even where the schema is there.
DO $make$ BEGIN
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $make$;

CREATE TABLE IF NOT EXISTS {schema}.terms (
    lock         text        PRIMARY KEY,
    role         text,
    token        bigint      NOT NULL,
    lease_s      double precision NOT NULL,
    timeline     integer     NOT NULL,
    holder       text        NOT NULL,
    backend_pid  integer     NOT NULL,
    acquired_at  timestamptz NOT NULL,
    released_at  timestamptz
);

COMMENT ON TABLE {schema}.terms IS 'pgleaderlock: the last term of each lock';
COMMENT ON COLUMN {schema}.terms.lock IS 'the advisory lock, as LockKey prints it';
COMMENT ON COLUMN {schema}.terms.token IS 'the fencing token: greater with each term';
COMMENT ON COLUMN {schema}.terms.lease_s IS 'how long a silent holder may go on believing';
COMMENT ON COLUMN {schema}.terms.timeline IS 'the timeline of the server; a promotion changes it';
COMMENT ON COLUMN {schema}.terms.released_at IS 'set by a clean release, after which nobody believes';

-- Leases for those who cannot hold a session (postgresql+lease://): the row itself is the lease.
CREATE TABLE IF NOT EXISTS {schema}.leases (
    role         text        PRIMARY KEY,
    holder       text        NOT NULL,
    token        bigint      NOT NULL,
    lease_s      double precision NOT NULL,
    version      uuid        NOT NULL,
    acquired_at  timestamptz NOT NULL,
    renewed_at   timestamptz NOT NULL
);

COMMENT ON TABLE {schema}.leases IS 'pgleaderlock: leases that need no session. Do not delete rows: tokens go on from them';
COMMENT ON COLUMN {schema}.leases.holder IS 'who leads; empty when nobody does';
COMMENT ON COLUMN {schema}.leases.version IS 'another with every write; a write replaces the version that it has read';

-- The registry: for people to look at. Nothing here decides who leads. Written by each node on a connection of its own,
-- a moment after the fact; all times are by this server's clock, as each node reckons it from the round trips of its own.

CREATE TABLE IF NOT EXISTS {schema}.nodes (
    instance     uuid        PRIMARY KEY,
    node         text        NOT NULL,
    host         text        NOT NULL,
    process_id   integer     NOT NULL,
    version      text        NOT NULL,
    about        jsonb       NOT NULL,
    started_at   timestamptz NOT NULL,
    seen_at      timestamptz NOT NULL,
    heartbeat_s  double precision NOT NULL
);

COMMENT ON TABLE {schema}.nodes IS 'pgleaderlock: processes that take part in elections; one that leaves in order removes its row';
COMMENT ON COLUMN {schema}.nodes.seen_at IS 'older than three heartbeats: dead, or cut off from this database';

CREATE TABLE IF NOT EXISTS {schema}.candidates (
    instance     uuid        NOT NULL,
    lock         text        NOT NULL,
    role         text        NOT NULL,
    state        text        NOT NULL,
    since        timestamptz NOT NULL,
    PRIMARY KEY (instance, lock)
) WITH (fillfactor = 70);

COMMENT ON TABLE {schema}.candidates IS 'pgleaderlock: which node stands for which role, and in what state';

CREATE TABLE IF NOT EXISTS {schema}.leaders (
    lock         text        PRIMARY KEY,
    role         text        NOT NULL,
    instance     uuid        NOT NULL,
    node         text        NOT NULL,
    token        bigint,
    acquired_at  timestamptz NOT NULL,
    renewed_at   timestamptz NOT NULL,
    lease_until  timestamptz,
    backend_pid  integer,
    host         text        NOT NULL,
    process_id   integer     NOT NULL,
    version      text        NOT NULL,
    about        jsonb       NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE {schema}.leaders IS 'pgleaderlock: who leads each role, as its leader said last; removed on a graceful hand-over';
COMMENT ON COLUMN {schema}.leaders.lease_until IS 'until when the leader believes without news; null where nothing ends it';

CREATE TABLE IF NOT EXISTS {schema}.history (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock         text        NOT NULL,
    role         text        NOT NULL,
    node         text        NOT NULL,
    instance     uuid        NOT NULL,
    number       bigint,
    event        text        NOT NULL,
    cause        text,
    token        bigint,
    at           timestamptz NOT NULL,
    within_s     double precision NOT NULL,
    missing      integer     NOT NULL DEFAULT 0,
    detail       text,
    UNIQUE (instance, number)
);

CREATE INDEX IF NOT EXISTS history_at ON {schema}.history (lock, at);

COMMENT ON TABLE {schema}.history IS 'pgleaderlock: what happened, appended only; pruned by whoever leads';
COMMENT ON COLUMN {schema}.history.number IS 'counts the events of one instance, so that what is sent again is known';
COMMENT ON COLUMN {schema}.history.within_s IS 'how exactly the time is known';
COMMENT ON COLUMN {schema}.history.missing IS 'so many events of this instance before this one could not be kept';

-- The tick ledger: which slot of which scheduled job was claimed in which term, and what became of it. A claim moves
-- tick_jobs.through and writes its rows in one statement, which a term that is over cannot get through.

CREATE TABLE IF NOT EXISTS {schema}.tick_jobs (
    lock         text        NOT NULL,
    job          text        NOT NULL,
    role         text,
    schedule     text        NOT NULL,
    token        bigint      NOT NULL,
    since        timestamptz NOT NULL,
    through      timestamptz NOT NULL,
    PRIMARY KEY (lock, job)
) WITH (fillfactor = 50);

COMMENT ON TABLE {schema}.tick_jobs IS 'pgleaderlock: scheduled jobs. A job whose row is deleted begins anew';
COMMENT ON COLUMN {schema}.tick_jobs.token IS 'the newest term that took the job over: no older one can claim any more';
COMMENT ON COLUMN {schema}.tick_jobs.through IS 'every slot up to here is accounted for';

CREATE TABLE IF NOT EXISTS {schema}.ticks (
    lock         text        NOT NULL,
    job          text        NOT NULL,
    slot         timestamptz NOT NULL,
    attempt      integer     NOT NULL,
    state        text        NOT NULL,
    token        bigint      NOT NULL,
    holder       text        NOT NULL,
    claimed_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    skipped_from timestamptz,
    detail       text,
    PRIMARY KEY (lock, job, slot, attempt)
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS ticks_running ON {schema}.ticks (lock, job) WHERE state = 'running';

COMMENT ON TABLE {schema}.ticks IS 'pgleaderlock: the runs of scheduled jobs, a row per slot and attempt; pruned by whoever leads';
COMMENT ON COLUMN {schema}.ticks.state IS 'running, done, failed, killed, repeated (killed, and run again as the next attempt) or skipped';
COMMENT ON COLUMN {schema}.ticks.skipped_from IS 'this row stands for every slot after this time too';
