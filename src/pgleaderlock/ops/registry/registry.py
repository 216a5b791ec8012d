"""``Registry``: writes down who leads what, who else stands for it, and what happened.

It listens to elections and never decides. It has a connection and a task of its own; what an election tells it goes
into a bounded outbox, and the election goes on. When the database refuses, that is logged once and counted; when it
answers again, everything is caught up on, and what had to be forgotten shows in the history as a counted gap.

Operators speak to a leader the other way: in the table ``asks``, which is looked into when NOTIFY says so, on the same
connection (``accept_asks``). Who may, and how often, is in :mod:`._asks`.

Not promised: that a row is true. It was when it was written. Decide by the lock, fence with the token.
"""

import asyncio
import contextlib
import json
import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any, Self

from pgleaderlock._base.checks import check_flag, check_int, check_seconds, visible
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.version import __version__
from pgleaderlock._logging import get_logger
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Event
from pgleaderlock.ops.registry._asks import Asks
from pgleaderlock.ops.registry._database import Database
from pgleaderlock.ops.registry._outbox import Happening, clean
from pgleaderlock.ops.registry._pending_rows import Changes, PendingRows, Standing
from pgleaderlock.ops.registry._server_clock import ServerClock
from pgleaderlock.ops.registry._sql import ASK_CHANNEL, CHANGE_CHANNEL, statements
from pgleaderlock.ops.registry.audit import ENDS, Line, audit
from pgleaderlock.ops.registry.reading import RegistryReader
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.login import Dsn, Password, log_in

__all__ = ["Registry"]

_CAPACITY = 10_000
_BATCH = 500
_RETRY_S = (0.5, 1.0, 2.0, 5.0)
_FLUSH_S = 3.0
_PRUNE_EVERY_S = 3600.0
_AUDIT_EVERY_S = 60.0
_AUDITED_S = 24 * 3600.0
_LONGEST_AUDIT_S = 4.0  # less than the usual time between two signs of life, which come from the same task
_LONGEST_PRUNE = 100  # portions at a time
_LARGEST_ABOUT = 65536
_TELL_CHANGE = "SELECT pg_notify(%(channel)s, %(schema)s)"


