"""Open a session and set it up for the protocol, or refuse it with the reason.

A standby would grant a lock that the primary has granted too; behind a pooler a session may be shared. Nothing is set
on a session that is refused: behind a pooler other clients use it too.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.clock import Clock
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres._pooler import REMEDY, moved, why_not_ours
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import OpenSession, Session

__all__ = ["ReadySession", "SessionSetup"]


@dataclass(frozen=True, slots=True)
class ReadySession:
    """A session that may be used, and what its server reported about itself."""

    session: Session
    pid: int
    read_at: float
    """When its answer was read, on our clock. Not when the request was sent: the answer may have been on its way for
    long, the server would seem to have started earlier than it did, and the quiet period would be too short."""
    started: str
    """When the session began, by the server: a pid is used again."""
    deadlock_s: float = 0.0
    age_s: float = 0.0
    """How long ago the server started, or recovered from a crash, by the server's own clock."""
    run: str = ""
    """Identifies the run of the server: when it changes, all locks of the former run are lost."""


class SessionSetup:
    """Opens sessions for one candidate. ``what`` names the lock or group in errors."""

    def __init__(self, open_session: OpenSession, lease: Lease, clock: Clock, what: str, where: str) -> None:
        self._open_session = open_session
        self._lease = lease
        self._clock = clock
        self.what = what
        self._where = where

    async def set_up(self, bound_s: float, *, with_facts: bool = True) -> ReadySession:
        """Open a session and set it up. Raise ConnectionError with the reason if it cannot be used."""
        session = await self._open(bound_s)
        try:
            return await self._prepare(session, with_facts=with_facts)
        except BaseException:
            await session.close()
            raise

    async def _open(self, bound_s: float) -> Session:
        try:
            async with asyncio.timeout(bound_s):
                return await self._open_session()
        except TimeoutError:
            pass
        # Raised here: as its context, the time-out would keep the driver's frames alive, and the socket in them open.
        raise ConnectionError(
            f"no connection for {self.what} ({self._where}): no answer within {bound_s:g} s",
            cause=LossCause.RENEW_TIMEOUT,
        )

    async def _prepare(self, session: Session, *, with_facts: bool) -> ReadySession:
        if session.facts.version < _sql.OLDEST_VERSION:
            raise ConnectionError(
                f"the server of {self.what} ({self._where}) is older than PostgreSQL 13, which has no "
                "transaction ids that can be tokens: upgrade it",
                answered=True,
            )
        _, pid, is_standby, *facts = await self._set_up(session, session.facts.session_pid, with_facts=with_facts)
        self._refuse_unfit(session, pid, is_standby=is_standby)
        if pid != session.facts.session_pid:  # a pooler, which was allowed: nothing is set yet
            if with_facts:  # a lock's session; its witness comes through the same pooler
                await self._refuse_shared(session, pid)
            _, answered, _, *facts = await self._set_up(session, pid, with_facts=with_facts)
            if answered != pid:
                raise self._unfit_pooler(moved(pid, answered))
        return ReadySession(session, pid, self._clock(), *facts)

    async def _set_up(self, session: Session, pid: int, *, with_facts: bool) -> tuple[Any, ...]:
        """Set the session up if its server process is this one, and return what the server reports about itself."""
        parameters = (pid, str(self._lease.statement_ms))
        statement = _sql.set_up(self._lease, session.facts.version, with_facts=with_facts)
        row = await session.fetch(statement, parameters, bound_s=self._lease.answer_bound_s)
        if row is None:
            raise ConnectionError(f"the server did not introduce itself to {self.what} ({self._where})")
        return row

    async def _refuse_shared(self, session: Session, pid: int) -> None:
        bound_s = self._lease.answer_bound_s
        if (why := await why_not_ours(session, pid, self._open_session, bound_s=bound_s)) is not None:
            raise self._unfit_pooler(why)

    def _unfit_pooler(self, why: str) -> ConnectionError:
        return ConnectionError(
            f"the connection pooler before the server of {self.what} ({self._where}) is not fit for a session lock, "
            f"allow_pooler=True or not: {why}. {REMEDY}",
            answered=True,
        )

    def _refuse_unfit(self, session: Session, pid: int, *, is_standby: bool) -> None:
        if is_standby:
            raise ConnectionError(
                f"the server is a standby, where {self.what} can be held beside the primary's "
                f"({self._where}): connect to the primary, or add target_session_attrs=read-write "
                "to the connection string",
                answered=True,
            )
        if pid != session.facts.session_pid and not self._lease.allow_pooler:
            raise ConnectionError(
                f"a connection pooler stands before the server of {self.what} ({self._where}), and a "
                "session lock does not survive one that shares sessions. If it is in session mode, pass "
                f"allow_pooler=True (--allow-pooler). {REMEDY}",
                answered=True,
            )
