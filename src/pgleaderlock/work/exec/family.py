"""All processes that descend from one: asked to end, killed, and known to be dead for certain.

Standard library only: the guardian is started without the rest of this package.

**Nobody outruns a subreaper.** A process can leave its group, its session and its parents; but when its parents die it
becomes the subreaper's own child. So killing one's own children, again and again, reaches everybody, and the kernel
says when it is over: whoever has no children has no descendants. A child's number is safe to use until the child is
buried, which only its parent can do. Walking the whole of /proc instead would be too slow for a process that forks and
exits every few milliseconds, and a walk that meets nobody proves nothing.
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
    "bury_children",
    "children",
    "descendants",
    "die_with_parent",
    "kill_children",
    "send",
]

_PROC = "/proc"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Member(NamedTuple):
    """One process, as it was seen."""

    pid: int
    parent: int
    group: int
    started: int
    """In clock ticks since boot: with the pid, it names a process for good."""
    is_dead: bool


def become_subreaper() -> bool:
    """Let orphans among our descendants become our own children. False where the system has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Ask to be killed when the parent dies, where the system can."""
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
    """Send SIGKILL to each of our children but these. Return how many of them we may not kill."""
    untouchable = 0
    for pid in children().difference(spare):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            untouchable += 1
    return untouchable


def bury_children() -> bool:
    """Bury every dead child of this process, and return whether it has no other: for certain, as the kernel counts."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


# --- Everybody --------------------------------------------------------------------------------------------------------


def descendants(root: int) -> list[Member]:
    """Return everybody who is met below this process, parents before their children, unburied dead included."""
    below: dict[int, list[Member]] = {}
    for name in _names(_PROC):
        member = _look_at(int(name))
        if member is not None:
            below.setdefault(member.parent, []).append(member)
    found = below.pop(root, [])
    for member in found:  # which grows meanwhile
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
    fields = text[text.rindex(b")") + 2 :].split()  # a process may call itself anything, with brackets too
    # A zombie whose threads go on is a process whose first thread has ended, and as alive as any.
    is_dead = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Member(pid, int(fields[1]), int(fields[2]), int(fields[19]), is_dead)


def send(member: Member, number: int) -> None:
    """Signal this very process, whoever else may have its number by now."""
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
