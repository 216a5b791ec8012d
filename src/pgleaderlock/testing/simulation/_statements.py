"""What the protocol's statements ask of a server, read from their text.

The model is asked with the very SQL that PostgreSQL is asked with, and does what the text says: a statement that no
longer sets the idle time-out does not bring the session under the lease here either. What cannot be read is an error
of the model, never ignored: a change of a statement must be repeated here, and in the test that compares both.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

__all__ = ["Ask", "read"]

_REHEARSED = re.compile(r"PERFORM [^;]* WHERE false;")
_REHEARSAL = re.compile(
    r"\s*DO \$rehearsal\$ BEGIN\s*EXCEPTION WHEN lock_not_available THEN NULL; END \$rehearsal\$;\s*SELECT 1\s*"
)
_PING = re.compile(r"(?:RESET application_name; )?SELECT 1(?:, set_config\('application_name', '[^']*', false\))?")
_KEY = r"('-?\d+'::\w+(?:, '-?\d+'::\w+)?)"
_TRY = re.compile(rf"pg_try_advisory_lock\({_KEY}\)")
_LIMIT = r"set_config\('idle_session_timeout', '(\d+)', false\)"
_TRY_FOR = re.compile(rf"pg_try_advisory_lock\({_KEY}\) THEN (?:ARRAY\[)?'([\w ]+)'(?:, {_LIMIT})?")
_GRANTED = re.compile(r"set_config\('pgleaderlock.granted', '([\w ]+)', false\)")
_FIRST = re.compile(
    rf"\s*(?:(UNLISTEN) \*;|SELECT pg_advisory_unlock\({_KEY}\);|"
    rf"BEGIN; SELECT set_config\('synchronous_commit', 'off', true\), (?:pg_advisory_unlock\({_KEY}\), )?"
    rf"pg_notify\('(\w+)', ''\);\s*COMMIT;)"
)
_WAIT = re.compile(rf"pg_advisory_lock\({_KEY}\)")
_UNLOCK = re.compile(rf"pg_advisory_unlock\({_KEY}\)")
_IDLE_MS = re.compile(_LIMIT)
_SLICE_MS = re.compile(r"set_config\('lock_timeout', '(\d+)', true\)")
_NOTIFY = re.compile(r"SELECT pg_notify\('(\w+)', ''\)")
_LISTEN = re.compile(r'LISTEN "(\w+)"')
_LOCAL = re.compile(r"set_config\('synchronous_commit', '(?:local|off)', (false|true)\)")
_CLAIM = re.compile(r"VALUES \('([^']+)', [^,]+, pg_current_xact_id\(\)::text::bigint, ([\d.e+-]+),")
_READ_TERM = re.compile(r"AS t ON t.lock = '([^']+)'")
_MARK = re.compile(r"UPDATE \S+ SET released_at .*?WHERE lock = '([^']+)' AND token = (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ask:
    """One statement, as far as the model understands it."""

    verb: str
    key: str = ""
    idle_ms: int | None = None
    """The new idle time-out of the session; None: unchanged."""
    wait_ms: int = 0
    granted: str = ""
    """The answer of a session that acquires the lock."""
    otherwise: "Ask | None" = None
    """The try for another lock, if the session does not get the first."""
    announces: bool = False
    """Whether a wait slice that is granted the lock announces that at once."""
    draws_token: bool = False
    """Whether a wait slice that is granted the lock draws a token, and answers it too."""
    looks_for_race: bool = False
    """Whether a wait slice that times out looks whether it was granted the lock nevertheless."""
    is_flushed: bool = False
    """Whether the transaction that assigns a token reaches the disk before it is answered."""
    commits_locally: bool | None = None
    """Whether from here on commits do not wait for a standby: for the session (True), or for this statement (False)."""
    frees_all: bool = False
    with_facts: bool = False
    counts_recovery: bool = False
    """Whether the server's age is asked for in a way that counts from the last crash recovery."""
    lock: str = ""
    lease_s: float = 0.0
    marks: tuple[str, int] | None = None
    """The term that is marked as released cleanly."""
    first: "tuple[Ask, ...]" = ()
    """What the same message asks for before this."""


@lru_cache(maxsize=4096)
def read(statement: str) -> Ask:
    """Return what the statement asks for; LookupError if the model does not know it."""
    first, statement = _read_first(_REHEARSED.sub("", statement))
    for reader in (_read_nomination, _read_simple, _read_lock, _read_terms, _read_group):
        ask = reader(statement)
        if ask is not None:
            local = _LOCAL.search(statement)
            return replace(ask, first=first, commits_locally=local[1] == "false" if local else None)
    raise LookupError(f"the modelled PostgreSQL does not know this statement, teach it: {statement}")


