"""A registry with a long past, made by the server itself: a million lines take seconds, not hours."""

import psycopg

__all__ = ["fill_registry"]

_NODES = """
INSERT INTO {schema}.nodes
SELECT md5('node' || n)::uuid, 'node-' || n, 'host-' || n, n, '0.1.0', '{{}}', now() - interval '30 days', now(),
       {beat_s}
  FROM generate_series(0, {nodes} - 1) AS n
"""
_CANDIDATES = """
INSERT INTO {schema}.candidates
SELECT md5('node' || n)::uuid, 'bigint:' || r, 'role-' || r,
       CASE WHEN n = ({terms} + r) % {nodes} THEN 'leader' ELSE 'follower' END, now() - interval '30 days'
  FROM generate_series(1, {roles}) AS r, generate_series(0, {nodes} - 1) AS n
"""
_LEADERS = """
INSERT INTO {schema}.leaders
SELECT 'bigint:' || r, 'role-' || r, md5('node' || ({terms} + r) % {nodes})::uuid, 'node-' || ({terms} + r) % {nodes},
       {terms} * 1000 + r, now() - make_interval(secs => {span_s} / {terms} * 0.9), now(),
       now() + make_interval(secs => {lease_s}), NULL, 'host', 1, '0.1.0', '{{}}'
  FROM generate_series(1, {roles}) AS r
"""
# One term after the other, by the nodes in turn, each a little after the one before; the last of each role goes on.
_HISTORY = """
INSERT INTO {schema}.history (lock, role, node, instance, number, event, token, at, within_s)
SELECT 'bigint:' || r, 'role-' || r, 'node-' || (t + r) % {nodes}, md5('node' || (t + r) % {nodes})::uuid,
       row_number() OVER (ORDER BY t, r, e), e, t * 1000 + r,
       now() - make_interval(secs => {span_s}::float * (1 - (t - 1 + CASE e WHEN 'acquired' THEN 0.1 ELSE 1.0999 END)
                                                          / {terms}::float)), 0.001
  FROM generate_series(1, {terms}) AS t, generate_series(1, {roles}) AS r, unnest(ARRAY['acquired', 'released']) AS e
 WHERE t < {terms} OR e = 'acquired'
 ORDER BY t, r, e
"""


def fill_registry(
    dsn: str,
    schema: str,
    *,
    lines: int,
    roles: int = 200,
    nodes: int = 3,
    days: float = 30.0,
    beat_s: float = 1000.0,
    lease_s: float = 10_000.0,
) -> None:
    """Write the history of these roles into tables that are there, and are empty."""
    terms = (lines // roles + 1) // 2
    values = {
        "schema": f'"{schema}"', "roles": roles, "nodes": nodes, "terms": terms, "span_s": days * 86400,
        "beat_s": beat_s, "lease_s": lease_s,
    }  # fmt: skip
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in (_NODES, _CANDIDATES, _LEADERS, _HISTORY):
            connection.execute(statement.format(**values).encode())
        connection.execute(f'ANALYZE "{schema}".history'.encode())
