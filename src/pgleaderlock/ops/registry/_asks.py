"""Asks to step down: which of them a leader obeys, how often, and what it answers.

A notification wakes the leader and proves nothing: every database user can send one. What is obeyed is either a row of
the table ``asks``, which only operators may insert and whose author the server wrote; or, in a schema of an earlier
version that has no such table, a notification whose sender's session belongs to the leader's own database role or to
a member of it (:mod:`._ask_inbox` has both).

Nothing here costs more when a stranger sends more. Notifications are coalesced, and what they may mean is looked up
at most once a second, on the registry's own connection; in between, that connection is read ten times a second. When
too many come, the leader stops listening for a minute, and reads the table once a second instead. At most one ask per
lease is obeyed for a role, whichever node leads: the history knows when the last one was. Refusals are logged and
written down at most once a minute.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from pgleaderlock._base.checks import visible
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.registry._ask_inbox import Ask, AskInbox, AskNotice, SessionInbox, TableInbox, read_claim
from pgleaderlock.ops.registry._database import Database, Notification
from pgleaderlock.ops.registry._outbox import Happening
from pgleaderlock.ops.registry._pending_rows import PendingRows, Standing
from pgleaderlock.ops.registry._sql import ASK_CHANNEL
from pgleaderlock.stores.times import USUAL_LEASE_S

_LOOK_EVERY_S = 1.0
_LOOK_SELDOM_S = 60.0
_TELL_EVERY_S = 60.0
_READ_EVERY_S = 0.1  # while notifications are not looked into
_FLOOD = 1000  # notifications between two looks
_UNLISTENED_S = 60.0
_STEP_DOWN_S = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an ask: obeyed, unless there is a reason against it or it has to wait."""

    refusal: str | None = None
    in_s: float | None = None
    """When to look at it again."""


def judge(ask: Ask, instance: str, token: int | None, lease_s: float, *, is_leaving: bool) -> Verdict:
    """Decide on one ask to the leader of this term."""
    refusal = ask.objection or _refusal(ask, instance, token, is_leaving=is_leaving)
    if refusal is not None or ask.since_obeyed_s is None or ask.since_obeyed_s >= lease_s:
        return Verdict(refusal)
    in_s = lease_s - ask.since_obeyed_s
    if in_s < ask.left_s:
        return Verdict(in_s=in_s)
    return Verdict(
        f"an ask was obeyed {ask.since_obeyed_s:.1f} s ago, and at most one per lease ({lease_s:g} s) is: "
        f"ask again in {in_s:.1f} s"
    )


def _refusal(ask: Ask, instance: str, token: int | None, *, is_leaving: bool) -> str | None:
    if ask.left_s <= 0:
        return "it was read too late: the asker had stopped waiting"
    if ask.instance not in (None, instance) or ask.token not in (None, token):
        return f"it was meant for the leader with token {ask.token}, and the token is {token} now"
    return "another step-down is under way: the leader was asked before, and steps down" if is_leaving else None


