"""Looking at the registry from outside: one connection, a few questions, gone again.

For people and for messages; nothing decides by what it answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Any

from pgleaderlock._checks import visible
from pgleaderlock.backends.lease import DEFAULT_SCHEMA, check_schema
from pgleaderlock.clock import suspend_aware_clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.registry._database import Database, Row
from pgleaderlock.registry._sql import CHANGE_CHANNEL
from pgleaderlock.registry.asking import Answer, Asked, Asker, AskRefused, Target
from pgleaderlock.registry.audit import Line

__all__ = ["Candidate", "KnownRole", "Leader", "RegistryReader", "RoleStatus", "Roles", "open_reader"]

# In numbers, which may be anything. Of times and intervals the server refuses to subtract what is infinite, and one row
# that somebody wrote by hand would keep everybody from reading all the others.
_ALIVE = "extract(epoch FROM clock_timestamp())::float - extract(epoch FROM n.seen_at)::float < 3 * n.heartbeat_s + 1"
_SILENT_AT = "extract(epoch FROM n.seen_at)::float + 3 * n.heartbeat_s + 1"

_LEADERS = """
SELECT l.lock, l.role, l.node, l.instance::text, l.token, extract(epoch FROM l.acquired_at)::float,
       extract(epoch FROM l.renewed_at)::float, extract(epoch FROM l.lease_until)::float,
       l.backend_pid, l.host, l.process_id, l.version, l.about,
       coalesce({alive}, false), extract(epoch FROM clock_timestamp())::float, n.heartbeat_s, {silent_at}
  FROM {schema}.leaders AS l LEFT JOIN {schema}.nodes AS n USING (instance)
 WHERE (%(lock)s::text IS NULL OR l.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR l.role = ANY(%(roles)s))
"""

_CANDIDATES = """
SELECT c.lock, c.role, n.node, c.instance::text, c.state, extract(epoch FROM c.since)::float,
       extract(epoch FROM n.seen_at)::float, n.host, n.process_id, n.version, n.about, {alive}, {silent_at},
       extract(epoch FROM n.started_at)::float
  FROM {schema}.candidates AS c JOIN {schema}.nodes AS n USING (instance)
 WHERE (%(lock)s::text IS NULL OR c.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR c.role = ANY(%(roles)s))
 ORDER BY n.node, c.instance
"""

_HISTORY = """
SELECT lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, missing, detail
  FROM (SELECT * FROM {schema}.history
         WHERE (%(lock)s::text IS NULL OR lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR role = ANY(%(roles)s))
           AND at >= to_timestamp(%(since)s)
         ORDER BY at DESC, id DESC LIMIT %(limit)s) AS newest
 ORDER BY at, id
"""

# A follower that stops writes a line too, so that the last line before a time need not be about whoever led then.
_OPEN_BEFORE = """
SELECT b.lock, b.role, b.node, b.instance::text, b.event, b.cause, b.token, extract(epoch FROM b.at)::float,
       b.within_s, 0, b.detail
  FROM {schema}.history AS b
 WHERE (%(lock)s::text IS NULL OR b.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR b.role = ANY(%(roles)s))
   AND b.at < to_timestamp(%(since)s)
   AND b.event IN ('acquired', 'recovered', 'vanished', 'unwatched')
   AND NOT EXISTS (
       SELECT FROM {schema}.history AS e
        WHERE e.lock = b.lock AND e.instance = b.instance AND e.token IS NOT DISTINCT FROM b.token
          AND e.at >= b.at AND e.at < to_timestamp(%(since)s)
          AND e.event IN ('released', 'lost', 'reconnecting', 'stopped'))
 ORDER BY b.at, b.id
