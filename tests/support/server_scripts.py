"""Questions to a PostgreSQL, real or modelled, written as lines that say who does what and what comes of it.

    a tries -> granted
    b waits 30 -> is in line
    a unlocks -> was held
    b hears -> granted

A script is performed on a *ground*, and what comes back is the same text with the answers that were given there: so a
difference is read as a difference of two texts. The statements are those of the product, sent through its own port.
Answers are made comparable: of a token they say whether it is newer than the last of the same lock, of an age whether
the server started since the script began, of an end its cause.

``under 0.5`` sets the lease that a statement brings its session under; a minute, if nothing is said. ``the witness``
is another lock than the usual one; ``without flushing`` takes out of the statement what makes its token durable.
Nothing is concluded from how long something takes, but for leases that are waited for to run out.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from pgleaderlock import ConnectionError
from pgleaderlock.postgres import _keys_sql, _sql
from pgleaderlock.postgres._activity import holder_of, holder_query, lock_columns
from pgleaderlock.postgres.group import CHANNEL
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease, heir_key, witness_key
from pgleaderlock.postgres.session import Session, end_of
from pgleaderlock.postgres.terms import Terms
from pgleaderlock.testing.embedded import StopMode

BOUND_S = 30.0
POLL_S = 0.01
LONG_S = 60.0
FLUSH = "pg_logical_emit_message(true, 'pgleaderlock', '')::text"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again: a server does not call back."""
    async with asyncio.timeout(BOUND_S):
        while not await holds():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(POLL_S)


class Ground(Protocol):
    """What a script is performed on."""

    async def open(self) -> Session:
        """Connect."""

    async def look(self, pid: int) -> str:
        """Say what the server knows of a session: ``in line``, ``in a commit``, ``there`` or ``gone``."""

    async def lose_standby(self) -> None:
        """Let commits wait for a standby that is not there."""

    async def find_standby(self) -> None:
        """Let them go on."""

    async def stop(self, mode: StopMode) -> None:
        """Stop the server, "fast" or "immediate"."""

    async def start(self) -> None:
        """Start it again."""

    async def notify(self, session: Session, size_kb: int | None) -> None:
        """Notify so much that this session has to read, or without a figure more than can be sent to it unread."""

    async def record(self, lock: LockKey, token: int) -> None:
        """Write this token into the term row of the lock, as a restored dump of another server would."""

    async def lose_process(self, pid: int) -> None:
        """Kill one of its processes, and come back when it has recovered."""


