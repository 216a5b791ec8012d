"""The modelled PostgreSQL gives the answers that a real one gives, to the statements that a real one is asked.

Each script below is performed on both, and must be the same text afterwards, answers included. Where it is not, the
model is wrong, unless this PostgreSQL is a new one that has changed its mind; then both must follow.
"""

import asyncio
import fcntl
import os
import signal
import struct
import termios
import textwrap
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pytest

from pgleaderlock._base.causes import LossCause
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.group import CHANNEL
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.session import Session, end_of
from pgleaderlock.testing.embedded import Server, StopMode
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation._receive_buffer import ReceiveBuffer
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation._statements import Ask
from pgleaderlock.testing.simulation.network import Cable
from pgleaderlock.testing.simulation.postgres import ModelledPostgres, ServerSession
from pgleaderlock.testing.simulation.world import World
from tests.conftest import Postgres
from tests.support.server_scripts import BOUND_S, Performance, until

T = TypeVar("T")

DOWN_S = 1.0
PAYLOAD_BYTES = 1000
FLOOD_KB = 12_000  # more than the model keeps
_NOTIFY = "SELECT pg_notify(%s, lpad(n::text, %s, 'x')) FROM generate_series(1, %s) AS n"

QUESTIONS = {
    "a lock is held by one session, and handed over by unlocking": """
        a opens -> the server is old
        b opens -> the server is old
        a asks who holds -> nobody
        a tries -> granted
        a tries the witness -> granted
        b tries -> no
        b asks who holds -> a
        a unlocks -> was held
        b tries -> granted
        a asks who holds -> b
        a unlocks -> was not held: []
        a tries -> no
    """,
    "many locks are tried for at once, and let go of at once": """
        a opens -> the server is old
        b opens -> the server is old
        a sweeps 1 -> witness
        b sweeps -> lock
        b draws -> a new token
        a sweeps -> witness
        a frees -> witness
        b sweeps -> lock
        a frees -> witness
        b sweeps -> lock, witness
        b frees -> lock, witness
        a sweeps -> witness
        b frees -> lock
        b frees -> lock
        a sweeps -> lock, witness
        b frees -> none
        a draws -> a new token
    """,
    "whoever listens is told": """
        a opens -> the server is old
        b opens -> the server is old
        a listens
        b tells
        a is told -> of something
    """,
    "a try goes on to another lock, and so does a wait slice at its end": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries or -> granted
        b tries or -> granted the heir
        c tries or -> no
        c stands 0.02 or -> no
        b leaves
        c stands 0.02 or -> granted the heir
        b waits 30 the heir -> is in line
        c draws and leaves the heir -> a new token
        b hears -> granted the heir
        a unlocks -> was held
        b stands 30 -> granted
    """,
    "a place that is left is notified of, and no more to a session that has stopped listening": """
        a opens -> the server is old
        b opens -> the server is old
        a tries the heir -> granted the heir
        b listens
        a leaves
        b is told -> of something
        b draws listening -> a new token
        a tells
        b pings -> (1,)
        b knows -> of nothing
    """,
    "a notification says which session sent it, and the holder of a lock can be compared with that": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a compares -> nobody
        a tries -> granted
        b listens
        a nominates c
        b receives -> 'c' by a
        b compares -> a
        b compares the heir -> nobody
        c rings
        b receives -> 'c' by a, '' by c
    """,
    "the sessions at a lock and at a place can be listed, and a place is left with the lease": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b tries the heir under 1 -> granted the heir
        c waits 30 the heir -> is in line
        a lists -> heir false, heir true, lock true
        b retires
        c hears -> granted the heir
        a lists -> heir true, lock true
        b compares the heir -> c
    """,
    "a line is served in its order": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a waits 30 -> granted
        b waits 30 -> is in line
        c waits 30 -> is in line
        a unlocks -> was held
        b hears -> granted
        server shows c -> in line
        a tries -> no
        b unlocks -> was held
        c hears -> granted
        c asks who holds -> c
    """,
    "a grant that begins a term is announced, and brings a token": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a waits 30 beginning -> granted, which was announced, a new token
        a draws -> a new token
        b waits 30 beginning -> is in line
        a unlocks -> was held
        b hears -> granted, which was announced, a new token
        c stands 0.02 beginning -> no
        b unlocks -> was held
        c draws -> a new token
    """,
    "an announcement comes before the commit that draws the token is confirmed": """
        a opens -> the server is old
        b opens -> the server is old
        server misses standby
        a waits 30 beginning -> is in a commit
        b tries -> no
        server finds standby
        a hears -> granted, which was announced, a new token
    """,
    "patience ends, and the place in line with it": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b stands 0.02 -> no
        server shows b -> there
        c waits 30 -> is in line
        b waits 30 -> is in line
        a unlocks -> was held
        c hears -> granted
        c unlocks -> was held
        b hears -> granted
    """,
    "held several times, a lock is free after one release, and so is all else that the session held": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        a waits 30 -> granted
        a tries the witness -> granted
        b waits 30 the witness -> is in line
        a unlocks -> was held
        b hears -> granted
        b tries -> granted
        a unlocks -> was not held: []
    """,
    "a release of what is not held frees the rest all the same": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        a unlocks the witness -> was not held: []
        b tries -> granted
    """,
    "a session that is closed frees what it held, the first in line has it": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        a tries the witness -> granted
        b waits 30 -> is in line
        c waits 30 the witness -> is in line
        a closes
        b hears -> granted
        c hears -> granted
        server forgets a
        a pings -> connection_lost
    """,
    "a session that is terminated frees what it held, and its client is told": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b waits 30 -> is in line
        c mistakes a -> nobody there: None
        c ends a -> signalled
        b hears -> granted
        a learns -> session_terminated
        a pings -> session_terminated
        c ends a -> nobody there: None
    """,
    "one that stands in line is terminated at once, and told in its answer": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b waits 30 -> is in line
        c waits 30 -> is in line
        a ends b -> signalled
        b hears -> session_terminated
        a unlocks -> was held
        c hears -> granted
    """,
    "who did not read of the end is told of it by the next answer": """
        a opens -> the server is old
        b opens -> the server is old
        b ends a -> signalled
        server forgets a
        a pings -> session_terminated
    """,
    "one that stands in line does not notice that its client has gone, until it is granted": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b waits 30 -> is in line
        c waits 30 -> is in line
        b closes
        a pings -> (1,)
        server shows b -> in line
        a unlocks -> was held
        c hears -> granted
        server forgets b
    """,
    "but it can be ended": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        a tries -> granted
        b waits 30 -> is in line
        c waits 30 -> is in line
        b closes
        a ends b -> signalled
        server forgets b
        server shows c -> in line
        a closes
        c hears -> granted
    """,
    "nor does it notice until its patience ends": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        b waits 0.8 -> is in line
        b closes
        a pings -> (1,)
        server shows b -> in line
        server forgets b
        a asks who holds -> a
    """,
    "who waits is not idle, and idleness counts from the end of the wait": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        b stands 0.7 under 0.6 -> no
        b pings -> (1,)
        b learns -> silenced
        b pings -> silenced
        a pings -> (1,)
    """,
    "only who holds the lock, or may, is under the lease": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        d opens -> the server is old
        a tries under 0.5 -> granted
        a unlocks -> was held
        b tries -> granted
        a tries under 0.5 -> no
        c waits 30 under 0.5 -> is in line
        d waits 30 -> is in line
        b unlocks -> was held
        c hears -> granted
        c learns -> silenced
        d hears -> granted
        a pings -> (1,)
        b pings -> (1,)
    """,
    "terms are written down, and tokens never go back": """
        a opens -> the server is old
        a prepares
        a reads -> nothing, lease 0.0, timeline 0, released False
        a claims -> a new token
        a reads -> the last claim, lease 60.0, here, released False
        a tries -> granted
        a unlocks marking another -> was held
        a reads -> the last claim, lease 60.0, here, released False
        a unlocks marking -> was not held: []
        a reads -> the last claim, lease 60.0, here, released True
        a claims -> a new token
        a reads -> the last claim, lease 60.0, here, released False
        server records 1000000000000
        a reads -> another, lease 60.0, here, released False
        a claims -> a token after what was recorded
    """,
}

