"""Candidates in processes of their own, and what the server shows of them: who leads, who is heir, who waits.

Each candidate has a name, which is the ``application_name`` of its sessions; each writes its claims to lead into a file
(``pgleaderlock/testing/_claim.py``), so that two leaders at once are found whatever became of the process.
"""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.conninfo import make_conninfo

from pgleaderlock import LockKey
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.lease import heir_key, next_heir_key, witness_key
from pgleaderlock.testing._claim import make_claim_file, read_claims
from pgleaderlock.testing.torture import Claim, Overlap, find_overlaps
from tests.support.processes import Process

__all__ = ["Crowd", "Observer", "Places", "Term"]

_MEMBERS = Path(__file__).with_name("succession_members.py")
_PATIENCE_S = 60.0

_SESSIONS = """
SELECT a.application_name, a.pid, a.state, a.query_start::text,
       coalesce(array_agg(concat_ws(' ', l.classid, l.objid, l.objsubid, l.granted))
                FILTER (WHERE l.pid IS NOT NULL), '{}')
  FROM pg_stat_activity AS a LEFT JOIN pg_locks AS l ON l.pid = a.pid AND l.locktype = 'advisory'
 WHERE a.application_name LIKE %s GROUP BY 1, 2, 3, 4
"""


class Term(NamedTuple):
    """What a new leader wrote: its process, when it led on the machine's one clock, its token, its name."""

    pid: int
    at: float
    token: int
    name: str


class Session(NamedTuple):
    """One session as the server shows it; each lock as ``classid objid objsubid granted``."""

    name: str
    pid: int
    state: str
    query_start: str
    locks: list[str]

    def holds(self, key: LockKey) -> bool:
        return _words(key, "t") in self.locks

    def waits_for(self, key: LockKey) -> bool:
        return _words(key, "f") in self.locks

    @property
    def waits(self) -> bool:
        return any(lock.endswith("f") for lock in self.locks)


def _words(key: LockKey, granted: str) -> str:
    return " ".join(map(str, (*lock_columns(key), granted)))


@dataclass
class Places:
    """All sessions of one election at one moment."""

    key: LockKey
    sessions: list[Session]

    def _holder(self, key: LockKey) -> str | None:
        return next((each.name for each in self.sessions if each.holds(key)), None)

    @property
    def leader(self) -> str | None:
        """The holder of the lock."""
        return self._holder(self.key)

    @property
    def heir(self) -> str | None:
        """The holder of S1."""
        return self._holder(heir_key(self.key))

    @property
    def next_heir(self) -> str | None:
        """The holder of S2."""
        return self._holder(next_heir_key(self.key))

    @property
    def waiting(self) -> list[Session]:
        """The sessions that wait for any of our locks."""
        return [each for each in self.sessions if each.waits]

    def of(self, name: str | None) -> list[Session]:
        """The sessions of one candidate."""
        return [each for each in self.sessions if each.name == name]

    def waits(self, name: str | None, key: LockKey) -> bool:
        return any(each.waits_for(key) for each in self.of(name))

    @property
    def is_settled(self) -> bool:
        """Whether there are a leader, an heir that is ready and a next heir that waits for its place."""
        three = [self.leader, self.heir, self.next_heir]
        return (
            None not in three
            and len(set(three)) == len(three)
            and self._holder(witness_key(self.key)) == self.leader
            and self.waits(self.heir, self.key)
            and self.waits(self.next_heir, heir_key(self.key))
            and len(self.of(self.heir)) == 2
        )


