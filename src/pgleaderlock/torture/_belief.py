"""What a node believes, written down so that it outlives a kill -9. Standard library only: the checker reads it too.

A thread of the node asks about every millisecond whether it leads, as any thread of the program would, and writes the
intervals in which the answer was yes into a memory-mapped file. The pages belong to the kernel: they are there whatever
becomes of the process. Times are by the machine's one clock, which all processes of one boot share.

A gap in the samples ends an interval: a frozen process does not act, so it has not led meanwhile. Only what is certain
counts: an answer held at some moment between the readings of the clock before and after it, so an interval begins with
the later and ends with the earlier. An overlap of two intervals was one.

Not promised: what happened between two samples. Two that believed at once for less than about a millisecond, of which
neither was asked in that time, are not seen.
"""

import contextlib
import mmap
import select
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["GAP_S", "BeliefWriter", "make_belief_file", "pause", "read_beliefs", "sample_forever"]

GAP_S = 0.01
"""Without a sample for longer than this, nothing is known of a node."""

_RECORD = struct.Struct("ddq")  # began, seen last, token
_ROOM = 200_000
_EVERY_S = 0.001

Clock = Callable[[], float]


def make_belief_file(path: Path) -> None:
    """Make room for what one process will have believed. The file is sparse: what is not written takes no space."""
    with path.open("wb") as file:
        file.truncate(_RECORD.size * _ROOM)


class BeliefWriter:
    """Turns answers into intervals, in the memory that is given to it."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._room = len(memory) // _RECORD.size
        self._index = -1
        self._began_at = self._last_at = 0.0
        self._token: int | None = None

    def note(self, before: float, token: int | None, after: float) -> None:
        """Note one answer: the token of the term that is believed in, or None; and the clock before and after it.

        BufferError when there is no room left: whoever went on would look like one that believes nothing.
        """
        if token is None or after - before >= GAP_S:
            self._token = None
            return
        if token == self._token and after - self._last_at <= GAP_S:
            self._write(before)
        else:
            if self._index + 1 == self._room:
                raise BufferError(f"no room for more than {self._room} intervals of belief")
            self._index += 1
            self._began_at, self._token = after, token
            self._write(after)
        self._last_at = after

    def _write(self, seen_at: float) -> None:
        assert self._token is not None  # noqa: S101 - whoever writes has just set it
        _RECORD.pack_into(self._memory, self._index * _RECORD.size, self._began_at, seen_at, self._token)


def sample_forever(ask: Callable[[], int | None], path: Path, clock: Clock, idle_s: float = _EVERY_S) -> None:
    """Ask again and again; for a thread of its own, which ends with the process.

    ``ask`` returns the token of the term that is believed in, or None; ``idle_s`` is how long to wait after a None.
    """
    with path.open("r+b") as file:
        writer = BeliefWriter(mmap.mmap(file.fileno(), 0))
    while True:
        before = clock()
        token = ask()
        writer.note(before, token, clock())
        pause(idle_s if token is None else _EVERY_S)


def pause(seconds: float) -> None:
    """Block this thread for a moment. By select(), because under libfaketime time.sleep() fails with EINVAL."""
    select.select([], [], [], seconds)


def read_beliefs(path: Path) -> Iterator[tuple[float, float, int]]:
    """Return when each interval began, when it was seen last, and its token. Nothing, if nobody has begun to write."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while record := file.read(_RECORD.size):
            if len(record) < _RECORD.size:
                return
            began_at, seen_at, token = _RECORD.unpack(record)
            if not token:  # which is written last: here a kill came in the middle, or nobody has been
                return
            yield began_at, max(began_at, seen_at), token