"""

# The first and the last line of each lock, as an index has them: to read all lines for it would take minutes one day.
_EDGES = """
WITH RECURSIVE locks (lock) AS (
    (SELECT h.lock FROM {schema}.history AS h ORDER BY h.lock LIMIT 1)
     UNION ALL
    SELECT (SELECT h.lock FROM {schema}.history AS h WHERE h.lock > locks.lock ORDER BY h.lock LIMIT 1)
      FROM locks WHERE locks.lock IS NOT NULL
), edges AS (
    SELECT locks.lock, first.role AS first_role, first.at AS first_at, last.role, last.at, last.event
      FROM locks
      JOIN LATERAL (SELECT role, at FROM {schema}.history AS h WHERE h.lock = locks.lock ORDER BY h.at LIMIT 1)
           AS first ON true
      JOIN LATERAL (SELECT role, at, event FROM {schema}.history AS h WHERE h.lock = locks.lock
                     ORDER BY h.at DESC, h.id DESC LIMIT 1) AS last ON true
)
"""

_PAST = (
    _EDGES
    + """
SELECT lock, role, extract(epoch FROM first_at)::float, extract(epoch FROM at)::float, event FROM edges
 WHERE (%(lock)s::text IS NULL OR lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR role = ANY(%(roles)s))
"""
)

_KNOWN = """
SELECT lock, role, extract(epoch FROM min(at))::float
  FROM ({past}
         UNION ALL SELECT lock, role, acquired_at FROM {schema}.leaders
         UNION ALL SELECT c.lock, c.role, n.started_at FROM {schema}.candidates AS c JOIN {schema}.nodes AS n
                   USING (instance)) AS known
 GROUP BY lock, role ORDER BY role, lock
"""
_ROLES = _EDGES + _KNOWN.replace(
    "{past}",
    "SELECT lock, role, first_at AS at FROM edges UNION ALL SELECT lock, first_role, first_at FROM edges",
)
# A role between the first and the last name of its lock is in lines only.
_FORMER_ROLES = _KNOWN.replace("{past}", "SELECT lock, role, at FROM {schema}.history")

Roles = Collection[str] | None
"""Names of roles; None is all of them."""

_NUMBERED = """
SELECT id, lock, role, node, instance::text, event, cause, token, extract(epoch FROM at)::float, within_s, missing,
       detail
  FROM (SELECT * FROM {schema}.history WHERE id > %(after)s AND at >= to_timestamp(%(since)s)
         ORDER BY id DESC LIMIT %(limit)s) AS newest
 ORDER BY at, id
"""

_EVERYTHING = 10_000_000
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float"
_LOOK_EVERY_S = 1.0
_LATE_AFTER = 2
_LEAVES = ("released", "stopped", "unwatched")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as it said last. Times are seconds of the epoch by the database's clock."""

    node: str
    instance: str
    token: int | None
    acquired_at: float
    renewed_at: float
    lease_until: float | None
    backend_pid: int | None
    host: str
    process_id: int
    version: str
    about: dict[str, Any]
    is_alive: bool
    """Whether its node was heard of lately."""
    read_at: float
    heartbeat_s: float | None = None
    """How often it writes a sign of life; None if it has signed off."""
    silent_at: float | None = None
    """When its node counts as silent, unless it is heard of again."""

    @property
    def is_valid(self) -> bool:
        """Whether it leads, as far as the registry can tell: its lease is not over, and it is heard of.

        A lease is no measure of a leader that writes more rarely than it lasts, as one of 0.1.0 may; and one that has
        signed off is not heard of, but may hold its lock for as long as the lease lasts.
        """
        if self.lease_until is None or (self.heartbeat_s or 0.0) > self.lease_until - self.renewed_at:
            return self.is_alive
        return self.lease_until >= self.read_at and (self.is_alive or self.heartbeat_s is None)

    @property
    def renewal_due_at(self) -> float | None:
        """When it should have written again at the latest: after two intervals, of which one may come late."""
        return None if self.heartbeat_s is None else self.renewed_at + _LATE_AFTER * self.heartbeat_s

    @property
    def is_overdue(self) -> bool:
        """Whether it should have been heard of by now."""
        return self.renewal_due_at is not None and self.renewal_due_at < self.read_at


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node that stands for a role."""

    node: str
    instance: str
    state: str
    since: float
    seen_at: float
    host: str
    process_id: int
    version: str
    about: dict[str, Any]
    is_alive: bool
    silent_at: float | None = None
    """When its node counts as silent, unless it is heard of again."""
    started_at: float | None = None


@dataclass(slots=True)
class RoleStatus:
    """One role, as the registry shows it."""

    lock: str
    role: str
    leader: Leader | None = None
    """Who leads; None if no one does, as far as the registry can tell."""
    candidates: list[Candidate] = field(default_factory=list)
    last_leader: Leader | None = None
    """Who led until its lease was over, and wrote no end of it: killed, frozen or cut off."""
    first_at: float | None = None
    """Since when anything is known of it."""
    last_at: float | None = None
    last_event: str | None = None
    """The last line of its history, and when that was."""
    is_expected: bool = False
    """Whether a configuration names it: then a leader is missed also when no one stands for it."""

    @property
    def is_closed(self) -> bool:
        """Whether no one stands for it any more, and the last one left in order. Candidates that died do not count."""
        is_stood_for = self.leader or self.last_leader or any(each.is_alive for each in self.candidates)
        return not is_stood_for and self.last_event in _LEAVES


@dataclass(frozen=True, slots=True)
class KnownRole:
    """A role that the registry has heard of, now or ever."""

    lock: str
    role: str
    first_at: float
    """Of what is known of it, in seconds of the epoch by the database's clock."""


