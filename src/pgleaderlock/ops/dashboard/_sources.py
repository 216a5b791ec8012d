"""The sources of the page's data: the registry, which has everything, or any store that can name its holder.

``follow`` yields one look after another while the store answers, and raises ConnectionError when it does not. The
caller then calls it again.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Protocol

from pgleaderlock.errors import ConnectionError, PgLeaderLockError
from pgleaderlock.models import Holder
from pgleaderlock.ops.dashboard._picture import Look
from pgleaderlock.ops.registry.asking import AskRefused, Target
from pgleaderlock.ops.registry.audit import Line, without_replaced
from pgleaderlock.ops.registry.reading import Candidate, Leader, RegistryReader, RoleStatus, open_reader
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.stores.base import Backend

_CALM_S = 0.05
"""The least time between two looks, so that changes of many nodes at once need one look."""
_SHARE = 4  # at most one part in so many of the time is spent reading
_ANSWER_S = 5.0
_PORTION = 20_000  # lines per read
_MOST_LINES = 200_000  # in memory
_TIDY_EVERY_S = 60.0
_OVERLAP = 500  # lines read again: concurrent writes may become visible out of order


class Source(Protocol):
    """A store whose roles the page shows."""

    @property
    def kind(self) -> str:
        """``registry`` or ``store``."""

    @property
    def where(self) -> str:
        """The name of the store for people, without secrets."""

    @property
    def can_ask(self) -> bool:
        """Whether a leader can be asked to step down."""

    def follow(self) -> AsyncGenerator[tuple[Look, list[Line]], None]:
        """Yield a look whenever something may have changed, with the new lines of the history."""

    async def ask_to_step_down(self, lock: str, leader: Target) -> str | None:
        """Ask the leader of this term to hand over, and return its node name; LockError if it refuses."""


class RegistrySource:
    """The registry of a PostgreSQL database."""

    kind = "registry"
    can_ask = True

    def __init__(
        self,
        dsn: Dsn,
        schema: str,
        *,
        where: str,
        window_s: float,
        roles: Collection[str] | None = None,
        expected: Collection[str] = (),
        look_every_s: float = 1.0,
        schema_owner: str | None = None,
    ) -> None:
        self._look_every_s = look_every_s
        self._dsn, self._schema, self._owner = dsn, schema, schema_owner
        self._roles, self._expected = roles, expected
        self._window_s = window_s
        self.where = where

    async def follow(self) -> AsyncGenerator[tuple[Look, list[Line]], None]:
        """Read everything once, then only changes."""
        async with open_reader(self._dsn, self._schema, schema_owner=self._owner) as reader:
            book = _History(self._window_s)
            loop = asyncio.get_running_loop()
            while True:
                began = loop.time()
                at = await reader.now()
                roles = await reader.status(roles=self._roles, expected=self._expected)
                new_lines = self._wanted(await book.read_on(reader, at))
                yield Look(at, at - self._window_s, roles, book.lines, known_since=book.known_since), new_lines
                took_s = loop.time() - began
                await asyncio.sleep(max(_CALM_S, took_s * (_SHARE - 1)))
                await reader.wait_for_change(self._look_every_s)

    def _wanted(self, lines: list[Line]) -> list[Line]:
        return lines if self._roles is None else [line for line in lines if line.role in self._roles]

    async def ask_to_step_down(self, lock: str, leader: Target) -> str | None:
        """Ask as ``pgleaderlock step-down`` does, with the rights of our database role; AskRefused if it refuses."""
        async with open_reader(self._dsn, self._schema, schema_owner=self._owner) as reader:
            asked = await reader.ask_to_step_down(lock, "dashboard token", leader=leader, wait_s=_ANSWER_S)
            answer = await reader.wait_for_answer(asked, _ANSWER_S)
        if answer is None:
            raise ConnectionError(f"the leader of {lock} did not answer within {_ANSWER_S:g} s")
        if not answer.is_obeyed:
            raise AskRefused(f"the leader of {lock} refused: {answer.why}")
        return answer.node


class _History:
    """The lines of the window, by lock. A lock's list is a new object whenever it has changed.

    The newest are read first, so that the page has something to show at once; older ones follow in portions.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: dict[int, float] = {}
        self._newest = -1
        self._oldest: int | None = None
        """The number before which lines are still to be read; None when the whole window was read."""
        self._tidied_at = 0.0
        self.known_since = 0.0
        """The time from which all lines are included."""
        self.lines: dict[str, list[Line]] = {}

    async def read_on(self, reader: RegistryReader, at: float) -> list[Line]:
        """Read the lines written since the last call, and a portion of older ones. Return the new lines."""
        since = at - self._window_s
        if self._newest < 0:
            await self._read_back(reader, since)
            self._newest = max(self._seen, default=0)
            return []
        fetched = await reader.numbered_history(after=self._newest - _OVERLAP, since=since)
        fresh = [(number, line) for number, line in fetched if number not in self._seen and self._is_later(number)]
        self._newest = max((number for number, _ in fetched), default=self._newest)
        self._add(fresh)
        if self._oldest is not None and len(self._seen) < _MOST_LINES:
            await self._read_back(reader, since)
        self.known_since = max(self.known_since, since)
        self._forget(since, at)
        return [line for _, line in fresh]

    def _is_later(self, number: int) -> bool:
        return self._oldest is None or number >= self._oldest

    async def _read_back(self, reader: RegistryReader, since: float) -> None:
        older = await reader.numbered_history(after=-1, before=self._oldest, since=since, limit=_PORTION)
        self._oldest = min((number for number, _ in older), default=None) if len(older) >= _PORTION else None
        # Late lines are dated back: lines from just after the oldest time may be among those not read yet.
        self.known_since = since if self._oldest is None else dict(older)[self._oldest].at
        lines = [line for _, line in older]
        self._add([(None, line) for line in await reader.open_before(since=self.known_since, lines=lines)])
        self._add(list(older))

    def _add(self, lines: Sequence[tuple[int | None, Line]]) -> None:
        by_lock: dict[str, list[Line]] = defaultdict(list)
        for number, line in lines:
            by_lock[line.lock].append(line)
            if number is not None:
                self._seen[number] = line.at
        for lock, new in by_lock.items():
            self.lines[lock] = without_replaced(sorted([*self.lines.get(lock, ()), *new], key=lambda line: line.at))

    def _forget(self, since: float, at: float) -> None:
        """Drop lines older than the window, except those of terms that extend into it."""
        if at - self._tidied_at > _TIDY_EVERY_S:
            self._tidied_at = at
            self._seen = {
                number: at for number, at in self._seen.items() if at >= since or number > self._newest - _OVERLAP
            }
        for lock, lines in self.lines.items():
            if len(lines) > 1 and lines[1].at < since:
                old = [line for line in lines if line.at < since]
                self.lines[lock] = [*_still_open(old), *(line for line in lines if line.at >= since)]


