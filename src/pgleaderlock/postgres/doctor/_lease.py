"""What a lease needs, tested by the doctor as the protocol does it: the end of a silent session, the queue, a token.

No setting shows whether these work. A proxy may keep a silent session alive, and this user may not call a function.
"""

import asyncio
import secrets

from pgleaderlock._base.causes import LossCause
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres._standby import missing_standby
from pgleaderlock.postgres.doctor._findings import Finding, Verdict
from pgleaderlock.postgres.doctor._site import Site
from pgleaderlock.postgres.session import Session, end_of

_TRIAL_SILENCE_S = 0.2
_TRIAL_BOUND_S = 2.0

# Nothing is set where the pid is not the one that we received at the start: other clients use that session too.
_FALL_SILENT = """
SELECT CASE WHEN pg_backend_pid() = %s::int THEN set_config('idle_session_timeout', %s, false) END IS NOT NULL
"""


async def check_enforcement(site: Site, name: str) -> Finding:
    """See whether the server really ends a silent session: everything that bounds a frozen leader rests on it."""
    if not _sql.can_end_silent_sessions(site.version):
        found = "not possible: idle_session_timeout came with PostgreSQL 14"
        return Finding(name, Verdict.WARNING, found, "use PostgreSQL 14 or later")
    session = await site.open_session()
    try:
        return await _try_silence(session, name)
    finally:
        await session.close()


async def _try_silence(session: Session, name: str) -> Finding:
    loop = asyncio.get_running_loop()
    began = loop.time()
    parameters = (session.facts.session_pid, str(round(_TRIAL_SILENCE_S * 1000)))
    row = await session.fetch(_FALL_SILENT, parameters, bound_s=_TRIAL_BOUND_S)
    if row != (True,):
        found = "not tried: behind a pooler the session is not ours alone"
        return Finding(name, Verdict.WARNING, found, "connect to PostgreSQL directly to have it tried")
    try:
        async with asyncio.timeout(_TRIAL_BOUND_S):
            end = await end_of(session)
    except TimeoutError:
        found = (
            f"a session with an idle_session_timeout of {_TRIAL_SILENCE_S:g} s was still alive after "
            f"{_TRIAL_BOUND_S:g} s of silence: a frozen leader would keep the lock"
        )
        return Finding(name, Verdict.PROBLEM, found, "find out what keeps it alive: a proxy, or not PostgreSQL itself")
    silent_s = loop.time() - began
    if end.cause is LossCause.SILENCED:
        found = f"a silent session was ended by the server after {silent_s:.3g} s, as asked ({_TRIAL_SILENCE_S:g} s)"
        return Finding(name, Verdict.OK, found)
    found = f"a silent session ended after {silent_s:.3g} s, but not by its idle_session_timeout: {end}"
    return Finding(name, Verdict.WARNING, found, "find out who ends sessions here: each end is a change of leader")


async def check_line(site: Site, name: str) -> Finding:
    """Stand in a line of our own: it takes the language, the functions and the catching of a time-out."""
    await site.fetch_all(_LINE.format(key=secrets.randbits(63)))  # a key that no lock uses
    return Finding(name, Verdict.OK, "tried: a lock was waited for on the server, granted and released")


# Within one statement, so that nothing stays behind on a session that may be another's next.
_LINE = """
DO $doctor$ BEGIN
    PERFORM set_config('lock_timeout', '100', true);
    IF pg_try_advisory_lock('{key}'::bigint) THEN PERFORM pg_advisory_unlock('{key}'::bigint); END IF;
    PERFORM pg_advisory_lock('{key}'::bigint);
    PERFORM pg_advisory_unlock('{key}'::bigint);
EXCEPTION WHEN lock_not_available THEN
END $doctor$
"""

_NEXT_NUMBER = """
SELECT pg_current_xact_id()::text::bigint, pg_logical_emit_message(true, 'pgleaderlock', '')::text
"""


async def check_token(site: Site, name: str) -> Finding:
    """Draw two tokens: they must grow, and their commits must be answered."""
    if await missing_standby(site.fetch_all):  # and the session would wait on after we are gone
        found = "not tried: its commit would wait for a standby that is not there"
        return Finding(name, Verdict.PROBLEM, found, "see commits")
    first, _ = await site.ask(_NEXT_NUMBER)
    second, _ = await site.ask(_NEXT_NUMBER)
    if second > first:
        return Finding(name, Verdict.OK, f"tried: {first}, then {second}, as they must grow")
    return Finding(name, Verdict.PROBLEM, f"tokens do not grow: {first}, then {second}", "is this PostgreSQL itself?")
