"""The statements of ``once()``: slots of the ledger that processes claim without being the leader.

The rows are those of scheduled jobs, with the token 0, which no term has. A slot is claimed by the process that inserts
the row of its first attempt: the primary key admits one. In the same statement the session takes an advisory lock, the
*mark* of the slot, and keeps it while it runs. So a row that says ``running`` and whose mark is free was cut off: the
session of its process has ended.

The row of the first attempt is locked while a later caller decides about a slot, so that two do not repeat it.

``through`` of the job is the time up to which slots were pruned: none of them can be claimed any more, because it is no
longer known whether it was run. A claim locks the row of the job against a concurrent pruning.
"""

import hashlib
from datetime import datetime

from pgleaderlock.options import check_schema
from pgleaderlock.work.schedule._sql import NOW

__all__ = ["mark_of", "once_statements"]

_REGISTER = """
INSERT INTO {schema}.tick_jobs AS j (lock, job, role, schedule, token, since, through)
VALUES (%(lock)s, %(job)s, %(role)s, %(schedule)s, 0, {now}, 'epoch')
    ON CONFLICT (lock, job) DO UPDATE SET schedule = excluded.schedule, role = excluded.role
 WHERE j.token = 0 AND (j.schedule, j.role) IS DISTINCT FROM (excluded.schedule, excluded.role)
"""

_CLAIM = """
WITH job AS MATERIALIZED (
    SELECT j.lock, j.job FROM {schema}.tick_jobs AS j
     WHERE j.lock = %(lock)s AND j.job = %(job)s AND j.token = 0 AND j.through < %(slot)s
       FOR SHARE
), claimed AS (
    INSERT INTO {schema}.ticks (lock, job, slot, attempt, state, token, holder, claimed_at)
    SELECT lock, job, %(slot)s, 1, 'running', 0, %(holder)s, {now} FROM job
        ON CONFLICT DO NOTHING
    RETURNING claimed_at
)
SELECT claimed_at, pg_try_advisory_lock(%(mark)s) FROM claimed
"""

_JOB = "SELECT token, through FROM {schema}.tick_jobs WHERE lock = %(lock)s AND job = %(job)s"

_LOCK_SLOT = """
SELECT slot FROM {schema}.ticks
 WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s AND attempt = 1 AND token = 0 FOR UPDATE
"""

_NEWEST = """
SELECT attempt, state, holder, claimed_at, ended_at, detail FROM {schema}.ticks
 WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s ORDER BY attempt DESC LIMIT 1
"""

_TAKE_MARK = "SELECT pg_try_advisory_lock(%(mark)s)"

_CUT_OFF = """
UPDATE {schema}.ticks SET state = 'killed', ended_at = {now}
 WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s AND attempt = %(attempt)s
RETURNING ended_at
"""

_REPEAT = """
WITH repeated AS (
    UPDATE {schema}.ticks SET state = 'repeated'
     WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s AND attempt = %(attempt)s
    RETURNING lock, job, slot, attempt
)
INSERT INTO {schema}.ticks (lock, job, slot, attempt, state, token, holder, claimed_at)
SELECT lock, job, slot, attempt + 1, 'running', 0, %(holder)s, {now} FROM repeated
RETURNING claimed_at
"""

# Also if the session of the run ended before the run did, and a caller has recorded it as killed meanwhile.
_FINISH = """
WITH ended AS (
    UPDATE {schema}.ticks SET state = %(state)s, ended_at = {now}, detail = %(detail)s
     WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s AND attempt = %(attempt)s AND token = 0
       AND state IN ('running', 'killed')
    RETURNING state
)
SELECT coalesce((SELECT state FROM ended),
                (SELECT state FROM {schema}.ticks WHERE lock = %(lock)s AND job = %(job)s AND slot = %(slot)s
                    AND attempt = %(attempt)s))
"""

_PRUNE = """
WITH old AS MATERIALIZED (
    SELECT {now} - make_interval(days => %(keep_days)s) AS at
), job AS (
    UPDATE {schema}.tick_jobs SET through = (SELECT at FROM old)
     WHERE lock = %(lock)s AND job = %(job)s AND token = 0 AND through < (SELECT at FROM old)
       AND EXISTS (SELECT FROM {schema}.ticks AS t
                    WHERE t.lock = %(lock)s AND t.job = %(job)s AND t.slot < (SELECT at FROM old)
                      AND t.claimed_at < (SELECT at FROM old) AND t.state <> 'running')
    RETURNING through
)
DELETE FROM {schema}.ticks AS t USING job
 WHERE t.lock = %(lock)s AND t.job = %(job)s AND t.slot < job.through AND t.claimed_at < job.through
   AND t.state <> 'running'
"""

_STATEMENTS = {
    "register": _REGISTER,
    "claim": _CLAIM,
    "job": _JOB,
    "lock_slot": _LOCK_SLOT,
    "newest": _NEWEST,
    "take_mark": _TAKE_MARK,
    "cut_off": _CUT_OFF,
    "repeat": _REPEAT,
    "finish": _FINISH,
    "prune": _PRUNE,
    "time": "SELECT {now}",
}


def once_statements(schema: str) -> dict[str, str]:
    """Return all statements for this schema, by name."""
    quoted = f'"{check_schema(schema)}"'
    return {name: text.replace("{schema}", quoted).replace("{now}", NOW) for name, text in _STATEMENTS.items()}


def mark_of(lock: str, job: str, slot: datetime) -> int:
    """Return the key of the advisory lock that the run of a slot keeps: the same in every process and version."""
    digest = hashlib.sha256(f"pgleaderlock/once/1/{lock}/{slot.isoformat()}/{job}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