class RegistryReader:
    """An open connection to a registry."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._schema = schema
        self._asker = Asker(database, schema)

    async def status(
        self, lock: str | None = None, *, roles: Roles = None, expected: Collection[str] = ()
    ) -> list[RoleStatus]:
        """Return all roles, or one, or those of these names, with their leaders and their candidates.

        Also those that only the history knows, and those that are named and not known at all.
        """
        found: dict[str, RoleStatus] = {}
        which = {"lock": lock, "roles": _listed(roles)}
        for name, role, *values in await self._fetch(_LEADERS, **which):
            leader = Leader(*values)
            found[name] = status = RoleStatus(name, role, leader if leader.is_valid else None)
            status.last_leader = None if leader.is_valid else leader
        for name, role, *values in await self._fetch(_CANDIDATES, **which):
            found.setdefault(name, RoleStatus(name, role)).candidates.append(Candidate(*values))
        for name, role, first_at, last_at, last_event in await self._fetch(_PAST, **which):
            status = found.setdefault(name, RoleStatus(name, role))
            status.first_at, status.last_at, status.last_event = first_at, last_at, last_event
        names = {*expected, *(roles or ())}
        for name in sorted(names - {status.role for status in found.values()}):
            found.setdefault(name, RoleStatus(name, name))
        for status in found.values():
            status.is_expected = status.role in names
            status.first_at = _first_at(status)
        return sorted(found.values(), key=lambda each: (each.role, each.lock))

    async def history(
        self, *, lock: str | None = None, roles: Roles = None, since: float = 0.0, limit: int = 1000
    ) -> list[Line]:
        """Return the newest lines since then, the oldest of them first."""
        rows = await self._fetch(_HISTORY, lock=lock, roles=_listed(roles), since=since, limit=limit)
        return [Line(*row) for row in rows]

    async def numbered_history(self, *, after: int, since: float = 0.0, limit: int = 20_000) -> list[tuple[int, Line]]:
        """Return the newest lines that were written after this one, with their numbers, the oldest first.

        What two nodes write at once may become visible in any order: whoever reads on should begin somewhat earlier.
        """
        rows = await self._fetch(_NUMBERED, after=after, since=since, limit=limit)
        return [(number, Line(*rest)) for number, *rest in rows]

    async def lines_for_audit(self, *, lock: str | None = None, roles: Roles = None, since: float = 0.0) -> list[Line]:
        """Return all lines since then, and the beginnings of terms that were not over by then."""
        before = await self.open_before(lock=lock, roles=roles, since=since)
        return before + await self.history(lock=lock, roles=roles, since=since, limit=_EVERYTHING)

    async def open_before(self, *, lock: str | None = None, roles: Roles = None, since: float) -> list[Line]:
        """Return the beginnings of terms that had no end of their own by then, and when their leaders had vanished."""
        return [Line(*row) for row in await self._fetch(_OPEN_BEFORE, lock=lock, roles=_listed(roles), since=since)]

    async def roles(self) -> list[KnownRole]:
        """Return every lock and every role that it is attached as, also those that only the history knows."""
        return [KnownRole(*row) for row in await self._fetch(_ROLES)]

    async def former_roles(self) -> list[KnownRole]:
        """Return the same with every name that a lock ever had. This reads the whole history."""
        return [KnownRole(*row) for row in await self._fetch(_FORMER_ROLES)]

    async def now(self) -> float:
        """Return the database's time of day."""
        return float((await self._fetch(_NOW))[0][0])

    async def ask_to_step_down(
        self,
        lock: str,
        by: str,
        *,
        leader: Leader | Target | None = None,
        reason: str | None = None,
        wait_s: float = 30.0,
    ) -> Asked:
        """Ask the leader of one term to hand over; AskRefused if this database role may not, or if no node leads.

        ``leader`` names that term; without it, it is the term that the registry shows now. The leader of any other term
        refuses. ``by`` and ``reason`` are our own words; the server says which role asked. Stay connected for the
        answer: :meth:`answer_to`.
        """
        if leader is None:
            leader = next((each.leader for each in await self.status(lock)), None)
        if leader is None:
            raise AskRefused(f"no node leads {visible(lock)}, as far as the registry shows")
        target = {"instance": leader.instance, "token": leader.token}
        return await self._asker.ask({"lock": lock, "by": by, "reason": reason, "wait_s": wait_s, **target})

    async def standby_problem(self) -> str:
        """Return that commits wait for a synchronous standby that is not connected, and what to do; nothing if not.

        Nothing is written into the registry then: leaders show as silent in it, and nodes as dead.
        """
        return await self._asker.standby_problem()

    async def answer_to(self, asked: Asked) -> Answer | None:
        """Return what the leader says to an ask; None if it has said nothing yet."""
        return await self._asker.answer_to(asked)

    async def wait_for_answer(self, asked: Asked, timeout_s: float) -> Answer | None:
        """Wait for what the leader says to an ask; None if it says nothing in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (answer := await self.answer_to(asked)) is None and (left_s := deadline - loop.time()) > 0:
            await self.wait_for_change(min(left_s, _LOOK_EVERY_S))
        return answer

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when something was written, at the latest after this time."""
        news = asyncio.Event()
        if self._database.notifications():
            return
        with self._database.watched(news.set), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news.wait()
        self._database.notifications()

    async def _fetch(self, statement: str, **parameters: Any) -> list[Row]:
        text = statement.replace("{alive}", _ALIVE).replace("{silent_at}", _SILENT_AT)
        text = text.replace("{schema}", f'"{self._schema}"')
        return await self._database.fetch(text, parameters)


def _first_at(status: RoleStatus) -> float | None:
    leader = status.leader or status.last_leader
    acquired_at = None if leader is None else leader.acquired_at
    times = [status.first_at, acquired_at, *(each.started_at for each in status.candidates)]
    return min((at for at in times if at is not None), default=None)


def _listed(roles: Roles) -> list[str] | None:
    return None if roles is None else list(roles)


@contextlib.asynccontextmanager
async def open_reader(
    dsn: str, schema: str = DEFAULT_SCHEMA, *, schema_owner: str | None = None
) -> AsyncIterator[RegistryReader]:
    """Open the registry for reading; ConnectionError if there is none."""
    check_schema(schema)
    database = Database(dsn, schema, suspend_aware_clock, owner=schema_owner)
    try:
        await database.open(listen_to=CHANGE_CHANNEL, makes_tables=False)
        if not database.has_tables:
            raise ConnectionError(
                f"there is no registry in schema {schema} ({database.where}): the first node that has one configured "
                "makes it, or pgleaderlock schema apply"
            )
        yield RegistryReader(database, schema)
    finally:
        await database.close()
