"""Whether there is room for an election: connections and locks, which run out at the takeover, the worst of moments."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgleaderlock.postgres._advice import identifier
from pgleaderlock.postgres.doctor._findings import Finding, Verdict
from pgleaderlock.postgres.doctor._site import Site

_LEADER_NEEDS = 2
_TAKEOVER_NEEDS = 4  # a successor's two beside those of a leader that died and is not missed yet
_LOCK_TABLE_FULL = 0.8

_LOCK_TABLE = """
SELECT current_setting('max_locks_per_transaction')::bigint
       * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
       (SELECT count(*) FROM pg_locks WHERE NOT fastpath)
"""


async def check_lock_table(site: Site, name: str) -> Finding:
    """Count the locks: their table is shared by all databases."""
    size, used = await site.ask(_LOCK_TABLE)
    return _judge_lock_table(name, size, used)


def _judge_lock_table(name: str, size: int, used: int) -> Finding:
    found = f"{used} of about {size} locks in use; a leader, its heir and the next heir take two each"
    if used < _LOCK_TABLE_FULL * size:
        return Finding(name, Verdict.OK, found)
    advice = "raise max_locks_per_transaction and restart: in a full table a grant fails with 'out of shared memory'"
    return Finding(name, Verdict.WARNING, found, advice)


# The type of other users' sessions is hidden from an ordinary user; then every session in a database counts.
_CONNECTIONS = """
WITH sessions AS (
    SELECT datid, usesysid, application_name FROM pg_stat_activity
     WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
       AND pid <> pg_backend_pid())
SELECT r.rolsuper, r.rolconnlimit, d.datconnlimit, d.datname::text, current_setting('max_connections')::int,
       CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
           + CASE WHEN (SELECT pg_has_role(r.oid, oid, 'USAGE') FROM pg_roles
                         WHERE rolname = 'pg_use_reserved_connections') THEN 0
                  ELSE coalesce(current_setting('reserved_connections', true), '0')::int END END,
       (SELECT count(*) FROM sessions),
       (SELECT count(*) FROM sessions WHERE usesysid = r.oid),
       (SELECT count(*) FROM sessions WHERE datid = d.oid),
       (SELECT count(*) FROM sessions WHERE application_name ~ '^(pgleaderlock |pgl:)')
  FROM pg_roles AS r, pg_database AS d
 WHERE r.rolname = session_user AND d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class _Limit:
    """One of the limits on connections, without the one that is asking."""

    of: str
    most: int
    used: int

    @property
    def room(self) -> int:
        return max(0, self.most - self.used)

    def __str__(self) -> str:
        return f"{self.of} {self.most}, {self.used} in use"


async def check_connections(site: Site, name: str) -> Finding:
    """Find the tightest of the limits that bind this user."""
    row = await site.ask(_CONNECTIONS)
    is_super, role_most, database_most, database, most, reserved, used, by_role, in_database, of_ours = row
    limits = [_Limit("max_connections for this user", most - reserved, used)]
    if role_most >= 0 and not is_super:  # superusers are bound by neither
        limits.append(_Limit(f"CONNECTION LIMIT of role {site.user}", role_most, by_role))
    if database_most >= 0 and not is_super:
        limits.append(_Limit(f"CONNECTION LIMIT of database {identifier(database)}", database_most, in_database))
    return _judge_connections(name, limits, of_ours)


def _judge_connections(name: str, limits: Sequence[_Limit], of_ours: int) -> Finding:
    tightest = min(limits, key=lambda limit: limit.room)
    needs = "a leader and its heir need two each, other followers one"
    found = f"room for {tightest.room} ({'; '.join(map(str, limits))}); {needs}"
    if tightest.room >= _TAKEOVER_NEEDS:
        return Finding(name, Verdict.OK, found)
    advice = f"raise {tightest.of}, or pass witness=False to do with one connection for a leader"
    if tightest.room >= _LEADER_NEEDS:
        advice = f"raise {tightest.of}: a successor needs its two before those of a dead leader are gone"
    elif of_ours and tightest.most >= _LEADER_NEEDS:
        found += f"; {of_ours} connections are pgleaderlock's already"
    else:
        return Finding(name, Verdict.PROBLEM, found, advice)
    return Finding(name, Verdict.WARNING, found, advice)
