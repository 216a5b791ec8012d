"""Check from outside whether a database and a user are fit for the protocol, before an election depends on them.

An election says what is wrong when it fails, which is too late to choose another database. Here every condition is
tried in advance, by the very means that the protocol uses: what can be tried is never taken from a setting.

Nothing is left behind. No lock is held past its statement, and no setting is changed on a session that a pooler may
hand to others. What it costs the server: two connections for less than a second, a transaction id or two, and as many
messages in its log of changes.

Each check is a function that returns a :class:`Finding`. One that fails does not take the others with it, and one that
gets no answer ends them all, because a session whose answer is overdue is closed. So the whole is bounded in time,
whatever the server does.

For people; no election decides by it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._advice import advice_for
from pgleaderlock.postgres.doctor import _server
from pgleaderlock.postgres.doctor._clock import check_server_clock
from pgleaderlock.postgres.doctor._findings import Finding, Verdict
from pgleaderlock.postgres.doctor._lease import check_enforcement, check_line, check_token
from pgleaderlock.postgres.doctor._lock import check_lock, check_term_table
from pgleaderlock.postgres.doctor._network import check_keepalives, check_own_clock, check_round_trip
from pgleaderlock.postgres.doctor._room import check_connections, check_lock_table
from pgleaderlock.postgres.doctor._settings import check_commits, check_log, check_timeouts
from pgleaderlock.postgres.doctor._site import Site, open_site, told
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease

__all__ = ["CHECKS", "Check", "Examination", "Finding", "Verdict", "examine"]

_CHECK_BOUND_S = 5.0
_ALL_BOUND_S = 60.0


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings about one database, for one user."""

    where: str
    findings: tuple[Finding, ...]

    @property
    def is_fit(self) -> bool:
        """Whether an election can rely on this database. Warnings do not forbid it."""
        return all(finding.verdict is not Verdict.PROBLEM for finding in self.findings)


async def examine(
    dsn: str,
    key: LockKey | None,
    lease_s: float,
    *,
    allow_pooler: bool = False,
    schema: str = DEFAULT_SCHEMA,
    schema_owner: str | None = None,
) -> Examination:
    """Run every check. ConnectionError when the database cannot be reached at all."""
    lease = Lease(lease_s, allow_pooler=allow_pooler, schema=schema, schema_owner=schema_owner)
    site = await open_site(dsn, lease, key)
    try:
        return Examination(_dsn.describe(site.parts), tuple(await _run_all(CHECKS, site)))
    finally:
        await site.connection.close()


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and how serious it is when the database answers it with an error."""

    name: str
    look: Callable[[Site, str], Awaitable[Finding]]
    on_error: Verdict = Verdict.WARNING
    mend: str = "give this user what the message names, and ask again"


async def _run_all(checks: Sequence[Check], site: Site) -> list[Finding]:
    findings: list[Finding] = []
    ends_at = asyncio.get_running_loop().time() + _ALL_BOUND_S
    for number, check in enumerate(checks, 1):
        findings.append(await _run(check, site, ends_at))
        if site.connection.closed and number < len(checks):
            names = ", ".join(left.name for left in checks[number:])
            findings.append(
                Finding(
                    "the rest", Verdict.WARNING, f"not checked: {names}", "mend what the line above says, and ask again"
                )
            )
            break
    return findings


async def _run(check: Check, site: Site, ends_at: float) -> Finding:
    bound_s = max(0.0, min(_CHECK_BOUND_S, ends_at - asyncio.get_running_loop().time()))
    try:
        async with asyncio.timeout(bound_s):
            return await check.look(site, check.name)
    except TimeoutError:
        found = f"no answer within {bound_s:.3g} s"
        advice = "see whether the server is overloaded or frozen, or the network swallows answers"
        return Finding(check.name, Verdict.PROBLEM, found, advice)
    except (ConnectionError, ValueError) as error:  # ValueError: a name that is not in its encoding
        reason = told(error, site.parts)
        if site.connection.closed:
            return Finding(check.name, Verdict.PROBLEM, f"the session ended: {reason}", "see the server's log")
        outcome = "failed" if check.on_error is Verdict.PROBLEM else "cannot tell"
        advice = advice_for(error, site.connection.user) or check.mend
        return Finding(check.name, check.on_error, f"{outcome}: {reason}", advice)


CHECKS = (
    Check("database", _server.check_database),
    Check("server version", _server.check_version),
    Check("server role", _server.check_role),
    Check("pooler", _server.check_pooler),
    Check("read-only", _server.check_read_only),
    Check("lease enforcement", check_enforcement, mend="make room for a second connection, and ask again"),
    Check("queue", check_line, Verdict.PROBLEM, "GRANT this user what the message names"),
    Check("commits", check_commits),  # before the token, which waits for one
    Check(
        "token", check_token, Verdict.PROBLEM, "GRANT this user what the message names; on a standby, see server role"
    ),
    Check("statistics", _server.check_statistics, Verdict.PROBLEM),
    Check("connections", check_connections),
    Check("lock table", check_lock_table),
    Check("time-outs", check_timeouts),
    Check("server log", check_log),
    Check("round trip", check_round_trip),
    Check("TCP keepalives", check_keepalives),
    Check("server clock", check_server_clock),
    Check("our clock", check_own_clock),
    Check("term table", check_term_table),
    Check("lock", check_lock),
)
"""All of them, in the order in which they are shown."""
