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

_LEADERS = """
SELECT l.lock, l.role, l.node, l.instance::text, l.token, extract(epoch FROM l.acquired_at)::float,
       extract(epoch FROM l.renewed_at)::float, extract(epoch FROM l.lease_until)::float,
       l.backend_pid, l.host, l.process_id, l.version, l.about,
       coalesce({alive}, false), extract(epoch FROM clock_timestamp())::float
  FROM {schema}.leaders AS l LEFT JOIN {schema}.nodes AS n USING (instance)
 WHERE (%(lock)s::text IS NULL OR l.lock = %(lock)s) AND (%(roles)s::text[] IS NULL OR l.role = ANY(%(roles)s))
"""

_CANDIDATES = """
SELECT c.lock, c.role, n.node, c.instance::text, c.state, extract(epoch FROM c.since)::float,
       extract(epoch FROM n.seen_at)::float, n.host, n.process_id, n.version, n.about, {alive}
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

_ROLES = """
SELECT lock, role, extract(epoch FROM min(at))::float
  FROM (SELECT lock, role, at FROM {schema}.history
         UNION ALL SELECT lock, role, acquired_at FROM {schema}.leaders
         UNION ALL SELECT c.lock, c.role, n.started_at FROM {schema}.candidates AS c JOIN {schema}.nodes AS n
                   USING (instance)) AS known
 GROUP BY lock, role ORDER BY role, lock
"""

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


@dataclass(slots=True)
class RoleStatus:
    """One role, as the registry shows it."""

    lock: str
    role: str
    leader: Leader | None = None
    candidates: list[Candidate] = field(default_factory=list)


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

    async def status(self, lock: str | None = None, *, roles: Roles = None) -> list[RoleStatus]:
        """Return all roles, or one, or those of these names, with their leaders and their candidates."""
        found: dict[str, RoleStatus] = {}
        for name, role, *values in await self._fetch(_LEADERS, lock=lock, roles=_listed(roles)):
            found[name] = RoleStatus(name, role, Leader(*values))
        for name, role, *values in await self._fetch(_CANDIDATES, lock=lock, roles=_listed(roles)):
            found.setdefault(name, RoleStatus(name, role)).candidates.append(Candidate(*values))
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

    async def lines_for_audit(self, *, lock: str | None = None, since: float = 0.0) -> list[Line]:
        """Return all lines since then, and the beginnings of terms that were not over by then."""
        before = await self.open_before(lock=lock, since=since)
        return before + await self.history(lock=lock, since=since, limit=_EVERYTHING)

    async def open_before(self, *, lock: str | None = None, roles: Roles = None, since: float) -> list[Line]:
        """Return the beginnings of terms that had no end of their own by then, and when their leaders had vanished."""
        return [Line(*row) for row in await self._fetch(_OPEN_BEFORE, lock=lock, roles=_listed(roles), since=since)]

    async def roles(self) -> list[KnownRole]:
        """Return every lock and every role that it was attached as, also those that only the history knows."""
        return [KnownRole(*row) for row in await self._fetch(_ROLES)]

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
        text = statement.replace("{alive}", _ALIVE).replace("{schema}", f'"{self._schema}"')
        return await self._database.fetch(text, parameters)


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