class Registry:
    """Writes the elections of one node into tables, for the other nodes and for operators.

        registry = Registry(dsn, node="web-1", about={"zone": "eu-1"})
        registry.attach(lock)

        async with registry, lock:
            ...

    Elections that are attached may stand on any store; the registry itself is in PostgreSQL.
    """

    def __init__(
        self,
        dsn: Dsn,
        *,
        password: Password | None = None,
        node: str | None = None,
        about: Mapping[str, Any] | None = None,
        schema: str = DEFAULT_SCHEMA,
        schema_owner: str | None = None,
        heartbeat_s: float = 5.0,
        keep_days: int = 30,
        accept_asks: bool = True,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        self.node: str = _presentable("node", node or f"{socket.gethostname()}:{os.getpid()}")
        self.schema = schema
        self._database = Database(log_in(dsn, password), schema, clock, owner=schema_owner)
        self._sql = statements(schema)
        self._heartbeat_s = check_seconds("heartbeat_s", heartbeat_s)
        self._keep_days = check_int("keep_days", keep_days, 1, 36500)
        self._accepts_asks = check_flag("accept_asks", accept_asks)
        self._clock = clock
        self._server_clock = ServerClock()
        self._pending = PendingRows(_CAPACITY)
        self._about = _about_text(about or {})
        self._started = self._clock()
        self._identity: dict[str, Any] = {"instance": str(uuid.uuid4()), "node": self.node}
        self._task: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None
        self._is_closing = False
        self._beat_at = self._pruned_at = float("-inf")
        self._has_pruned_own = False
        self._shown_interval_s = self._heartbeat_s  # as the table of nodes has it
        self._failures = self._in_flight = 0
        self._is_up = False
        self.overlaps: Mapping[str, int] = {}
        """How many overlaps of two terms the last day of the history has, for each role that is led here."""
        self._audited_at = float("-inf")
        self._was_audited = True
        self._logger = get_logger().bind(node=self.node, registry=self._database.where)
        who = self.instance, self.node
        self._asks = Asks(self._pending, self._database, schema, who=who, clock=clock, logger=self._logger)

    # --- What one may ask ----------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether the last write succeeded."""
        return self._is_up and self._database.is_open

    @property
    def dropped_events(self) -> int:
        """How many events the history does not have, because the database was away for too long."""
        return self._pending.outbox.dropped

    @property
    def waiting_events(self) -> int:
        """How many events are not written yet."""
        return len(self._pending.outbox) + self._in_flight

    @property
    def instance(self) -> str:
        """The name of this process in the tables: a node that is started anew is another instance."""
        return str(self._identity["instance"])

    # --- Lifecycle -----------------------------------------------------------------------------------------------

    def attach(self, election: Election | Mapping[str, Election], role: str | None = None) -> None:
        """Record this election under this role, by default the name of its lock. A group records all its roles."""
        if isinstance(election, Mapping):
            for name, each in election.items():
                self.attach(each, name)
            return
        key = getattr(election, "key", None)
        key = key if isinstance(key, LockKey) else None
        lock = _presentable("lock", str(key) if key is not None else " ".join(map(str, election.labels.values())))
        if lock in self._pending.standings:
            raise ValueError(f"lock {lock} is attached to this registry already")
        name = _presentable("role", role or (key.role if key else None) or lock)
        standing = Standing(lock, name, key, election)
        self._pending.add(standing, self._clock())
        election.subscribe(lambda event: self._hear(standing, event))

    async def start(self) -> None:
        """Start writing. Returns at once, whether the database answers or not."""
        if self._task is None or self._task.done() or self._task.get_loop().is_closed():
            self._is_closing = False
            self._news = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._live(), name="pgleaderlock registry")

    async def close(self) -> None:
        """Write the events that are left, if the database answers soon, and remove the rows of this node.

        Of a role that is still led here, the history will say until when that was known.
        """
        task = self._task
        if task is None or self._news is None:
            return
        self._pending.stop_watching(self._clock())
        self._is_closing = True
        self._news.set()
        await asyncio.wait({task}, timeout=_FLUSH_S)
        task.cancel()
        await asyncio.wait({task})
        self._task = None
        if self.waiting_events:
            self._logger.warning("registry_incomplete", unwritten=self.waiting_events)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _hear(self, standing: Standing, event: Event) -> None:
        """In the election's stream of events: nothing here waits."""
        self._pending.hear(standing, event)
        if self._news is not None and self._pending.has_news:
            self._news.set()

    # --- The task ------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            while not self._is_closing or (self._pending.has_news and self._failures == 0):
                try:
                    await self._write()
                    if not self._is_closing and not await self._asks.heed():
                        await self._rest()
                except Exception as bug:  # it must go on writing, whatever it is
                    self._logger.error("registry_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
                    self._note_failure(bug)
                    await asyncio.sleep(_RETRY_S[0])
            await self._sign_off()
        finally:
            await self._database.close()

    async def _write(self) -> None:
        """Bring the database up to date, or count a failure."""
        changes, batch = Changes(), list[Happening]()
        try:
            if not self._database.is_open:
                await self._open()
                self._pending.mark_all()  # whatever was there may be gone
            if self._clock() >= self._beat_due_at:
                self._pending.note_places()
            # Both at the same moment: that a node leads is never written without the line that says since when.
            changes, batch = self._pending.take_changes(), self._pending.outbox.take(_BATCH)
            self._in_flight = len(batch)
            work = self._work_for(changes, batch)
            if work:
                await self._database.run_all(work)
            await self._beat()
            await self._prune()
            await self._audit()
        except PgLeaderLockError as error:
            self._pending.put_back(changes)
            self._pending.outbox.put_back(batch)
            self._note_failure(error)
        except asyncio.CancelledError:
            self._pending.outbox.put_back(batch)
            raise
        else:
            self._note_success(len(batch))
        finally:
            self._in_flight = 0

    async def _open(self) -> None:
        await self._database.open()
        if self._accepts_asks:
            await self._database.listen(ASK_CHANNEL)
        for _ in range(3):  # the first answer of a new connection is often the slowest
            self._server_clock.note(*await self._database.time())
        self._beat_at = float("-inf")
        if self._accepts_asks:
            await self._asks.begin()

    @property
    def _interval_s(self) -> float:
        """How often this node writes a sign of life: a leader at least three times per lease."""
        return min([self._heartbeat_s, *(standing.interval_s for standing in self._pending.valid())])

    @property
    def _beat_due_at(self) -> float:
        """When the next sign of life is due; at once when they become more or less frequent, for readers rely on it."""
        if self._interval_s != self._shown_interval_s:
            return self._beat_at
        return min([self._beat_at + self._interval_s, *(standing.due_at for standing in self._pending.valid())])

    async def _beat(self) -> None:
        if self._clock() < self._beat_due_at:
            return
        self._server_clock.note(*await self._database.time())
        self._beat_at = self._clock()
        self._shown_interval_s = self._interval_s
        rows = self._leader_rows([standing.lock for standing in self._pending.valid()])
        work = [(self._sql["beat"], {**self._node_row(), "started": self._server_clock.at(self._started)})]
        if rows:
            work.append((self._sql["renew"], {**self._identity, "rows": json.dumps(rows)}))
        await self._database.run_all(work)

    async def _prune(self) -> None:
        """Forget what is old: of the roles that are led here, and of those that no one stands for any more."""
        locks = [standing.lock for standing in self._pending.leading()]
        is_first = bool(locks) and not self._has_pruned_own
        if self._clock() < self._pruned_at + _PRUNE_EVERY_S and not is_first:
            return
        self._pruned_at, self._has_pruned_own = self._clock(), bool(locks)
        await self._asks.prune(self._keep_days)
        for _ in range(_LONGEST_PRUNE):
            rows = await self._database.fetch(
                self._sql["prune"], {**self._identity, "locks": locks, "keep_days": self._keep_days}
            )
            if self._pending.has_news or not rows[0][0]:
                return

    async def _audit(self) -> None:
        """See whether the history has two leaders at once. Each role's is its leader's to look at, now and then."""
        locks = [standing.lock for standing in self._pending.leading()]
        if self._clock() < self._audited_at + _AUDIT_EVERY_S:
            return
        self._audited_at, now = self._clock(), self._server_clock.at(self._clock())
        try:
            lines = await self._read_past(locks, now - _AUDITED_S)
        except (TimeoutError, PgLeaderLockError) as error:  # no reason not to write: that is tried anew
            self._note_audit(error)
            return
        self._note_audit(None)
        audits = audit(lines, since=now - _AUDITED_S, until=now)
        self.overlaps = {each.role: len(each.overlaps) for each in audits}
        for each in audits:
            if each.overlaps:
                self._logger.error("terms_overlap", role=each.role, overlaps=len(each.overlaps))

    async def _read_past(self, locks: list[str], since: float) -> list[Line]:
        """Return what there is to judge, however much it is: terms that follow each other in order count as one."""
        if not locks:
            return []
        reader = RegistryReader(self._database, self.schema)
        async with asyncio.timeout(_LONGEST_AUDIT_S):
            return (await reader.past(locks=locks, since=since, patience_s=_LONGEST_AUDIT_S)).lines

    def _note_audit(self, error: Exception | None) -> None:
        """Say once that the history was not judged, and what is known of it is from before."""
        if error is not None and self._was_audited:
            why = str(error) or f"the history was not read within {_LONGEST_AUDIT_S:g} s"
            self._logger.warning("audit_incomplete", error=why, advice="overlaps are as of before; pgleaderlock audit")
        self._was_audited = error is None

    async def _sign_off(self) -> None:
        """Remove this node's rows, but for its history: it leaves in order."""
        if self._failures or not self._database.is_open:
            return
        with contextlib.suppress(PgLeaderLockError):
            await self._database.run_all([(self._sql["leave"], self._identity)])

    async def _rest(self) -> None:
        """Until there is news, something is asked of us, or it is time for the next sign of life."""
        assert self._news is not None  # noqa: S101 - there is one while the task lives
        self._asks.collect()  # what came while we wrote shows on no socket any more
        failures = min(self._failures, len(_RETRY_S))
        rest_s = _RETRY_S[failures - 1] if failures else max(0.0, self._beat_due_at - self._clock())
        if failures:
            self._news.clear()  # news is no reason to try a database again that just failed
        watched = self._database.watched(self._news.set) if self._asks.hears else contextlib.nullcontext()
        with watched, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest_s if failures else min(rest_s, self._asks.rest_s)):
                await self._news.wait()
        self._news.clear()
        self._asks.collect()

    # --- Rows ----------------------------------------------------------------------------------------------------

    def _work_for(self, changes: Changes, batch: list[Happening]) -> list[tuple[str, Mapping[str, Any]]]:
        work: list[tuple[str, Mapping[str, Any]]] = []
        # The rows of leaders first: a successor that replaces one at this moment is waited for, so that the history is
        # written with its line in sight.
        if changes.led:
            work.append((self._sql["await"], {"locks": list(changes.led)}))
        if changes.cleared:
            work.append((self._sql["clear"], {**self._identity, "locks": list(changes.cleared)}))
        if batch:
            rows = json.dumps(self._history_rows(batch))
            work.append((self._sql["append"], {**self._identity, "rows": rows, "ends": list(ENDS)}))
        if changes.led:
            rows = json.dumps(self._leader_rows(list(changes.led)))
            work.append((self._sql["lead"], {**self._node_row(), "rows": rows}))
        if changes.stands:
            work.append((self._sql["stand"], {**self._identity, "rows": json.dumps(self._candidate_rows(changes))}))
        if changes.withdrawn:
            work.append((self._sql["withdraw"], {**self._identity, "locks": list(changes.withdrawn)}))
        if batch or changes.led or changes.cleared:
            work.append((_TELL_CHANGE, {"channel": CHANGE_CHANNEL, "schema": self.schema}))
        return work

    def _history_rows(self, batch: list[Happening]) -> list[dict[str, Any]]:
        within_s = self._server_clock.within_s(self._clock())
        return [
            {
                "lock": each.lock,
                "role": each.role,
                "number": each.number,
                "event": each.event,
                "cause": each.cause,
                "token": each.token,
                "at": self._server_clock.at(each.at),
                "within_s": within_s,
                "missing": each.missing,
                "detail": each.detail,
            }
            for each in batch
        ]

    def _leader_rows(self, locks: list[str]) -> list[dict[str, Any]]:
        rows = self._pending.leader_rows(locks, self._clock())
        for row in rows:
            for name in ("at", "renewed", "until"):
                row[name] = None if row[name] is None else self._server_clock.at(row[name])
        return rows

    def _candidate_rows(self, changes: Changes) -> list[dict[str, Any]]:
        rows = []
        for each in (self._pending.standings[lock] for lock in changes.stands):
            since = self._server_clock.at(each.since)
            rows.append({"lock": each.lock, "role": each.role, "state": each.shown_state, "since": since})
        return rows

    def _node_row(self) -> dict[str, Any]:
        return {
            **self._identity,
            "host": socket.gethostname(),
            "process_id": os.getpid(),
            "version": __version__,
            "about": self._about,
            "heartbeat_s": self._shown_interval_s,
        }

    # --- Ups and downs -------------------------------------------------------------------------------------------

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._is_up = False
        if self._failures == 1:
            self._logger.warning("registry_down", error=error, advice="elections go on; it is tried again")

    def _note_success(self, written: int) -> None:
        if self._failures:
            self._logger.info("registry_up", written_late=written + self.waiting_events, dropped=self.dropped_events)
        self._failures, self._is_up = 0, True
        if self._pending.has_news and self._news is not None:
            self._news.set()


def _presentable(what: str, text: object) -> str:
    """Return a text as it is written down, on one line; ValueError for what no database takes."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if not text or clean(text) != text:
        raise ValueError(f"{what} must be text without NUL and without halves of characters, got {text!r}")
    return visible(text)


def _about_text(about: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(about), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"about must be what JSON can say: {error}") from error
    plain = json.dumps(dict(about), ensure_ascii=False)
    if len(text) > _LARGEST_ABOUT or "\\u0000" in text or clean(plain) != plain:
        raise ValueError(f"about must be at most {_LARGEST_ABOUT} characters, without NUL and halves of characters")
    return text
