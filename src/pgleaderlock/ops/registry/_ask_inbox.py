"""Where asks to step down are read from: the table ``asks``, or, where there is none, the sessions that notified.

Both say who asks in the server's words first, and then what the session says of itself; on one line.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.checks import visible
from pgleaderlock._base.clock import Clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.registry._database import Database, Notification
from pgleaderlock.ops.registry._sql import CHANGE_CHANNEL

MARK = "pgleaderlock ask "
"""The beginning of the application_name of a session that asks; the rest cannot be guessed."""
MAX_WAIT_S = 3600.0
_WAIT_S = 30.0
_NOMINEE = re.compile(r"to (\S+:\d+)(?:; (.*))?", re.DOTALL)
LONGEST_CLAIM = 200
_MOST_ASKS = 100

# How long ago this role obeyed an ask, whichever node led it then. A time that is yet to come is none of ours.
_SINCE_OBEYED = """
(SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float - extract(epoch FROM pg_catalog.max(h.at))::float
   FROM {schema}.history AS h
  WHERE h.lock = a.lock AND h.event = 'step_down_asked' AND h.at <= pg_catalog.clock_timestamp()
    AND h.at > pg_catalog.clock_timestamp() - interval '1 hour')
"""

_IS_THERE = """
SELECT t.oid IS NOT NULL,
       pg_catalog.has_table_privilege(t.oid, 'SELECT') AND pg_catalog.has_any_column_privilege(t.oid, 'UPDATE'),
       session_user::text
  FROM (SELECT pg_catalog.to_regclass(%(table)s)::oid AS oid) AS t
"""

_PRUNE = """
DELETE FROM {schema}.asks
 WHERE asked_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(days => %(keep_days)s)
"""

_OPEN_ROWS = """
SELECT a.id, a.lock, a.instance::text, a.token, a.asked_by, pg_catalog.left(a.claimed_by, 200),
       pg_catalog.left(a.reason, 200),
       extract(epoch FROM a.asked_at)::float + a.wait_s - extract(epoch FROM pg_catalog.clock_timestamp())::float,
       {since_obeyed}
  FROM {schema}.asks AS a
 WHERE a.answer IS NULL AND a.lock = ANY(%(locks)s)
 ORDER BY a.id LIMIT %(limit)s
"""

_ANSWER = """
WITH answered AS (
    UPDATE {schema}.asks SET answer = %(answer)s, why = %(why)s, answered_by = %(node)s,
           answered_at = pg_catalog.clock_timestamp()
     WHERE id = %(id)s AND answer IS NULL RETURNING id
)
SELECT id, pg_catalog.pg_notify(%(channel)s, %(name)s) FROM answered
"""

# pid, role and application_name of a session are shown to every role; when it began only to its own (and to those who
# may read all statistics). So a session of another role shows by its mark that its pid was not given to it just now.
_SESSIONS = """
SELECT a.pid, pg_catalog.pg_get_userbyid(s.usesysid)::text, session_user::text,
       pg_catalog.pg_has_role(s.usesysid, session_user, 'USAGE'),
       CASE WHEN s.backend_start IS NULL THEN s.application_name = a.mark
            ELSE extract(epoch FROM s.backend_start)::float
                 <= extract(epoch FROM pg_catalog.clock_timestamp())::float - a.age_s END,
       {since_obeyed}
  FROM ROWS FROM (pg_catalog.unnest(%(pids)s::int[]), pg_catalog.unnest(%(locks)s::text[]),
                  pg_catalog.unnest(%(marks)s::text[]), pg_catalog.unnest(%(ages)s::float[]))
       AS a (pid, lock, mark, age_s)
  LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(a.pid) AS s ON true
"""


@dataclass(frozen=True, slots=True)
class AskNotice:
    """What a notification says. Every database user can have sent it; only the pid is the server's word."""

    pid: int
    lock: str
    by: str
    mark: str | None
    instance: str | None
    token: int | None
    to: str | None
    until: float
    """On our own clock: when the asker stops waiting."""
    at: float
    has_row: bool


@dataclass(frozen=True, slots=True)
class Ask:
    lock: str
    by: str
    left_s: float
    since_obeyed_s: float | None
    instance: str | None = None
    token: int | None = None
    to: str | None = None
    """The host and process id of the candidate that is to lead next; None is any."""
    objection: str | None = None
    """Why the asker may not."""
    number: int = 0
    """Of the row, or of the session."""


def read_claim(notification: Notification, schema: str) -> AskNotice | None:
    """Read what was sent; None if it is no ask to a leader of this schema, or cannot be read."""
    try:
        said = json.loads(notification.payload)
        if said["schema"] != schema or said["ask"] != "step_down" or not isinstance(said["lock"], str):
            return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    mark, wait_s = said.get("mark"), said.get("wait_s")
    is_time = isinstance(wait_s, int | float) and 0 < wait_s <= MAX_WAIT_S
    return AskNotice(
        notification.pid,
        said["lock"],
        _described(said.get("by"), said.get("reason")),
        mark if isinstance(mark, str) and mark.startswith(MARK) and "\0" not in mark else None,
        said["instance"] if isinstance(said.get("instance"), str) else None,
        said["token"] if isinstance(said.get("token"), int) else None,
        nominee_in(said.get("reason")),
        notification.at + (float(wait_s) if is_time else _WAIT_S),
        notification.at,
        has_row="row" in said,
    )


