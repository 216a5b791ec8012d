"""The term row and what decides by it: the fence, strict take-over, the timeline, the end of a wait."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgleaderlock import ConnectionError, FixedInterval, LeaderLock, LeadershipLost, LockError, LockKey, LockState
from pgleaderlock.postgres import terms
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._schema import make_tables
from pgleaderlock.postgres._schema_versions import create_sql
from pgleaderlock.postgres.lease import Lease, fence_key
from pgleaderlock.postgres.schema import schema_sql
from pgleaderlock.postgres.terms import Past, past_s
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import LEASE_S, make_leased, query, until_answering
from tests.support.postgres import holders, terminate_holder, with_options
from tests.support.refusals import standby_of
from tests.support.terms import make_termed

TERM = "SELECT token, role, lease_s, released_at IS NOT NULL FROM pgleaderlock.terms WHERE lock = %s"


# --- The quiet period: the decision alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "takeover", "ours", "expected"),
    [
        (Past(None, 0.0, 0, False, 1), "fast", None, None),
        (Past(None, 0.0, 0, False, 1), "strict", None, None),
        (Past(None, 0.0, 0, False, 2), "fast", None, 15.0),
        (Past(None, 0.0, 0, False, 1, True), "fast", None, 0.0),
        (Past(None, 0.0, 0, False, 1, True), "strict", None, 0.0),
        (Past(None, 0.0, 0, False, 2, True), "fast", None, 15.0),
        (Past(7, 20.0, 1, False, 1, True), "fast", None, None),
        (Past(7, 20.0, 1, True, 1), "fast", None, 0.0),
        (Past(7, 20.0, 1, True, 1), "strict", None, 0.0),
        (Past(7, 20.0, 1, False, 1), "fast", None, None),
        (Past(7, 20.0, 1, False, 1), "strict", None, 20.0),
        (Past(7, 20.0, 1, False, 1), "strict", 7, 0.0),
        (Past(7, 20.0, 1, False, 1), "strict", 6, 20.0),
        (Past(7, 20.0, 1, True, 2), "fast", 7, 20.0),
        (Past(7, 2.0, 1, False, 2), "fast", None, 15.0),
    ],
)
def test_how_long_the_last_leader_may_still_be_valid(past, takeover, ours, expected):
    lease = Lease(15.0, takeover=takeover, term_table=True)
    assert past_s(past, lease, ours=ours) == expected


def test_strict_needs_the_table():
    with pytest.raises(ValueError, match="term_table=True"):
        LeaderLock("postgresql://", 1, 2, takeover="strict")


@pytest.mark.parametrize("settings", [{"takeover": "slow"}, {"schema": 'a"b'}, {"schema": ""}, {"fence_wait_s": 0}])
def test_what_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"takeover|schema|fence_wait_s"):
        LeaderLock("postgresql://", 1, 2, **with_options(settings))


def test_the_fence_of_a_key_never_changes():
    assert fence_key(LockKey.pair(1, 100)) == LockKey.bigint(-2359969906821454167)


# --- The row ----------------------------------------------------------------------------------------------------------


async def test_term_is_written_before_its_leader_leads_and_marked_when_it_is_released(postgres: Postgres):
    key = LockKey.named(f"terms/{time.monotonic_ns()}")
    seen: list[tuple[Any, ...]] = []
    lock, _ = make_termed(postgres.dsn, key)

    @lock.on_acquired
    async def look() -> None:
        seen.extend(await query(postgres.dsn, TERM, str(key)))

    async with lock:
        await lock.wait_for_leadership(10)
        assert seen == [(lock.token, key.name, LEASE_S, False)]
        token = lock.token
    assert await query(postgres.dsn, TERM, str(key)) == [(token, key.name, LEASE_S, True)]


async def test_a_recovery_writes_a_new_term_without_waiting_for_itself(postgres: Postgres, key: LockKey):
    timing = {"lease_s": 60, "health_interval_s": 5, "reconnect_grace_s": 20}
    lock, heard = make_termed(postgres.dsn, key, takeover="strict", **timing)
    async with lock:
        await lock.wait_for_leadership(10)
        first = lock.token or 0
        await terminate_holder(postgres.dsn, key)
        await until(lambda: "recovered" in heard.words, timeout_s=10)  # a strict successor would wait a minute
        assert (lock.token or 0) > first
        assert (await query(postgres.dsn, TERM, str(key)))[0][0] == lock.token


async def test_a_token_goes_on_from_the_recorded_one_where_transaction_ids_went_back(postgres: Postgres, key: LockKey):
    """As after a dump that was restored into a new server."""
    lock, _ = make_termed(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
    far = 2**60
    await query(postgres.dsn, "UPDATE pgleaderlock.terms SET token = %s WHERE lock = %s", far, str(key))
    async with lock:
        await lock.wait_for_leadership(10)
        assert lock.token == far + 1


async def test_candidates_that_start_at_once_make_the_table_once(own_server: Server, key: LockKey):
    made = [make_termed(own_server.dsn, LockKey.pair(77, number)) for number in range(8)]
    await asyncio.gather(*(lock.start() for lock, _ in made))
    assert all(await asyncio.gather(*(lock.wait_for_leadership(20) for lock, _ in made)))
    await asyncio.gather(*(lock.shutdown() for lock, _ in made))
    assert [heard.errors for _, heard in made] == [[]] * 8


async def test_user_who_may_not_create_the_table_gets_an_error_that_names_who_must(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app")
    lock, heard = make_termed(dsn, key)
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=10)
        assert isinstance(heard.errors[0], ConnectionError)
        assert "user app may not create" in str(heard.errors[0])
        assert "pgleaderlock schema apply --grant-to app" in str(heard.errors[0])
        async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as owner:
            await owner.execute(schema_sql().encode())
        before = len(heard.errors)
        await until(lambda: len(heard.errors) > before and "may not read and write" in str(heard.errors[-1]))
        await query(own_server.dsn, "GRANT USAGE ON SCHEMA pgleaderlock TO app")
        await query(own_server.dsn, "GRANT SELECT, INSERT, UPDATE ON pgleaderlock.terms TO app")
        assert await lock.wait_for_leadership(10)


async def test_the_schema_can_have_another_name(own_server: Server, key: LockKey):
    lock, _ = make_termed(own_server.dsn, key, schema="Elections")
    async with lock:
        await lock.wait_for_leadership(10)
        assert await query(own_server.dsn, 'SELECT token FROM "Elections".terms') == [(lock.token,)]


@pytest.mark.parametrize(
    "setting",
    ["default_transaction_read_only=on", "default_transaction_isolation=serializable", "synchronous_commit=off"],
)
async def test_a_user_s_defaults_do_not_get_in_the_way(postgres: Postgres, key: LockKey, setting: str):
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, options=f"-c {setting}")
    lock, heard = make_termed(dsn, key)
    async with lock:
        assert await lock.wait_for_leadership(10)
        session = lock._backend._pair.lock_session  # type: ignore[attr-defined]
        names = "current_setting('synchronous_commit'), current_setting('default_transaction_isolation')"
        row = await session.fetch(f"SELECT {names}", bound_s=5)
        # A token must survive a crash, and a claim must not fail because a release came just before it.
        assert row == ("local" if "synchronous" in setting else "on", "read committed")
    assert heard.errors == []


# --- Strict take-over -------------------------------------------------------------------------------------------------


async def test_strict_successor_waits_for_the_lease_of_a_leader_that_did_not_release(postgres: Postgres, key: LockKey):
    first, _ = make_termed(postgres.dsn, key, takeover="strict")
    second, _ = make_termed(postgres.dsn, key, takeover="strict")
    await first.start()
    await first.wait_for_leadership(10)
    trusted_until = first.trusted_until or 0.0
    await first._backend.close()  # both of its sessions at once; nothing notifies it before the next renewal
    async with second:
        assert await second.wait_for_leadership(10)
        assert second._clock() > trusted_until
        assert second._clock() > trusted_until + 0.1 * LEASE_S - 0.01  # counted from the grant: a whole lease
    await first.shutdown()


async def test_a_strict_successor_does_not_wait_after_a_clean_release(postgres: Postgres, key: LockKey):
    timing = {"takeover": "strict", "lease_s": 600, "health_interval_s": 5}
    first, _ = make_termed(postgres.dsn, key, **timing)
    second, _ = make_termed(postgres.dsn, key, **timing)
    async with first:
        await first.wait_for_leadership(10)
    async with second:
        assert await second.wait_for_leadership(10)


# --- Restart and promotion --------------------------------------------------------------------------------------------


async def test_a_clean_release_ends_the_wait_after_a_restart(own_server: Server, key: LockKey):
    timing = {"lease_s": 600, "health_interval_s": 5, "settle_s": None}
    first, _ = make_termed(own_server.dsn, key, **{**timing, "settle_s": 0})
    async with first:
        await first.wait_for_leadership(10)
    await asyncio.to_thread(own_server.restart)
    second, _ = make_termed(own_server.dsn, key, **timing)
    async with second:
        assert await second.wait_for_leadership(10)  # and not in ten minutes


async def test_an_empty_table_that_is_older_than_the_servers_start_ends_the_wait(own_server: Server, key: LockKey):
    await make_tables(own_server.dsn, "pgleaderlock", None)
    await restart_a_lease_later(own_server)
    lock, _ = make_termed(own_server.dsn, key, lease_s=600, health_interval_s=5, settle_s=None)
    async with lock:
        assert await lock.wait_for_leadership(30)  # and not in ten minutes


NOTE = "COMMENT ON COLUMN pgleaderlock.terms.acquired_at IS "


async def restart_a_lease_later(server: Server) -> None:
    """Restart it, with a note that is as old as it would be after a longer time."""
    ((note,),) = await query(
        server.dsn,
        "SELECT col_description('pgleaderlock.terms'::regclass, attnum) FROM "
        "pg_attribute WHERE attrelid = 'pgleaderlock.terms'::regclass AND attname = 'acquired_at'",
    )
    table, _, start = str(note).rpartition(" ")
    if start.replace(".", "").isdigit():
        await query(server.dsn, f"{NOTE}'{table} {float(start) - 600.0}'")
    await asyncio.to_thread(server.restart)


async def is_whole(server: Server, key: LockKey) -> bool:
    """Whether a missing row is known to mean that no term has ever begun."""
    backend = make_termed(server.dsn, key)[0]._backend
    try:
        await opened(backend)
        leased: Any = backend
        past: Past = leased._terms.past(await leased._pair.ask_lock(leased._terms.read_sql()))
        return past.is_whole
    finally:
        await backend.close()


async def opened(backend: Backend) -> None:
    """Open it; a server that recovers from a crash ends the first sessions."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionError):
                return await backend.open()
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_run_that_creates_the_table_records_its_age(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    assert not await is_whole(own_server, key)  # it has just been made
    await make_tables(own_server.dsn, "pgleaderlock", "app")  # which does not date it anew
    ((pid,),) = await query(own_server.dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    os.kill(pid, signal.SIGKILL)
    await until_answering(own_server.dsn)
    assert not await is_whole(own_server, key)  # a crash recovery is not told from no start at all
    await restart_a_lease_later(own_server)
    assert await is_whole(own_server, key)
    await make_tables(own_server.dsn, "pgleaderlock", None)
    assert await is_whole(own_server, key)
    ((server,),) = await query(own_server.dsn, "SELECT system_identifier FROM pg_control_system()")
    for note in (f"'terms are kept since server run {server + 1} 17.5'", "'their own words'", "NULL"):
        await query(own_server.dsn, NOTE + note)  # as of a dump of another server, and of 0.1.0
        assert not await is_whole(own_server, key)
    await make_tables(own_server.dsn, "pgleaderlock", None)
    assert not await is_whole(own_server, key)
    await restart_a_lease_later(own_server)
    assert await is_whole(own_server, key)
    await query(own_server.dsn, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public")
    lock, _ = make_termed(psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app"), key)
    async with lock:
        assert await lock.wait_for_leadership(30)  # where the run may not be asked for, the table only says nothing


@pytest.mark.parametrize(
    "deed",
    [
        "TRUNCATE pgleaderlock.terms",
        "ALTER TABLE pgleaderlock.terms SET UNLOGGED",
        (
            "CREATE TABLE pgleaderlock.copy (LIKE pgleaderlock.terms INCLUDING ALL); DROP TABLE pgleaderlock.terms; "
            "ALTER TABLE pgleaderlock.copy RENAME TO terms"
        ),
    ],
    ids=["emptied", "not logged", "restored"],
)
@pytest.mark.slow
async def test_a_table_that_was_emptied_or_restored_says_nothing_though_its_note_is_there(
    own_server: Server, key: LockKey, deed: str
):
    """A row may be missing in it whose term a leader still has."""
    await make_tables(own_server.dsn, "pgleaderlock", None)
    await restart_a_lease_later(own_server)
    assert await is_whole(own_server, key)
    for statement in deed.split("; "):
        await query(own_server.dsn, statement)
    assert not await is_whole(own_server, key)
    await restart_a_lease_later(own_server)
    assert not await is_whole(own_server, key)


async def test_a_registry_does_not_date_the_table(own_server: Server, key: LockKey):
    """It makes the tables for candidates that keep no rows, one of which may have led."""
    connection = await Connector("a registry", dsn=own_server.dsn).open()
    await connection.fetch(create_sql("pgleaderlock"), bound_s=10)
    await connection.close()
    await asyncio.to_thread(own_server.restart)
    assert not await is_whole(own_server, key)


@pytest.fixture
def other_server(server_folder_root: Path) -> Iterator[Server]:
    """A server with an identifier of its own: those of other fixtures are copies of one."""
    server = Server(server_folder_root / f"other-{time.monotonic_ns()}")
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


@pytest.mark.slow
@pytest.mark.parametrize("may_tell", [True, False])
async def test_another_server_than_before_is_waited_out_whatever_its_row_says(
    other_server: Server, postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch, may_tell: bool
):
    """The row that it has may be an old one, of a dump. A user who may not ask which server it is, waits too."""
    if not may_tell:
        monkeypatch.setattr(terms, "_MAY_TELL_RUN", "false")
    first, _ = make_termed(other_server.dsn, key)
    async with first:
        await first.wait_for_leadership(10)
    servers = [postgres.dsn, other_server.dsn]

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(servers[0], autocommit=True)

    lock, heard = make_termed("", key, connect_fn=connect)
    async with lock:
        assert await lock.wait_for_leadership(10)
        servers.pop(0)
        moved_at = lock._clock()
        await terminate_holder(postgres.dsn, key)
        await until(lambda: heard.words.count("on_acquired") == 2, timeout_s=30)
        assert lock._clock() >= moved_at + LEASE_S


async def test_an_unclean_end_does_not_end_the_wait_after_a_restart(own_server: Server, key: LockKey):
    first, _ = make_termed(own_server.dsn, key, auto_reacquire=False)  # or it would be the one to take over
    await first.start()
    await first.wait_for_leadership(10)
    await first._backend.close()
    await asyncio.to_thread(own_server.restart)
    second, _ = make_termed(own_server.dsn, key, settle_s=None)
    began = time.monotonic()
    async with second:
        assert await second.wait_for_leadership(10)
        assert time.monotonic() - began > LEASE_S / 2
    await first.shutdown()


@pytest.mark.slow
async def test_a_promotion_counts_as_a_restart_whatever_the_row_says(
    own_server: Server, key: LockKey, server_folder_root: Path
):
    """A later term than the one in the row may not have reached the standby, so a clean release there says nothing."""
    first, _ = make_termed(own_server.dsn, key)
    async with first:
        await first.wait_for_leadership(10)
    with standby_of(own_server, server_folder_root / f"standby-of-{own_server.folder.name}") as standby:
        await query(standby.dsn, "SELECT pg_promote()")
        second, _ = make_termed(standby.dsn, key)
        async with second:
            began = time.monotonic()
            assert await second.wait_for_leadership(10)
            assert time.monotonic() - began > 0.9 * LEASE_S
        third, _ = make_termed(standby.dsn, key)
        async with third:
            began = time.monotonic()
            assert await third.wait_for_leadership(10)
            assert time.monotonic() - began < 0.9 * LEASE_S  # the promotion is over, and the release was clean


# --- The fence --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two_leaders_in_turn(dsn: str, key: LockKey, **settings):
    """A leader, and a follower that leads as soon as the leader releases."""
    first, _ = make_termed(dsn, key, **settings)
    second, heard = make_termed(dsn, key, **settings)
    async with first:
        assert await first.wait_for_leadership(10)
        async with second:
            yield first, second, heard


async def test_a_leader_s_own_transaction_passes_the_fence(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
            await lock.fence(connection)
            limit = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
            assert limit == (f"{LEASE_S * 1000:.0f}ms",)
            await connection.commit()
            limit = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
            assert limit == ("0",)
        with psycopg.connect(postgres.dsn, autocommit=True) as blocking, blocking.transaction():
            await asyncio.to_thread(lock.fence, blocking)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as other_driver:
            await other_driver.execute(lock.fence_sql().encode())


async def test_a_stricter_limit_of_the_user_is_kept(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, options="-c idle_in_transaction_session_timeout=250")
    async with lock, await psycopg.AsyncConnection.connect(dsn) as connection:
        await lock.wait_for_leadership(10)
        await lock.fence(connection)
        limit = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
        assert limit == ("250ms",)


@pytest.mark.parametrize("isolation", [None, psycopg.IsolationLevel.REPEATABLE_READ])
async def test_a_transaction_of_a_deposed_leader_fails(postgres: Postgres, key: LockKey, isolation):
    async with two_leaders_in_turn(postgres.dsn, key) as (first, second, _):
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await connection.set_isolation_level(isolation)
        async with connection:
            await connection.execute("SELECT 1")  # its snapshot, where it has one, is from before the change
            statement = first.fence_sql()
            await first.step_down()
            assert await second.wait_for_leadership(10)
            with pytest.raises(psycopg.Error) as caught:
                await connection.execute(statement.encode())
            assert caught.value.sqlstate == ("40001" if isolation else "PGL01")
            await connection.rollback()
            with pytest.raises(LeadershipLost):
                await first.fence(connection)


@pytest.mark.parametrize("isolation", [None, psycopg.IsolationLevel.REPEATABLE_READ])
async def test_a_fence_that_finds_a_newer_token_says_that_leadership_is_lost(
    postgres: Postgres, key: LockKey, isolation
):
    """The election has not noticed yet: only the fence stands between its transaction and the new leader's."""
    lock, _ = make_termed(postgres.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await connection.set_isolation_level(isolation)
        async with connection:
            await connection.execute("SELECT 1")
            await query(postgres.dsn, "UPDATE pgleaderlock.terms SET token = token + 1 WHERE lock = %s", str(key))
            with pytest.raises(LeadershipLost, match=str(key)) as caught:
                await lock.fence(connection)
            assert caught.value.cause.value == "fenced"
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            await connection.rollback()
        with psycopg.connect(postgres.dsn) as blocking:
            with pytest.raises(LeadershipLost):
                lock.fence(blocking)
            blocking.rollback()


async def test_a_fenced_transaction_in_flight_delays_the_successor(postgres: Postgres, key: LockKey):
    async with (
        two_leaders_in_turn(postgres.dsn, key, lease_s=30, health_interval_s=5) as (first, second, _),
        await psycopg.AsyncConnection.connect(postgres.dsn) as connection,
    ):
        await first.fence(connection)
        await first.step_down()
        assert not await second.wait_for_leadership(1.0)
        assert second.state is LockState.ACQUIRING
        await connection.commit()
        assert await second.wait_for_leadership(10)


async def test_a_released_term_fences_nothing_even_before_there_is_another(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    async with lock, await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await lock.wait_for_leadership(10)
        statement = lock.fence_sql()
        await lock.shutdown()
        with pytest.raises(psycopg.Error, match="leadership has ended"):
            await connection.execute(statement.encode())
        await connection.rollback()


async def test_a_fenced_transaction_left_open_is_ended_by_the_server(postgres: Postgres, key: LockKey):
    async with two_leaders_in_turn(postgres.dsn, key) as (first, second, _):
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await first.fence(connection)
        await first.shutdown()  # it would lead again, where the second was refused once
        assert await second.wait_for_leadership(60)
        with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
            await connection.execute("SELECT 1")
        await connection.close()


async def test_a_fenced_transaction_that_works_on_is_named_and_the_lock_not_held_idle(postgres: Postgres, key: LockKey):
    async with two_leaders_in_turn(postgres.dsn, key, fence_wait_s=0.3) as (first, second, heard):
        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        await first.fence(connection)
        await first.shutdown()
        busy = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
        await until(lambda: bool(heard.errors), timeout_s=10)
        assert isinstance(heard.errors[0], LockError)
        pid = connection.info.backend_pid
        assert f"pid {pid}" in str(heard.errors[0])
        assert f"pg_terminate_backend({pid})" in str(heard.errors[0])
        user = connection.info.user
        assert f"pid {pid} ((without an application_name), user {user};" in str(heard.errors[0])
        await query(postgres.dsn, "SELECT pg_terminate_backend(%s)", pid)
        assert await second.wait_for_leadership(10)
        with pytest.raises(psycopg.OperationalError):
            await busy
        await connection.close()


async def test_a_fence_that_cannot_protect_says_what_is_missing(postgres: Postgres, own_server: Server, key: LockKey):
    plain, _ = make_leased(postgres.dsn, key)
    lock, _ = make_termed(postgres.dsn, key)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        with pytest.raises(LockError, match="term_table=True"):
            await plain.fence(connection)
        with pytest.raises(LeadershipLost, match="does not lead"):
            await lock.fence(connection)
        async with lock:
            await lock.wait_for_leadership(10)
            with pytest.raises(LockError, match="outside a transaction"):
                await lock.fence(connection)
            with pytest.raises(TypeError, match="fence_sql"):
                lock.fence("postgresql://")  # type: ignore[call-overload]
            async with await psycopg.AsyncConnection.connect(own_server.dsn) as elsewhere:
                with pytest.raises(LockError, match="not in the database of this connection"):
                    await lock.fence(elsewhere)
    assert await holders(postgres.dsn, key) == []


# --- What an attacker tried -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "difference", [{"term_table": False}, {"schema": "other"}], ids=["without the table", "another schema"]
)
async def test_candidates_whose_terms_are_not_in_the_same_table_are_warned_about(
    postgres: Postgres, key: LockKey, difference: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    leader, _ = make_leased(postgres.dsn, key, term_table=True)
    other, heard = make_leased(postgres.dsn, key, **{"term_table": True, **difference})
    async with leader:
        await leader.wait_for_leadership(10)
        async with other:
            await until(lambda: "on_acquire_failed" in heard.words)
    assert 'theirs="1.5s wft"' in caplog.text
    assert "candidates_disagree" in caplog.text


async def test_fenced_transactions_that_overlap_do_not_keep_a_successor_waiting_for_ever(
    postgres: Postgres, key: LockKey
):
    """Row locks are granted past a writer that waits; the advisory lock beside them is not."""
    async with two_leaders_in_turn(postgres.dsn, key, lease_s=3, health_interval_s=0.9) as (first, second, heard):
        statement = first.fence_sql().encode()
        stop = asyncio.Event()

        async def work(delay_s: float) -> None:
            async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
                await asyncio.sleep(delay_s)
                while not stop.is_set():
                    with contextlib.suppress(psycopg.Error):
                        await connection.execute(statement)
                        await asyncio.sleep(0.2)
                    await connection.rollback()
                    await asyncio.sleep(0)

        workers = [asyncio.create_task(work(delay_s)) for delay_s in (0.0, 0.07, 0.14)]
        await asyncio.sleep(0.3)
        await first._backend.close()
        await first.shutdown()
        assert await second.wait_for_leadership(10)
        assert heard.errors == []
        stop.set()
        await asyncio.gather(*workers)


@pytest.mark.parametrize("how", ["SELECT 1 FROM pgleaderlock.terms FOR UPDATE", "LOCK TABLE pgleaderlock.terms"])
async def test_session_that_keeps_the_table_locked_does_not_delay_a_release(postgres: Postgres, key: LockKey, how: str):
    rests = FixedInterval(60)  # or it leads again before a busy machine has looked
    lock, heard = make_termed(postgres.dsn, key, lease_s=30, health_interval_s=5, retry_strategy=rests)
    async with lock, await psycopg.AsyncConnection.connect(postgres.dsn) as sitter:
        await lock.wait_for_leadership(10)
        await sitter.execute(how.encode())
        began = time.monotonic()
        await lock.step_down()
        assert time.monotonic() - began < 5
        assert await holders(postgres.dsn, key) == []
        await lock.shutdown()
    assert heard.errors == []


async def test_a_claim_that_is_held_up_by_something_else_than_a_fence_says_so(postgres: Postgres, key: LockKey):
    first, _ = make_termed(postgres.dsn, key)
    async with first:
        await first.wait_for_leadership(10)
    second, heard = make_termed(postgres.dsn, key, fence_wait_s=0.2)
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as sitter:
        await sitter.execute("SELECT 1 FROM pgleaderlock.terms WHERE lock = %s FOR UPDATE", (str(key),))
        async with second:
            await until(lambda: bool(heard.errors), timeout_s=10)
            assert "not a fence of ours" in str(heard.errors[0])
            await sitter.rollback()
            assert await second.wait_for_leadership(10)


async def test_a_user_who_owns_the_schema_needs_no_right_on_the_database(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    await query(own_server.dsn, "CREATE SCHEMA pgleaderlock AUTHORIZATION app")
    lock, heard = make_termed(psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app"), key)
    async with lock:
        assert await lock.wait_for_leadership(10)
    assert heard.errors == []


async def test_a_table_that_goes_away_is_made_again(own_server: Server, key: LockKey):
    lock, _ = make_termed(own_server.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        await query(own_server.dsn, "DROP SCHEMA pgleaderlock CASCADE")
        await terminate_holder(own_server.dsn, key)
        await until(lambda: not lock.is_leader)
        assert await lock.wait_for_leadership(10)


async def test_the_advice_names_the_schema_that_was_asked_for(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    lock, heard = make_termed(psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app"), key, schema="elections")
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=10)
    assert "schema apply --schema elections --grant-to app" in str(heard.errors[0])


async def test_a_serialization_failure_that_is_not_ours_is_left_to_the_caller_s_retry(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    table = f"skew_{key.numbers[0]}_{key.numbers[1]}"
    await query(postgres.dsn, f"CREATE TABLE {table} AS SELECT generate_series(1, 2) AS n")
    async with lock:
        await lock.wait_for_leadership(10)
        connections = [await psycopg.AsyncConnection.connect(postgres.dsn) for _ in range(2)]
        for connection in connections:
            await connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
            await connection.execute(f"SELECT sum(n) FROM {table}".encode())
        for connection in connections:
            await connection.execute(f"INSERT INTO {table} VALUES (3)".encode())
        await connections[0].commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            await lock.fence(connections[1])
        assert lock.is_leader
        for connection in connections:
            await connection.close()


async def test_a_fence_in_a_pipeline_is_refused_because_it_would_return_unanswered(postgres: Postgres, key: LockKey):
    lock, _ = make_termed(postgres.dsn, key)
    async with lock, await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await lock.wait_for_leadership(10)
        async with connection.pipeline():
            with pytest.raises(LockError, match="pipeline"):
                await lock.fence(connection)


async def test_error_for_a_user_who_may_not_fence_names_the_missing_right(own_server: Server, key: LockKey):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    lock, _ = make_termed(own_server.dsn, key)
    async with lock:
        await lock.wait_for_leadership(10)
        dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="app")
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            with pytest.raises(LockError, match="schema apply --grant-to"):
                await lock.fence(connection)


async def test_prepared_transaction_that_delays_a_term_is_distinguished_from_a_session(
    server_folder_root: Path, key: LockKey
):
    settings = {"max_prepared_transactions": "5"}
    server = Server(server_folder_root / f"prepared-{time.monotonic_ns()}", settings=settings)
    server.start()
    try:
        async with two_leaders_in_turn(server.dsn, key, fence_wait_s=0.2) as (first, second, heard):
            async with await psycopg.AsyncConnection.connect(server.dsn) as connection:
                await connection.execute("BEGIN")
                await connection.execute(first.fence_sql().encode())
                await connection.execute("PREPARE TRANSACTION 'undecided'")
                await first.shutdown()
                await until(lambda: bool(heard.errors), timeout_s=10)
                assert "pg_prepared_xacts" in str(heard.errors[0])
                await connection.commit()
                await connection.set_autocommit(True)
                await connection.execute("ROLLBACK PREPARED 'undecided'")
            assert await second.wait_for_leadership(10)
    finally:
        server.stop("immediate")
