"""The one class around psycopg's connections, in what tables and questions need of it beyond the session port."""

import asyncio
import time

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.lease import query
from tests.support.pooler import pgbouncer

_BOUND_S = 10.0


async def open_connection(dsn: str, *, survives_errors: bool = False) -> Connection:
    return await Connector("a test", dsn=dsn).open(survives_errors=survives_errors)


@pytest.mark.parametrize("survives", [True, False])
async def test_refused_statement_has_its_sqlstate_and_closes_only_what_does_not_survive_it(
    postgres: Postgres, survives: bool
):
    connection = await open_connection(postgres.dsn, survives_errors=survives)
    with pytest.raises(ConnectionError, match="does not exist") as caught:
        await connection.fetch("SELECT FROM nothing_of_that_name", bound_s=_BOUND_S)
    assert (caught.value.sqlstate, caught.value.answered) == ("42P01", True)
    assert connection.closed is not survives
    if survives:
        assert await connection.fetch("SELECT 1", bound_s=_BOUND_S) == (1,)
    await connection.close()


async def test_connection_that_survives_errors_does_not_survive_its_end(postgres: Postgres):
    connection = await open_connection(postgres.dsn, survives_errors=True)
    await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", connection.facts.session_pid)
    with pytest.raises(ConnectionError):
        await connection.fetch("SELECT 1", bound_s=_BOUND_S)
    assert connection.closed


async def test_transaction_is_committed_whole_or_not_at_all(own_server: Server):
    connection = await open_connection(own_server.dsn, survives_errors=True)
    await connection.fetch("CREATE TABLE public.numbers (n int PRIMARY KEY)", bound_s=_BOUND_S)
    async with connection.transaction(bound_s=_BOUND_S) as fetch_all:
        assert await fetch_all("INSERT INTO public.numbers VALUES (%s) RETURNING n", (1,)) == [(1,)]
    with pytest.raises(ConnectionError, match="duplicate key"):
        async with connection.transaction(bound_s=_BOUND_S) as fetch_all:
            await fetch_all("INSERT INTO public.numbers VALUES (%(n)s)", {"n": 2})
            await fetch_all("INSERT INTO public.numbers VALUES (%(n)s)", {"n": 1})
    assert await connection.fetch_all("SELECT n FROM public.numbers", bound_s=_BOUND_S) == [(1,)]
    await connection.close()


async def test_bound_of_a_transaction_is_for_the_whole_of_it(postgres: Postgres):
    connection = await open_connection(postgres.dsn)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no answer within 0\.3 s"):
        async with connection.transaction(bound_s=0.3) as fetch_all:
            for _ in range(20):
                await fetch_all("SELECT pg_sleep(0.2)", ())
    assert time.monotonic() - began < 2
    assert connection.closed


async def test_notifications_are_received_with_their_sender_when_they_are_read(postgres: Postgres):
    connection = await open_connection(postgres.dsn)
    heard: list[tuple[int, str]] = []
    await connection.listen("pgleaderlock_test", lambda pid, payload: heard.append((pid, payload)))
    arrived = asyncio.Event()
    with connection.readable(arrived.set):
        ((pid, _),) = await query(postgres.dsn, "SELECT pg_backend_pid(), pg_notify('pgleaderlock_test', 'now')")
        await asyncio.wait_for(arrived.wait(), 10)
        assert heard == []
        connection.receive()
    assert heard == [(pid, "now")]
    await connection.close()


async def test_end_that_is_read_closes_the_connection_while_its_socket_is_observed(postgres: Postgres):
    connection = await open_connection(postgres.dsn)
    arrived = asyncio.Event()
    with connection.readable(arrived.set):
        await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", connection.facts.session_pid)
        await asyncio.wait_for(arrived.wait(), 10)
        connection.receive()
    assert connection.closed


async def test_session_of_a_pooler_is_not_our_own_and_every_statement_is_pinned_for_itself(own_server: Server):
    direct = await open_connection(own_server.dsn)
    assert direct.is_own
    await direct.close()
    with pgbouncer(own_server, "transaction") as dsn:
        connection = await open_connection(dsn)
        assert not connection.is_own
        for _ in range(7):  # more often than psycopg needs to prepare a statement
            row = await connection.fetch("SELECT current_setting('search_path'), %s", ("x",), bound_s=_BOUND_S)
            assert row == ("pg_catalog, pg_temp", "x")
        await connection.close()


async def test_connection_that_is_not_open_in_time_is_an_error_that_says_so(own_server: Server):
    with pytest.raises(ConnectionError, match=r"cannot connect for a test .*no answer within 1e-06 s"):
        await Connector("a test", dsn=own_server.dsn).open(bound_s=1e-6)
