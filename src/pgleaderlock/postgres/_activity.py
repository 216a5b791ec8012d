"""Who holds an advisory lock and who waits for it, as PostgreSQL shows it. For display only.

Of the followers, ``pg_locks`` shows the heir and the next heir, by the places that they hold, and sessions that are
queued for the lock itself. All other followers are idle sessions that hold nothing: they cannot be told from others.

``pg_locks`` shows both key spaces in the same columns: a pair has its numbers in classid and objid with objsubid 2, a
bigint has its upper and lower half there with objsubid 1. All of them are unsigned.
"""

from dataclasses import dataclass, replace
from typing import Any

from pgleaderlock.models import Holder
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Place, heir_key, next_heir_key
from pgleaderlock.postgres.session import FetchAll

_UINT32 = 2**32 - 1

_QUERY = """
SELECT l.granted, l.pid, a.application_name, a.usename, host(a.client_addr), a.backend_start::text
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid::text::bigint = %s AND l.objid::text::bigint = %s AND l.objsubid = %s
 ORDER BY l.granted DESC, (to_jsonb(l) ->> 'waitstart')::timestamptz, a.backend_start
"""
# to_jsonb, because waitstart exists from PostgreSQL 14 on and the same query must work before. It orders the queue; it
# does not show since when a candidate waits: it waits in slices, and this is when the last of them began.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session that holds the lock (``granted``) or waits for it."""

    granted: bool
    holder: Holder
    place: str = ""
    """The follower's place in the succession: "heir", "next heir", or empty."""


def lock_columns(key: LockKey) -> tuple[int, int, int]:
    """Return classid, objid and objsubid of this lock, as pg_locks shows it."""
    if key.space == "pair":
        return key.numbers[0] & _UINT32, key.numbers[1] & _UINT32, 2
    return key.numbers[0] >> 32 & _UINT32, key.numbers[0] & _UINT32, 1


def holder_query(key: LockKey) -> tuple[str, tuple[int, int, int]]:
    """Return a statement whose first row is the holder, if there is one, and its parameters."""
    return f"SELECT * FROM ({_QUERY}) AS candidates WHERE granted", lock_columns(key)  # noqa: S608 - a constant


def holder_of(row: tuple[Any, ...]) -> Holder:
    """Read a row of :func:`holder_query`."""
    return _candidate(row).holder


async def candidates(fetch_all: FetchAll, key: LockKey) -> list[Candidate]:
    """Return the holder first, then the sessions that are queued for this one lock, in the order of the queue."""
    return [_candidate(row) for row in await fetch_all(_QUERY, lock_columns(key))]


async def election_candidates(fetch_all: FetchAll, key: LockKey) -> list[Candidate]:
    """Return the holder first, then the followers that show: those queued, the heir and the next heir."""
    found = await candidates(fetch_all, key)
    for place, place_key in ((Place.HEIR, heir_key(key)), (Place.NEXT_HEIR, next_heir_key(key))):
        for each in await candidates(fetch_all, place_key):
            if each.granted:
                found = _with_place(found, each.holder, place.value)
    return found


def _with_place(found: list[Candidate], follower: Holder, place: str) -> list[Candidate]:
    """Add the place to the session of this follower, which is not queued for the lock between two wait slices.

    A session that holds the lock has no place any more. One that holds both places is the heir.
    """
    if all(each.holder.pid != follower.pid for each in found):
        return [*found, Candidate(granted=False, holder=follower, place=place)]
    return [
        replace(each, place=place) if each.holder.pid == follower.pid and not (each.granted or each.place) else each
        for each in found
    ]


def _candidate(row: tuple[Any, ...]) -> Candidate:
    granted, pid, name, user, address, since = row
    if name is None:  # a role that may not see other users' activity sees the pid alone
        name = "(not visible)"
    holder = Holder(name=name or "(without an application_name)", pid=pid, address=address, since=since, detail=user)
    return Candidate(granted, holder)
