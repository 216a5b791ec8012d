"""A synchronous standby that is absent: ``status`` and ``doctor`` name the wait, the sessions in it and the setting."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pgleaderlock import LeaderLock, LockKey
from pgleaderlock.backends._pg_doctor import Finding, Verdict, examine
from pgleaderlock.cli.status import show_status
from pgleaderlock.cli.target import in_postgres
from pgleaderlock.embedded import Server
from tests.test_lease import query

LEASE_S = 15.0
IN_SYNC_REP = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def until_rows(dsn: str, statement: str, *, there: bool = True) -> list[tuple[int]]:
    async with asyncio.timeout(20):
        while bool(rows := await query(dsn, statement)) is not there:
            pass
    return rows


async def name_standbys(server: Server, names: str) -> None:
    await query(server.dsn, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await query(server.dsn, "SELECT pg_reload_conf()")
    await until_rows(server.dsn, f"SELECT 1 WHERE current_setting('synchronous_standby_names') = '{names}'")


@asynccontextmanager
async def candidate_in_sync_rep(server: Server, key: LockKey) -> AsyncIterator[int]:
    """Have a candidate whose grant waits for a standby, and its session's pid; afterwards the standby is not asked."""
    await name_standbys(server, "absent")
    candidate = LeaderLock(server.dsn, key=key, settle_s=0, lease_s=LEASE_S)
    try:
        async with candidate:
            ((pid,),) = await until_rows(server.dsn, IN_SYNC_REP)
            yield pid
    finally:
        await name_standbys(server, "")


async def found_in(dsn: str, key: LockKey | None) -> dict[str, Finding]:
    return {finding.check: finding for finding in (await examine(dsn, key, LEASE_S)).findings}


async def test_status_names_the_session_that_waits_and_the_setting(
    own_server: Server, key: LockKey, capsys: pytest.CaptureFixture[str]
):
    target = in_postgres(own_server.dsn, key)
    async with candidate_in_sync_rep(own_server, key) as pid:
        await show_status(target, as_json=False)
        await show_status(target, as_json=True)
    held, problem, record = capsys.readouterr().out.splitlines()
    assert held.startswith(f"{key.described} is held by pid {pid}")
    for words in (f"pid {pid} ", "SyncRep", "synchronous_standby_names = 'absent'", "pg_terminate_backend"):
        assert words in problem
        assert words in json.loads(record)["note"]
    assert json.loads(record)["state"] == "held"


@pytest.mark.parametrize("is_named", [True, False])
async def test_doctor_names_the_session_that_waits_and_the_setting(own_server: Server, key: LockKey, is_named: bool):
    async with candidate_in_sync_rep(own_server, key) as pid:
        findings = await found_in(own_server.dsn, key if is_named else None)
    lock = findings["lock"]
    assert lock.verdict is Verdict.PROBLEM
    for words in (f"pid {pid} ", "SyncRep", "synchronous_standby_names = 'absent'"):
        assert words in lock.found
    assert "pg_terminate_backend" in lock.advice


async def test_doctor_finds_the_absent_standby_before_anything_waits_and_leaves_nothing_that_waits(
    own_server: Server, key: LockKey
):
    """To draw a token would be a commit that waits for ever, in a session that no closing of ours ends."""
    await name_standbys(own_server, "absent")
    findings = await found_in(own_server.dsn, key)
    problems = {name for name, finding in findings.items() if finding.verdict is Verdict.PROBLEM}
    assert problems == {"commits", "token"}
    assert "synchronous_standby_names = absent" in findings["commits"].found
    assert "no such standby is connected" in findings["commits"].found
    assert "synchronous_standby_names" in findings["commits"].advice
    assert findings["token"].found.startswith("not tried")
    assert await query(own_server.dsn, IN_SYNC_REP) == []


@pytest.mark.parametrize("mode", ["local", "off"])
async def test_a_user_whose_commits_do_not_wait_is_not_warned(own_server: Server, key: LockKey, mode: str):
    await name_standbys(own_server, "absent")
    await query(own_server.dsn, f"SET synchronous_commit = local; ALTER ROLE postgres SET synchronous_commit = {mode}")
    findings = await found_in(own_server.dsn, key)
    assert {name for name, finding in findings.items() if finding.verdict is Verdict.PROBLEM} == set()


async def test_without_a_wait_status_and_doctor_say_nothing_of_it(
    own_server: Server, key: LockKey, capsys: pytest.CaptureFixture[str]
):
    async with LeaderLock(own_server.dsn, key=key, settle_s=0) as leader:
        assert await leader.wait_for_leadership(10)
        await show_status(in_postgres(own_server.dsn, key), as_json=True)
        findings = await found_in(own_server.dsn, key)
    assert "note" not in json.loads(capsys.readouterr().out)
    assert (findings["lock"].verdict, findings["commits"].verdict) == (Verdict.INFO, Verdict.OK)
