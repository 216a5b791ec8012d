"""What one process saw of a holder, left for the next process of this host.

A process that gives up before the lifetime of a silent holder is over has seen part of that silence. Without a note
the next one begins to count anew, and a job with a short time-out never takes over from a dead holder. So it leaves a
file in the folder: which epoch, which heartbeat, and since when it was seen unchanged.

**No clock of another host is read, and no time of day.** The time is that of the clock which counts since this host
was started, and which all its processes share. It is named with the boot and the offsets of the time namespace that it
belongs to (a namespace's number may be used again); a process of another host or boot, or with other offsets, does not
heed it. The file server's own clock, which could tell across hosts, is a wall clock: set forward between two looks, it
would break the lock of a live holder.

**What follows is as safe as watching all the time**: within an epoch no heartbeat comes again, so one that is the same
at both ends of a time was so all along. Where a file system keeps too few times, heartbeats may begin anew; so the time
of change, which the file server writes, must be the same too.

The file is called as a claim is, which candidates of every version let be, and collect when it is old.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from pgleaderlock._files import place
from pgleaderlock.nfs._claim import is_note
from pgleaderlock.nfs._folder import Seen, remove

__all__ = ["leave", "read", "remove_all"]

_TIME_OFFSETS = Path("/proc/self/timens_offsets")
_LARGEST = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a note is, and whose clock it is about."""

    path: str
    clock: str


def leave(folder: Path, seen: Seen, since: float) -> None:
    """Note since when, on this host's clock, this was seen unchanged. A file server that refuses is let be."""
    where = _place(folder, seen)
    if where is None or read(folder, seen, since) is not None:
        return  # somebody saw it earlier
    text = json.dumps({"name": "", "clock": where.clock, "seen": _facts(seen), "since": since}).encode()
    with contextlib.suppress(OSError):
        remove(where.path)
        number = os.open(where.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        try:
            os.write(number, text)
        finally:
            os.close(number)


def read(folder: Path, seen: Seen, now: float) -> float | None:
    """Return since when this has been as it is, if a process of this host noted it; None when there is no such note."""
    where = _place(folder, seen)
    if where is None:
        return None
    try:
        number = os.open(where.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            note = json.loads(os.read(number, _LARGEST))
        finally:
            os.close(number)
        since = float(note["since"])
        is_about_it = note["clock"] == where.clock and note["seen"] == _facts(seen)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # there is none, or it is still being written
    return since if is_about_it and 0 <= since <= now else None


def remove_all(folder: Path, before_epoch: int) -> None:
    """Remove the notes about epochs that are over. A courtesy, for which nobody loses a lock."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names are enough
            if is_note(name) and int(name.rpartition("|")[2]) < before_epoch:
                remove(f"{folder}/{name}")


def _place(folder: Path, seen: Seen) -> _Place | None:
    boot_id = place.boot_id()
    if boot_id is None:
        return None
    offsets = ""
    with contextlib.suppress(OSError):  # a kernel without time namespaces
        offsets = " ".join(_TIME_OFFSETS.read_text("ascii").split())
    path = f"{folder}/claim|seen|{boot_id}|0|{seen.epoch}"
    return _Place(path, f"{boot_id} {offsets}") if is_note(path.rpartition("/")[2]) else None


def _facts(seen: Seen) -> list[object]:
    return [seen.epoch, *seen.heartbeat, seen.changed_at]
