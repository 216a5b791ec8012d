"""A node's claims to lead, recorded so that they outlive a kill -9. Standard library only: the checker reads them too.

A thread of the node asks the lock about every millisecond whether the node leads, as any thread of the program would,
and writes the intervals in which the answer was yes into a memory-mapped file. The pages belong to the kernel: they
survive the process, however it ends. Times are by the machine's one clock, which all processes of one boot share.

A gap in the samples ends an interval: a frozen process does not act, so it has not led meanwhile. Only what is certain
counts: an answer was true at some moment between the readings of the clock before and after it, so an interval begins
with the later reading and ends with the earlier one. Two intervals that overlap here have overlapped in fact.

Not promised: what happened between two samples. If two nodes claim to lead at once for less than about a millisecond,
and neither is sampled in that time, the overlap is not found.
"""

import contextlib
import mmap
import select
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

GAP_S = 0.01
"""A pause between two samples that is longer than this ends an interval: nothing is known of the node meanwhile."""

_RECORD = struct.Struct("ddq")  # began, seen last, token + 1: 0 is what was never written, and files begin with token 0
_ROOM = 200_000
_EVERY_S = 0.001

Clock = Callable[[], float]


def make_claim_file(path: Path) -> None:
    """Create the file for one process's claims. It is sparse: what is not written takes no space."""
    with path.open("wb") as file:
        file.truncate(_RECORD.size * _ROOM)


class ClaimWriter:
    """Turns samples into intervals, and writes them into the given memory."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._room = len(memory) // _RECORD.size
        self._index = -1
        self._began_at = self._last_at = 0.0
        self._token: int | None = None

    def note(self, before: float, token: int | None, after: float) -> None:
        """Record one sample: the token of the term in which the node claims to lead, or None; the clock around it.

        BufferError when there is no room left: a node that ran on unrecorded would look like one that never leads.
        """
        if token is None or after - before >= GAP_S:
            self._token = None
            return
        if token == self._token and after - self._last_at <= GAP_S:
            self._write(before)
        else:
            if self._index + 1 == self._room:
                raise BufferError(f"no room for more than {self._room} intervals in which this node claims to lead")
            self._index += 1
            self._began_at, self._token = after, token
            self._write(after)
        self._last_at = after

    def _write(self, seen_at: float) -> None:
        assert self._token is not None  # noqa: S101 - note() has just set it
        _RECORD.pack_into(self._memory, self._index * _RECORD.size, self._began_at, seen_at, self._token + 1)


def sample_forever(ask: Callable[[], int | None], path: Path, clock: Clock, idle_s: float = _EVERY_S) -> None:
    """Sample ``ask`` and record the answers, for ever. Run it in a thread of its own, which ends with the process.

    ``ask`` returns the token of the term in which the node claims to lead, or None; ``idle_s`` is how long to wait
    after a None.
    """
    with path.open("r+b") as file:
        writer = ClaimWriter(mmap.mmap(file.fileno(), 0))
    while True:
        before = clock()
        token = ask()
        writer.note(before, token, clock())
        pause(idle_s if token is None else _EVERY_S)


def pause(seconds: float) -> None:
    """Block this thread for a moment. By select(), because under libfaketime time.sleep() fails with EINVAL."""
    select.select([], [], [], seconds)


def read_claims(path: Path) -> Iterator[tuple[float, float, int]]:
    """Yield when each interval began, when it was seen last, and its token. Nothing, if nothing was recorded yet."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while record := file.read(_RECORD.size):
            if len(record) < _RECORD.size:
                return
            began_at, seen_at, written = _RECORD.unpack(record)
            if not written:  # it is written last: the process was killed while it wrote this, or has never written it
                return
            yield began_at, max(began_at, seen_at), written - 1
