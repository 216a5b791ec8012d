"""Which process of a container set the label, in a text that no later process of it has: its id and its start."""

import os
from pathlib import Path

_STATE, _STARTED = 0, 19  # in /proc/PID/stat, after the name, which may hold spaces
_DEAD = ("Z", "X")


def this_process() -> str:
    """Return the text of this process."""
    pid = os.getpid()
    return f"{pid}-{_started(pid) or 'unknown'}"


def lives(process: str) -> bool:
    """Return whether that process runs, in this container. False where /proc does not show it."""
    pid, _, started = process.partition("-")
    return pid.isascii() and pid.isdecimal() and _started(int(pid)) == started


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks since the start of the machine; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        return None if fields[_STATE] in _DEAD else fields[_STARTED]
    except (OSError, IndexError):
        return None
