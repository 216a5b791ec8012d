"""Candidates on one host, for ``proofs/nfs_hosts_torture.py``: a process that has everything imported, and forks them.

    nfs-on HOST python -m proofs.nfs_candidates

For each line, a JSON list of a name in :data:`KINDS` and its arguments, it starts a child and says its number. What a
child had, from when to when and under which number, it notes in a memory-mapped file, where it outlives a kill -9; and
what it did not expect, in a file beside that one.
"""

import asyncio
import ctypes
import json
import logging
import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pgleaderlock import Election, FixedInterval, open_backend
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.stores.nfs import Lock

RECORD = struct.Struct("qdd")  # a number, from when, to when
NOTES_SIZE = RECORD.size * 20_000
LEASE_S = 1.5
_PR_SET_PDEATHSIG = 1
_GAP_S = 0.02
# How often it works briefly, for long, overstays, and leaves.
QUICK, SLOW = (97, 1, 1, 1), (30, 60, 5, 5)


class Notes:
    """From when to when this process had the lock, and under which number."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._at = -RECORD.size

    def begin(self, start: float, end: float, token: int) -> None:
        """Note something new. Its number comes last: without one it does not count, should we be killed meanwhile."""
        self._at += RECORD.size
        RECORD.pack_into(self._memory, self._at, 0, start, end)
        struct.pack_into("q", self._memory, self._at, token + 1)

    def extend(self, end: float) -> None:
        """Note that the last one lasts longer."""
        self._move_end(max(end, self._last[2]))

    def shorten(self, end: float) -> None:
        """Note that the last one lasts no longer than that."""
        self._move_end(max(self._last[1], min(end, self._last[2])))

    @property
    def _last(self) -> tuple[int, float, float]:
        number, start, end = RECORD.unpack_from(self._memory, self._at)
        return number, start, end

    def _move_end(self, end: float) -> None:
        struct.pack_into("d", self._memory, self._at + 16, end)


def read_notes(path: Path) -> Iterator[tuple[float, float, int]]:
    """Yield from when to when a process had the lock, and under which number."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        for at in range(0, len(memory), RECORD.size):
            number, start, end = RECORD.unpack_from(memory, at)
            if number == 0:
                return
            yield start, end, number - 1


def make_hesitant(folder: Any, rng: random.Random) -> None:
    """Have its user pause now and then where it hurts, between looking, deciding and doing, as if it was frozen."""

    def hesitating(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any) -> Any:
            _pause(rng)
            found = step(*arguments)
            _pause(rng)
            return found

        return take

    for name in ("look", "begin", "release", "collect"):
        setattr(folder, name, hesitating(getattr(folder, name)))


def _pause(rng: random.Random) -> None:
    if rng.random() < 0.002:
        time.sleep(rng.uniform(0.0, 2.5))


