"""The statements of the registry. Many rows travel as one JSON parameter, so that a batch is one round trip.

A node writes late, and another may have written meanwhile: its row of a leader counts only if its token is greater than
the one that is there. A node that replaces the row of a leader that did not leave in order records in the history when
that leader was last seen, as ``vanished``. The end that this leader writes later takes the place of that line.
"""

from pgleaderlock._base.server_settings import CHANGE_CHANNEL

__all__ = ["ASK_CHANNEL", "CHANGE_CHANNEL", "statements"]

ASK_CHANNEL = "pgleaderlock_ask"
"""On which a leader is asked to hand over."""

# A successor is often quicker to write than a leader that hands over. Its line about this node has no number, by which
# the index finds it. Run this after the rows of these leaders are cleared or awaited: then no successor is writing one.
_APPEND = """
WITH r AS (
    SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (lock text, role text, number bigint, event text, cause text,
           token bigint, at double precision, within_s double precision, missing integer, detail text)
), replaced AS (
    DELETE FROM {schema}.history AS h USING r
     WHERE h.instance = %(instance)s AND h.number IS NULL AND h.event = 'vanished' AND r.event = ANY(%(ends)s)
       AND h.lock = r.lock AND h.token IS NOT DISTINCT FROM r.token
)
INSERT INTO {schema}.history (lock, role, node, instance, number, event, cause, token, at, within_s, missing, detail)
SELECT lock, role, %(node)s, %(instance)s, number, event, cause, token, to_timestamp(at), within_s, missing, detail
  FROM r
    ON CONFLICT (instance, number) DO NOTHING
"""

# A statement of its own before the next ones, so that they see what was written meanwhile: a leader that leaves
# in order at this moment is waited for, because it has not vanished.
_AWAIT = "SELECT FROM {schema}.leaders WHERE lock = ANY(%(locks)s) ORDER BY lock FOR UPDATE"

# The row of a leader that did not write its end: when it was seen last is all that is known of it. It stays a
# candidate, which readers show as dead once it is silent: a killed node would otherwise be missing without a trace.
_LEAD = """
WITH led AS (
    SELECT r.* FROM jsonb_to_recordset(%(rows)s) AS r (lock text, role text, token bigint, at double precision,
           renewed double precision, until double precision, classid bigint, objid bigint, objsubid integer)
), before AS (
    SELECT l.* FROM {schema}.leaders AS l JOIN led USING (lock)
     WHERE coalesce(led.token, 0) >= coalesce(l.token, 0)
       AND l.instance <> %(instance)s
), vanished AS (
    INSERT INTO {schema}.history (lock, role, node, instance, event, token, at, within_s)
    SELECT lock, role, node, instance, 'vanished', token, renewed_at, 0 FROM before
), follows AS (
    UPDATE {schema}.candidates AS c SET state = 'follower', since = before.renewed_at FROM before
     WHERE c.instance = before.instance AND c.lock = before.lock
)
INSERT INTO {schema}.leaders AS l (lock, role, instance, node, token, acquired_at, renewed_at, lease_until, backend_pid,
       host, process_id, version, about)
SELECT lock, role, %(instance)s, %(node)s, token, to_timestamp(at), to_timestamp(renewed), to_timestamp(until),
       (SELECT pid FROM pg_locks
         WHERE locktype = 'advisory' AND granted AND pg_locks.classid::text::bigint = led.classid
           AND pg_locks.objid::text::bigint = led.objid AND pg_locks.objsubid = led.objsubid
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1),
       %(host)s, %(process_id)s, %(version)s, %(about)s
  FROM led
    ON CONFLICT (lock) DO UPDATE SET
       role = excluded.role, instance = excluded.instance, node = excluded.node, token = excluded.token,
       acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
       backend_pid = excluded.backend_pid, host = excluded.host, process_id = excluded.process_id,
       version = excluded.version, about = excluded.about
 WHERE coalesce(excluded.token, 0) >= coalesce(l.token, 0)
    OR NOT EXISTS (SELECT FROM {schema}.nodes AS n WHERE n.instance = l.instance
                      AND extract(epoch FROM clock_timestamp())::float - extract(epoch FROM n.seen_at)::float
                          < 10 * n.heartbeat_s)
"""

