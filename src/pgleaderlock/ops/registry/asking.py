"""Asking a leader to step down, from outside: a row in the table ``asks``, and a notification that wakes the leader.

Where a schema of an earlier version has no such table, there is only the notification, and the leader looks at the
session that sent it: so the asker stays connected until it has its answer, which is then in the history.
"""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import LockError
from pgleaderlock.ops.registry._ask_inbox import LONGEST_CLAIM, MARK, MAX_WAIT_S, by_session
from pgleaderlock.ops.registry._database import Database
from pgleaderlock.ops.registry._outbox import clean
from pgleaderlock.ops.registry._sql import ASK_CHANNEL
from pgleaderlock.postgres._standby import MISSING_SQL, missing_problem

__all__ = ["Answer", "AskRefused", "Asked", "Asker", "Target"]

_CLOCKS_DIFFER_S = 5.0  # what nodes reckon the time to be, against our own question for it
_ANSWERS = ["step_down_asked", "step_down_refused"]

_RIGHTS = """
SELECT t.oid IS NOT NULL, pg_catalog.has_column_privilege(t.oid, 'lock', 'INSERT'), session_user::text,
       pg_catalog.pg_backend_pid(), extract(epoch FROM pg_catalog.clock_timestamp())::float
  FROM (SELECT pg_catalog.to_regclass(%(table)s)::oid AS oid) AS t
"""

# The row and what wakes the leader are one transaction: woken, it sees the row. A leader of 0.1.0 obeys what wakes it.
_ASK = """
WITH asked AS (
    INSERT INTO {schema}.asks (lock, instance, token, claimed_by, reason, wait_s)
    VALUES (%(lock)s, %(instance)s, %(token)s, %(by)s, %(reason)s, %(wait_s)s) RETURNING id
)
SELECT id, pg_catalog.pg_notify(%(channel)s, %(payload)s) FROM asked
"""

_ASK_BY_SESSION = """
SELECT pg_catalog.set_config('application_name', %(mark)s, false), pg_catalog.pg_notify(%(channel)s, %(payload)s)
"""

_ANSWER = "SELECT answer, why, answered_by FROM {schema}.asks WHERE id = %(row)s AND answer IS NOT NULL"

_ANSWER_IN_HISTORY = """
SELECT CASE WHEN event = 'step_down_asked' THEN 'obeyed' ELSE 'refused' END, detail, node
  FROM {schema}.history
 WHERE lock = %(lock)s AND at >= pg_catalog.to_timestamp(%(since)s) AND event = ANY(%(answers)s)
   AND pg_catalog.starts_with(detail, %(by)s)
 ORDER BY id DESC LIMIT 1
"""


class AskRefused(LockError):  # noqa: N818 - named after what happened
    """A leader could not be asked, or does not do what it was asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The term that an ask is meant for.

    The leader of every other term refuses it: an ask that is sent twice, or that comes late, deposes no successor.
    """

    instance: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent to a leader; its answer is found by it."""

    lock: str
    by: str
    """The database role, and its session where there is no row: the server's word."""
    at: float
    row: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The leader's answer to a request."""

    is_obeyed: bool
    why: str | None = None
    node: str | None = None
    """The leader's node name."""


class Asker:
    """Sends requests to leaders over an open connection."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._schema = schema

    async def ask(self, claims: dict[str, Any]) -> Asked:
        """Ask the leader of ``claims["lock"]``; AskRefused if this database role may not."""
        table = f'"{self._schema}".asks'
        ((has_table, may_ask, role, pid, at),) = await self._database.fetch(_RIGHTS, {"table": table})
        if has_table and not may_ask:
            raise AskRefused(
                f"database role {visible(role)} may not ask leaders to step down. As the owner of the schema: "
                f"pgleaderlock schema apply --schema {self._schema} --grant-asks-to {visible(role)}"
            )
        _check_target(claims)
        if problem := await self.standby_problem():
            raise AskRefused(f"{problem}. An ask could not be committed either, and would leave no leader")
        values = {**claims, "by": _short(claims["by"]), "reason": _short(claims["reason"])}
        values["wait_s"] = min(claims["wait_s"], MAX_WAIT_S)
        if has_table:
            return Asked(claims["lock"], visible(role), at, await self._insert(values))
        await self._notify(values)
        return Asked(claims["lock"], by_session(role, pid), at, None)

    async def standby_problem(self) -> str:
        """Return that commits wait for a synchronous standby that is not connected, and what to do; nothing if not."""
        return missing_problem(await self._database.fetch(MISSING_SQL))

    async def _insert(self, values: dict[str, Any]) -> int:
        payload = json.dumps({"ask": "step_down", "schema": self._schema, **values, "row": True})
        statement = _ASK.replace("{schema}", f'"{self._schema}"')
        rows = await self._database.fetch(statement, {**values, "channel": ASK_CHANNEL, "payload": payload})
        return int(rows[0][0])

    async def _notify(self, values: dict[str, Any]) -> None:
        mark = f"{MARK}{uuid.uuid4().hex}"
        payload = json.dumps({"ask": "step_down", "schema": self._schema, **values, "mark": mark})
        await self._database.fetch(_ASK_BY_SESSION, {"mark": mark, "channel": ASK_CHANNEL, "payload": payload})

    async def answer_to(self, asked: Asked) -> Answer | None:
        """Return what the leader says to it; None if it has said nothing yet."""
        statement = _ANSWER_IN_HISTORY if asked.row is None else _ANSWER
        values = {
            "row": asked.row,
            "lock": asked.lock,
            "since": asked.at - _CLOCKS_DIFFER_S,
            "answers": _ANSWERS,
            "by": f"by {asked.by}",
        }
        rows = await self._database.fetch(statement.replace("{schema}", f'"{self._schema}"'), values)
        return Answer(rows[0][0] == "obeyed", *rows[0][1:]) if rows else None


def _check_target(claims: dict[str, Any]) -> None:
    """Refuse what no node writes of itself: the server would call it a syntax error."""
    instance, token = claims["instance"], claims["token"]
    try:
        uuid.UUID(instance)
    except ValueError:
        raise AskRefused(f"there is no node with instance {visible(instance[:LONGEST_CLAIM])}") from None
    if token is not None and not 0 <= token < 2**63:
        raise AskRefused(f"there is no term with token {token}")


def _short(text: str | None) -> str | None:
    """Return a text that fits into a notification, as PostgreSQL takes it."""
    return clean(text[:LONGEST_CLAIM]) if text else None