class Performance:
    """One script on one ground."""

    def __init__(self, ground: Ground, key: LockKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._ground = ground
        self._keys = {"lock": key, "witness": witness_key(key), "heir": heir_key(key)}
        self._clock = clock
        self._began = clock()
        self._sessions: dict[str, Session] = {}
        self._started: dict[str, str] = {}  # as the server prints it
        self._calls: dict[str, asyncio.Task[str]] = {}
        self._heard: list[tuple[str, str, str]] = []  # who was sent what by whom
        self._newest = self._claimed = 0
        self._recorded = -1
        self._terms = Terms(key, Lease(LONG_S, term_table=True), "a script")

    async def perform(self, script: str) -> str:
        """Return the script with the answers that were given here."""
        lines = [line.strip() for line in script.strip().splitlines()]
        try:
            return "\n".join([await self._perform(line) for line in lines])
        finally:
            for name in list(self._sessions):
                await self._closes(name)

    async def _perform(self, line: str) -> str:
        words, _, _ = line.partition(" -> ")
        who, verb, *rest = words.split()
        try:
            answer = await getattr(self, f"_{verb}")(who, *rest)
        except ConnectionError as error:
            answer = error.cause.value
        except TimeoutError:
            answer = f"nothing within {BOUND_S:g} s"
        return words if answer is None else f"{words} -> {answer}"

    # --- Sessions ----------------------------------------------------------------------------------------------

    async def _opens(self, who: str) -> str:
        session = self._sessions[who] = await self._ground.open()
        lease = Lease(LONG_S)
        parameters = (session.facts.session_pid, str(lease.statement_ms))
        statement = _sql.set_up(lease, session.facts.version)
        row = await session.fetch(statement, parameters, bound_s=BOUND_S)
        assert row is not None
        settings, pid, is_standby, self._started[who], deadlock_s, age_s, run = row
        assert isinstance(deadlock_s, float)
        assert isinstance(age_s, float)
        assert isinstance(self._started[who], str)
        assert isinstance(run, str)
        assert settings is not None
        assert pid == session.facts.session_pid
        assert not is_standby
        return "the server has just started" if age_s < self._clock() - self._began else "the server is old"

    async def _closes(self, who: str) -> None:
        """Whatever it waits for is given up."""
        if call := self._calls.pop(who, None):
            call.cancel()
            await asyncio.wait({call})
        await self._sessions[who].close()

    async def _ends(self, who: str, other: str) -> str:
        pid = self._sessions[other].facts.session_pid
        row = await self._fetch(who, _sql.END_BACKEND, (pid, self._started[other]))
        return "signalled" if row is not None and row[0] is True else f"nobody there: {row}"

    async def _mistakes(self, who: str, other: str) -> str:
        """End a session with the right pid and another start: pids are used again."""
        row = await self._fetch(who, _sql.END_BACKEND, (self._sessions[other].facts.session_pid, "long ago"))
        return f"nobody there: {row}"

    async def _learns(self, who: str) -> str:
        """Wait for the end, without asking."""
        async with asyncio.timeout(BOUND_S):
            return (await end_of(self._sessions[who])).cause.value

    async def _pings(self, who: str) -> str:
        return f"{await self._fetch(who, _sql.PING)}"

    # --- Locks -------------------------------------------------------------------------------------------------

    async def _tries(self, who: str, *how: str) -> str:
        """Try for it, and ``or`` for another."""
        other = self._statements(("heir",)) if "or" in how else None
        row = await self._fetch(who, self._statements(how).attempt(other))
        assert row is not None
        return "no" if row[0] is None else _shown(row[0][0])

    async def _waits(self, who: str, slice_s: str, *how: str) -> str:
        """Queue until that is seen; the answer is read later."""
        return await self._until_seen(who, self._stands(who, slice_s, *how))

    async def _commits(self, who: str, *how: str) -> str:
        """Draw a token, whose commit may wait; the answer is read later."""
        return await self._until_seen(who, self._draws(who, *how))

    async def _until_seen(self, who: str, call: Coroutine[Any, Any, str]) -> str:
        self._calls[who] = asyncio.ensure_future(call)
        pid = self._sessions[who].facts.session_pid
        while not self._calls[who].done():
            if (state := await self._ground.look(pid)) in ("in line", "in a commit"):
                return f"is {state}"
            await asyncio.sleep(POLL_S)
        return await self._hears(who)

    async def _stands(self, who: str, slice_s: str, *how: str) -> str:
        """Queue to the end of the slice, or of the wait; ``beginning`` a term if it is granted."""
        other = self._statements(("heir",)) if "or" in how else None
        begins, announced = "beginning" in how, asyncio.Event()
        self._sessions[who].on_announcement(announced.set)
        row = await self._fetch(who, self._statements(how).slice(float(slice_s), other, begins_term=begins))
        assert row is not None
        answer = _shown(row[0]) if row[0] else "no"
        if announced.is_set():
            answer += ", which was announced"
        return f"{answer}, {self._judged(int(row[1]))}" if row[1:] and row[1] else answer

    async def _hears(self, who: str) -> str:
        return await self._calls.pop(who) if who in self._calls else "nothing, it asks for nothing"

    async def _unlocks(self, who: str, *how: str) -> str:
        statement, _ = _keys_sql.unlock_all([self._key(how)], are_all=True, is_enforced=True)
        if "marking" in how:
            token = self._claimed - 1 if "another" in how else self._claimed
            statement = self._terms.mark_released_sql(token) + statement
        row = await self._fetch(who, statement)
        assert row is not None
        return "was held" if row[0] == [0] else f"was not held: {row[0]}"

    async def _asks(self, who: str, *how: str) -> str:
        """Who holds it?"""
        row = await self._fetch(who, *holder_query(self._key(how)))
        if row is None:
            return "nobody"
        return self._name(holder_of(row).pid or 0)

    def _key(self, how: tuple[str, ...]) -> LockKey:
        return self._keys[next((name for name in ("witness", "heir") if name in how), "lock")]

    def _statements(self, how: tuple[str, ...]) -> _sql.LockStatements:
        under = re.search(r"under ([\d.]+)", " ".join(how))
        lease = Lease(float(under[1]) if under else LONG_S)
        granted = "heir" if "heir" in how else "lock"
        return _sql.LockStatements(self._key(how), lease, is_enforced=True, granted=granted)

    async def _fetch(self, who: str, statement: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return await self._sessions[who].fetch(statement, parameters, bound_s=BOUND_S)

    # --- Many at once: both locks, as a group asks for them ------------------------------------------------------

    async def _sweeps(self, who: str, *limit: str) -> str:
        """Try for both, or for so many of them."""
        statement = _keys_sql.take_all(self._two, None, int(limit[0]) if limit else None)
        return await self._for_both(who, statement)

    async def _frees(self, who: str) -> str:
        return await self._for_both(who, _keys_sql.unlock_all(self._two, are_all=False, is_enforced=True))

    @property
    def _two(self) -> list[LockKey]:
        return [self._keys["lock"], self._keys["witness"]]

    async def _for_both(self, who: str, statement: _keys_sql.Statement) -> str:
        row = await self._fetch(who, *statement)
        assert row is not None
        names = list(self._keys)
        return ", ".join(names[place] for place in sorted(row[0])) or "none"

    async def _draws(self, who: str, *how: str) -> str:
        """Draw a token; after it has stopped ``listening``, or left the place of the ``heir``."""
        first = _sql.STOP_LISTENING if "listening" in how else ""
        first += self._statements(("heir",)).unlock if "heir" in how else ""
        statement = _sql.NEXT_TOKEN
        if "flushing" in how:  # without that
            assert FLUSH in statement
            statement = statement.replace(FLUSH, "NULL")
        row = await self._fetch(who, first + statement)
        assert row is not None
        return self._judged(int(row[0]))

    def _judged(self, token: int) -> str:
        former, self._newest = max(self._newest, self._claimed), token
        return "a new token" if self._newest > former else "a token that is not new"

    async def _leaves(self, who: str, *_: str) -> None:
        """Leave the place of the heir, notify those that listen, and ask for something."""
        await self._fetch(who, self._statements(("heir",)).leave(CHANNEL) + _sql.PING)

    async def _listens(self, who: str) -> None:
        await self._sessions[who].listen(CHANNEL, lambda pid, text: self._heard.append((who, self._name(pid), text)))

    async def _nominates(self, who: str, text: str) -> None:
        """Notify those that listen, with a text."""
        await self._fetch(who, _sql.NOTIFY_OF_NOMINEE, (CHANNEL, text))

    async def _receives(self, who: str) -> str:
        """What a session that listens was sent, and by which."""
        await self._is(who, "told")
        return ", ".join(f"{text!r} by {sender}" for hearer, sender, text in self._heard if hearer == who)

    async def _compares(self, who: str, *how: str) -> str:
        """Who holds it, beside the own name?"""
        row = await self._fetch(who, _sql.HOLDER_AND_OWN_NAME, lock_columns(self._key(how)))
        assert row is not None
        assert isinstance(row[1], str)
        return "nobody" if row[0] is None else self._name(row[0])

    async def _lists(self, who: str) -> str:
        """Which sessions hold or wait for the lock and the place of the heir? And are their names known?"""
        keys = [self._keys["lock"], self._keys["heir"]]
        row = await self._fetch(who, _sql.SESSIONS_AT, _keys_sql.columns(keys))
        names = await self._fetch(who, _sql.SESSION_NAMES)
        assert row is not None
        assert names is not None
        assert names[0] in names[1]
        found = [text.split(" ", 2) for text in row[0]]
        assert {name for _, _, name in found} <= set(names[1])
        return ", ".join(sorted(f"{('lock', 'heir')[int(number)]} {granted}" for number, granted, _ in found))

    async def _retires(self, who: str) -> None:
        """Leave the place of the heir, and the lease with it."""
        await self._fetch(who, self._statements(("heir",)).unlock + _sql.END_LEASE)

    async def _rings(self, who: str) -> None:
        """Notify those that listen, and then ask for something."""
        await self._fetch(who, _sql.notify_first(CHANNEL) + _sql.PING)

    def _name(self, pid: int) -> str:
        names = (name for name, session in self._sessions.items() if session.facts.session_pid == pid)
        return next(names, "a stranger")

    async def _tells(self, who: str) -> None:
        await self._fetch(who, f"SELECT pg_notify('{CHANNEL}', '')")

    async def _is(self, who: str, _: str) -> str:
        """Is notified, within the bound."""
        session = self._sessions[who]
        session.watch(lambda _: None)  # which reads the socket meanwhile
        await asyncio.wait_for(session.notified(), BOUND_S)
        return "of something"

    async def _knows(self, who: str) -> str:
        """The notifications up to its last answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await self._sessions[who].notified()
                return "of something"
        return "of nothing"

    async def _sees(self, who: str) -> str:
        """Look at the socket, and read nothing."""
        return "the end" if self._sessions[who].has_ended else "no end"

    async def _notices(self, who: str) -> None:
        """Look at the socket until it shows the end, and read nothing."""

        async def has_ended() -> bool:
            return self._sessions[who].has_ended

        await until(has_ended)

    # --- Terms -------------------------------------------------------------------------------------------------

    async def _prepares(self, who: str) -> None:
        await self._terms.make_ready(self._sessions[who])

    async def _reads(self, who: str) -> str:
        past = self._terms.past(await self._fetch(who, self._terms.read_sql()))
        if past.token is None:
            return f"nothing, lease {past.lease_s}, timeline {past.timeline}, released {past.was_released}"
        where = "here" if past.timeline == past.timeline_here else "elsewhere"
        which = "the last claim" if past.token == self._claimed else "another"
        return f"{which}, lease {past.lease_s}, {where}, released {past.was_released}"

    async def _claims(self, who: str) -> str:
        former, self._claimed = self._claimed, await self._terms.claim(self._sessions[who], BOUND_S) or 0
        if self._claimed == self._recorded + 1:
            return "a token after what was recorded"
        return "a new token" if self._claimed > max(former, self._newest) else "a token that is not new"

    # --- The server --------------------------------------------------------------------------------------------

    async def _shows(self, _: str, other: str) -> str:
        return await self._ground.look(self._sessions[other].facts.session_pid)

    async def _forgets(self, _: str, other: str) -> None:
        """Wait until nothing is left of a session."""
        await until(lambda: self._is_gone(other))

    async def _is_gone(self, other: str) -> bool:
        return await self._ground.look(self._sessions[other].facts.session_pid) == "gone"

    async def _floods(self, _: str, other: str, *size_kb: str) -> None:
        await self._ground.notify(self._sessions[other], int(size_kb[0]) if size_kb else None)

    async def _misses(self, _: str, __: str) -> None:
        await self._ground.lose_standby()

    async def _finds(self, _: str, __: str) -> None:
        await self._ground.find_standby()

    async def _stops(self, _: str, mode: StopMode) -> None:
        await self._ground.stop(mode)

    async def _starts(self, _: str) -> None:
        await self._ground.start()

    async def _records(self, _: str, token: str) -> None:
        self._recorded = int(token)
        await self._ground.record(self._keys["lock"], self._recorded)

    async def _loses(self, _: str, other: str) -> None:
        await self._ground.lose_process(self._sessions[other].facts.session_pid)


def _shown(granted: str) -> str:
    return "granted" if granted == "lock" else f"granted the {granted}"