_RENEW = """
UPDATE {schema}.leaders AS l SET renewed_at = to_timestamp(r.renewed), lease_until = to_timestamp(r.until)
  FROM jsonb_to_recordset(%(rows)s) AS r (lock text, renewed double precision, until double precision)
 WHERE l.lock = r.lock AND l.instance = %(instance)s
"""

_CLEAR = "DELETE FROM {schema}.leaders WHERE instance = %(instance)s AND lock = ANY(%(locks)s)"

_STAND = """
INSERT INTO {schema}.candidates AS c (instance, lock, role, state, since)
SELECT %(instance)s, lock, role, state, to_timestamp(since)
  FROM jsonb_to_recordset(%(rows)s) AS r (lock text, role text, state text, since double precision)
    ON CONFLICT (instance, lock) DO UPDATE SET state = excluded.state, since = excluded.since
"""

_WITHDRAW = "DELETE FROM {schema}.candidates WHERE instance = %(instance)s AND lock = ANY(%(locks)s)"

_BEAT = """
INSERT INTO {schema}.nodes AS n (instance, node, host, process_id, version, about, started_at, seen_at, heartbeat_s)
VALUES (%(instance)s, %(node)s, %(host)s, %(process_id)s, %(version)s, %(about)s, to_timestamp(%(started)s),
        clock_timestamp(), %(heartbeat_s)s)
    ON CONFLICT (instance) DO UPDATE SET seen_at = excluded.seen_at, about = excluded.about,
                                            heartbeat_s = excluded.heartbeat_s
"""

_LEAVE = """
WITH gone AS (DELETE FROM {schema}.candidates WHERE instance = %(instance)s)
DELETE FROM {schema}.nodes WHERE instance = %(instance)s
"""

# In small portions: the history of years must not make one statement of minutes. The leader of a role prunes its
# history; any node prunes that of a role without candidates. A term that goes on keeps its beginning.
_PRUNE = """
WITH stood_for AS (
    SELECT lock FROM {schema}.leaders AS l WHERE l.renewed_at > clock_timestamp() - interval '1 day'
     UNION
    SELECT c.lock FROM {schema}.candidates AS c JOIN {schema}.nodes AS n USING (instance)
     WHERE n.seen_at > clock_timestamp() - interval '1 day'
), old AS (
    DELETE FROM {schema}.history WHERE id IN (
        SELECT h.id FROM {schema}.history AS h
         WHERE h.at < clock_timestamp() - make_interval(days => %(keep_days)s)
           AND (h.lock = ANY(%(locks)s) OR h.lock NOT IN (SELECT lock FROM stood_for))
           AND NOT (h.event IN ('acquired', 'recovered') AND h.instance = %(instance)s AND h.lock = ANY(%(locks)s))
         ORDER BY h.at LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), dead AS (
    DELETE FROM {schema}.nodes WHERE seen_at < clock_timestamp() - interval '1 day'
    RETURNING instance
), theirs AS (
    DELETE FROM {schema}.candidates WHERE instance IN (SELECT instance FROM dead)
), gone AS (
    DELETE FROM {schema}.leaders
     WHERE renewed_at < clock_timestamp() - make_interval(days => %(keep_days)s) AND NOT lock = ANY(%(locks)s)
)
SELECT count(*) FROM old
"""

_STATEMENTS = {
    "append": _APPEND,
    "await": _AWAIT,
    "lead": _LEAD,
    "renew": _RENEW,
    "clear": _CLEAR,
    "stand": _STAND,
    "withdraw": _WITHDRAW,
    "beat": _BEAT,
    "leave": _LEAVE,
    "prune": _PRUNE,
}


def statements(schema: str) -> dict[str, str]:
    """Return all of them for this schema, whose name was checked."""
    return {name: text.replace("{schema}", f'"{schema}"') for name, text in _STATEMENTS.items()}
