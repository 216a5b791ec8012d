"""Notes: what one process observed of a holder, stored for the next process of this host.

A process whose time-out ends before the lifetime of a silent holder is over has observed part of that silence. Without
a note the next process would count from zero, and a job with a short time-out would never take over from a dead holder.
So it writes a file into the folder: the epoch, the heartbeat, and since when it was seen unchanged.

**No clock of another host is read, and no time of day.** The time is that of the clock which counts from the start of
this host, and which all its processes share. The note names the boot and the offsets of the time namespace of that
clock (a namespace's number may be used again); a process of another host or boot, or with other offsets, ignores the
note. The file server's own clock would be valid across hosts, but is a wall clock: if it were set forward between two
looks, the lock of a live holder would be broken.

**A note is as safe as watching all the time**: within an epoch no heartbeat value is repeated, so one that is the same
at the beginning and at the end of an interval did not change in between. Where a file system stores too few distinct
times, heartbeats may start over; so the time of change, which the file server writes, must be the same too.

The file is named like a claim, because candidates of every version ignore claims, and remove old ones.
"""

import contextlib
import json
import os
from pathlib import Path

from pgleaderlock.stores import place
from pgleaderlock.stores.nfs._claim import is_note
from pgleaderlock.stores.nfs._folder import Seen, opened, remove

_TIME_OFFSETS = Path("/proc/self/timens_offsets")
_LARGEST = 4096


def leave(folder: Path, seen: Seen, since: float) -> None:
    """Write a note since when, on this host's clock, this was seen unchanged. A refusal by the server is ignored."""
    path, clock = _place(folder, seen)
    if path is None or read(folder, seen, since) is not None:
        return  # another process saw it earlier
    text = json.dumps({"name": "", "clock": clock, "seen": _facts(seen), "since": since}).encode()
    with contextlib.suppress(OSError):
        remove(path)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        try:
            os.write(number, text)
        finally:
            os.close(number)


def read(folder: Path, seen: Seen, now: float) -> float | None:
    """Return since when this has been unchanged, if a process of this host noted it; None without such a note."""
    path, clock = _place(folder, seen)
    if path is None:
        return None
    try:
        with opened(path) as number:
            note = json.loads(os.read(number, _LARGEST))
        since = float(note["since"])
        is_about_it = note["clock"] == clock and note["seen"] == _facts(seen)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # there is no note, or it is still being written
    return since if is_about_it and 0 <= since <= now else None


def remove_all(folder: Path, before_epoch: int) -> None:
    """Remove the notes about epochs that are over. This is optional work: an error in it must not cost the lock."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names are enough
            if is_note(name) and int(name.rpartition("|")[2]) < before_epoch:
                remove(f"{folder}/{name}")


def _place(folder: Path, seen: Seen) -> tuple[str | None, str]:
    """Return the path of the note, None if there can be none; and the clock that its time belongs to."""
    boot_id = place.boot_id()
    offsets = ""
    with contextlib.suppress(OSError):  # a kernel without time namespaces
        offsets = " ".join(_TIME_OFFSETS.read_text("ascii").split())
    path = f"{folder}/claim|seen|{boot_id}|0|{seen.epoch}"
    return path if boot_id is not None and is_note(path.rpartition("/")[2]) else None, f"{boot_id} {offsets}"


def _facts(seen: Seen) -> list[object]:
    return [seen.epoch, *seen.heartbeat, seen.changed_at]
