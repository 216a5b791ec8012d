"""The questions that readers ask of the registry. None takes longer the more history there is, unless it asks for it.

The table of the history is large, and in the order of writing; ``(lock, at)`` and ``(at)`` are indexed.
"""

# In numbers, which may be infinite. The server refuses to subtract infinite times and intervals, and one such row,
# written by hand, would make all others unreadable.
_ALIVE = "extract(epoch FROM clock_timestamp())::float - extract(epoch FROM n.seen_at)::float < 3 * n.heartbeat_s + 1"
_SILENT_AT = "extract(epoch FROM n.seen_at)::float + 3 * n.heartbeat_s + 1"

LEADERS = """
SELECT l.lock, l.role, l.node, l.instance::text, l.token, extract(epoch FROM l.acquired_at)::float,
       extract(epoch FROM l.renewed_at)::float, extract(epoch FROM l.lease_until)::float,
       l.backend_pid, l.host, l.process_id, l.version, l.about,
       coalesce({alive}, false), extract(epoch FROM clock_timestamp())::float, n.heartbeat_s, {silent_at}
  FROM {schema}.leaders AS l LEFT JOIN {schema}.nodes AS n USING (instance)
 WHERE (%(lock)s::text IS NULL OR l.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR l.role = ANY(%(roles)s))
"""

CANDIDATES = """
SELECT c.lock, c.role, n.node, c.instance::text, c.state, extract(epoch FROM c.since)::float,
       extract(epoch FROM n.seen_at)::float, n.host, n.process_id, n.version, n.about, {alive}, {silent_at},
       extract(epoch FROM n.started_at)::float, n.heartbeat_s, extract(epoch FROM clock_timestamp())::float
  FROM {schema}.candidates AS c JOIN {schema}.nodes AS n USING (instance)
 WHERE (%(lock)s::text IS NULL OR c.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR c.role = ANY(%(roles)s))
 ORDER BY n.node, c.instance
"""

HISTORY = """
SELECT id, lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, missing,
       detail
  FROM (SELECT * FROM {schema}.history
         WHERE (%(lock)s::text IS NULL OR lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR role = ANY(%(roles)s))
           AND at >= to_timestamp(%(since)s)
         ORDER BY at DESC, id DESC LIMIT %(limit)s) AS newest
"""

# Per lock the last beginning before a time, if nothing ended it by then, with what else is known of it; and the
# beginnings of these terms, of which a later line says that they went on: mostly the same, so only others are searched.
# LIMIT and OFFSET keep the planner from joining with the whole history instead of a few lines of each lock.
OPEN_BEFORE = """{edges}, last AS (
    SELECT b.* FROM edges JOIN LATERAL (
        SELECT * FROM {schema}.history AS h
         WHERE h.lock BETWEEN edges.lock AND edges.lock AND h.at < to_timestamp(%(since)s) AND h.event = ANY(%(begins)s)
         ORDER BY h.lock DESC, h.at DESC, h.id DESC LIMIT 1) AS b ON edges.first_at < to_timestamp(%(since)s)
      LEFT JOIN LATERAL (
        SELECT true AS is_over FROM {schema}.history AS h
         WHERE h.lock = b.lock AND h.at >= b.at AND h.at < to_timestamp(%(since)s)
           AND h.instance = b.instance AND h.token IS NOT DISTINCT FROM b.token AND h.event = ANY(%(ends)s)
         LIMIT 1) AS e ON true
     WHERE (%(only)s::text[] IS NULL OR b.lock = ANY(%(only)s))
       AND (%(roles)s::text[] IS NULL OR b.role = ANY(%(roles)s))
       AND e.is_over IS NULL
), seen AS (
    SELECT s.* FROM last JOIN LATERAL (
        SELECT * FROM {schema}.history AS h
         WHERE h.lock = last.lock AND h.at >= last.at AND h.at < to_timestamp(%(since)s)
           AND h.instance = last.instance AND h.token IS NOT DISTINCT FROM last.token
           AND h.event IN ('vanished', 'unwatched') OFFSET 0) AS s ON true
), sought AS MATERIALIZED (
    SELECT * FROM unnest(%(locks)s::text[], %(instances)s::uuid[], %(tokens)s::bigint[]) AS k (lock, instance, token)
     WHERE NOT EXISTS (SELECT FROM last WHERE last.lock = k.lock AND last.instance = k.instance
                                          AND last.token IS NOT DISTINCT FROM k.token)
), ended AS (
    SELECT b.* FROM sought JOIN LATERAL (
        SELECT * FROM {schema}.history AS h
         WHERE h.lock = sought.lock AND h.instance = sought.instance AND h.token IS NOT DISTINCT FROM sought.token
           AND h.at < to_timestamp(%(since)s) AND h.event = ANY(%(begins)s)
         ORDER BY h.at DESC LIMIT 1) AS b ON true
)
SELECT lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, 0, detail
  FROM (SELECT * FROM last UNION SELECT * FROM seen UNION SELECT * FROM ended) AS found
 ORDER BY at, id
"""