def _read_first(statement: str) -> tuple[tuple[Ask, ...], str]:
    """Return what the statements before the last one ask for, and the last one."""
    first: list[Ask] = []
    while found := _FIRST.match(statement):
        statement = statement[found.end() :]
        unlisten, unlocked, left, channel = found.groups()
        if unlisten:
            first.append(Ask("unlisten"))
        elif unlocked or left:
            first.append(Ask("unlock", unlocked or left))
        if channel:
            first.append(Ask("notify", channel))
    return tuple(first), statement


def _read_simple(statement: str) -> Ask | None:
    if _PING.fullmatch(statement.strip()) or _REHEARSAL.fullmatch(statement):
        return Ask("ping")
    if "pg_backend_pid() = %s::int" in statement:
        return Ask(
            "set_up",
            idle_ms=_idle_ms(statement),
            with_facts="deadlock_timeout" in statement,
            counts_recovery="stats_reset" in statement,
        )
    if "pg_terminate_backend(pid)" in statement and "extract(epoch FROM backend_start)::text = %s" in statement:
        return Ask("end_backend")
    if "wait_event = 'SyncRep'" in statement:
        return Ask("stuck_holders")
    if "FROM pg_locks AS l" in statement and "unnest" not in statement:
        return Ask("holder")
    return None


def _read_nomination(statement: str) -> Ask | None:
    if statement.strip().startswith("SELECT set_config('idle_session_timeout'"):
        return Ask("end_lease", idle_ms=_idle_ms(statement))
    if "SELECT min(l.pid) FROM pg_locks AS l" in statement:
        return Ask("holder_and_own_name")
    if "array_agg(DISTINCT a.application_name)" in statement:
        return Ask("session_names")
    if "AS k (i, a, b, c)" in statement and "l.granted::text" in statement:
        return Ask("sessions_at")
    if "pg_notify(%s, %s)" in statement:
        return Ask("notify_of_nominee")
    return None


def _read_group(statement: str) -> Ask | None:
    if "unnest(%s::int[], %s::bigint[]) AS k (i, n)" in statement:
        verb = "try_all" if "pg_try_advisory_lock(n)" in statement else "unlock_all"
        return Ask(verb, idle_ms=_idle_ms(statement), frees_all="pg_advisory_unlock_all()" in statement)
    if statement.startswith("SELECT pg_current_xact_id()"):
        return Ask("token", is_flushed=_is_flushed(statement))
    if found := _NOTIFY.fullmatch(statement) or _LISTEN.fullmatch(statement):
        return Ask("notify" if "notify" in statement else "listen", found[1])
    if "max_locks_per_transaction" in statement:
        return Ask("capacity")
    return None


def _read_lock(statement: str) -> Ask | None:
    if found := _WAIT.search(statement):
        wait, granted, second = _SLICE_MS.search(statement), _GRANTED.search(statement), _TRY_FOR.search(statement)
        return Ask(
            "wait",
            found[1],
            _idle_ms(statement),
            int(wait[1]) if wait else 0,
            granted[1] if granted else "",
            _try_for(*second.groups()) if second else None,
            announces="RAISE INFO" in statement,
            draws_token="pg_current_xact_id()" in statement,
            looks_for_race="FROM pg_locks" in statement,
            is_flushed=_is_flushed(statement),
        )
    if tried := _TRY_FOR.findall(statement):
        otherwise = _try_for(*tried[1]) if len(tried) > 1 else None
        return replace(_try_for(*tried[0]), otherwise=otherwise)
    if found := _TRY.search(statement):
        return Ask("try_one", found[1], _idle_ms(statement))
    if found := _UNLOCK.search(statement):
        mark = _MARK.search(statement)
        marks = (mark[1], int(mark[2])) if mark else None
        frees_all = "pg_advisory_unlock_all()" in statement
        return Ask("unlock", found[1], _idle_ms(statement), frees_all=frees_all, marks=marks)
    return None


def _try_for(key: str, granted: str, idle_ms: str | None) -> Ask:
    return Ask("try", key, int(idle_ms) if idle_ms else None, granted=granted)


def _read_terms(statement: str) -> Ask | None:
    if "DO $note$" in statement:
        return Ask("make_table")
    if "has_schema_privilege" in statement:
        return Ask("look_for_table")
    if "pg_control_system()" in statement:
        return Ask("look_for_run")
    if "t.released_at IS NOT NULL, here.timeline" in statement:
        found = _READ_TERM.search(statement)
        return Ask("read_term", lock=found[1] if found else "")
    if "DO $claim$" in statement and (found := _CLAIM.search(statement)):
        return Ask("claim", lock=found[1], lease_s=float(found[2]))
    return None


def _is_flushed(statement: str) -> bool:
    return "pg_logical_emit_message(true" in statement


def _idle_ms(statement: str) -> int | None:
    found = _IDLE_MS.search(statement)
    return int(found[1]) if found else None