DISASTERS = {
    "the end of a session shows behind a few notifications that it has not read": """
        a opens -> the server is old
        b opens -> the server is old
        a listens
        server floods a 8
        a sees -> no end
        b ends a -> signalled
        a notices
        a learns -> session_terminated
    """,
    "behind more than is looked at, the close shows": """
        a opens -> the server is old
        b opens -> the server is old
        a listens
        server floods a 60
        a sees -> no end
        b ends a -> signalled
        a notices
        a learns -> session_terminated
    """,
    "behind more than can be sent, nothing shows, and the locks are free": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        a listens
        server floods a
        b ends a -> signalled
        server forgets a
        a sees -> no end
        b tries -> granted
        a sees -> no end
        a learns -> connection_lost
    """,
    "a commit waits for a standby that is absent, and nothing but its end frees its locks": """
        a opens -> the server is old
        b opens -> the server is old
        server misses standby
        a tries -> granted
        a commits -> is in a commit
        b tries -> no
        b pings -> (1,)
        b unlocks -> was not held: []
        b listens
        b tells
        a closes
        server shows a -> in a commit
        b asks who holds -> a
        b ends a -> signalled
        server forgets a
        b asks who holds -> nobody
        b waits 30 -> granted
        b commits -> is in a commit
        server finds standby
        b hears -> a new token
    """,
    "a server that is stopped, in order and at once": """
        a opens -> the server is old
        b opens -> the server is old
        a tries -> granted
        b waits 30 -> is in line
        server stops fast
        a learns -> session_terminated
        b hears -> session_terminated
        c opens -> unknown
        server starts
        a opens -> the server has just started
        b opens -> the server has just started
        b tries -> granted
        a waits 30 -> is in line
        server stops immediate
        a hears -> session_terminated
        b learns -> session_terminated
        server starts
        a opens -> the server has just started
        a tries -> granted
    """,
    "a server that loses one of its processes, and so all": """
        a opens -> the server is old
        b opens -> the server is old
        c opens -> the server is old
        c prepares
        a tries -> granted
        a claims -> a new token
        b waits 30 -> is in line
        server loses c
        a learns -> server_restart
        b hears -> server_restart
        c learns -> connection_lost
        a opens -> the server has just started
        b opens -> the server has just started
        b tries -> granted
        a waits 30 -> is in line
        server loses b
        a hears -> server_restart
        b learns -> connection_lost
        a opens -> the server has just started
        a waits 30 -> granted
        a reads -> the last claim, lease 60.0, here, released False
        a draws -> a new token
    """,
    "a token that did not reach the disk is handed out again": """
        a opens -> the server is old
        a draws without flushing -> a new token
        server loses a
        b opens -> the server has just started
        b draws -> a token that is not new
    """,
}


class RealGround:
    """A PostgreSQL of ours, or whatever --pg-dsn names; only a server of our own can be harmed."""

    def __init__(self, dsn: str, key: LockKey, server: Server | None = None) -> None:
        self._connector = Connector(key, dsn=dsn)
        self._dsn = dsn
        self._server = server

    async def open(self) -> Session:
        return await self._connector.open_session()

    async def look(self, pid: int) -> str:
        question = """SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %(pid)s AND NOT granted),
                             EXISTS (SELECT FROM pg_stat_activity WHERE pid = %(pid)s AND wait_event = 'SyncRep'),
                             EXISTS (SELECT FROM pg_stat_activity WHERE pid = %(pid)s)"""
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            row = await (await connection.execute(question, {"pid": pid})).fetchone()
        assert row is not None
        return "in line" if row[0] else "in a commit" if row[1] else "there" if row[2] else "gone"

    async def lose_standby(self) -> None:
        await self._set_standbys("= absent")
        await until(self._commit_waits)

    async def find_standby(self) -> None:
        await self._set_standbys("= ''")

    async def _set_standbys(self, value: str) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names {value}")
            await connection.execute("SELECT pg_reload_conf()")

    async def _commit_waits(self) -> bool:
        """Whether the setting has arrived: by a commit of our own, which is ended."""
        session = await self.open()
        commit = asyncio.ensure_future(session.fetch("SELECT pg_logical_emit_message(true, 'a', '')", bound_s=BOUND_S))
        await asyncio.wait({commit}, timeout=0.2)
        has_waited = await self.look(session.facts.session_pid) == "in a commit"
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            await connection.execute("SELECT pg_terminate_backend(%s)", [session.facts.session_pid])
        await asyncio.wait({commit})
        _ = commit.exception()
        await session.close()
        return has_waited

    async def notify(self, session: Session, size_kb: int | None) -> None:
        """Return when all of it lies unread, or the server waits until some of it is read."""
        pid, descriptor = session.facts.session_pid, session.descriptor
        assert descriptor is not None
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:

            async def is_full() -> bool:
                if size_kb is None:
                    await connection.execute(_NOTIFY, [CHANNEL, PAYLOAD_BYTES, 500])
                blocked = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'ClientWrite'"
                return (await connection.execute(blocked, [pid])).rowcount == 1

            async def has_come() -> bool:
                unread = fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0))
                return int(struct.unpack("i", unread)[0]) >= (size_kb or 0) * PAYLOAD_BYTES

            if size_kb is not None:
                await connection.execute(_NOTIFY, [CHANNEL, PAYLOAD_BYTES, size_kb])
            await until(is_full if size_kb is None else has_come)

    async def record(self, lock: LockKey, token: int) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            await connection.execute("UPDATE pgleaderlock.terms SET token = %s WHERE lock = %s", [token, str(lock)])

    async def stop(self, mode: StopMode) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.stop, mode)

    async def start(self) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.start)

    async def lose_process(self, pid: int) -> None:
        bystander = await self.open()
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(end_of(bystander), BOUND_S)  # before that, the server may not know of its loss
        await until(self._is_up)

    async def _is_up(self) -> bool:
        try:
            await (await psycopg.AsyncConnection.connect(self._dsn)).close()
        except psycopg.OperationalError:
            return False
        return True


class ModelledGround:
    """A modelled one, at the end of a cable in which nothing is lost."""

    def __init__(self, world: World) -> None:
        self._server = ModelledPostgres(world, lambda *_: None)
        self._cable = Cable(world)

    async def open(self) -> Session:
        session = SimulatedSession("a script", self._cable, self._server)
        await session.connect()
        return session

    async def look(self, pid: int) -> str:
        found = self._server.sessions.get(pid)
        if found is None:
            return "gone"
        return "in line" if found.waits_for else "in a commit" if found.waits_for_standby_since is not None else "there"

    async def lose_standby(self) -> None:
        self._server.lose_standby()

    async def find_standby(self) -> None:
        self._server.find_standby()

    async def notify(self, session: Session, size_kb: int | None) -> None:
        self._server.flood((FLOOD_KB if size_kb is None else size_kb) * PAYLOAD_BYTES)
        await asyncio.sleep(1.0)

    async def record(self, lock: LockKey, token: int) -> None:
        self._server._terms[str(lock)].token = token

    async def stop(self, mode: StopMode) -> None:
        self._server.restart(DOWN_S, at_once=mode == "immediate")

    async def start(self) -> None:
        await asyncio.sleep(2 * DOWN_S)

    async def lose_process(self, pid: int) -> None:
        self._server.crash(DOWN_S, victim=pid)
        await asyncio.sleep(2 * DOWN_S)


def run_simulated(world: World, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it in a process of a simulated world, to its end."""
    unexpected: list[dict[str, Any]] = []
    loop = NodeLoop(world, 1.0, after_step=lambda: None, failed=unexpected.append)  # type: ignore[abstract]
    task = loop.create_task(main())
    world.run(1000.0, unless=task.done)
    assert task.done(), "the model has nothing more to do, and the script is not at its end"
    loop.bury()
    world.run(2000.0)
    assert not unexpected
    return task.result()


