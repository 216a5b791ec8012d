"""psycopg behind the session port: bounded answers, and ends that are noticed."""

import asyncio
import os
import signal
import time

import psycopg
import pytest

from pgleaderlock import ConnectionError, LossCause
from pgleaderlock.backends import _driver
from pgleaderlock.backends._connector import Connector
from pgleaderlock.backends._psycopg_session import PsycopgSession
from pgleaderlock.embedded import Server
from pgleaderlock.keys import LockKey
from tests.conftest import Postgres
from tests.test_lease import query


async def open_session(dsn: str, key: LockKey) -> PsycopgSession:
    connector = Connector(key, dsn=dsn, connect_fn=None)
    return PsycopgSession(await connector.connect(), connector.explain)


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


async def test_a_notification_is_not_an_end(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    await session.fetch("LISTEN pgleaderlock_test; SELECT 1", bound_s=5)
    watching = asyncio.create_task(session.ended())
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
    watching = asyncio.create_task(session.ended())
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
    error = await asyncio.wait_for(session.ended(), 5)
    assert error.cause is LossCause.SILENCED


async def test_a_cancelled_call_closes_the_session(postgres: Postgres, key: LockKey):
    session = await open_session(postgres.dsn, key)
    call = asyncio.create_task(session.fetch("SELECT pg_sleep(3)", bound_s=60))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert session.closed


async def test_a_forked_child_s_copy_of_a_socket_becomes_nothing_and_its_good_bye_reaches_nobody(
    postgres: Postgres, key: LockKey
):
    """What runs in a child, run here, where it can be seen: the server must see the other end close."""
    session = await open_session(postgres.tcp_dsn, key)
    pid = session.facts.session_pid
    _driver._let_go_in_child()
    with pytest.raises(ConnectionError):
        await session.fetch("SELECT 1", bound_s=1)
    await session.close()
    deadline = time.monotonic() + 10
    while await query(postgres.dsn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid):
        assert time.monotonic() < deadline
