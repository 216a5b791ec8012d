"""A synchronous standby that is absent: ``status`` and ``doctor`` name the wait, the sessions in it and the setting."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pgleaderlock import LeaderLock, LockKey
from pgleaderlock.cli import exec as exec_command
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.acquire import Attempts, acquire_once
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.status import show_status
from pgleaderlock.cli.target import in_postgres
from pgleaderlock.postgres.doctor import Finding, Verdict, examine
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.exec.guardian_client import GuardedCommand
from pgleaderlock.work.exec.supervisor import Policy
from pgleaderlock.work.exec.timing import KillTimes
from tests.support.doubles import until
from tests.support.lease import query
from tests.support.operators import Hand, records, run_beside
from tests.support.registry import Node

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
    held, *more, record = capsys.readouterr().out.splitlines()
    problem = next(line for line in more if "SyncRep" in line)
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
    assert "synchronous_standby_names = 'absent'" in findings["commits"].found
    assert "no synchronous standby is connected" in findings["commits"].found
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


# --- Every command says it ---


SAID = ("no synchronous standby is connected", "synchronous_standby_names = 'absent'", "no new leader can be elected")
TO_DO = "connect a standby that synchronous_standby_names names"


def assert_said(text: str) -> None:
    for words in (*SAID, TO_DO):
        assert words in " ".join(text.split())


@asynccontextmanager
async def leader_without_standby(server: Server, key: LockKey) -> AsyncIterator[Node]:
    """Have a leader with a registry, and then take away the standby that commits wait for."""
    async with Node(server.dsn, "pgleaderlock", key, "one", lease_s=LEASE_S) as one:
        await until(lambda: one.lock.is_leader and one.registry.is_up and not one.registry.waiting_events, 20)
        await name_standbys(server, "absent")
        try:
            yield one
        finally:
            await name_standbys(server, "")


async def acquire(dsn: str, key: LockKey, *, as_json: bool) -> int:
    lock = LeaderLock(dsn, key=key, settle_s=0, lease_s=LEASE_S, retry_strategy=Attempts(0.0), auto_reacquire=False)
    return await acquire_once(lock, in_postgres(dsn, key), hold_s=0.0, wait_s=0.0, as_json=as_json)


async def test_every_command_names_the_missing_standby_while_a_leader_leads_on(
    own_server: Server, key: LockKey, capsys: pytest.CaptureFixture[str]
):
    dsn = ("--dsn", own_server.dsn)
    async with leader_without_standby(own_server, key) as one:
        numbers = [str(number) for number in key.numbers]
        lock = (*dsn, "--key1", numbers[0], "--key2", numbers[1])
        held = await run_beside("status", *lock)
        assert "is held by" in held.stdout
        assert_said(held.stdout)
        (record,) = records(await run_beside("status", *lock, "--json"))
        assert_said(record["note"])
        capsys.readouterr()
        for as_json in (False, True):
            assert await acquire(own_server.dsn, key, as_json=as_json) == exit_codes.NOT_ACQUIRED
            said = capsys.readouterr().out
            assert_said(json.loads(said)["note"] if as_json else said)
        assert_said((await run_beside("status", *dsn)).stdout)
        (record,) = records(await run_beside("status", *dsn, "--json"))
        assert_said(record["note"])
        asked = await run_beside("step-down", *dsn, "--role", "scheduler")
        assert asked.exit_code == exit_codes.NOT_HANDED_OVER
        assert asked.stderr.startswith("one was not asked to step down")
        assert_said(asked.stderr)
        commits = (await found_in(own_server.dsn, key))["commits"].found
        assert "a present leader leads on, but no new leader can be elected" in commits
        assert "no one can lead" not in commits
        assert one.lock.is_leader


async def test_acquire_that_waits_for_the_standby_says_so_instead_of_an_unreachable_store(
    own_server: Server, key: LockKey, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("pgleaderlock.cli.acquire._SILENT_S", 0.1)
    monkeypatch.setattr("pgleaderlock.cli.acquire.ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("pgleaderlock.cli.status._GLANCE_TIMEOUT_S", 60.0)
    await name_standbys(own_server, "absent")
    try:
        with pytest.raises(UnreachableError) as failed:
            await acquire(own_server.dsn, key, as_json=False)
    finally:
        await name_standbys(own_server, "")
    still, error = capsys.readouterr().err, failed.value.message
    for line in (still, error):
        assert "synchronous_standby_names = 'absent'" in line
        assert TO_DO in line
    assert still.startswith(f"still waiting for {key}")
    assert "check --dsn" not in error


async def test_step_down_names_the_missing_standby_when_no_node_leads(own_server: Server, key: LockKey):
    async with Node(own_server.dsn, "pgleaderlock", key, "one") as one:
        await until(lambda: one.lock.is_leader and one.registry.is_up and not one.registry.waiting_events, 20)
    await name_standbys(own_server, "absent")
    result = await run_beside("step-down", "--dsn", own_server.dsn, "--lock", str(key))
    record = records(await run_beside("step-down", "--dsn", own_server.dsn, "--lock", str(key), "--json"))[0]
    assert (result.exit_code, record["outcome"]) == (exit_codes.NOT_HANDED_OVER, "no_leader")
    assert_said(result.stderr)
    assert_said(record["why"])


async def test_step_down_does_not_deny_a_leader_that_leads_on_and_can_no_longer_write_it(own_server: Server):
    hand = await asyncio.to_thread(Hand, own_server.dsn, "pgleaderlock")
    hand.node("one", seen_ago_s=5000, heartbeat_s=5)
    hand.leader("one", ago_s=9000, renewed_ago_s=5000, left_s=-4000)
    hand.connection.close()
    await name_standbys(own_server, "absent")
    try:
        asked = await run_beside("step-down", "--dsn", own_server.dsn, "--role", "scheduler")
        (record,) = records(await run_beside("step-down", "--dsn", own_server.dsn, "--role", "scheduler", "--json"))
    finally:
        await name_standbys(own_server, "")
    assert asked.exit_code == exit_codes.NOT_HANDED_OVER
    assert asked.stderr.startswith("one was not asked to step down")
    assert "No node leads" not in asked.stderr
    assert_said(asked.stderr)
    assert (record["outcome"], record["from"]) == ("refused", "one")
    assert_said(record["why"])


async def test_history_and_audit_say_that_the_registry_is_not_written_without_the_standby(
    own_server: Server, key: LockKey
):
    options = ("--dsn", own_server.dsn)
    async with leader_without_standby(own_server, key):
        shown = [await run_beside(word, *options) for word in ("history", "audit")]
        history, audit = [await run_beside(word, *options, "--json") for word in ("history", "audit")]
    for each in shown:
        assert_said(each.stdout)
        assert "what it shows is outdated" in each.stdout
    assert_said(history.stderr)
    assert_said(records(audit)[0]["note"])


async def test_schema_apply_names_the_missing_standby_and_leaves_nothing_that_waits(own_server: Server):
    await name_standbys(own_server, "absent")
    try:
        result = await run_beside("schema", "apply", "--dsn", own_server.dsn)
        assert await query(own_server.dsn, IN_SYNC_REP) == []
    finally:
        await name_standbys(own_server, "")
    assert result.exit_code == exit_codes.UNREACHABLE
    assert "schema pgleaderlock was not made" in result.stderr
    assert_said(result.stderr)


# --- exec ---


class Executed:
    """``exec`` of a command that never runs, in this process: what it prints while it waits, and how it ends."""

    def __init__(self, dsn: str, key: LockKey, wait_s: float | None) -> None:
        self.told: list[str] = []
        self.complaints: list[str] = []
        self.lock = LeaderLock(dsn, key=key, settle_s=0, lease_s=LEASE_S)
        self._target = in_postgres(dsn, key)
        job = GuardedCommand(("true",), KillTimes(LEASE_S))
        self.run = asyncio.ensure_future(
            exec_command._supervise(self.lock, self._target, job, Policy(wait_s=wait_s), self._tell)
        )

    def _tell(self, _level: str, event: str, text: str, /, **_fields: object) -> None:
        if event == "problem":
            self.told.append(text)

    def _complain(self, code: int, text: str) -> int:
        self.complaints.append(text)
        return code

    async def code(self) -> int:
        return exec_command._code_of(await self.run, self._target, "true", self._complain, quiet=True)


@pytest.fixture
def patient_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr("pgleaderlock.work.exec.supervisor._SILENT_S", 0.1)
    monkeypatch.setattr("pgleaderlock.cli.status._GLANCE_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("patient_glance")
async def test_exec_names_the_missing_standby_while_it_waits_and_when_it_gives_up(own_server: Server, key: LockKey):
    await name_standbys(own_server, "absent")
    try:
        executed = Executed(own_server.dsn, key, wait_s=None)
        await until(lambda: bool(executed.told), 40)
        await executed.lock.shutdown(5)  # as if its time were up
        assert await executed.code() == exit_codes.EXEC_UNREACHABLE
    finally:
        await name_standbys(own_server, "")
    for line in (*executed.told, *executed.complaints):
        assert "synchronous_standby_names = 'absent'" in line
        assert TO_DO in line
        assert "check --dsn" not in line
    assert len(executed.complaints) == 1


@pytest.mark.usefixtures("patient_glance")
async def test_exec_beside_a_leader_says_that_no_new_one_can_be_elected(own_server: Server, key: LockKey):
    async with leader_without_standby(own_server, key):
        executed = Executed(own_server.dsn, key, wait_s=0.0)
        assert await executed.code() == exit_codes.EXEC_NOT_ACQUIRED
    (complaint,) = executed.complaints
    assert_said(complaint)