def plain(script: str) -> str:
    return textwrap.dedent(script).strip()


@pytest.mark.parametrize("script", [pytest.param(plain(text), id=name) for name, text in QUESTIONS.items()])
async def test_a_real_server_gives_these_answers(script: str, postgres: Postgres, key: LockKey):
    assert await Performance(RealGround(postgres.dsn, key), key).perform(script) == script


def ask_the_model(script: str, key: LockKey) -> str:
    world = World(1)

    async def perform() -> str:
        return await Performance(ModelledGround(world), key, asyncio.get_running_loop().time).perform(script)

    return run_simulated(world, perform)


@pytest.mark.parametrize(
    "script", [pytest.param(plain(text), id=name) for name, text in {**QUESTIONS, **DISASTERS}.items()]
)
def test_the_model_gives_these_answers(script: str, key: LockKey):
    assert ask_the_model(script, key) == script


@pytest.mark.slow
async def test_a_real_server_gives_these_answers_when_it_goes_down(own_server: Server):
    # Its host survives, and with it whatever was written; to sync the whole folder takes a recovery seconds at times.
    async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as connection:
        await connection.execute("ALTER SYSTEM SET fsync = off")
        # Nor is it written by itself, however long a busy machine takes to crash it: that would make a token durable.
        await connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        await connection.execute("SELECT pg_reload_conf()")
    for number, script in enumerate(map(plain, DISASTERS.values())):
        key = LockKey.pair(1, number)  # what the script before held may be free only a moment later
        assert await Performance(RealGround(own_server.tcp_dsn, key, own_server), key).perform(script) == script


