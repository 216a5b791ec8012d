"""Where a lock would not be safe it is refused, with what to do about it: behind a real pooler, on a real standby."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgleaderlock import ConnectionError, FixedInterval, LeaderGroup, LockKey, LockState
from pgleaderlock.cli import exit_codes
from pgleaderlock.ops.config import load_config
from pgleaderlock.ops.node import Node
from pgleaderlock.postgres.backend import Connector, Lease, make_backend
from pgleaderlock.postgres.doctor import Verdict, examine
from pgleaderlock.testing.embedded import Server
from tests.support.cli import CLI
from tests.support.doubles import until
from tests.support.lease import LEASE_S, make_leased, query
from tests.support.pooler import pgbouncer
from tests.support.postgres import holders
from tests.support.processes import Process
from tests.support.refusals import ADVISORY_LOCKS, standby_of

QUICK = FixedInterval(0.05)
START_TIMEOUT_S = 10.0


async def assert_refused(dsn: str, observer_dsn: str, key: LockKey, *words: str, **settings: Any) -> None:
    """It is asked again and again, says each time why not, and never leads nor leaves a lock behind."""
    lock, heard = make_leased(dsn, key, retry_strategy=QUICK, **settings)
    async with lock:
        await until(lambda: len(heard.errors) >= 3 or lock.is_leader, 20)
        assert not lock.is_leader
        assert await query(observer_dsn, ADVISORY_LOCKS) == []
    for error in heard.errors:
        assert isinstance(error, ConnectionError)
        for word in (*words, key.described):
            assert word in str(error)
    assert LockState.LEADER not in heard.path
    assert "on_acquired" not in heard.words
    assert await query(observer_dsn, ADVISORY_LOCKS) == []


# --- A pooler -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_lock_behind_a_pooler_is_refused_and_the_error_says_what_would_allow_it(
    own_server: Server, key: LockKey, mode: str
):
    with pgbouncer(own_server, mode) as dsn:
        await assert_refused(dsn, own_server.dsn, key, "session mode", "allow_pooler=True", *SHARED)


async def test_a_refused_lock_leaves_no_setting_behind_on_the_sessions_of_a_pool(own_server: Server, key: LockKey):
    """They are other people's: a statement_timeout of ours would cancel their queries."""
    with pgbouncer(own_server, "transaction") as dsn:
        before = await query(dsn, "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
        await assert_refused(dsn, own_server.dsn, key, "connection pooler")
        after = await query(dsn, "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
    assert after == before


async def test_behind_a_pooler_in_session_mode_a_lock_leads_and_releases_if_that_was_allowed(
    own_server: Server, key: LockKey
):
    with pgbouncer(own_server, "session") as dsn:
        lock, heard = make_leased(dsn, key, allow_pooler=True)
        async with lock:
            assert await lock.wait_for_leadership(10)
            first = lock.trusted_until
            assert first is not None
            await until(lambda: (lock.trusted_until or 0) > first, 10)
            assert len(await holders(own_server.dsn, key)) == 1
        assert heard.errors == []
        rival, _ = make_leased(own_server.dsn, key)
        async with rival:
            assert await rival.wait_for_leadership(10)  # the pooler's sessions live on, and hold nothing


@pytest.mark.slow
async def test_pooler_is_allowed_on_the_command_line_and_in_a_configuration(own_server: Server, tmp_path: Path):
    with pgbouncer(own_server, "session") as dsn:
        words = ("acquire", "--dsn", dsn, "--role", "pooled", "--settle", "0")
        with Process(*CLI, *words, "--allow-pooler") as allowed:
            allowed.wait_for("acquired")
            assert allowed.wait() == exit_codes.CLEAN
        with Process(*CLI, *words) as refused:
            assert refused.wait() == exit_codes.UNREACHABLE
        file = tmp_path / "node.toml"
        for is_grouped in (True, False):
            election = f"backend = '{dsn}'\nroles = ['a', 'b']\nsettle = '0s'\nallow_pooler = true\n"
            election += "max_roles = 2\n" if is_grouped else "term_table = true\n"
            file.write_text(f"[cluster.leader_election]\n{election}[registry]\nenabled = false\n")
            async with Node(load_config(file, environ={})) as node:
                assert await node.elections["a"].wait_for_leadership(20)


SHARED = ("connection pooler", "pool_mode=session", "postgresql+lease://")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_shares_sessions_is_refused_although_one_was_allowed(
    own_server: Server, key: LockKey, mode: str
):
    """Three candidates behind it would all be granted the lock, each by the server process it was given just then."""
    with pgbouncer(own_server, mode) as dsn:
        before = await query(own_server.dsn, OPEN_TRANSACTIONS)
        refused = [assert_refused(dsn, own_server.dsn, key, *SHARED, mode, allow_pooler=True) for _ in range(3)]
        await asyncio.gather(*refused)
        left = await query(dsn, "SELECT current_setting('statement_timeout'), current_setting('idle_session_timeout')")
        assert left == [("0", "0")]
        assert await query(own_server.dsn, OPEN_TRANSACTIONS) == before == []


# A transaction that was left open, or a backend that waits in one.
OPEN_TRANSACTIONS = """
SELECT pid, state FROM pg_stat_activity
 WHERE datid IS NOT NULL AND pid <> pg_backend_pid() AND (state LIKE 'idle in transaction%' OR xact_start IS NOT NULL)
"""


async def test_a_quiet_transaction_pooler_is_found_each_time(own_server: Server, key: LockKey):
    """Two hundred statements of one client alone all go to one server process: its pid alone shows nothing."""
    with pgbouncer(own_server, "transaction") as dsn:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None) as client:
            pids = {(await (await client.execute("SELECT pg_backend_pid()")).fetchone() or ())[0] for _ in range(200)}
        assert len(pids) == 1
        assert await refusals(dsn, key, 20) == 20


@pytest.mark.parametrize("more", ["", "server_round_robin = 1"])
@pytest.mark.slow
async def test_a_transaction_pooler_is_found_beside_its_other_clients(own_server: Server, key: LockKey, more: str):
    with pgbouncer(own_server, "transaction", more=more) as dsn:
        clients = [asyncio.create_task(keep_busy(dsn)) for _ in range(6)]
        try:
            assert await refusals(dsn, key, 50) == 50
        finally:
            for client in clients:
                client.cancel()
            ends = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


async def refusals(dsn: str, key: LockKey, tries: int) -> int:
    """How often the setup of a lock session, asked so many times, says that sessions are shared there."""
    lease = Lease(LEASE_S, allow_pooler=True)
    count = 0
    for _ in range(tries):
        backend = make_backend(key, lease, time.monotonic, Connector(key, dsn=dsn, lease=lease))
        try:
            await backend.open()
        except ConnectionError as error:
            count += "transaction or statement mode" in str(error)
        finally:
            await backend.close()
    return count


async def keep_busy(dsn: str) -> None:
    """Be a client as there are many: short transactions, and short pauses between them."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None) as client:
        while True:
            async with client.transaction():
                await client.execute("SELECT 1")
            await asyncio.sleep(random.uniform(0, 0.003))


@pytest.mark.slow
async def test_a_pool_of_one_session_is_refused_in_bounded_time(own_server: Server, key: LockKey):
    with pgbouncer(own_server, "session", more="default_pool_size = 1") as dsn:
        words = ("connection pooler", "no answer within", "default_pool_size")
        await assert_refused(dsn, own_server.dsn, key, *words, allow_pooler=True)


async def test_a_group_behind_a_transaction_pooler_is_refused_although_one_was_allowed(own_server: Server):
    with pgbouncer(own_server, "transaction") as dsn:
        group = LeaderGroup(dsn, ["a", "b"], allow_pooler=True, settle_s=0, retry_strategy=QUICK)
        errors: list[Exception] = []
        for role in group.values():
            role.on_error(errors.append)
        async with group:
            await until(lambda: len(errors) >= 3 or bool(group.leading), 20)
            assert group.leading == []
        assert [word for error in errors for word in SHARED if word not in str(error)] == []
        assert await query(own_server.dsn, ADVISORY_LOCKS) == []


async def test_a_group_behind_a_pooler_in_session_mode_leads_if_that_was_allowed(own_server: Server):
    with pgbouncer(own_server, "session") as dsn:
        async with LeaderGroup(dsn, ["a", "b"], allow_pooler=True, settle_s=0) as group:
            await until(lambda: len(group.leading) == 2, 20)


# --- What a user may not do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("REVOKE SELECT ON pg_stat_bgwriter FROM PUBLIC", "GRANT SELECT ON pg_catalog.pg_stat_activity"),
        ("REVOKE SELECT ON pg_stat_activity FROM PUBLIC", "GRANT SELECT ON pg_catalog.pg_stat_activity"),
        ("REVOKE SELECT ON pg_locks FROM PUBLIC", "GRANT SELECT ON pg_catalog.pg_stat_activity"),
        ("DROP EXTENSION plpgsql", "CREATE EXTENSION IF NOT EXISTS plpgsql"),
        ("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC", "GRANT USAGE ON LANGUAGE plpgsql"),
        ("REVOKE EXECUTE ON FUNCTION pg_current_xact_id FROM PUBLIC", "GRANT EXECUTE ON this FUNCTION"),
    ],
)
async def test_error_about_a_missing_right_names_the_statement_that_grants_it(
    own_server: Server, key: LockKey, deed: str, words: str
):
    await query(own_server.dsn, "CREATE ROLE app LOGIN")
    leader, _ = make_leased(own_server.dsn, key)
    async with leader:
        assert await leader.wait_for_leadership(10)
        await query(own_server.dsn, deed)
        lock, heard = make_leased(psycopg.conninfo.make_conninfo(own_server.dsn, user="app"), key, retry_strategy=QUICK)
        async with lock:
            if "xact_id" in deed:  # which only a candidate needs that is granted the lock
                await leader.shutdown()
            await until(lambda: bool(heard.errors), 20)
        assert [str(error) for error in heard.errors if words not in str(error)] == []
        findings = (await examine(psycopg.conninfo.make_conninfo(own_server.dsn, user="app"), key, LEASE_S)).findings
        assert any(words in finding.advice for finding in findings if finding.verdict is Verdict.PROBLEM)


# --- A standby ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_lock_on_a_standby_is_refused_and_pointed_to_the_primary(
    own_server: Server, key: LockKey, server_folder_root: Path, monkeypatch: pytest.MonkeyPatch
):
    with standby_of(own_server, server_folder_root / f"standby-of-{own_server.folder.name}") as standby:
        assert await query(standby.dsn, "SELECT pg_is_in_recovery()") == [(True,)]
        await assert_refused(standby.tcp_dsn, standby.dsn, key, "hot standby mode. A standby", "connect to the primary")
        anyway = f"{standby.tcp_dsn}?target_session_attrs=any"
        await assert_refused(anyway, standby.dsn, key, "is a standby", "connect to the primary", "target_session_attrs")
        both = f"127.0.0.1:{standby._port},127.0.0.1:{own_server._port}"
        advised, _ = make_leased(f"postgresql://postgres@{both}/postgres?target_session_attrs=read-write", key)
        async with advised:
            assert await advised.wait_for_leadership(10)
            assert len(await holders(own_server.dsn, key)) == 1
            assert await query(standby.dsn, ADVISORY_LOCKS) == []
        # The refusal is for people. Without it the token refuses: a standby has no transaction ids to hand out.
        monkeypatch.setattr("pgleaderlock.postgres._session_setup.SessionSetup._refuse_unfit", lambda *_, **__: None)
        misled, heard = make_leased(anyway, key, retry_strategy=QUICK)
        async with misled:
            await until(lambda: len(heard.errors) >= 2)
            assert misled.state is not LockState.LEADER
        assert any("during recovery" in str(error) for error in heard.errors)
