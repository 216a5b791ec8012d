"""The statements of the ledger.

Each job has a row (``tick_jobs``) with the newest token that took it over and the time up to which all slots are
run or recorded. A take-over and a claim both update that row: so they are serialised, and a claim that comes after a
newer term's take-over finds another token and does nothing. A claim also reads the term row (``terms``): there a
successor appears before it takes over the job.

A claim advances ``through`` and inserts its rows in one statement. Sent again because the answer was lost, it finds its
own row and returns the same answer.

``{now}`` is the database's clock, which alone decides which slots have come.
"""

from pgleaderlock.options import check_schema
from pgleaderlock.postgres.terms import LIMIT_IDLENESS, NOT_THE_NEWEST

NOW = "clock_timestamp()"
"""The clock that decides which slots have come."""
PRUNED_AT_ONCE = 5000
"""A statement that deletes more could exceed its time-out, each time anew."""

_IS_NEWEST = """
EXISTS (SELECT FROM {schema}.terms AS t
         WHERE t.lock = %(lock)s AND t.token = %(token)s AND t.released_at IS NULL)"""

_TAKE_OVER = """
INSERT INTO {schema}.tick_jobs AS j (lock, job, role, schedule, token, since, through)
SELECT %(lock)s, %(job)s, %(role)s, %(schedule)s, %(token)s, at, at FROM (SELECT {now} AS at) AS here
 WHERE {is_newest}
    ON CONFLICT (lock, job) DO UPDATE SET
       token = excluded.token, role = excluded.role, schedule = excluded.schedule
 WHERE j.token <= excluded.token
RETURNING through, {now}
"""

# A statement of its own, so that it sees what was claimed while the one before waited for the row of the job. It waits
# for a transaction that has marked its slot as done and is not yet over; then that row is not running any more.
_TAKE_RUNS = """
WITH killed AS (
    UPDATE {schema}.ticks
       SET state = CASE WHEN %(repeats)s AND attempt < %(max_attempts)s THEN 'repeated' ELSE 'killed' END,
           ended_at = {now}
     WHERE lock = %(lock)s AND job = %(job)s AND state = 'running' AND token < %(token)s
    RETURNING slot, attempt, state, token
), repeated AS (
    INSERT INTO {schema}.ticks (lock, job, slot, attempt, state, token, holder, claimed_at)
    SELECT %(lock)s, %(job)s, slot, attempt + 1, 'running', %(token)s, %(holder)s, {now}
      FROM killed WHERE state = 'repeated'
    RETURNING slot, attempt, state, token
)
SELECT slot, attempt, state, token FROM killed UNION ALL SELECT slot, attempt, state, token FROM repeated
 UNION ALL
SELECT slot, attempt, state, token FROM {schema}.ticks
 WHERE lock = %(lock)s AND job = %(job)s AND state = 'running' AND token = %(token)s
 ORDER BY slot, attempt
"""

_RECORD = """
WITH clock AS MATERIALIZED (
    SELECT {now} AS at  -- read once: what was too early must not be due by the end of the statement
), job AS (
    UPDATE {schema}.tick_jobs SET through = %(through)s
     WHERE lock = %(lock)s AND job = %(job)s AND token = %(token)s AND through < %(through)s
       AND %(through)s <= (SELECT at FROM clock) AND {is_newest}
    RETURNING lock, job, token
), skipped AS (
    INSERT INTO {schema}.ticks (lock, job, slot, attempt, state, token, holder, claimed_at, ended_at, skipped_from)
    SELECT lock, job, slot, 1, 'skipped', token, %(holder)s, at, at,
           CASE WHEN number = 1 THEN %(skipped_from)s::timestamptz END
      FROM clock, job, unnest(%(skipped)s::timestamptz[]) WITH ORDINALITY AS missed (slot, number)
        ON CONFLICT DO NOTHING
), claimed AS (
    INSERT INTO {schema}.ticks (lock, job, slot, attempt, state, token, holder, claimed_at)
    SELECT lock, job, %(run)s, 1, 'running', token, %(holder)s, at
      FROM clock, job WHERE %(run)s::timestamptz IS NOT NULL
        ON CONFLICT DO NOTHING
    RETURNING slot
)
SELECT EXISTS (SELECT FROM job), EXISTS (SELECT FROM claimed), (SELECT at FROM clock),
       j.token = %(token)s AND {is_newest}, j.through,
       EXISTS (SELECT FROM {schema}.ticks AS ours
                WHERE ours.lock = j.lock AND ours.job = j.job AND ours.slot = %(run)s AND ours.attempt = 1
                  AND ours.token = %(token)s AND ours.state = 'running')
  FROM {schema}.tick_jobs AS j WHERE j.lock = %(lock)s AND j.job = %(job)s
"""

