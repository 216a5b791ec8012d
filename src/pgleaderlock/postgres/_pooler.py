"""Find out whether a connection pooler gives each client a server session of its own, which session locks need.

A pooler in transaction or statement mode lends a server process for the duration of a transaction: a lock that one
statement takes belongs to whichever client is lent that process next. Its mode is a setting that clients cannot read,
and on a quiet pooler every statement happens to reach the same process. So a second client is made busy: while it is
inside a transaction, a pooler that shares must lend it our process, or lend us another one.

With other clients present, one test can miss it: they may have our process just when the second client begins. So the
test is repeated, each time with a new second client, because several poolers may listen on one port.
"""

import asyncio

from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres.session import OpenSession, Session

CONNECT = "Set pool_mode=session for this database or user in the pooler, or connect to PostgreSQL directly"
REMEDY = f"{CONNECT}, or elect on lease rows (postgresql+lease://), which work behind any pooler"
"""What to do about a pooler that shares sessions."""

_LOOKS = 5
_NO_BOUND_S = 3600.0  # for one statement: the bound of all tests together ends it
_SHARES = "it shares server sessions between clients (transaction or statement mode)"
_OWN_PID = "SELECT pg_catalog.pg_backend_pid()"
_BEGIN = "BEGIN; SELECT pg_catalog.pg_backend_pid()"


async def why_not_ours(session: Session, pid: int, open_session: OpenSession, *, bound_s: float) -> str | None:
    """Return the evidence that the server process ``pid`` is shared with other clients; None if there is none.

    Nothing is set, locked or left open. After a reason was returned the session is to be closed.
    """
    try:
        async with asyncio.timeout(bound_s):
            for _ in range(_LOOKS):
                reason = await _look(session, pid, open_session)
                if reason is not None:
                    return reason
    except TimeoutError:
        return (
            f"no answer within {bound_s:.3g} s to a transaction of a second client beside this one, so it cannot be "
            "told whether sessions are shared: the pool has no room for both (default_pool_size, max_db_connections)"
        )
    except ConnectionError as error:
        return (
            "a transaction of a second client failed, so it cannot be told whether sessions are shared (a pooler in "
            f"statement mode refuses every transaction): {error}"
        )
    return None


async def refuse_pooler(session: Session, open_session: OpenSession, what: str, *, allow: bool, bound_s: float) -> None:
    """Raise ConnectionError for a session behind a pooler, unless it is allowed and the session seems to be ours."""
    if not allow:
        raise ConnectionError(
            f"a connection pooler stands before the server of {what}, which needs a session of its own. If it is in "
            f"session mode, pass allow_pooler=True (--allow-pooler). {CONNECT}",
            answered=True,
        )
    pid = await _pid_of(session, _OWN_PID)
    if (why := await why_not_ours(session, pid, open_session, bound_s=bound_s)) is not None:
        raise ConnectionError(
            f"the connection pooler before the server of {what} is not fit for it, allow_pooler=True or not: {why}. "
            f"{CONNECT}",
            answered=True,
        )


async def _look(session: Session, pid: int, open_session: OpenSession) -> str | None:
    rival = await open_session()
    try:
        if (lent := await _pid_of(rival, _BEGIN)) == pid:
            return f"{_SHARES}: a second client was lent server process {lent}, which was ours"
        if (other := await _pid_of(session, _OWN_PID)) != pid:
            return moved(pid, other)
        await rival.fetch("ROLLBACK", bound_s=_NO_BOUND_S)
    finally:
        await rival.close()
    # The process that the second client gave back is now the one that many poolers lend next.
    if (other := await _pid_of(session, _OWN_PID)) != pid:
        return moved(pid, other)
    return None


def moved(pid: int, other: int) -> str:
    """Return the text of the reason: statements of one client were answered by two server processes."""
    return f"{_SHARES}: our statements went to server process {pid}, then to {other}"


async def _pid_of(session: Session, statement: str) -> int:
    row = await session.fetch(statement, bound_s=_NO_BOUND_S)
    return 0 if row is None else int(row[0])  # no process has the id 0
