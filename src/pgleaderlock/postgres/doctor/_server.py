"""What the doctor is connected to: which database, which server in which role, and who stands in between.

These come first, because a wrong answer here explains most of what the later checks find.
"""

from datetime import timedelta

from pgleaderlock.postgres import _dsn, _sql
from pgleaderlock.postgres._pooler import REMEDY, why_not_ours
from pgleaderlock.postgres.doctor._findings import Finding, Verdict
from pgleaderlock.postgres.doctor._site import Site

_SHARING_BOUND_S = 2.0
_XACT_ID_SINCE = 130000
_PRIMARY_ADVICE = "connect to the primary, or name all hosts in the DSN: an election asks for the primary among them"


async def check_database(site: Site, name: str) -> Finding:
    """Check whether the database is named explicitly: advisory locks are per database."""
    (database,) = await site.ask("SELECT current_database()::text")
    if _dsn.names_database(site.parts):
        return Finding(name, Verdict.OK, database)
    found = f"{database}, after the user's name: nothing else names one"
    advice = "name it in the DSN: advisory locks are per database, so candidates in two databases elect two leaders"
    return Finding(name, Verdict.WARNING, found, advice)


async def check_version(site: Site, name: str) -> Finding:
    """See what this server lacks."""
    shown = f"PostgreSQL {site.connection.info.parameter_status('server_version') or site.version}"
    return _judge_version(name, site.version, shown)


def _judge_version(name: str, version: int, shown: str) -> Finding:
    if version < _XACT_ID_SINCE:
        return Finding(name, Verdict.PROBLEM, f"{shown} has no pg_current_xact_id()", "use PostgreSQL 14 or later")
    if not _sql.can_end_silent_sessions(version):
        found = f"{shown} cannot end a silent session: a frozen leader keeps the lock until it thaws"
        advice = "use PostgreSQL 14 or later; until then only TCP keepalives tell the server of a dead host"
        return Finding(name, Verdict.WARNING, found, advice)
    return Finding(name, Verdict.OK, shown)


async def check_role(site: Site, name: str) -> Finding:
    """Check whether it is the primary: a lock on a standby does not exclude candidates on the primary."""
    (is_standby,) = await site.ask("SELECT pg_is_in_recovery()")
    if is_standby:
        found = "a standby, where a lock can be held beside the primary's"
        return Finding(name, Verdict.PROBLEM, found, _PRIMARY_ADVICE)
    return Finding(name, Verdict.OK, "a primary")


async def check_pooler(site: Site, name: str) -> Finding:
    """Compare the process id received at the start with the one that answers; test whether a pooler shares it."""
    (pid,) = await site.ask("SELECT pg_backend_pid()")
    if pid == site.told_pid:
        return Finding(name, Verdict.OK, f"none: connected to the server's own process {pid}")
    found = f"a connection pooler stands in between: it said process {site.told_pid}, the server says {pid}"
    if (why := await _try_sharing(site)) is not None:
        return Finding(name, Verdict.PROBLEM, f"{found}; {why}", REMEDY)
    found = f"{found}; tried: it leaves our server process to us, as in session mode"
    if site.lease.allow_pooler:
        return Finding(name, Verdict.INFO, found)
    advice = "connect to PostgreSQL directly, or pass allow_pooler=True (here --allow-pooler)"
    return Finding(name, Verdict.PROBLEM, found, advice)


async def _try_sharing(site: Site) -> str | None:
    """On sessions of its own: a session whose answer is overdue is closed, and the checks to come need theirs."""
    session = await site.open_session()
    try:
        row = await session.fetch("SELECT pg_backend_pid()", bound_s=_SHARING_BOUND_S)
        pid = 0 if row is None else row[0]
        return await why_not_ours(session, pid, site.open_session, bound_s=_SHARING_BOUND_S)
    finally:
        await session.close()


async def check_read_only(site: Site, name: str) -> Finding:
    """See whether sessions may write, and whether libpq would let an election have them."""
    (is_standby,) = await site.ask("SELECT pg_is_in_recovery()")
    if is_standby:
        return Finding(name, Verdict.INFO, "as all of a standby: see server role")
    if site.refusal is not None:
        found = f"libpq turns this server down because of target_session_attrs: {site.refusal}"
        advice = "take target_session_attrs out of the DSN and the environment: an election asks for the primary itself"
        return Finding(name, Verdict.PROBLEM, found, advice)
    setting = (await site.settings("default_transaction_read_only"))["default_transaction_read_only"]
    if setting.number:
        return Finding(name, Verdict.INFO, f"{setting}: our sessions switch it off for themselves")
    return Finding(name, Verdict.OK, "sessions may write")


# What a candidate reads when it opens a session, and what a follower and people read to name the holder.
_STATISTICS = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid()), (SELECT count(*) FROM pg_locks),
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float,
       (SELECT extract(epoch FROM clock_timestamp() - stats_reset)::float FROM pg_stat_bgwriter)
"""


async def check_statistics(site: Site, name: str) -> Finding:
    """See whether this user may read what a candidate reads, and how old the server says it is."""
    _, _, started_s, reset_s = await site.ask(_STATISTICS)
    return _judge_statistics(name, started_s, reset_s, site.lease.lease_s)


def _judge_statistics(name: str, started_s: float, reset_s: float | None, lease_s: float) -> Finding:
    """Check for a later reset: by a crash recovery or by pg_stat_reset_shared('bgwriter'), which look the same."""
    found = f"readable; the server started {_long(started_s)} ago"
    if reset_s is None or reset_s >= started_s - _START_TAKES_S:
        return Finding(name, Verdict.OK, found)
    found += (
        f", and its statistics were reset {_long(reset_s)} ago, by a crash recovery or by "
        "pg_stat_reset_shared('bgwriter'): either counts as a restart, after which no one leads for one lease"
    )
    if reset_s >= lease_s:
        return Finding(name, Verdict.INFO, found)
    return Finding(name, Verdict.INFO, found, "do not reset the statistics of bgwriter while leadership matters")


_START_TAKES_S = 60.0  # a fresh server resets its statistics when it has recovered, a moment after its start
_TWO_MINUTES_S = 120.0


def _long(seconds: float) -> str:
    return f"{seconds:.3g} s" if abs(seconds) < _TWO_MINUTES_S else str(timedelta(seconds=round(seconds)))