class Asks:
    """What is asked of the roles of one node."""

    def __init__(
        self,
        pending: PendingRows,
        database: Database,
        schema: str,
        *,
        who: tuple[str, str],
        clock: Clock,
        logger: NDLogger,
    ) -> None:
        self._pending = pending
        self._database = database
        self._schema = schema
        self._instance, self._node = who
        self._clock = clock
        self._logger = logger
        self._inbox: AskInbox | None = None
        self._heard: dict[int, Notification] = {}
        self._look_at, self._looked_at = math.inf, -math.inf
        self._counted = 0
        self._listen_at: float | None = None  # when to listen again, after a flood
        self._failures = self._untold = 0
        self._told_at = -math.inf
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._nominating: dict[int, asyncio.Task[None]] = {}
        """The nominations that asks wait for, by the number of the ask."""

    # --- When to look --------------------------------------------------------------------------------------------

    @property
    def hears(self) -> bool:
        """Whether a notification would be looked into at once. If not, there is no hurry to read one."""
        return self._clock() >= self._next_look

    @property
    def rest_s(self) -> float:
        """For how long there is nothing to do here."""
        return max(0.0, min(self._look_at - self._clock(), math.inf if self.hears else _READ_EVERY_S))

    @property
    def _next_look(self) -> float:
        return self._looked_at + min(_LOOK_SELDOM_S, math.ldexp(_LOOK_EVERY_S, min(self._failures, 10)))

    async def begin(self) -> None:
        """After a new connection: see which rule holds, and look soon what was asked meanwhile."""
        self._inbox = self._listen_at = None
        self._heard.clear()
        self._look_at = max(self._clock(), self._next_look)
        with self._troubles_told():
            self._inbox = await self._choose_inbox()

    def collect(self) -> None:
        """Take what was notified. It is looked into soon."""
        for each in self._database.notifications():
            self._heard[each.pid] = each
            self._look_at = min(self._look_at, max(self._clock(), self._next_look))

    # --- Looking -------------------------------------------------------------------------------------------------

    async def heed(self) -> bool:
        """Read what is asked, if it is time to, and answer it. Return whether there is something to write down."""
        if not self._database.is_open:
            return False
        with self._troubles_told():
            await self._stem_flood()
            if self._clock() >= self._look_at:
                await self._look()
        return self._pending.has_news

    async def _look(self) -> None:
        self._look_at, self._looked_at = math.inf, self._clock()
        if self._listen_at is not None:
            self._look_at = self._looked_at + _LOOK_EVERY_S
        self._counted = self._database.heard_count
        heard, self._heard = self._heard, {}
        led = {standing.lock: standing for standing in self._pending.leading()}
        if led:
            await self._read(led, self._claims(heard, led))
        self._failures = 0

    async def _stem_flood(self) -> None:
        """Stop listening when there is too much to hear, for a while."""
        now, count = self._clock(), self._database.heard_count - self._counted
        if self._listen_at is None and count > _FLOOD:
            await self._database.stop_listening()
            self._listen_at = now + _UNLISTENED_S
            self._look_at = min(self._look_at, self._next_look)
            self._tell("asks_flooded", notifications=count, listening_again_in_s=_UNLISTENED_S)
        elif self._listen_at is not None and now >= self._listen_at:
            await self._database.listen(ASK_CHANNEL)
            self._listen_at = None

    @contextlib.contextmanager
    def _troubles_told(self) -> Iterator[None]:
        """An ask that cannot be read is no failure of the registry; it is looked for less and less often."""
        try:
            yield
        except ConnectionError as error:
            self._failures += 1
            self._tell("asks_unreadable", error=error)

    def _claims(self, heard: dict[int, Notification], led: dict[str, Standing]) -> list[AskNotice]:
        claims = (read_claim(each, self._schema) for each in heard.values())
        return [claim for claim in claims if claim is not None and claim.lock in led]

    async def _read(self, led: dict[str, Standing], claims: list[AskNotice]) -> None:
        if not isinstance(self._inbox, TableInbox):
            self._inbox = await self._choose_inbox()
        for ask in await self._inbox.read(list(led), claims):
            await self._settle(self._inbox, ask, led[ask.lock])
        if isinstance(self._inbox, TableInbox):
            for claim in claims:
                if not claim.has_row:
                    self._refuse(led[claim.lock], f"session {claim.pid}", self._inbox.NO_ROW)

    async def _choose_inbox(self) -> AskInbox:
        table = TableInbox(self._database, self._schema, self._node)
        if await table.is_there():
            return table
        if self._inbox is not None:
            return self._inbox
        advice = f"pgleaderlock schema apply --schema {self._schema}, as its owner"
        rule = "obeying sessions of this database role and of its members only"
        self._logger.info("asks_table_missing", schema=self._schema, advice=advice, meanwhile=rule)
        return SessionInbox(self._database, self._schema, self._clock)

    async def _settle(self, inbox: AskInbox, ask: Ask, standing: Standing) -> None:
        lease_s = standing.election.lease_s or USUAL_LEASE_S
        verdict = judge(ask, self._instance, standing.token, lease_s, is_leaving=standing.lock in self._leaving)
        if ask.to is not None and verdict == Verdict():
            verdict = self._nominate(ask.number, ask.to, standing)
        if verdict.in_s is not None:
            self._look_at = min(self._look_at, self._clock() + verdict.in_s)
        elif verdict.refusal is not None:
            if await inbox.answer(ask, "refused", verdict.refusal):
                self._refuse(standing, ask.by, verdict.refusal)
        elif await inbox.answer(ask, "obeyed", None):
            self._obey(standing, ask.by)

    def _nominate(self, number: int, to: str, standing: Standing) -> Verdict:
        """Have a candidate become the heir before the ask is obeyed. It takes seconds, in which others are answered."""
        task = self._nominating.get(number)
        if task is None:
            task = asyncio.get_running_loop().create_task(standing.election.nominate(to))
            task.add_done_callback(lambda each: None if each.cancelled() else each.exception())  # it may be too late
            self._nominating = {
                number: task,
                **{key: each for key, each in self._nominating.items() if not each.done()},
            }
        if not task.done():
            return Verdict(in_s=_LOOK_EVERY_S)
        del self._nominating[number]
        error = task.exception()
        return Verdict(None if error is None else str(error))

    async def prune(self, keep_days: int) -> None:
        """Forget asks that are older, where there is a table of them."""
        if isinstance(self._inbox, TableInbox):
            await self._inbox.prune(keep_days)

    # --- Answers -------------------------------------------------------------------------------------------------

    def _obey(self, standing: Standing, by: str) -> None:
        self._logger.info("step_down_asked", lock=standing.lock, role=standing.role, by=by)
        self._write(standing, "step_down_asked", f"by {by}")
        task = asyncio.get_running_loop().create_task(standing.election.step_down(_STEP_DOWN_S))
        self._leaving[standing.lock] = task
        task.add_done_callback(lambda _: self._leaving.pop(standing.lock, None))

    def _refuse(self, standing: Standing, by: str, why: str) -> None:
        if self._tell("step_down_refused", lock=standing.lock, role=standing.role, by=by, why=why):
            self._write(standing, "step_down_refused", f"by {by}: {why}")

    def _write(self, standing: Standing, event: str, detail: str) -> None:
        at, text = self._clock(), visible(detail)
        self._pending.outbox.put(Happening(standing.lock, standing.role, event, at, token=standing.token, detail=text))

    def _tell(self, event: str, **fields: object) -> bool:
        """Log what any database user can bring about, at most once a minute. Return whether it was."""
        if self._clock() < self._told_at + _TELL_EVERY_S:
            self._untold += 1
            return False
        more = {"not_logged_before": self._untold} if self._untold else {}
        self._told_at, self._untold = self._clock(), 0
        self._logger.warning(event, **fields, **more)
        return True