def _still_open(lines: list[Line]) -> list[Line]:
    """Return the beginnings of terms without an end among these lines."""
    begun: dict[tuple[str, int | None], Line] = {}
    for line in lines:
        if line.event in ("acquired", "recovered"):
            begun[line.instance, line.token] = line
        elif line.event in ("released", "lost", "reconnecting", "stopped"):
            begun.pop((line.instance, line.token), None)
    return list(begun.values())


class StoreSource:
    """Any store that can name the holder of a lock. Its history begins with the first look."""

    kind = "store"
    can_ask = False

    def __init__(self, backends: Mapping[str, Backend], *, where: str, interval_s: float, window_s: float) -> None:
        self._backends = backends
        self._interval_s, self._window_s = interval_s, window_s
        self.where = where
        self._held: dict[str, tuple[Holder, Line]] = {}
        self._lines: dict[str, list[Line]] = {}

    async def follow(self) -> AsyncGenerator[tuple[Look, list[Line]], None]:
        """Read the holder from each store in turn."""
        try:
            while True:
                at = time.time()  # the store has no clock: use ours, only for display
                roles, new_lines = [], []
                for name, backend in self._backends.items():
                    holder = await self._ask(backend)
                    new_lines += self._note(name, holder, at)
                    roles.append(self._status(name, holder, at))
                yield Look(at, at - self._window_s, roles, dict(self._lines)), new_lines
                await asyncio.sleep(self._interval_s)
        finally:
            for backend in self._backends.values():
                with contextlib.suppress(Exception):
                    await backend.close()

    async def ask_to_step_down(self, lock: str, leader: Target) -> str | None:  # noqa: ARG002 - there is no way to ask
        """Raise ConnectionError: a leader reads asks in a registry only."""
        raise ConnectionError(f"a leader of {lock} can be asked through a registry only")

    async def _ask(self, backend: Backend) -> Holder | None:
        try:
            await backend.open()
            return await backend.holder()
        except ConnectionError:
            raise
        except PgLeaderLockError as error:
            raise ConnectionError(str(error)) from error

    def _note(self, name: str, holder: Holder | None, at: float) -> list[Line]:
        before = self._held.get(name)
        if before is not None and holder is not None and _same(before[0], holder):
            return []
        new = []
        if before is not None:
            was = before[1]
            new.append(Line(name, name, was.node, was.instance, "released", "seen_gone", was.token, at))
            del self._held[name]
        if holder is not None:
            begun = Line(name, name, holder.name, _instance(holder), "acquired", None, None, at)
            self._held[name] = (holder, begun)
            new.append(begun)
        if new:
            kept = [line for line in self._lines.get(name, ()) if line.at >= at - self._window_s]
            self._lines[name] = [*kept, *new]
        return new

    def _status(self, name: str, holder: Holder | None, at: float) -> RoleStatus:
        if holder is None:
            return RoleStatus(name, name)
        began_at = self._held[name][1].at
        about = {key: value for key, value in (("since", holder.since), ("detail", holder.detail)) if value}
        host, pid = holder.address or "", holder.pid or 0
        who = (holder.name, _instance(holder))
        leader = Leader(*who, None, began_at, at, None, None, host, pid, "", about, is_alive=True, read_at=at)
        stands = Candidate(*who, "leader", began_at, at, host, pid, "", about, is_alive=True)
        return RoleStatus(name, name, leader, [stands])


def _instance(holder: Holder) -> str:
    return f"{holder.name} {holder.pid or ''} {holder.address or ''}".strip()


def _same(before: Holder, now: Holder) -> bool:
    return (before.name, before.pid, before.address, before.since) == (now.name, now.pid, now.address, now.since)
