"""What can be found out about the server's clock, and what cannot.

PostgreSQL measures the silence of a session (``idle_session_timeout``) on the server's wall clock. A step forward ends
the sessions of a leader that is cut off before its lease is over; a step back keeps the lock of a frozen leader longer.
No function of SQL reads another clock of the server. So a step shows only in its traces: times in the server's own
records that have not come yet; a clock that moves otherwise than ours while we look; and, on the server's own host, an
age of its process that differs from what its clock says. That no step will come can be seen from nowhere.
"""

import asyncio
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock.postgres.doctor._findings import Finding, Note, Verdict, together
from pgleaderlock.postgres.doctor._site import Site, shown_s

_WATCH_S = 0.3
_TOLERANCE_S = 1.0  # a step below it is lost in what a busy machine and a coarse timer leave open
_STEP_ADVICE = (
    "let the server's clock be corrected gradually (chrony: makestep only at boot); with takeover='strict' and "
    "term_table=True a step forward lets no second leader in"
)

# The newest of the times that the server has noted before it read its clock.
_CLOCK = """
SELECT extract(epoch FROM greatest(
           pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter),
           (SELECT max(greatest(backend_start, state_change)) FROM pg_stat_activity)) - clock_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8,
       extract(epoch FROM clock_timestamp())::float8
"""


@dataclass(frozen=True, slots=True)
class ClockLook:
    """What was seen of the server's clock. All in seconds, and beyond what the times of the answers leave open."""

    ahead_s: float
    """How far it is ahead of ours."""
    margin_s: float
    """By how much that may be wrong: half the time that the answer took."""
    gained_s: float
    """How much further than ours it moved while it was watched."""
    future_s: float
    """How far in the future the newest time is that the server has noted."""
    stepped_s: float | None
    """How much older the server says it is than its process; None where that cannot be seen."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One answer, and when it was asked for and read on our clocks."""

    server_s: float
    age_s: float
    future_s: float
    asked: float
    answered: float
    asked_wall_s: float
    answered_wall_s: float


async def check_server_clock(site: Site, name: str) -> Finding:
    """Look twice, and compare with our own clocks and with the server's own records."""
    return judge_clock(name, await _look(site))


async def _look(site: Site) -> ClockLook:
    first = await _read(site)
    await asyncio.sleep(_WATCH_S)
    youngest_s = _server_process_age_s(site)
    last = await _read(site)
    oldest_s = _server_process_age_s(site)
    middle_s = (last.asked_wall_s + last.answered_wall_s) / 2
    moved_s = last.server_s - first.server_s
    return ClockLook(
        ahead_s=last.server_s - middle_s,
        margin_s=abs(last.answered_wall_s - last.asked_wall_s) / 2,
        gained_s=_outside(moved_s, last.asked - first.answered, last.answered - first.asked),
        future_s=last.future_s,
        stepped_s=None if youngest_s is None or oldest_s is None else _outside(last.age_s, youngest_s, oldest_s),
    )


def _outside(value: float, least: float, most: float) -> float:
    """Return by how much a value is more than it can be, or, negative, less."""
    return max(0.0, value - most) + min(0.0, value - least)


async def _read(site: Site) -> _Reading:
    asked, asked_wall_s = time.monotonic(), time.time()
    future_s, age_s, server_s = await site.ask(_CLOCK)
    answered_wall_s, answered = time.time(), time.monotonic()
    return _Reading(server_s, age_s, future_s, asked, answered, asked_wall_s, answered_wall_s)


def _server_process_age_s(site: Site) -> float | None:
    """Return how long the server's first process exists, on a clock that nothing steps; None where that is hidden.

    Only through a Unix socket: the kernel says whose it is. It must be the parent of the process that answers us, or it
    is a pooler's, or another container's numbers.
    """
    with socket.socket(fileno=os.dup(site.descriptor)) as ours:
        if ours.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED") or not hasattr(time, "CLOCK_BOOTTIME"):
            return None
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        parent = int(_stat(site.told_pid)[_PARENT])
        started_s = int(_stat(pid)[_STARTED]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s if parent == pid else None


_PARENT, _STARTED = 1, 19  # after the name, which may hold spaces


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()


def judge_clock(name: str, look: ClockLook) -> Finding:
    """Say what the look means for a lease."""
    word = "ahead of" if look.ahead_s >= 0 else "behind"
    apart = f"{shown_s(abs(look.ahead_s))} {word} ours, give or take {shown_s(look.margin_s)}"
    notes = [Note(Verdict.INFO, f"{apart}; no decision compares the two")]
    if abs(look.ahead_s) > look.margin_s + _TOLERANCE_S:
        advice = "synchronise both hosts (chronyc tracking, timedatectl): a correction by a step would shift a lease"
        notes = [Note(Verdict.WARNING, f"{apart}: at least one of them is not synchronised", advice)]
    if look.future_s > _TOLERANCE_S:
        found = f"it was set back: the server has noted times {shown_s(look.future_s)} in its future"
        notes.append(Note(Verdict.WARNING, found, _STEP_ADVICE))
    if abs(look.gained_s) > _WATCH_S / 10:
        found = f"it moved {shown_s(look.gained_s)} more than ours while it was watched for {_WATCH_S:g} s"
        notes.append(Note(Verdict.WARNING, found, _STEP_ADVICE))
    notes.append(_judge_steps(look))
    return together(name, notes)


def _judge_steps(look: ClockLook) -> Note:
    if look.stepped_s is None:
        unknown = "whether it was stepped since the server started cannot be seen from here, nor whether it will be"
        return Note(Verdict.INFO, f"{unknown}: ask on its host (chronyc tracking, timedatectl)")
    if abs(look.stepped_s) > _TOLERANCE_S:
        ways = "forward" if look.stepped_s > 0 else "back"
        found = f"it was stepped {ways} by {shown_s(abs(look.stepped_s))} in all since the server started"
        return Note(Verdict.WARNING, found, _STEP_ADVICE)
    return Note(Verdict.INFO, "not stepped since the server started; whether it will be cannot be seen")
