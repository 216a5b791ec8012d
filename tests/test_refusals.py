"""Where a lock would not be safe it is refused, with what to do about it: behind a real pooler, on a real standby."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgleaderlock import ConnectionError, FixedInterval, LockKey, LockState
from pgleaderlock.embedded import Server
from pgleaderlock.embedded.programs import run_program
from tests.conftest import free_port
from tests.doubles import until
from tests.pooler import pgbouncer
from tests.test_lease import make_leased, query
from tests.test_postgres import holders

QUICK = FixedInterval(0.05)
START_TIMEOUT_S = 10.0
ADVISORY_LOCKS = "SELECT pid, classid, objid, granted FROM pg_locks WHERE locktype = 'advisory'"


async def assert_refused(dsn: str, observer_dsn: str, key: LockKey, *words: str) -> None:
    """It is asked again and again, says each time why not, and never leads nor leaves a lock behind."""
    lock, heard = make_leased(dsn, key, retry_strategy=QUICK)
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
async def test_a_lock_behind_a_pooler_is_refused_and_told_what_would_allow_it(
    own_server: Server, key: LockKey, mode: str
):
    with pgbouncer(own_server, mode) as dsn:
        await assert_refused(dsn, own_server.dsn, key, "connection pooler", "session mode", "allow_pooler=True")


async def test_a_refused_lock_leaves_no_setting_behind_on_the_sessions_of_a_pool(own_server: Server, key: LockKey):
    """They are other people's: a statement_timeout of ours would cancel their queries."""
    with pgbouncer(own_server, "transaction") as dsn:
        before = await query(dsn, "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
        await assert_refused(dsn, own_server.dsn, key, "connection pooler")
        after = await query(dsn, "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
    assert after == before


async def test_behind_a_pooler_in_session_mode_a_lock_leads_and_lets_go_if_that_was_allowed(
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


# --- A standby ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def standby_of(primary: Server, folder: Path) -> Iterator[Server]:
    """A second server that streams from the first, as pg_basebackup makes one, or as a copy where that is missing."""
    standby = Server(folder, tcp_port=free_port())
    folder.mkdir()
    folder.chmod(0o755 if primary._account else 0o700)
    if not (primary._usable_binaries / "pg_basebackup").exists():
        copy_cold(primary, standby)
    else:
        copy_hot(primary, standby)
    try:
        standby.start()
        yield standby
    finally:
        standby.stop("immediate")


def copy_cold(primary: Server, standby: Server) -> None:
    primary.stop()
    shutil.copytree(primary.data, standby.data)
    primary.start()
    (standby.data / "standby.signal").touch()
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = '{primary.tcp_dsn}'\n")
    if account := primary._account:
        for path in (standby.data, *standby.data.rglob("*")):
            os.chown(path, account.uid, account.gid)


def copy_hot(primary: Server, standby: Server) -> None:
    standby.data.mkdir(0o700)
    if account := primary._account:
        os.chown(standby.data, account.uid, account.gid)
    code, output = run_program(
        primary._usable_binaries / "pg_basebackup",
        *("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", primary.tcp_dsn),
        *("--pgdata", standby.data),
        account=account,
    )
    assert code == 0, output


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
        monkeypatch.setattr("pgleaderlock.backends._admission.Admission._refuse_unfit", lambda *_, **__: None)
        misled, heard = make_leased(anyway, key, retry_strategy=QUICK)
        async with misled:
            await until(lambda: len(heard.errors) >= 2)
            assert misled.state is not LockState.LEADER
        assert any("during recovery" in str(error) for error in heard.errors)
