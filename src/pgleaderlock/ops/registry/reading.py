"""Looking at the registry from outside: one connection, a few questions, gone again.

For people and for messages; nothing decides by what it answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgleaderlock._base.checks import visible
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LockState
from pgleaderlock.ops.registry import _reading_sql
from pgleaderlock.ops.registry._ask_inbox import reason_with
from pgleaderlock.ops.registry._database import Database, Row
from pgleaderlock.ops.registry._ordering import in_order
from pgleaderlock.ops.registry._sql import CHANGE_CHANNEL
from pgleaderlock.ops.registry._summing import Past, keys_of_ends, sum_up
from pgleaderlock.ops.registry.asking import Answer, Asked, Asker, AskRefused, Target
from pgleaderlock.ops.registry.audit import BEGINS, ENDS, TELLS, Line
from pgleaderlock.options import DEFAULT_SCHEMA, check_schema
from pgleaderlock.postgres.lease import Place
from pgleaderlock.postgres.login import Dsn

__all__ = ["Candidate", "KnownRole", "Leader", "RegistryReader", "RoleStatus", "Roles", "open_reader"]

Roles = Collection[str] | None
"""Names of roles; None is all of them."""

_EVERYTHING = 10_000_000
_LOOK_EVERY_S = 1.0
_LATE_AFTER = 2
_PATIENCE_S = 120.0  # for a past of years
_LEAVES = ("released", "stopped", "unwatched")
_PLACES = frozenset(each.value for each in Place) - {""}


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a role, as it last wrote. Times are seconds of the epoch by the database's clock."""

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
        """When it should have written again at the latest."""
        return _due_at(self.renewed_at, self.heartbeat_s)

    @property
    def is_overdue(self) -> bool:
        """Whether it should have been heard of by now."""
        return self.renewal_due_at is not None and self.renewal_due_at < self.read_at


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate for a role."""

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
    heartbeat_s: float | None = None
    read_at: float | None = None
    place: str | None = None
    """Its place in the succession, as of its last sign of life: "heir", "next heir", or none."""

    @property
    def is_overdue(self) -> bool:
        """Whether its node should have been heard of by now, as of a leader."""
        due_at = _due_at(self.seen_at, self.heartbeat_s)
        return due_at is not None and self.read_at is not None and due_at < self.read_at


def _due_at(heard_at: float, heartbeat_s: float | None) -> float | None:
    """Return when a node should be heard of again at the latest: after two intervals, of which one may come late."""
    return None if heartbeat_s is None else heard_at + _LATE_AFTER * heartbeat_s


@dataclass(slots=True)
class RoleStatus:
    """One role, as the registry shows it."""

    lock: str
    role: str
    leader: Leader | None = None
    """The leader; None if the registry shows none."""
    candidates: list[Candidate] = field(default_factory=list)
    last_leader: Leader | None = None
    """The leader whose lease ran out without a record of its end: it was killed, frozen or cut off."""
    first_at: float | None = None
    """The time of its first record."""
    last_at: float | None = None
    last_event: str | None = None
    """The last line of its history, and when that was."""
    is_expected: bool = False
    """Whether a configuration names it: then a leader is missed also when no one stands for it."""

    @property
    def current_candidates(self) -> list[Candidate]:
        """Each node once, and not the processes of it that died and were started again."""
        alive = {each.node for each in self.candidates if each.is_alive}
        last = {each.node: each for each in sorted(self.candidates, key=lambda each: each.seen_at)}
        return [
            each for each in self.candidates if each.is_alive or (each.node not in alive and last[each.node] is each)
        ]

    @property
    def is_closed(self) -> bool:
        """Whether no one stands for it any more, and the last one left in order. Candidates that died do not count."""
        is_stood_for = self.leader or self.last_leader or any(each.is_alive for each in self.candidates)
        return not is_stood_for and self.last_event in _LEAVES


@dataclass(frozen=True, slots=True)
class KnownRole:
    """A role that the registry has a record of, present or past."""

    lock: str
    role: str
    first_at: float
    """The time of its first record, in seconds of the epoch by the database's clock."""


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
        which: dict[str, Any] = {"lock": lock, "roles": _listed(roles)}
        for name, role, *values in await self._fetch(_reading_sql.LEADERS, **which):
            leader = Leader(*values)
            found[name] = status = RoleStatus(name, role, leader if leader.is_valid else None)
            status.last_leader = None if leader.is_valid else leader
        for name, role, *values in await self._fetch(_reading_sql.CANDIDATES, **which):
            found.setdefault(name, RoleStatus(name, role)).candidates.append(_read_candidate(values))
        for name, role, first_at, last_at, last_event in await self._fetch(_reading_sql.PAST, **which):
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
        """Return the newest lines since then, the oldest of them first, by what is exact where times are not."""
        rows = await self._fetch(_reading_sql.HISTORY, lock=lock, roles=_listed(roles), since=since, limit=limit)
        return in_order((number, Line(*rest)) for number, *rest in rows)

    async def numbered_history(
        self, *, after: int, since: float = 0.0, before: int | None = None, limit: int = 20_000
    ) -> list[tuple[int, Line]]:
        """Return the newest lines that were written after this one, with their numbers, the oldest first.

        What two nodes write at once may become visible in any order: to read on, begin somewhat earlier.
        """
        rows = await self._fetch(_reading_sql.NUMBERED, after=after, before=before, since=since, limit=limit)
        return [(number, Line(*rest)) for number, *rest in rows]

    async def past(
        self,
        *,
        lock: str | None = None,
        locks: Collection[str] | None = None,
        roles: Roles = None,
        since: float = 0.0,
        patience_s: float = _PATIENCE_S,
    ) -> Past:
        """Return what there is to say about a time, however long: what was in order is summed up by the server."""
        only = locks if lock is None else [lock]
        which: dict[str, Any] = {"only": _listed(only), "roles": _listed(roles), "since": since}
        rows = await self._fetch(
            _reading_sql.SUMMED_UP, **which, begins=list(BEGINS), tells=list(TELLS), patience_s=patience_s
        )
        ids = [row[3] for row in rows if row[3] is not None]
        named = await self._fetch(_reading_sql.BY_ID, ids=ids, patience_s=patience_s)
        past = sum_up(rows, {number: Line(*rest) for number, *rest in named})
        past.lines = await self.open_before(locks=only, roles=roles, since=since, lines=past.lines) + past.lines
        for each in past.crossed():
            past.replace_lock(each, await self.lines_for_audit(lock=each, since=since))
        return past

    async def lines_for_audit(self, *, lock: str | None = None, roles: Roles = None, since: float = 0.0) -> list[Line]:
        """Return all lines since then, and the beginnings of terms that were not over by then."""
        lines = await self.history(lock=lock, roles=roles, since=since, limit=_EVERYTHING)
        only = None if lock is None else [lock]
        return await self.open_before(locks=only, roles=roles, since=since, lines=lines) + lines

    async def open_before(
        self, *, locks: Collection[str] | None = None, roles: Roles = None, since: float, lines: Iterable[Line] = ()
    ) -> list[Line]:
        """Return the beginnings of terms that were not over by then, and when their leaders had vanished.

        ``lines`` are those since then, which may see the end of one.
        """
        keys = keys_of_ends(lines)
        rows = await self._fetch(
            _reading_sql.OPEN_BEFORE,
            only=_listed(locks),
            roles=_listed(roles),
            since=since,
            begins=list(BEGINS),
            ends=list(ENDS),
            locks=[key[0] for key in keys],
            instances=[key[1] for key in keys],
            tokens=[key[2] for key in keys],
        )
        return [Line(*row) for row in rows]

    async def roles(self) -> list[KnownRole]:
        """Return every lock and every role that it is attached as, also those that only the history knows."""
        return [KnownRole(*row) for row in await self._fetch(_reading_sql.ROLES)]

    async def former_roles(self) -> list[KnownRole]:
        """Return the same with every name that a lock ever had. This reads the whole history."""
        return [KnownRole(*row) for row in await self._fetch(_reading_sql.FORMER_ROLES)]

    async def now(self) -> float:
        """Return the database's time of day."""
        return float((await self._fetch(_reading_sql.NOW))[0][0])

    async def ask_to_step_down(
        self,
        lock: str,
        by: str,
        *,
        leader: Leader | Target | None = None,
        reason: str | None = None,
        wait_s: float = 30.0,
        to: str | None = None,
    ) -> Asked:
        """Ask the leader of one term to hand over; AskRefused if this database role may not, or if no node leads.

        ``leader`` names that term; without it, it is the term that the registry shows now. The leader of any other term
        refuses. ``by`` and ``reason`` are our own words; the server says which role asked. Stay connected for the
        answer: :meth:`answer_to`. ``to`` is the candidate that is to lead next, by host and process id (``host-2:18``);
        a leader of an earlier version does not know that, and steps down.
        """
        if to is not None:
            reason = reason_with(to, reason)
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

    async def _fetch(self, question: str, *, patience_s: float | None = None, **parameters: Any) -> list[Row]:
        text = _reading_sql.statement(question, self._schema)
        if patience_s is not None:
            return await self._database.fetch_patiently(text, parameters, patience_s)
        return await self._database.fetch(text, parameters)


