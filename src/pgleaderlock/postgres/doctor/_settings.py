"""What this user's settings do to an election, of those that the doctor can only read.

An election overrides what it can for its own sessions. Left are those that are only a superuser's to change, or that
weaken a promise without making anything fail.
"""

import math

from pgleaderlock.postgres._standby import REMEDY, missing_standby
from pgleaderlock.postgres.doctor._findings import Finding, Note, Verdict, together
from pgleaderlock.postgres.doctor._site import Setting, Site

_USUAL_DEADLOCK_TIMEOUT_S = 1.0
_LIFTED_LIMITS = ("statement_timeout", "lock_timeout", "idle_session_timeout", "transaction_timeout")  # by set_up()


async def check_timeouts(site: Site, name: str) -> Finding:
    """Look at the limits that this user's sessions begin with."""
    limits = await site.settings(*_LIFTED_LIMITS, "idle_in_transaction_session_timeout")
    notes = [_judge_limit(limit) for limit in limits.values() if limit.number > 0]
    return together(name, notes or [Note(Verdict.OK, "none that could end a session of ours")])


def _judge_limit(limit: Setting) -> Note:
    if limit.name in _LIFTED_LIMITS:
        return Note(Verdict.INFO, f"{limit}: our sessions set their own instead")
    return Note(Verdict.INFO, f"{limit}: our sessions are never idle in a transaction")


async def check_commits(site: Site, name: str) -> Finding:
    """A token is only as good as the commit that assigned it."""
    found = await site.settings("synchronous_commit", "synchronous_standby_names", "fsync")
    mode, standbys, fsync = (found.get(n) for n in ("synchronous_commit", "synchronous_standby_names", "fsync"))
    notes: list[Note] = []
    if fsync is not None and not fsync.number:
        advice = "switch it on: after a crash of the host a token may be given out again"
        notes.append(Note(Verdict.WARNING, str(fsync), advice))
    if mode is not None and mode.shown == "off":
        notes.append(Note(Verdict.INFO, f"{mode}: our sessions raise it to local, so that tokens survive a crash"))
    elif standbys is not None and standbys.shown and mode is not None and mode.shown != "local":
        missing = await missing_standby(site.fetch_all)
        waits = (
            f"{mode} with {standbys}: a grant waits for a standby, so while none is connected no new leader is elected"
        )
        notes.append(Note(Verdict.PROBLEM, missing, REMEDY) if missing else Note(Verdict.INFO, waits))
    return together(name, notes or [Note(Verdict.OK, "a token reaches the disk before it is used")])


async def _slice(site: Site) -> tuple[float, Setting | None]:
    """Return how long one wait slice in the queue lasts here, as an election chooses it, and what it depends on."""
    deadlock = (await site.settings("deadlock_timeout")).get("deadlock_timeout")
    return site.lease.slice_for(deadlock.number if deadlock else _USUAL_DEADLOCK_TIMEOUT_S), deadlock


async def check_log(site: Site, name: str) -> Finding:
    """A follower's slice is one long statement after another: a log that shows long statements shows them all."""
    slice_s, deadlock = await _slice(site)
    limits = await site.settings("log_min_duration_statement", "log_min_duration_sample")
    switches = await site.settings("log_statement", "log_duration", "log_lock_waits")
    slice_words = f"the wait slice of {slice_s:g} s in the queue"
    notes = [
        Note(
            Verdict.WARNING,
            f"{limit} is not above {slice_words}: every slice of every follower is logged",
            f"as a superuser, `ALTER ROLE {site.user} SET {limit.name} = '{math.ceil(slice_s * 1000) + 1}ms'` or more; "
            "or pass a smaller slice_s, or wake='poll'",
        )
        for limit in limits.values()
        if 0 <= limit.number <= slice_s
    ]
    for switch in switches.values():
        if (switch.name, switch.shown) in {("log_statement", "all"), ("log_duration", "on")}:
            advice = f"as a superuser, `ALTER ROLE {site.user} RESET {switch.name}`, or SET it to less"
            notes.append(Note(Verdict.WARNING, f"{switch}: every slice of every follower is logged", advice))
        elif switch.name == "log_lock_waits" and switch.number:
            notes.append(_judge_lock_waits(switch, slice_s, deadlock))
    return together(name, notes or [Note(Verdict.OK, f"{slice_words} leaves no line in it ({deadlock})")])


def _judge_lock_waits(switch: Setting, slice_s: float, deadlock: Setting | None) -> Note:
    if deadlock is None or slice_s < deadlock.number:
        return Note(Verdict.INFO, f"{switch}: not for us, a slice of {slice_s:g} s ends before {deadlock}")
    found = f"{switch}, and {deadlock} is not above the slice of {slice_s:g} s: every slice of every follower is logged"
    return Note(Verdict.WARNING, found, "raise deadlock_timeout to 60 ms or more, or pass a smaller slice_s")
