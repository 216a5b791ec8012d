"""The door to a server: a session is put in order, or refused with the reason.

A standby grants a lock beside the primary's; behind a pooler a session is not one's own. Nothing is set on a session
that is refused: behind a pooler it is other people's too.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from pgleaderlock.backends import _sql
from pgleaderlock.backends._pooler import REMEDY, moved, why_not_ours
from pgleaderlock.backends.lease import Lease
from pgleaderlock.backends.session import OpenSession, Session
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock
from pgleaderlock.errors import ConnectionError

__all__ = ["Admission", "Admitted"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A session that may be used, and what its server said of itself."""

    session: Session
    pid: int
    read_at: float
    """When its answer was read, on our clock. Not when it was asked: the answer may have been on its way for long, and
    a server that is thought to have started earlier than it did is waited for too little."""
    started: str
    """When the session began, by the server: a pid is used again."""
    deadlock_s: float = 0.0
    age_s: float = 0.0
    """How long ago the server started, or recovered from a crash, by the server's own clock."""
    run: str = ""
    """Which run of the server this is: another one has forgotten all locks of this one."""


class Admission:
    """Opens sessions for one contender. ``what`` names, in errors, what they are for."""

    def __init__(self, open_session: OpenSession, lease: Lease, clock: Clock, what: str, where: str) -> None:
        self._open_session = open_session
        self._lease = lease
        self._clock = clock
        self.what = what
        self._where = where

    async def admit(self, bound_s: float, *, with_facts: bool = True) -> Admitted:
        """Open a session and put it in order; ConnectionError says why not."""
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

    async def _prepare(self, session: Session, *, with_facts: bool) -> Admitted:
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
        return Admitted(session, pid, self._clock(), *facts)

    async def _set_up(self, session: Session, pid: int, *, with_facts: bool) -> tuple[Any, ...]:
        """Put the session in order if its server process is this one, and return what it says of itself."""
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
                "session lock does not survive one that shares sessions: connect to PostgreSQL directly. If it is "
                "in session mode, pass allow_pooler=True (--allow-pooler)",
                answered=True,
            )