def _read_candidate(values: Sequence[Any]) -> Candidate:
    """Read a row. The state of a follower with a place is written as that place; one that is dead has lost it."""
    read = Candidate(*values)
    if read.state not in _PLACES:
        return read
    return replace(read, state=LockState.FOLLOWER.value, place=read.state if read.is_alive else None)


def _first_at(status: RoleStatus) -> float | None:
    leader = status.leader or status.last_leader
    acquired_at = None if leader is None else leader.acquired_at
    times = [status.first_at, acquired_at, *(each.started_at for each in status.candidates)]
    return min((at for at in times if at is not None), default=None)


def _listed(roles: Roles) -> list[str] | None:
    return None if roles is None else list(roles)


@contextlib.asynccontextmanager
async def open_reader(
    dsn: Dsn, schema: str = DEFAULT_SCHEMA, *, schema_owner: str | None = None
) -> AsyncIterator[RegistryReader]:
    """Open the registry for reading; ConnectionError if there is none."""
    check_schema(schema)
    database = Database(dsn, schema, suspend_aware_clock, owner=schema_owner)
    try:
        await database.open(makes_tables=False)
        await database.listen(CHANGE_CHANNEL)
        if not database.has_tables:
            raise ConnectionError(
                f"there is no registry in schema {schema} ({database.where}). Is it in another database or schema "
                "(--dsn, --schema, --config)? If there is none yet: the first node that has one configured makes it, "
                "or pgleaderlock schema apply. Who holds a lock without it: pgleaderlock status --role NAME",
                answered=True,
            )
        yield RegistryReader(database, schema)
    finally:
        await database.close()