# --- The scripts detect a wrong model ------------------------------------------------------------------------------


def instead(owner: type, name: str) -> Callable[[Callable[..., Any]], Any]:
    """A model in which one method is another, which is given the one it replaces."""

    def as_parameter(method: Callable[..., Any]) -> Any:
        original = getattr(owner, name)
        return pytest.param(owner, name, lambda *args, **how: method(original, *args, **how), id=method.__name__)

    return as_parameter


@instead(ModelledPostgres, "take")
def everybody_is_granted_everything(_: Any, *__: Any, **___: Any) -> bool:
    return True


@instead(ModelledPostgres, "_hand_over")
def the_last_in_line_comes_first(hand_over: Any, server: ModelledPostgres, key: str) -> None:
    server._locks[key].queue.reverse()
    hand_over(server, key)


@instead(ModelledPostgres, "_free_all")
def nothing_is_ever_freed(_: Any, *__: Any) -> None:
    """Neither at a release nor at an end."""


@instead(ModelledPostgres, "_unlock")
def a_release_frees_once(unlock: Any, server: ModelledPostgres, session: ServerSession, ask: Ask, given: Any) -> Any:
    return unlock(server, session, replace(ask, frees_all=False), given)


@instead(ServerSession, "limit_idleness")
def nobody_is_ever_silenced(_: Any, *__: Any) -> None:
    """Whatever was set."""