def _described(claimed_by: Any, reason: Any) -> str:
    """Return what an asker says of itself, to be put after the server's word."""
    said = ((", who says", claimed_by), ("; reason", reason))
    return "".join(f"{what}: {visible(text[:LONGEST_CLAIM])}" for what, text in said if text and isinstance(text, str))


def nominee_in(reason: Any) -> str | None:
    """Return the candidate that is to lead next, by host and process id: the reason of an ask begins with it."""
    match = _NOMINEE.fullmatch(reason) if isinstance(reason, str) else None
    return None if match is None else match[1]


def reason_with(to: str, reason: str | None) -> str:
    """Return the reason of an ask that names the next leader; ValueError if that is no host and process id.

    It has no column of its own, so that the tables of earlier versions can hold it.
    """
    text = f"to {to}; {reason}" if reason else f"to {to}"
    if nominee_in(text) != to:
        raise ValueError(f"{visible(to)} is no host and process id, such as host-2:18")
    return text


def by_session(role: str, pid: int) -> str:
    """Name a session that asked, in the words of the server. The asker finds its answer in the history by it."""
    return f"{visible(role)} (session {pid})"


class TableInbox:
    """The table ``asks``."""

    NO_ROW = "a notification alone is no ask: insert a row into the table asks, as pgleaderlock step-down does"

    def __init__(self, database: Database, schema: str, node: str) -> None:
        self._database = database
        self._schema = schema
        self._node = node

    async def is_there(self) -> bool:
        """Look for the table, and make it where we may; ConnectionError if it is there and we may not use it."""
        table = f'"{self._schema}".asks'
        ((is_there, is_allowed, role),) = await self._database.fetch(_IS_THERE, {"table": table})
        if is_there and not is_allowed:
            raise ConnectionError(
                f"role {visible(role)} may not read and answer what leaders are asked. As the owner of the schema: "
                f"pgleaderlock schema apply --schema {self._schema} --grant-to {visible(role)}"
            )
        return is_there or await self._database.upgrade()

    async def prune(self, keep_days: int) -> None:
        await self._database.fetch(_for(self._schema, _PRUNE), {"keep_days": keep_days})

    async def read(self, locks: Sequence[str], claims: Sequence[AskNotice]) -> list[Ask]:  # noqa: ARG002 - rows alone count
        """Return the rows without an answer, the oldest first."""
        rows = await self._database.fetch(_for(self._schema, _OPEN_ROWS), {"locks": list(locks), "limit": _MOST_ASKS})
        return [
            Ask(
                lock,
                visible(role) + _described(who, reason),
                left_s,
                since_s,
                instance,
                token,
                nominee_in(reason),
                number=number,
            )
            for number, lock, instance, token, role, who, reason, left_s, since_s in rows
        ]

    async def answer(self, ask: Ask, answer: str, why: str | None) -> bool:
        """Write the answer into the row, and wake the asker."""
        values = {"id": ask.number, "answer": answer, "why": why, "node": self._node}
        rows = await self._database.fetch(
            _for(self._schema, _ANSWER), {**values, "channel": CHANGE_CHANNEL, "name": self._schema}
        )
        return bool(rows)


class SessionInbox:
    """Notifications, each as good as the session that sent it. An asker stays connected until it has its answer."""

    def __init__(self, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._schema = schema
        self._clock = clock
        self._waiting: dict[int, AskNotice] = {}

    async def read(self, locks: Sequence[str], claims: Sequence[AskNotice]) -> list[Ask]:
        """Return what was notified, with what the server says of the sessions that did."""
        self._waiting |= {claim.pid: claim for claim in claims[:_MOST_ASKS]}
        known = [claim for claim in self._waiting.values() if claim.lock in locks]
        self._waiting = {claim.pid: claim for claim in known}
        if not known:
            return []
        now = self._clock()
        columns = {
            "pids": [claim.pid for claim in known],
            "locks": [claim.lock for claim in known],
            "marks": [claim.mark for claim in known],
            "ages": [max(0.0, now - claim.at) for claim in known],
        }
        rows = await self._database.fetch(_for(self._schema, _SESSIONS), columns)
        return [self._ask(self._waiting[pid], rest, now) for pid, *rest in rows]

    def _ask(self, claim: AskNotice, row: list[Any], now: float) -> Ask:
        role, ours, may_ask, is_same, since_obeyed_s = row
        objection = None
        if role is None or not is_same:
            objection = "the session that asked is gone: it has to stay connected until it is answered"
        elif not may_ask:
            objection = (
                f"role {visible(role)} is not a member of {visible(ours)}, the leader's own. To grant asks by role: "
                f"pgleaderlock schema apply --schema {self._schema} --grant-asks-to {visible(role)}"
            )
        by = by_session(role or "a session that is gone", claim.pid) + claim.by
        term = claim.instance, claim.token
        return Ask(claim.lock, by, claim.until - now, since_obeyed_s, *term, claim.to, objection, claim.pid)

    async def answer(self, ask: Ask, answer: str, why: str | None) -> bool:  # noqa: ARG002 - the history has it
        """Forget it: the answer is in the history."""
        return self._waiting.pop(ask.number, None) is not None


AskInbox = TableInbox | SessionInbox
"""A place in which asks are found. ``answer`` returns False if an ask has its answer already."""


def _for(schema: str, statement: str) -> str:
    return statement.replace("{since_obeyed}", _SINCE_OBEYED).replace("{schema}", f'"{schema}"')
