"""A candidate for a lock or for a group of roles, as a process: ``python -m proofs.pair_members '{"dsn": ...}'``.

It samples, in a thread of its own, whether it leads each role, and writes the intervals to a memory-mapped file, which
outlives a kill -9; it writes each loss with its cause, one JSON object per line, and when its event loop stood still.
``proofs/pair_torture.py`` starts it and reads all of it. It ends when its stdin does.

Two samples of one role with the same token are one interval, however far apart: a leader whose term is the same one has
been the leader all the time, also if its process was frozen. (A term that was lost begins again with a new token.)
"""

import asyncio
import json
import mmap
import os
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgleaderlock import Election, FixedInterval, LeaderGroup, LeaderLock, LockKey
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.models import Event, EventKind
from pgleaderlock.testing._claim import pause
from pgleaderlock.testing.demo._node import until_stdin_ends

__all__ = ["Interval", "key_of", "make_file", "read_file"]

_RECORD = struct.Struct("ddqq")  # began, seen last, role + 1, token
_ROOM = 2_000_000
_LOOK_S = 0.02
_STALL_S = 0.05


@dataclass(frozen=True)
class Interval:
    """For how long one process was seen to lead one role in one term.

    Seen once, it has no length: it led at some moment between the two times, which then stand the other way round. A
    process that is frozen between its look and the clock would otherwise lead when it thaws.
    """

    role: int
    token: int
    began_at: float
    seen_at: float


def key_of(role: int) -> LockKey:
    """Return the lock of a role; of a single lock it is number 0."""
    return LockKey.pair(667, role)


def make_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_RECORD.size * _ROOM)  # sparse


def read_file(path: Path) -> Iterator[Interval]:
    with path.open("rb") as file:
        while len(record := file.read(_RECORD.size)) == _RECORD.size:
            began_at, seen_at, number, token = _RECORD.unpack(record)
            if not number:
                return
            yield Interval(number - 1, token, began_at, seen_at)


class _Samples:
    """Only what is certain counts: an interval begins after a first answer, and ends before the last one."""

    def __init__(self, path: Path, elections: list[Election]) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._elections = elections
        self._current: list[tuple[int, int]] = [(0, -1)] * len(elections)  # the token, and the place in the file
        self._used = 0

    def take(self) -> None:
        for role, election in enumerate(self._elections):
            before = clock()
            token = election.token
            if token is None:
                continue
            known, place = self._current[role]
            if known != token:
                place, self._used = self._used, self._used + 1
                self._current[role] = token, place
                began_at = clock()
                _RECORD.pack_into(self._memory, place * _RECORD.size, began_at, before, role + 1, token)
            else:
                struct.pack_into("d", self._memory, place * _RECORD.size + 8, before)


def _sample_forever(samples: _Samples, pause_s: float) -> None:
    try:
        while True:
            samples.take()
            pause(pause_s)
    finally:  # a candidate of which nothing is known must not be taken for one that does not lead
        os._exit(1)


class _Losses:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hear(self, role: int, event: Event) -> None:
        if event.kind is EventKind.LOST and event.token is not None:
            self._write(role, event.cause, event)
        elif event.kind is EventKind.RELEASED:
            self._write(role, "released", event)

    def _write(self, role: int, cause: str, event: Event) -> None:
        detail = None if event.error is None else str(event.error)
        line = json.dumps({"at": clock(), "role": role, "cause": cause, "token": event.token, "detail": detail})
        os.write(self._file, (line + "\n").encode())


async def _note_stalls(path: str) -> None:
    """Write down from when to when the event loop did nothing, though it had something to do."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        before = clock()
        await asyncio.sleep(_LOOK_S)
        if (after := clock()) - before > _LOOK_S + _STALL_S:
            os.write(file, (json.dumps([before + _LOOK_S, after]) + "\n").encode())


def _make(dsn: str, roles: int, lease_s: float, settings: Mapping[str, Any]) -> tuple[Any, list[Election]]:
    interval_s = lease_s / 3
    if roles:
        keys = {str(number): key_of(number) for number in range(roles)}
        group = LeaderGroup(dsn, keys, lease_s=lease_s, health_interval_s=interval_s, settle_s=0.0, **settings)
        return group, [group[name] for name in keys]
    lock = LeaderLock(
        dsn,
        key=key_of(0),
        lease_s=lease_s,
        health_interval_s=interval_s,
        retry_strategy=FixedInterval(min(0.5, interval_s)),
        settle_s=0.0,
        **settings,
    )
    return lock, [lock]


def _read_request(request: Path) -> list[int]:
    try:
        numbers: list[int] = json.loads(request.read_text())
        request.unlink()
    except OSError:
        return []
    return numbers


async def _step_down_on_request(elections: list[Election], request: Path) -> None:
    """A process that wants roles released writes their numbers into a file."""
    while True:
        await asyncio.sleep(0.05)
        numbers = _read_request(request)
        await asyncio.gather(*(elections[number].step_down() for number in numbers if elections[number].is_leader))


async def main(
    *, dsn: str, roles: int, lease_s: float, path: str, pause_s: float, settings: Mapping[str, Any] | None = None
) -> None:
    """Take part until stdin ends. ``roles`` is 0 for a single lock."""
    service, elections = _make(dsn, roles, lease_s, settings or {})
    losses = _Losses(f"{path}.losses")
    for role, election in enumerate(elections):
        election.subscribe(lambda event, role=role: losses.hear(role, event))
    samples = _Samples(Path(path), elections)
    threading.Thread(target=_sample_forever, args=(samples, pause_s), daemon=True).start()
    looking = asyncio.ensure_future(_note_stalls(f"{path}.stalls"))
    async with service:
        asking = asyncio.ensure_future(_step_down_on_request(elections, Path(f"{path}.step-down")))
        await until_stdin_ends()
        asking.cancel()
    looking.cancel()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
