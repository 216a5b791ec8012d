"""A modelled PostgreSQL: sessions, advisory locks with their queue, the idle-session time-out, restarts, promotions.

It receives the same statements as a real server (:mod:`._statements`), through connections that lose and delay
(:mod:`.network`). It models what the protocol relies on:

- a lock belongs to a session, may be held several times, and is granted to the first in the queue when its session
  ends;
- a session that waits for a lock reads nothing, so it does not notice that its client has gone;
- a session that is idle for longer than its limit is ended, and only an idle one;
- the time-out of a wait slice may race with the grant: the session then holds the lock, and the statement finds that
  out only if it looks;
- transaction ids grow; those that did not reach the disk are assigned again after a crash;
- a commit that writes something waits for an absent synchronous standby, and its session keeps all its locks: neither
  the end of its client nor a time-out ends that wait, only the end of the session;
- the wall clock may be set forward and back; the server's age is a difference of wall-clock times, and idle sessions
  end by that clock too, if the fault says so;
- unread notifications hide whatever comes after them, also the end of the session (:mod:`._receive_buffer`);
- a start drops all locks; a crash recovery does too, and leaves the server's start time as it was; a promotion also
  leaves the age, and begins another timeline;
- the term table carries a note of the run in which it was made; another server may take the name over, with an empty
  table that is older than its start, or with none.

``tests/testing/test_modelled_postgres.py`` compares the model with a real server. Only the model is tested for what a
real one does not do on demand: the race of a time-out with its grant, a loss of power, a promotion. Different on
purpose: all durations, and that after a crash without a named victim all clients are notified. Not modelled: fenced
transactions, a claim that times out, everything else.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pgleaderlock._base.causes import LossCause
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.terms import NOTED as _NOTED
from pgleaderlock.testing.simulation._statements import Ask
from pgleaderlock.testing.simulation.network import Pipe
from pgleaderlock.testing.simulation.world import Appointment, World

__all__ = ["Client", "ModelledPostgres", "ServerSession"]

VERSION = 170000
DEADLOCK_S = 10.0
_LONG_AGO_S = 1e6
_BUSIER_XIDS = 1000  # so that tokens grow on from one server to another, which they do only by chance
_SIGNAL_S = 0.002
_NOTIFICATION_BYTES = 40  # one without a payload
_CAST = re.compile(r"'|::\w+")
_NUMBER = re.compile(r"'(-?\d+)'")


class Client(Protocol):
    """The other end of a connection."""

    owner: str

    def receive_answer(self, answer: tuple[Any, ...] | None) -> None:
        """Handle an answer."""

    def receive_announcement(self) -> None:
        """Handle the announcement of a grant, which comes before the answer."""

    def receive_end(self, cause: LossCause) -> None:
        """Handle the end of the connection."""

    def receive_notification(self, size_bytes: int, sender_pid: int = 0, payload: str = "") -> None:
        """Handle notifications of so many bytes, of which the last is from this session."""


@dataclass(slots=True)
class _Lock:
    owner: "ServerSession | None" = None
    count: int = 0
    queue: "deque[ServerSession]" = field(default_factory=deque)


@dataclass(slots=True)
class _Term:
    token: int
    lease_s: float
    timeline: int
    was_released: bool = False


class ServerSession:
    """One server process, which does one thing after the other."""

    def __init__(self, server: "ModelledPostgres", pid: int, client: Client, to_client: Pipe) -> None:
        self.server = server
        self.pid = pid
        self.started = f"{server.wall_clock:.6f}"
        self.client = client
        self.is_over = False
        self.channels: set[str] = set()
        self._to_client = to_client
        self._requests: deque[tuple[Ask, Sequence[Any]] | None] = deque()
        self._is_busy = False
        self._idle_ms = 0
        self._idle: Appointment | None = None
        self._idle_ends_at = 0.0
        self._patience: Appointment | None = None
        self._waits_for: tuple[str, Ask] | None = None
        self._commits_locally = False
        self._unconfirmed: tuple[tuple[Any, ...] | None] | None = (
            None  # the answer to a commit that waits for a standby
        )
        self.waits_for_standby_since: float | None = None
        self.client_left_at: float | None = None
        """When its client closed the connection, which the session notices once it is idle."""

    def receive(self, request: tuple[Ask, Sequence[Any]] | None) -> None:
        """Queue a statement, or the client's close (None), to be handled in order."""
        if self.is_over:
            self.server.answer_with_reset(self._to_client, self.client)
            return
        if request is None:
            self.client_left_at = self.server.world.now
        self._requests.append(request)
        self._go_on()

    @property
    def is_quickly_reached(self) -> bool:
        """Whether the news of its end would reach the client's host within the usual time."""
        return not self.is_over and self._to_client.is_quick

    def end(self, cause: LossCause | None, *, quickly: bool = False) -> None:
        """End the session, and free its locks. The client is notified of the cause, unless it is None.

        ``quickly``: the notice arrives at the client's host in the usual time, whatever happens to the network.
        """
        if self.is_over:
            return
        self.is_over = True
        for appointment in (self._idle, self._patience):
            if appointment is not None:
                appointment.call_off()
        if cause is not None:
            send = self._to_client.send_quickly if quickly else self._to_client.send
            send(lambda: self.client.receive_end(cause))
        self.server.forget(self)

    def be_notified(
        self, size_bytes: int = _NOTIFICATION_BYTES, *, quickly: bool = False, sender_pid: int = 0, payload: str = ""
    ) -> None:
        """Send notifications of so many bytes to the client; ``quickly`` as in :meth:`end`."""
        send = self._to_client.send_quickly if quickly else self._to_client.send
        send(lambda: self.client.receive_notification(size_bytes, sender_pid, payload))

    def be_granted(self) -> None:
        """Take the lock, as the first in the queue, and answer the client."""
        assert self._waits_for is not None  # noqa: S101 - only a queued session is granted a lock here
        key, ask = self._waits_for
        self._waits_for = None
        if self._patience is not None:
            self._patience.call_off()
        # The time-out came in the same moment: refused, and yet it holds the lock, for which the statement may look.
        is_race = self.server.draw_race()
        if is_race and not ask.looks_for_race:
            self._answer(self._slice_row(ask, ""))
            return
        self.server.note(self.client.owner, f"is granted {_CAST.sub('', key)} from the queue")
        if ask.announces and not is_race:
            self._to_client.send(self.client.receive_announcement)
        self._commit(ask, self._slice_row(ask, ask.granted), writes=ask.is_flushed)

    def _slice_row(self, ask: Ask, granted: str) -> tuple[str, ...]:
        """Return the answer to a wait slice."""
        if not ask.draws_token:
            return (granted,)
        return granted, str(self.server.next_token(is_flushed=ask.is_flushed)) if granted else ""

    @property
    def waits_for(self) -> str | None:
        """The lock for which the session is queued."""
        return None if self._waits_for is None else self._waits_for[0]

    def _go_on(self) -> None:
        while not self._is_busy and self._requests and not self.is_over:
            if self._idle is not None:
                self._idle.call_off()
            request = self._requests.popleft()
            if request is None:
                self.end(None)
                return
            self._is_busy = True
            self._execute(*request)
        if not self._is_busy and not self.is_over and self._idle_ms:
            self._limit_idleness_until(self.server.world.now + self._idle_ms / 1000)

    def _limit_idleness_until(self, ends_at: float) -> None:
        if self._idle is not None:
            self._idle.call_off()
        self._idle_ends_at = ends_at
        self._idle = self.server.world.at(ends_at, lambda: self.end(LossCause.SILENCED))

    def move_time_out(self, by_s: float) -> None:
        """Move the running idle time-out earlier, or later if ``by_s`` is negative."""
        if not self._is_busy and not self.is_over and self._idle is not None:
            self._limit_idleness_until(self._idle_ends_at - by_s)

    def _commit(self, ask: Ask, row: tuple[Any, ...] | None, *, writes: bool) -> None:
        """Answer, once a standby has confirmed the write. Only the end of the session ends that wait otherwise."""
        is_local = self._commits_locally or ask.commits_locally is False
        if not writes or is_local or not self.server.waits_for_standby:
            self._answer(row)
            return
        self._unconfirmed = (row,)
        self.waits_for_standby_since = self.server.world.now
        self.server.note(self.client.owner, "waits in a commit for a standby")

    def be_confirmed(self) -> None:
        """Answer the waiting commit: the standby is back."""
        if self._unconfirmed is not None:
            (row,) = self._unconfirmed
            self._unconfirmed = self.waits_for_standby_since = None
            self._answer(row)

    def _answer(self, row: tuple[Any, ...] | None) -> None:
        self._is_busy = False
        self._to_client.send(lambda: self.client.receive_answer(row))
        self._go_on()

    def _execute(self, ask: Ask, parameters: Sequence[Any]) -> None:
        for each in ask.first:
            self.server.answer(self, each, ())
        if ask.commits_locally:
            self._commits_locally = True
        if ask.verb == "wait":
            self.limit_idleness(ask)
            self._enter_queue(ask)
            return
        if ask.verb == "set_up":
            self.limit_idleness(ask)
        row = self.server.answer(self, ask, parameters)
        self._commit(ask, row, writes=_writes(ask))

    def limit_idleness(self, ask: Ask) -> None:
        """Set or remove the idle time-out, if the statement asks for it. It counts from the next idle moment on."""
        if ask.idle_ms is not None:
            self._idle_ms = ask.idle_ms

    def _enter_queue(self, ask: Ask) -> None:
        self._waits_for = ask.key, ask
        if self.server.take(self, ask.key, queues=True):
            self.be_granted()
            return
        self._patience = self.server.world.later(ask.wait_ms / 1000, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._waits_for is not None:
            key, ask = self._waits_for
            self._waits_for = None
            self.server.leave_queue(self, key)
            second = ask.otherwise
            is_second = second is not None and self.server.take(self, second.key)
            self._answer(self._slice_row(ask, second.granted if second is not None and is_second else ""))


def _writes(ask: Ask) -> bool:
    """Whether the transaction writes to the disk: an attempt, a ping or an unlock does not."""
    return ask.verb == "claim" or ask.marks is not None or ask.is_flushed


def _columns(key: str) -> tuple[int, int, int]:
    """Return the columns under which pg_locks shows a lock."""
    numbers = [int(number) for number in _NUMBER.findall(key)]
    return lock_columns(LockKey.bigint(*numbers) if len(numbers) == 1 else LockKey.pair(*numbers))


class ModelledPostgres:
    """The server behind a network name: after a promotion it is another one."""

    def __init__(
        self, world: World, note: Callable[[str, str], None], *, race_share: float = 0.0, is_standby: bool = False
    ) -> None:
        self.world = world
        self.note = note
        self.is_up = True
        self.is_standby = is_standby
        self.sessions: dict[int, ServerSession] = {}
        self._race_share = race_share
        self._locks: dict[str, _Lock] = {}
        self._terms: dict[str, _Term] = {}
        self._last_pid = 100
        self._xid = self._flushed_xid = 700
        self._timeline = 1
        self._identifier = 1
        self._note: str | None = f"{_NOTED}1 {-2 * _LONG_AGO_S}"
        self.on_grant: Callable[[str], None] | None = None
        """Called with the owner of a session that was just granted a lock."""
        self.waits_for_standby = False
        """Whether commits wait for a synchronous standby that is not there."""
        self._ahead_s = 0.0  # how far the server's wall clock has been set forward, in all
        self._started_at = self._recovered_at = -_LONG_AGO_S  # by that clock

    @property
    def wall_clock(self) -> float:
        """The time of the server's wall clock: clock_timestamp()."""
        return self.world.now + self._ahead_s

    # --- Connections -------------------------------------------------------------------------------------------

    def accept(self, client: Client, to_client: Pipe) -> ServerSession | None:
        """Begin a session; return None if the server is down."""
        if not self.is_up:
            return None
        self._last_pid += 1
        session = self.sessions[self._last_pid] = ServerSession(self, self._last_pid, client, to_client)
        return session

    def answer_with_reset(self, to_client: Pipe, client: Client) -> None:
        """Answer a message to an ended session with a reset, if the server is up."""
        if self.is_up:
            to_client.send(lambda: client.receive_end(LossCause.CONNECTION_LOST))

    def sessions_of(self, owner: str) -> list[ServerSession]:
        """Return the sessions of one node, the oldest first."""
        return [session for session in self.sessions.values() if session.client.owner == owner]

    def holders_of(self, owner: str) -> list[ServerSession]:
        """Return those sessions of one node that hold a lock, the oldest first."""
        holders = {lock.owner for lock in self._locks.values() if lock.count}
        return [session for session in self.sessions_of(owner) if session in holders]

    def forget(self, session: ServerSession) -> None:
        """Remove a session that has ended, free its locks, and remove it from all queues."""
        self.sessions.pop(session.pid, None)
        for lock in self._locks.values():
            if session in lock.queue:
                lock.queue.remove(session)
        self._free_all(session)

    # --- Locks -------------------------------------------------------------------------------------------------

    def take(self, session: ServerSession, key: str, *, queues: bool = False) -> bool:
        """Take a lock if it is free or held by the same session; otherwise queue the session if ``queues``."""
        lock = self._locks.setdefault(key, _Lock())
        if lock.owner in (None, session):
            lock.owner = session
            lock.count += 1
            self._report_grant(session)
            return True
        if queues:
            lock.queue.append(session)
        return False

    def leave_queue(self, session: ServerSession, key: str) -> None:
        """Remove a session from the queue of a lock."""
        self._locks[key].queue.remove(session)

    def _hand_over(self, key: str) -> None:
        lock = self._locks[key]
        lock.owner, lock.count = None, 0
        if lock.queue:
            lock.owner, lock.count = lock.queue.popleft(), 1
            self._report_grant(lock.owner)
            lock.owner.be_granted()

    def _report_grant(self, session: ServerSession) -> None:
        if self.on_grant is not None:
            self.on_grant(session.client.owner)

    def draw_race(self) -> bool:
        """Draw whether this grant comes in the same moment as the time-out of its wait slice."""
        return self._race_share > 0 and self.world.random.random() < self._race_share

    def next_token(self, *, is_flushed: bool) -> int:
        """Assign a transaction id."""
        self._xid += 1
        if is_flushed:
            self._flushed_xid = self._xid
        return self._xid

    # --- Statements --------------------------------------------------------------------------------------------

    def answer(self, session: ServerSession, ask: Ask, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the answer to a statement that does not wait."""
        row: tuple[Any, ...] | None = getattr(self, f"_{ask.verb}")(session, ask, parameters)
        return row

    def _ping(self, *_: Any) -> tuple[Any, ...]:
        return (1,)

    def _set_up(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        known: tuple[Any, ...] = (None if self.is_standby else [], session.pid, self.is_standby, session.started)
        if not ask.with_facts:
            return known
        since = max(self._started_at, self._recovered_at) if ask.counts_recovery else self._started_at
        run = f"{self._started_at} {self._recovered_at} {self._timeline}"  # a promoted server has another start
        return (*known, DEADLOCK_S, self.wall_clock - since, run)

    def _try(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        if self.take(session, ask.key):
            session.limit_idleness(ask)
            return ([ask.granted, ""],)
        return (None,) if ask.otherwise is None else self._try(session, ask.otherwise, ())

    def _try_one(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        session.limit_idleness(ask)  # which such a statement sets, whether the lock is free or not
        return ([0] if self.take(session, ask.key) else [], "")

    def _unlock(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        term = self._terms.get(ask.marks[0]) if ask.marks else None
        if term is not None and ask.marks is not None and term.token == ask.marks[1]:
            term.was_released = True
        lock = self._locks.get(ask.key)
        was_held = lock is not None and lock.owner is session
        session.limit_idleness(ask)
        if lock is not None and was_held:
            lock.count -= 1
            if lock.count == 0:
                self._hand_over(ask.key)
        if ask.frees_all:  # whatever lock that is
            self._free_all(session)
        return ([0] if was_held else [], None, "")

    def _free_all(self, session: ServerSession) -> None:
        for key, lock in list(self._locks.items()):
            if lock.owner is session:
                self._hand_over(key)

    def _stuck_holders(self, _: ServerSession, __: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        asked = set(zip(*parameters, strict=True))
        holders = {lock.owner for key, lock in self._locks.items() if lock.owner and _columns(key) in asked}
        stuck = [each for each in holders if each.waits_for_standby_since is not None]
        return (sorted(f"{each.pid} {each.started}" for each in stuck),)

    def _end_backend(self, _: ServerSession, __: Ask, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        pid, started = parameters
        former = self.sessions.get(pid)
        if former is None or former.started != started:
            return None
        self.world.later(_SIGNAL_S, lambda: former.end(LossCause.SESSION_TERMINATED))
        return True, "" if former.waits_for_standby_since is None else "SyncRep"

    def _holder(self, _: ServerSession, __: Ask, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        for key, lock in self._locks.items():
            if lock.owner is not None and _columns(key) == tuple(parameters):
                return True, lock.owner.pid, lock.owner.client.owner, "model", None, lock.owner.started
        return None

    def _look_for_table(self, *_: Any) -> tuple[Any, ...]:
        return [int(self._note is not None), 1], True, True, "model", "model", [], True

    def _look_for_run(self, *_: Any) -> tuple[Any, ...]:
        return str(self._identifier), self._run, self._note

    def _make_table(self, *_: Any) -> tuple[Any, ...]:
        if self._note is None:
            self._note = _NOTED + self._run
        return (1,)

    @property
    def _run(self) -> str:
        return f"{self._identifier} {self._started_at}"

    # --- A group's statements ----------------------------------------------------------------------------------

    def _capacity(self, *_: Any) -> tuple[Any, ...]:
        return 6400, 64

    def _token(self, _: ServerSession, ask: Ask, __: Sequence[Any]) -> tuple[Any, ...]:
        return self.next_token(is_flushed=ask.is_flushed), ""

    def _try_all(self, session: ServerSession, ask: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        session.limit_idleness(ask)
        limit = parameters[-1]
        won: list[int] = []
        for place, key in _keys_of(parameters):
            if (limit is None or len(won) < limit) and self.take(session, key):
                won.append(place)
        return (won,)

    def _unlock_all(self, session: ServerSession, ask: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        session.limit_idleness(ask)
        done = [place for place, key in _keys_of(parameters) if self._unlock_once(session, key)]
        if ask.frees_all:
            self._free_all(session)
        return (done,)

    def _unlock_once(self, session: ServerSession, key: str) -> bool:
        lock = self._locks.get(key)
        if lock is None or lock.owner is not session:
            return False
        lock.count -= 1
        if lock.count == 0:
            self._hand_over(key)
        return True

    def _listen(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> None:
        session.channels.add(ask.key)

    def _unlisten(self, session: ServerSession, *_: Any) -> None:
        session.channels.clear()

    def _notify(self, sender: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        self._notify_all(sender, ask.key, "")
        return ("",)

    def _notify_all(self, sender: ServerSession, channel: str, payload: str) -> None:
        for session in self.sessions.values():
            if channel in session.channels:
                session.be_notified(sender_pid=sender.pid, payload=payload)

    # --- Nominations -------------------------------------------------------------------------------------------

    def _notify_of_nominee(self, sender: ServerSession, _: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        self._notify_all(sender, *parameters)
        return "off", ""

    def _end_lease(self, session: ServerSession, ask: Ask, _: Sequence[Any]) -> tuple[Any, ...]:
        session.limit_idleness(ask)
        return ("0",)

    def _holder_and_own_name(self, session: ServerSession, ask: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        holder = self._holder(session, ask, parameters)
        return None if holder is None else holder[1], session.client.owner

    def _session_names(self, session: ServerSession, *_: Any) -> tuple[Any, ...]:
        return session.client.owner, sorted({each.client.owner for each in self.sessions.values()})

    def _sessions_at(self, _: ServerSession, __: Ask, parameters: Sequence[Any]) -> tuple[Any, ...]:
        asked = {tuple(columns): number for number, *columns in zip(*parameters, strict=True)}
        found = []
        for key, lock in self._locks.items():
            number = asked.get(_columns(key))
            if number is not None:
                found += [f"{number} true {lock.owner.client.owner}"] if lock.owner is not None else []
                found += [f"{number} false {each.client.owner}" for each in lock.queue]
        return (found,)

    # --- Terms -------------------------------------------------------------------------------------------------

    def _read_term(self, _: ServerSession, ask: Ask, __: Sequence[Any]) -> tuple[Any, ...]:
        term = self._terms.get(ask.lock)
        if term is None:
            return None, None, None, False, self._timeline
        return term.token, term.lease_s, term.timeline, term.was_released, self._timeline

    def _claim(self, _: ServerSession, ask: Ask, __: Sequence[Any]) -> tuple[Any, ...]:
        drawn, former = self.next_token(is_flushed=True), self._terms.get(ask.lock)
        token = drawn if former is None else max(drawn, former.token + 1)
        self._terms[ask.lock] = _Term(token, ask.lease_s, self._timeline)
        return (str(token),)

    # --- Faults ------------------------------------------------------------------------------------------------

    def restart(self, down_s: float, *, at_once: bool = False) -> None:
        """Shut down in order, or at once (without a last write to the disk); start again after ``down_s``."""
        if at_once:
            self._xid = self._flushed_xid
        self._stop(LossCause.SESSION_TERMINATED, down_s, self._start_anew)

    def crash(self, down_s: float, *, victim: int | None = None) -> None:
        """Crash as after a kill -9 of one process: all sessions end, and the server recovers. The start time stays.

        The ``victim``, by its pid, cannot notify its client.
        """
        self._xid = self._flushed_xid
        self._stop(LossCause.SERVER_RESTART, down_s, self._recover, victim)

    def lose_power(self, down_s: float) -> None:
        """Stop without a notice to any client, and start again."""
        self._xid = self._flushed_xid
        self._stop(None, down_s, self._start_anew)

    def promote(self, down_s: float) -> None:
        """Stop without a notice; the standby, which has been up for long and has all commits, takes the name over."""
        self._timeline += 1
        self._stop(None, down_s, self._come_back)

    def replace(self, down_s: float) -> None:
        """Stop without a notice; a new server, which has no term table yet, takes the name over."""
        self._become_another(None)
        self._stop(None, down_s, self._start_anew)

    def switch(self, down_s: float) -> None:
        """Stop without a notice; another server, up for long and with older tables, takes the name over."""
        self._become_another(-2 * _LONG_AGO_S)
        self._started_at -= 1.0
        self._stop(None, down_s, self._come_back)

    def _become_another(self, table_is_of: float | None) -> None:
        self._identifier += 1
        self._timeline = 1
        self._terms.clear()
        self._xid = self._flushed_xid = self._xid + _BUSIER_XIDS
        self._note = None if table_is_of is None else f"{_NOTED}{self._identifier} {table_is_of}"

    def _stop(
        self, told: LossCause | None, down_s: float, come_back: Callable[[], None], victim: int | None = None
    ) -> None:
        self.is_up = False
        for lock in self._locks.values():
            lock.queue.clear()  # a server that goes down grants no lock
        for session in list(self.sessions.values()):
            session.end(LossCause.CONNECTION_LOST if session.pid == victim else told)
        self._locks.clear()
        self.world.later(down_s, come_back)

    def lose_standby(self) -> None:
        """Make every commit that writes something wait."""
        self.waits_for_standby = True

    def find_standby(self) -> None:
        """End the wait of all commits."""
        self.waits_for_standby = False
        for session in list(self.sessions.values()):
            session.be_confirmed()

    def dead_holder(self) -> "tuple[ServerSession, str] | None":
        """Return a session that holds a lock, waits for a standby, and has lost its client; and the lock."""
        for key, lock in self._locks.items():
            owner = lock.owner
            if owner is not None and owner.waits_for_standby_since is not None and owner.client_left_at is not None:
                return owner, _CAST.sub("", key)
        return None

    def step_clock(self, by_s: float, *, moves_time_outs: bool = False) -> None:
        """Set the wall clock forward or back. Times that were recorded before stay as they are.

        ``moves_time_outs``: idle sessions end by the wall clock, so earlier or later.
        """
        self._ahead_s += by_s
        if moves_time_outs:
            for session in list(self.sessions.values()):
                session.move_time_out(by_s)

    @property
    def has_listeners(self) -> bool:
        """Whether any session listens to a channel."""
        return any(session.channels for session in self.sessions.values())

    def flood(self, size_bytes: int) -> None:
        """Let another user send so many bytes of notifications on every channel that a session listens to."""
        for session in self.sessions.values():
            if session.channels:
                session.be_notified(size_bytes, quickly=session.is_quickly_reached)

    def reset_statistics(self) -> None:
        """Run pg_stat_reset_shared('bgwriter'), after which the server looks as if it had just recovered."""
        self._recovered_at = self.wall_clock

    def _start_anew(self) -> None:
        self._started_at = self.wall_clock
        self._come_back()

    def _recover(self) -> None:
        self._recovered_at = self.wall_clock
        self._come_back()

    def _come_back(self) -> None:
        self.is_up = True
        self.note("server", "is up")

    def end(self) -> None:
        """Do nothing: there is nothing to remove."""


def _keys_of(parameters: Sequence[Any]) -> list[tuple[int, str]]:
    """Return the locks of a group's statement, each with its place: the bigints first, as the statement has them."""
    places, numbers, pair_places, first, second, _ = parameters
    bigints = [(place, f"'{number}'::bigint") for place, number in zip(places, numbers, strict=True)]
    pairs = [(place, f"'{a}'::int, '{b}'::int") for place, a, b in zip(pair_places, first, second, strict=True)]
    return bigints + pairs