@instead(ServerSession, "receive")
def a_commit_ends_with_its_client(receive: Any, session: ServerSession, request: Any) -> None:
    receive(session, request)
    if request is None and session.waits_for_standby_since is not None:
        session.end(None)


@instead(ServerSession, "_commit")
def a_renewal_waits_for_a_standby(commit: Any, session: ServerSession, ask: Ask, row: Any, *, writes: bool) -> None:
    commit(session, ask, row, writes=writes or ask.verb == "ping")


@instead(ServerSession, "_enter_queue")
def a_waiting_session_is_idle(enter_queue: Any, session: ServerSession, ask: Ask) -> None:
    session.server.world.later(session._idle_ms / 1000, lambda: session.end(LossCause.SILENCED))
    enter_queue(session, ask)


@instead(ServerSession, "receive")
def a_goodbye_is_read_at_once(receive: Any, session: ServerSession, request: Any) -> None:
    session.end(None) if request is None else receive(session, request)


@instead(ModelledPostgres, "next_token")
def tokens_stand_still(_: Any, *__: Any, **___: Any) -> int:
    return 700


@instead(ModelledPostgres, "_end_backend")
def a_pid_is_enough(end_former: Any, server: ModelledPostgres, session: ServerSession, ask: Ask, given: Any) -> Any:
    found = server.sessions.get(given[0])
    return end_former(server, session, ask, (given[0], found.started if found else ""))


@instead(ModelledPostgres, "crash")
def a_crash_forgets_what_was_flushed(crash: Any, server: ModelledPostgres, *given: Any, **how: Any) -> None:
    server._flushed_xid = 700
    crash(server, *given, **how)


@instead(ModelledPostgres, "_recover")
def a_recovery_does_not_show(_: Any, server: ModelledPostgres) -> None:
    server._come_back()


@instead(ModelledPostgres, "_claim")
def a_term_goes_back(claim: Any, server: ModelledPostgres, session: ServerSession, ask: Ask, given: Any) -> Any:
    server._terms.pop(ask.lock, None)
    return claim(server, session, ask, given)


@instead(ModelledPostgres, "_unlisten")
def who_listens_listens_for_ever(_: Any, *__: Any) -> None:
    """Whatever it asks for."""


@instead(ServerSession, "_lose_patience")
def a_slice_ends_without_another_try(lose_patience: Any, session: ServerSession) -> None:
    if session._waits_for is not None:
        key, ask = session._waits_for
        session._waits_for = key, replace(ask, otherwise=None)
    lose_patience(session)


@instead(ReceiveBuffer, "take_in")
def what_is_unread_hides_nothing(_: Any, *__: Any) -> None:
    """However much it is."""


WRONG = [
    everybody_is_granted_everything,
    the_last_in_line_comes_first,
    nothing_is_ever_freed,
    a_release_frees_once,
    nobody_is_ever_silenced,
    a_waiting_session_is_idle,
    a_commit_ends_with_its_client,
    a_renewal_waits_for_a_standby,
    a_goodbye_is_read_at_once,
    tokens_stand_still,
    a_pid_is_enough,
    a_crash_forgets_what_was_flushed,
    a_recovery_does_not_show,
    a_term_goes_back,
    who_listens_listens_for_ever,
    a_slice_ends_without_another_try,
    what_is_unread_hides_nothing,
]


@pytest.mark.parametrize(("owner", "name", "method"), WRONG)
def test_a_model_that_is_wrong_gives_other_answers(
    owner: type, name: str, method: Callable[..., Any], key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(owner, name, method)
    scripts = [plain(text) for text in (*QUESTIONS.values(), *DISASTERS.values())]
    assert any(ask_the_model(script, key) != script for script in scripts)
