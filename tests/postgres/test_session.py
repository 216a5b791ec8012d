"""psycopg behind the session port: bounded answers, and ends that are noticed."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.models import LossCause
from pgleaderlock.postgres import _driver
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.session import end_of
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.lease import query
from tests.support.session import open_session, terminate


async def test_an_answer_that_does_not_come_in_time_closes_the_session(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no answer within 0\.1 s") as caught:
        await session.fetch("SELECT pg_sleep(3)", bound_s=0.1)
    assert time.monotonic() - began < 2
    assert caught.value.cause is LossCause.RENEW_TIMEOUT
    assert session.closed
    await session.close()


async def test_an_error_of_the_server_closes_the_session_too(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    with pytest.raises(ConnectionError, match="division by zero") as caught:
        await session.fetch("SELECT 1 / 0", bound_s=5)
    assert caught.value.cause is LossCause.UNKNOWN
    assert isinstance(caught.value.__cause__, psycopg.errors.DivisionByZero)
    assert session.closed


async def test_several_statements_are_answered_by_the_last(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    assert await session.fetch("DO $$ BEGIN END $$; SELECT 1; SELECT 2", bound_s=5) == (2,)
    await session.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
async def test_text_is_read_as_text_whatever_the_client_encoding(postgres: Postgres, key: LockKey, encoding: str):
    session = await open_session(psycopg.conninfo.make_conninfo(postgres.dsn, client_encoding=encoding), key)
    row = await session.fetch("SELECT 'a'::text, 'b'::name, 'c'::varchar, ARRAY['d'], U&'\\00fc'", bound_s=5)
    assert row == ("a", "b", "c", ["d"], "ü")
    await session.close()


async def test_a_text_that_is_not_in_its_encoding_is_shown_and_not_an_error(own_server: Server, key: LockKey):
    """As a name in a database without an encoding can be. It is for people; nothing decides by it."""
    await query(own_server.dsn, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    dsn = psycopg.conninfo.make_conninfo(own_server.dsn, dbname="ascii", client_encoding="SQL_ASCII")
    session = await open_session(dsn, key)
    assert await session.fetch("SELECT E'client \\xff'", bound_s=5) == ("client \\xff",)
    await session.close()


async def test_a_notification_is_not_an_end(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    await session.fetch("LISTEN pgleaderlock_test; SELECT 1", bound_s=5)
    watching = asyncio.create_task(end_of(session))
    await query(postgres.dsn, "NOTIFY pgleaderlock_test")
    done, _ = await asyncio.wait({watching}, timeout=0.3)
    assert not done
    watching.cancel()
    await asyncio.wait({watching})
    assert await session.fetch("SELECT 1", bound_s=5) == (1,)
    await session.close()


@pytest.mark.parametrize(
    ("deed", "cause"),
    [
        ("SELECT pg_terminate_backend(%s)", LossCause.SESSION_TERMINATED),
        (None, LossCause.CONNECTION_LOST),
    ],
    ids=["terminated", "killed"],
)
async def test_an_end_is_noticed_and_named(own_server: Server, key: LockKey, deed: str | None, cause: LossCause):
    session = await open_session(own_server.dsn, key)
    watching = asyncio.create_task(end_of(session))
    await asyncio.sleep(0)
    if deed is None:
        os.kill(session.facts.session_pid, signal.SIGKILL)
    else:
        await query(own_server.dsn, deed, session.facts.session_pid)
    error = await asyncio.wait_for(watching, 5)
    assert error.cause is cause
    assert session.closed


async def test_a_session_that_is_silent_for_too_long_is_ended_by_the_server(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    await session.fetch("SELECT set_config('idle_session_timeout', '100', false)", bound_s=5)
    error = await asyncio.wait_for(end_of(session), 5)
    assert error.cause is LossCause.SILENCED


async def test_a_cancelled_call_closes_the_session(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    call = asyncio.create_task(session.fetch("SELECT pg_sleep(3)", bound_s=60))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert session.closed


async def test_forked_child_s_copy_of_a_socket_is_closed_and_sends_no_terminate_message(
    postgres: Postgres, key: LockKey
):
    """What runs in a child, run here, where it can be seen: the server must see the other end close."""
    session = await open_session(postgres.tcp_dsn, key)
    pid = session.facts.session_pid
    _driver._close_sockets_in_child()
    with pytest.raises(ConnectionError):
        await session.fetch("SELECT 1", bound_s=1)
    await session.close()
    deadline = time.monotonic() + 10
    while await query(postgres.dsn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid):
        assert time.monotonic() < deadline


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ask_in_child(question: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(int(question()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def has_ended_soon(session: Connection) -> bool:
    deadline = time.monotonic() + 10
    while not session.has_ended and time.monotonic() < deadline:
        pass
    return session.has_ended


@pytest.mark.parametrize("way", ["dsn", "tcp_dsn"])
async def test_the_end_of_a_session_shows_without_the_event_loop(postgres: Postgres, key: LockKey, way: str):
    session = await open_session(getattr(postgres, way), key)
    assert not session.has_ended
    terminate(postgres.dsn, session.facts.session_pid)
    assert has_ended_soon(session)
    assert not session.closed  # nothing was read
    assert (await asyncio.wait_for(end_of(session), 5)).cause is LossCause.SESSION_TERMINATED
    assert session.has_ended


async def test_end_of_a_session_is_detected_behind_unread_notifications(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    await session.fetch("LISTEN pgleaderlock_test; SELECT 1", bound_s=5)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for _ in range(100):
            connection.execute("SELECT pg_notify('pgleaderlock_test', repeat('x', 5000))")
    assert not session.has_ended
    terminate(postgres.dsn, session.facts.session_pid)
    assert has_ended_soon(session)
    await session.close()


async def test_the_end_shows_while_a_call_is_in_flight(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    call = asyncio.create_task(session.fetch("SELECT pg_sleep(60)", bound_s=60))
    while not await query(postgres.dsn, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
        pass
    assert not session.has_ended
    terminate(postgres.dsn, session.facts.session_pid)
    assert has_ended_soon(session)
    assert not call.done()
    with pytest.raises(ConnectionError) as caught:
        await call
    assert caught.value.cause is LossCause.SESSION_TERMINATED


async def test_a_closed_session_has_ended_and_the_server_sees_it(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.tcp_dsn, key)
    pid = session.facts.session_pid
    before = count_descriptors()
    await session.close()
    assert session.has_ended
    assert count_descriptors() == before - 2  # libpq's, and the copy
    deadline = time.monotonic() + 10
    while await query(postgres.dsn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid):
        assert time.monotonic() < deadline


async def test_in_a_forked_child_the_session_has_ended(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    assert ask_in_child(lambda: session.has_ended) is True
    assert not session.has_ended
    await session.close()


async def test_several_threads_may_look_while_the_session_is_closed(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    raised: list[BaseException] = []
    began = threading.Barrier(4)

    def look() -> None:
        try:
            began.wait(10)
            while not session.has_ended:
                pass
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.wait(10)
    await session.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert raised == []