# A term whose end is the very next line of its lock is in order. Such terms that follow each other are summed up: how
# many ended in what way, and how long it was between them. All other lines are named one by one, and with them the
# first beginning and the last end of each such sequence. Of times, only those that are finite can be subtracted.
SUMMED_UP = """
WITH lines AS (
    SELECT id, lock, event, cause, at, missing,
           event = ANY(%(begins)s) AND lead(event) OVER w IN ('released', 'lost', 'stopped') AND isfinite(at)
               AND lead(instance) OVER w = instance AND coalesce(lead(token) OVER w = token, false) AS opens
      FROM {schema}.history
     WHERE (%(only)s::text[] IS NULL OR lock = ANY(%(only)s)) AND (%(roles)s::text[] IS NULL OR role = ANY(%(roles)s))
       AND at >= to_timestamp(%(since)s) AND (event = ANY(%(tells)s) OR missing > 0)
    WINDOW w AS (PARTITION BY lock ORDER BY at, id)
), marked AS (
    SELECT *, lag(opens, 1, false) OVER w AS closes, lag(at) OVER w AS before_at,
           opens AND lag(opens, 2, false) OVER w AS follows,
           lag(opens, 1, false) OVER w AND lead(opens, 1, false) OVER w AS goes_on
      FROM lines WINDOW w AS (PARTITION BY lock ORDER BY at, id)
)
SELECT lock, event, cause, CASE WHEN follows OR goes_on THEN NULL ELSE id END AS line, bool_or(opens), bool_or(closes),
       count(*), sum(missing), coalesce(extract(epoch FROM sum(at - before_at) FILTER (WHERE follows)), 0)::float
  FROM marked GROUP BY lock, event, cause, line
"""

BY_ID = """
SELECT id, lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, missing,
       detail
  FROM {schema}.history WHERE id = ANY(%(ids)s) ORDER BY at, id
"""

# The first and the last line of each lock, as an index has them: to read all lines for it would take minutes one day.
# BETWEEN, where = would do, leaves the planner no other index: by time alone, the first line of a new role and the last
# line of a retired one come after all lines of all others.
_EDGES = """
WITH RECURSIVE locks (lock) AS (
    (SELECT h.lock FROM {schema}.history AS h ORDER BY h.lock LIMIT 1)
     UNION ALL
    SELECT (SELECT h.lock FROM {schema}.history AS h WHERE h.lock > locks.lock ORDER BY h.lock LIMIT 1)
      FROM locks WHERE locks.lock IS NOT NULL
), edges AS (
    SELECT locks.lock, first.role AS first_role, first.at AS first_at, last.role, last.at, last.event
      FROM locks
      JOIN LATERAL (SELECT role, at FROM {schema}.history AS h WHERE h.lock BETWEEN locks.lock AND locks.lock
                     ORDER BY h.lock, h.at LIMIT 1) AS first ON true
      JOIN LATERAL (SELECT role, at, event FROM {schema}.history AS h WHERE h.lock BETWEEN locks.lock AND locks.lock
                     ORDER BY h.lock DESC, h.at DESC, h.id DESC LIMIT 1) AS last ON true
)
"""

PAST = """{edges}
SELECT lock, role, extract(epoch FROM first_at)::float, extract(epoch FROM at)::float, event FROM edges
 WHERE (%(lock)s::text IS NULL OR lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR role = ANY(%(roles)s))
"""

_KNOWN = """{with}
SELECT lock, role, extract(epoch FROM min(at))::float
  FROM ({past}
         UNION ALL SELECT lock, role, acquired_at FROM {schema}.leaders
         UNION ALL SELECT c.lock, c.role, n.started_at FROM {schema}.candidates AS c JOIN {schema}.nodes AS n
                   USING (instance)) AS known
 GROUP BY lock, role ORDER BY role, lock
"""
ROLES = _KNOWN.replace("{with}", "{edges}").replace(
    "{past}", "SELECT lock, role, first_at AS at FROM edges UNION ALL SELECT lock, first_role, first_at FROM edges"
)
# A role between the first and the last name of its lock is in lines only.
FORMER_ROLES = _KNOWN.replace("{with}", "").replace("{past}", "SELECT lock, role, at FROM {schema}.history")

NUMBERED = """
SELECT id, lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, missing,
       detail
  FROM (SELECT * FROM {schema}.history
         WHERE id > %(after)s AND (%(before)s::bigint IS NULL OR id < %(before)s) AND at >= to_timestamp(%(since)s)
         ORDER BY id DESC LIMIT %(limit)s) AS newest
 ORDER BY at, id
"""

NOW = "SELECT extract(epoch FROM clock_timestamp())::float"

_PIECES = {"{edges}": _EDGES, "{alive}": _ALIVE, "{silent_at}": _SILENT_AT}


def statement(text: str, schema: str) -> str:
    """Return a question as it is asked of this schema, whose name was checked."""
    for name, piece in _PIECES.items():
        text = text.replace(name, piece)
    return text.replace("{schema}", f'"{schema}"')