class Observer:
    """A session of its own that looks at those of the candidates."""

    def __init__(self, dsn: str, key: LockKey, prefix: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self._key = key
        self._prefix = prefix

    def close(self) -> None:
        self._connection.close()

    def look(self) -> Places:
        rows = self._connection.execute(_SESSIONS, [self._prefix + "%"]).fetchall()
        return Places(self._key, [Session(*row) for row in rows])

    def until(self, is_so: Callable[[Places], bool], what: str, patience_s: float = _PATIENCE_S) -> Places:
        """Look until it is so, and return what was seen. The server cannot be asked to report it."""
        deadline = time.monotonic() + patience_s
        while not is_so(places := self.look()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {patience_s:g} s: {what}; there is {places.sessions}")
            time.sleep(0.002)
        return places

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


class Crowd:
    """The candidates of one election. All of them end with the block, frozen ones too."""

    _numbers = itertools.count(1)

    def __init__(self, dsn: str, key: LockKey, folder: Path, *, lease_s: float = 15.0, retry_s: float = 5.0) -> None:
        self._dsn = dsn
        self.key = key
        self._folder = folder
        self._order = {"key": str(key), "lease_s": lease_s, "retry_s": retry_s}
        self._prefix = f"crowd{os.getpid()}-{next(self._numbers)}-"
        self._forkers: dict[str, Process] = {}
        self._unread: dict[str, list[str]] = {}
        self._pids: dict[str, int] = {}
        self._files: dict[str, Path] = {}
        self._frozen: set[str] = set()
        self.observer = Observer(dsn, key, self._prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for name in list(self._frozen):
            self.signal(name, signal.SIGKILL)
        for forker in self._forkers.values():
            forker.__exit__(*exc)  # it reads their output to its end, which is when all of them are gone
        self.observer.close()

    def _forker(self, source: str) -> Process:
        if source not in self._forkers:
            environment = {"PYTHONPATH": source} if source else {}
            self._forkers[source] = forker = Process(sys.executable, str(_MEMBERS), env=environment)
            found = forker.wait_for("ready ", _PATIENCE_S).partition(" ")[2]
            if source and not found.startswith(source):
                raise RuntimeError(f"the candidates were to use {source}, and they use {found}")
        return self._forkers[source]

    def add(self, label: str = "c", *, source: str = "", dsn: str | None = None, **order: Any) -> str:
        """Start one candidate and return its name. ``source``: where to import the library from."""
        name = f"{self._prefix}{label}{len(self._files)}"
        self._files[name] = self._folder / name
        make_claim_file(self._files[name])
        order = {**self._order, **order, "name": name, "path": str(self._files[name])}
        for way in ("dsn", "second_dsn"):
            where = {"dsn": dsn or self._dsn, **order}.get(way)
            if where:
                order[way] = make_conninfo(where, application_name=name)
        self._forker(source).say(json.dumps(order))
        born = self._hear(source, lambda line: line.startswith("born ") and line.endswith(f" {name}"))
        self._pids[name] = int(born.split()[1])
        return name

    def _hear(self, source: str, is_wanted: Callable[[str], bool], patience_s: float = _PATIENCE_S) -> str:
        """Return the first line that is wanted; the others stay for later."""
        unread = self._unread.setdefault(source, [])
        for place, line in enumerate(unread):
            if is_wanted(line):
                return unread.pop(place)
        while not is_wanted(line := self._forker(source).wait_for("", patience_s)):
            unread.append(line)
        return line

    def signal(self, name: str, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            self._frozen.add(name)
        elif number in (signal.SIGCONT, signal.SIGKILL):
            self._frozen.discard(name)
        os.kill(self._pids[name], number)

    def kill(self, *names: str | None) -> float:
        """Kill these with SIGKILL, one directly after the other. Return when it began."""
        pids = [self._pids[name] for name in names if name is not None]
        self._frozen.difference_update(names)
        began = clock()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return began

    def next_leader(self, source: str = "", patience_s: float = _PATIENCE_S) -> Term:
        """Return the next term that a candidate of this source reports."""
        line = self._hear(source, lambda line: line.startswith("leads "), patience_s)
        _, pid, at, token, name = line.split()
        return Term(int(pid), float(at), int(token), name)

    @property
    def lines(self) -> list[str]:
        """All that the candidates wrote until now, log lines too."""
        for forker in self._forkers.values():
            forker.drain()
        return [line for forker in self._forkers.values() for line in forker.lines]

    def drop_reports(self) -> None:
        """Leave out the terms that were reported until now."""
        for source, forker in self._forkers.items():
            forker.drain()
            self._unread.pop(source, None)

    def claims(self) -> Iterator[Claim]:
        for name, path in self._files.items():
            for began_at, seen_at, token in read_claims(path):
                yield Claim(name, 0, token, began_at, seen_at)

    def overlaps(self) -> list[Overlap[Claim]]:
        """Return every moment at which two candidates claimed to lead."""
        return find_overlaps(self.claims())