_FINISH = """
WITH ended AS (
    UPDATE {schema}.ticks SET state = %(state)s, ended_at = {now}, detail = %(detail)s
     WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s AND attempt = %(attempt)s AND token = %(token)s
       AND state = 'running'
    RETURNING state
)
SELECT coalesce((SELECT state FROM ended),
                (SELECT state FROM {schema}.ticks WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s
                    AND attempt = %(attempt)s)), {now}
"""

# By a range of the primary key, and not too much at once. The time is asked for in a sub-select: asked for row by row,
# it could not be looked up in an index.
_PRUNE = """
WITH gone AS (
    DELETE FROM {schema}.ticks
     WHERE lock = %(lock)s AND job = %(job)s AND state <> 'running'
       AND slot < least((SELECT {now}) - make_interval(days => %(keep_days)s),
                        (SELECT slot FROM {schema}.ticks WHERE lock = %(lock)s AND job = %(job)s
                          ORDER BY slot OFFSET %(at_once)s LIMIT 1))
    RETURNING 1
)
SELECT count(*) FROM gone
"""

_TIME = "SELECT {now}"

_STATEMENTS = {
    "take_over": _TAKE_OVER,
    "take_runs": _TAKE_RUNS,
    "record": _RECORD,
    "finish": _FINISH,
    "prune": _PRUNE,
    "time": _TIME,
}

# In sessions of users, so nothing is looked up by their search_path.
# The text of a job's name travels in hexadecimal digits: DO takes no parameters, and nothing in it can end a quote.
_DONE = """
DO $done$ BEGIN{limit_idleness}
    UPDATE {schema}.ticks AS t SET state = 'done', ended_at = pg_catalog.clock_timestamp()
     WHERE t.lock OPERATOR(pg_catalog.=) '{lock}'
       AND t.job OPERATOR(pg_catalog.=) pg_catalog.convert_from(pg_catalog.decode('{job}', 'hex'), 'UTF8')
       AND t.slot OPERATOR(pg_catalog.=) '{slot}' AND t.attempt OPERATOR(pg_catalog.=) {attempt}
       AND t.token OPERATOR(pg_catalog.=) {token} AND t.state OPERATOR(pg_catalog.=) 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '{not_the_newest}',
            MESSAGE = 'pgleaderlock: the slot {slot} of lock {lock} is no longer claimed by token {token}',
            HINT = 'Roll back the whole transaction. The next claim of the slot does the work.';
    END IF;
END $done$
"""


def statements(schema: str, now: str = NOW) -> dict[str, str]:
    """Return all statements for this schema, by name."""
    quoted = f'"{check_schema(schema)}"'
    return {
        name: text.replace("{is_newest}", _IS_NEWEST).replace("{schema}", quoted).replace("{now}", now)
        for name, text in _STATEMENTS.items()
    }


def done_sql(schema: str, *, lock: str, job: str, slot: str, attempt: int, token: int, lease_ms: int) -> str:
    """Return the statement that marks a slot as done in a transaction, or fails it."""
    return _DONE.format(
        schema=f'"{check_schema(schema)}"',
        lock=lock,
        job=job.encode().hex(),
        slot=slot,
        attempt=attempt,
        token=token,
        limit_idleness=LIMIT_IDLENESS.format(lease_ms=lease_ms),
        not_the_newest=NOT_THE_NEWEST,
    )