class LockUser:
    """Takes a lock, does something to it, and releases it, or not; again and again.

    What is noted is not when it checked whether it still had the lock, but until when it would have said so: until its
    validity ends, however long it is frozen, or until it begins to unlock. No process dies at once on NFS: the lock of
    a killed process counts as held for its whole lifetime, too.
    """

    def __init__(self, path: str, notes: Notes, seed: int) -> None:
        self._rng = random.Random(seed)
        self._notes = notes
        self._weights = SLOW if "slow" in Path(path).name else QUICK
        self._lifetime_s = self._rng.uniform(1.0, 2.0)
        self._lock = Lock(path, lifetime=self._lifetime_s)
        make_hesitant(self._lock._folder, self._rng)

    def run(self) -> None:
        deeds = [self._work_briefly, self._work_long, self._overstay, self._leave]
        while True:
            self._lock.lock()
            self._note_new()
            self._rng.choices(deeds, self._weights)[0]()
            time.sleep(self._rng.expovariate(1 / 0.005))

    @property
    def _trusted_until(self) -> float:
        made = self._lock._made
        held = None if made is None else made[0]._possession
        return -1.0 if held is None else held.trusted_until

    def _note_new(self) -> None:
        """One whose trust was over before we could say so is noted too, with no length."""
        token, now = self._lock.token, suspend_aware_clock()
        assert token is not None, "a lock without a number"
        self._notes.begin(now, max(now, self._trusted_until), token)

    def _unlock(self) -> None:
        self._notes.shorten(suspend_aware_clock())
        self._lock.unlock(unconditionally=True)

    def _work_briefly(self) -> None:
        time.sleep(self._rng.uniform(0, 0.004))
        self._unlock()

    def _work_long(self) -> None:
        """With heartbeats, some of which are late, and some of which announce another lifetime."""
        for _ in range(self._rng.randrange(1, 6)):
            time.sleep(self._rng.uniform(0.1, 0.5) * self._lifetime_s)
            self._refresh(self._rng.choice([None, self._rng.uniform(0.8, 2.0)]))
        self._unlock()

    def _overstay(self) -> None:
        """Be silent for longer than a lifetime. Then perhaps ask whether it is still ours, and release it."""
        time.sleep(self._rng.uniform(0.9, 1.6) * self._lifetime_s)
        if self._rng.random() < 0.5:
            self._refresh(None)
        self._unlock()

    def _leave(self) -> None:
        os._exit(0)

    def _refresh(self, lifetime_s: float | None) -> None:
        token = self._lock.token
        if lifetime_s is not None:  # a shorter one binds the holder at once, even if this call never returns
            self._lifetime_s = lifetime_s
            self._notes.shorten(suspend_aware_clock() + 0.9 * lifetime_s)
        self._lock.refresh(lifetime_s, unconditionally=True)
        if self._lock.token is None:
            return
        if self._lock.token == token:
            self._notes.extend(self._trusted_until)
        else:  # it had expired, and was taken anew
            self._note_new()


class Member:
    """Takes part in an election, leads for a while, and begins anew; meanwhile a thread notes when it leads."""

    def __init__(self, path: str, notes: Notes, seed: int) -> None:
        self._rng = random.Random(seed)
        self._url = f"nfs://{path}"
        self._notes = notes
        self._election: Election | None = None

    def run(self) -> None:
        threading.Thread(target=self._sample, daemon=True).start()
        asyncio.run(self._take_part())

    async def _take_part(self) -> None:
        while True:
            election = Election(
                open_backend(self._url, lease_s=LEASE_S),
                health_interval_s=LEASE_S / 3,
                retry_strategy=FixedInterval(0.3),
            )
            async with election:
                self._election = election
                await election.wait_for_leadership()
                await self._be_busy(self._rng.uniform(0.2, 3.0))
            await asyncio.sleep(self._rng.uniform(0.0, 0.2))

    async def _be_busy(self, seconds: float) -> None:
        """As an application is: its event loop does not learn of everything at once."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.005)  # noqa: ASYNC251 - that is the point
            await asyncio.sleep(0.05)

    def _sample(self) -> None:
        last, term = 0.0, -1
        while True:
            before = suspend_aware_clock()
            token = None if self._election is None else self._election.token
            after = suspend_aware_clock()
            if token is None or after - before > _GAP_S:
                last = 0.0
            else:
                # The answer held at some moment between the two readings: count from the later, to the earlier.
                if last == 0.0 or after - last > _GAP_S or token != term:
                    self._notes.begin(after, after, token)
                else:
                    self._notes.extend(before)
                last, term = after, token
            time.sleep(0.02 if token is None else 0.003)


KINDS: dict[str, Callable[[str, Notes, int], LockUser | Member]] = {"locks": LockUser, "elections": Member}


def _live(kind: str, path: str, notes: str, seed: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no process outlives the nursery
    try:
        KINDS[kind](path, Notes(notes), seed).run()
    except BaseException:
        Path(f"{notes}.error").write_text(traceback.format_exc(), encoding="utf-8")
    os._exit(1)


def main() -> None:
    logging.disable()  # losing is what they are here for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _live(*arguments)
        os.write(1, f"{child}\n".encode())


if __name__ == "__main__":
    main()
