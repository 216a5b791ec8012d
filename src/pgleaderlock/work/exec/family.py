"""All descendants of a process: asked to end, killed, and known to be dead for certain.

Standard library only: the guardian is started without the rest of this package.

**No process outruns a subreaper.** A process can leave its group, its session and its parents; but when its parents die
it becomes the subreaper's own child. So a subreaper that kills its own children, again and again, reaches all its
descendants, and the kernel says when it is done: a process without children has no descendants. A child's pid is not
reused until the child is reaped, which only its parent can do. Walking the whole of /proc instead would be too slow for
a process that forks and exits every few milliseconds, and a walk that finds no process proves nothing.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "Member",
    "become_subreaper",
    "children",
    "descendants",
    "die_with_parent",
    "kill_children",
    "reap_children",
    "send",
]

_PROC = "/proc"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Member(NamedTuple):
    """One process, as /proc showed it."""

    pid: int
    parent: int
    group: int
    started: int
    """In clock ticks since boot: with the pid, it identifies a process for ever."""
    is_dead: bool


def become_subreaper() -> bool:
    """Let orphans among our descendants become our own children. Return False where the system cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, where the system can."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:  # not Linux
        return False


# --- Our own children -------------------------------------------------------------------------------------------------


def children() -> set[int]:
    """Return our own children, dead ones included. One that comes or goes meanwhile may be missing."""
    found: set[int] = set()
    for thread in _names(f"{_PROC}/self/task"):
        with contextlib.suppress(OSError), open(f"{_PROC}/self/task/{thread}/children", "rb") as file:  # noqa: PTH123
            found.update(map(int, file.read().split()))
    return found


def kill_children(spare: Iterable[int] = ()) -> int:
    """Send SIGKILL to each of our children except ``spare``. Return how many of them we may not kill."""
    untouchable = 0
    for pid in children().difference(spare):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            untouchable += 1
    return untouchable


def reap_children() -> bool:
    """Reap every dead child of this process. Return whether it has no other child: the kernel's answer, so certain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


# --- All descendants --------------------------------------------------------------------------------------------------


def descendants(root: int) -> list[Member]:
    """Return the descendants that /proc shows, parents before their children, zombies included."""
    below: dict[int, list[Member]] = {}
    for name in _names(_PROC):
        member = _look_at(int(name))
        if member is not None:
            below.setdefault(member.parent, []).append(member)
    found = below.pop(root, [])
    for member in found:  # the list grows during this loop
        found += below.pop(member.pid, ())
    return found


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 - pathlib is slow to import
    except OSError:
        return []


def _look_at(pid: int) -> Member | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            text = file.read()
    except OSError:
        return None  # it is gone
    fields = text[text.rindex(b")") + 2 :].split()  # a process chooses its name, which may contain brackets
    # A zombie that still has threads is a process whose first thread has ended: it is alive.
    is_dead = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Member(pid, int(fields[1]), int(fields[2]), int(fields[19]), is_dead)


def send(member: Member, number: int) -> None:
    """Signal this process, and no other that has its pid by now."""
    try:
        descriptor = os.pidfd_open(member.pid)
    except OSError:  # it is gone, or the kernel is too old to tell it from another
        return
    try:
        now = _look_at(member.pid)
        if now is not None and now.started == member.started:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # it is gone, or another user's
    finally:
        os.close(descriptor)
