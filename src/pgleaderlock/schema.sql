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
