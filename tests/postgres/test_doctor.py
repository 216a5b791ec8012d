"""The doctor on real servers: healthy, and with one thing wrong at a time. That thing, and no other, must be named."""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgleaderlock import ConnectionError, FixedInterval, LeaderLock, LockKey
from pgleaderlock._base.checks import visible
from pgleaderlock.cli import doctor
from pgleaderlock.cli.commands import cli
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.postgres import _sql
from pgleaderlock.postgres import doctor as _pg_doctor
from pgleaderlock.postgres._advice import advice_for
from pgleaderlock.postgres._standby import REMEDY
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.doctor import Examination, Finding, Verdict, examine
from pgleaderlock.postgres.doctor import _clock as _pg_doctor_clock
from pgleaderlock.postgres.doctor import _lease as _pg_doctor_lease
from pgleaderlock.postgres.doctor import _network as _pg_doctor_network
from pgleaderlock.postgres.doctor import _room as _pg_doctor_room
from pgleaderlock.postgres.doctor import _server as _pg_doctor_server
from pgleaderlock.postgres.doctor import _settings as _pg_doctor_settings
from pgleaderlock.postgres.doctor import _site as _pg_doctor_site
from pgleaderlock.postgres.doctor._clock import ClockLook, judge_clock
from pgleaderlock.postgres.doctor._site import Site
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import end_of
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.embedded.programs import poll
from tests.conftest import free_port
from tests.support.pooler import pgbouncer
from tests.support.refusals import ADVISORY_LOCKS, standby_of
from tests.support.servers import QuickServer

OK, INFO, WARNING, PROBLEM = Verdict
LEASE_S = 15.0
SECRET = "hunter2-must-not-be-seen"
_numbers = count(1)


@pytest.fixture(scope="module")
def clinic(server_folder_root: Path) -> Iterator[Server]:
    """A server whose roles and databases these tests may change. Always embedded."""
    server = QuickServer(server_folder_root / "clinic", tcp_port=free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


def do(server: Server, *statements: str, dbname: str = "postgres") -> None:
    with psycopg.connect(server.dsn, autocommit=True, dbname=dbname) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def new_user(server: Server, *changes: str, dbname: str = "postgres", more: str = "") -> str:
    """An ordinary user with these settings; how to connect as it."""
    name = f"patient{next(_numbers)}"
    do(server, f"CREATE ROLE {name} LOGIN {more}", *(f"ALTER ROLE {name} SET {change}" for change in changes))
    return make_conninfo(server.dsn, user=name, dbname=dbname)


@contextlib.contextmanager
def new_database(server: Server, options: str = "") -> Iterator[str]:
    name = f"client{next(_numbers)}"
    do(server, f"CREATE DATABASE {name} {options}")
    try:
        yield name
    finally:
        do(server, f"DROP DATABASE {name} WITH (FORCE)")


async def found_in(dsn: str, key: LockKey | None = None, lease_s: float = LEASE_S) -> dict[str, Finding]:
    examination = await examine(dsn, key, lease_s)
    findings = {finding.check: finding for finding in examination.findings}
    assert len(findings) == len(examination.findings)
    assert examination.is_fit is (PROBLEM not in {finding.verdict for finding in examination.findings})
    return findings


def serious(findings: dict[str, Finding]) -> dict[str, Verdict]:
    """Those that a person would look at."""
    return {name: finding.verdict for name, finding in findings.items() if finding.verdict in {WARNING, PROBLEM}}


# --- Healthy --------------------------------------------------------------------------------------------------------


async def test_a_healthy_database_passes_every_check_and_nothing_is_left_behind(clinic: Server, key: LockKey):
    patient = new_user(clinic)
    findings = await found_in(patient, key)
    assert serious(findings) == {}
    assert findings.keys() == {check.name for check in _pg_doctor.CHECKS}
    assert len(findings) == 20
    ended = re.match(r"a silent session was ended by the server after (\S+) s", findings["lease enforcement"].found)
    assert ended is not None
    assert 0.2 <= float(ended[1]) < 2
    assert "tried" in findings["token"].found
    with psycopg.connect(clinic.dsn, autocommit=True) as connection:
        assert connection.execute(ADVISORY_LOCKS).fetchall() == []
        name = conninfo_to_dict(patient)["user"]
        left = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
        assert poll(lambda: connection.execute(left, [name]).fetchone() == (0,), 30)


async def test_a_server_without_an_encoding_is_examined_like_any_other(clinic: Server, key: LockKey):
    with new_database(clinic, "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as dbname:
        findings = await found_in(new_user(clinic, dbname=dbname), key)
    assert serious(findings) == {}
    assert findings["database"].found == dbname


async def test_how_the_network_looks_from_here(clinic: Server):
    local = (await found_in(clinic.dsn))["TCP keepalives"]
    assert (local.verdict, local.found.split(":")[0]) == (INFO, "not applicable")
    remote = (await found_in(clinic.tcp_dsn))["TCP keepalives"]
    assert remote.verdict is INFO
    assert "first after 10 s, then every 5 s, 3 times; tcp_user_timeout 10000 ms" in remote.found
    chosen = (await found_in(f"{clinic.tcp_dsn}?keepalives_idle=77&tcp_user_timeout=4000"))["TCP keepalives"]
    assert "first after 77 s" in chosen.found
    assert "tcp_user_timeout 4000 ms" in chosen.found
    off = (await found_in(f"{clinic.tcp_dsn}?keepalives=0"))["TCP keepalives"]
    assert (off.verdict, "keepalives=0" in off.advice) == (WARNING, True)


# --- What stands in between -----------------------------------------------------------------------------------------


async def test_behind_a_pooler_the_pooler_is_the_problem_and_its_sessions_stay_as_they_were(clinic: Server):
    with pgbouncer(clinic, "transaction") as dsn:
        findings = await found_in(dsn)
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            left = connection.execute("SELECT current_setting('idle_session_timeout')").fetchone()
            locks = connection.execute(ADVISORY_LOCKS).fetchall()
    assert serious(findings) == {"pooler": PROBLEM, "lease enforcement": WARNING}
    assert "connection pooler" in findings["pooler"].found
    assert "directly" in findings["pooler"].advice
    assert "postgresql+lease://" in findings["pooler"].advice
    assert findings["lease enforcement"].found.startswith("not tried")
    assert left == ("0",)
    assert locks == [], "the pooler keeps its sessions, and with them what they hold"


async def test_a_pooler_in_session_mode_that_is_meant_to_be_there_is_no_obstacle(
    clinic: Server, capsys: pytest.CaptureFixture[str]
):
    with pgbouncer(clinic, "session") as dsn:
        examination = await examine(dsn, None, LEASE_S, allow_pooler=True)
        assert await doctor.show_doctor(dsn, None, LEASE_S, as_json=True, allow_pooler=True)
        assert not await doctor.show_doctor(dsn, None, LEASE_S, as_json=True)
    assert [json.loads(line)["fit"] for line in capsys.readouterr().out.splitlines()] == [True, False]
    findings = {finding.check: finding for finding in examination.findings}
    assert serious(findings) == {"lease enforcement": WARNING}
    assert (findings["pooler"].verdict, "session mode" in findings["pooler"].found) == (INFO, True)
    assert findings["lease enforcement"].found.startswith("not tried")


@pytest.mark.parametrize("mode", ["statement", "transaction"])
async def test_a_pooler_that_shares_sessions_is_a_problem_even_if_one_is_meant_to_be_there(clinic: Server, mode: str):
    with pgbouncer(clinic, mode) as dsn:
        examination = await examine(dsn, None, LEASE_S, allow_pooler=True)
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            left = connection.execute("SELECT current_setting('idle_session_timeout')").fetchone()
    findings = {finding.check: finding for finding in examination.findings}
    assert serious(findings) == {"pooler": PROBLEM, "lease enforcement": WARNING}
    assert "statement mode" in findings["pooler"].found
    assert "pool_mode=session" in findings["pooler"].advice
    assert left == ("0",), "its sessions are other people's too"


async def test_without_a_pooler_allowing_one_changes_nothing(clinic: Server):
    examination = await examine(clinic.dsn, None, LEASE_S, allow_pooler=True)
    assert {finding.verdict for finding in examination.findings} <= {OK, INFO}


@pytest.mark.slow
async def test_a_standby_is_a_problem_although_libpq_would_not_even_have_it(clinic: Server, server_folder_root: Path):
    with standby_of(clinic, server_folder_root / "clinic-standby") as standby:
        by_default = await found_in(standby.tcp_dsn)
        accepted = await found_in(f"{standby.tcp_dsn}?target_session_attrs=any")
        both = f"127.0.0.1:{standby._port},127.0.0.1:{clinic._port}"
        advised = await found_in(f"postgresql://postgres@{both}/postgres")
    for findings in (by_default, accepted):
        assert serious(findings) == {"server role": PROBLEM, "token": PROBLEM}
        assert "standby" in findings["server role"].found
        assert "connect to the primary" in findings["server role"].advice
        assert "recovery" in findings["token"].found
    assert serious(advised) == {}


async def test_a_read_only_user_is_fine_unless_the_dsn_asks_for_another(clinic: Server):
    dsn = new_user(clinic, "default_transaction_read_only = on")
    findings = await found_in(dsn)
    assert serious(findings) == {}
    assert "switch it off" in findings["read-only"].found
    refused = await found_in(make_conninfo(dsn, target_session_attrs="read-write"))
    assert serious(refused) == {"read-only": PROBLEM}
    assert "session is read-only" in refused["read-only"].found
    assert "take target_session_attrs out" in refused["read-only"].advice


async def test_a_dsn_without_a_database_is_warned_about(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PGDATABASE", raising=False)
    unnamed = f"postgresql://postgres@127.0.0.1:{clinic._port}"
    findings = await found_in(unnamed)
    assert serious(findings) == {"database": WARNING}
    assert findings["database"].found.startswith("postgres, after the user's name")
    assert "two leaders" in findings["database"].advice
    monkeypatch.setenv("PGDATABASE", "template1")
    chosen = (await found_in(unnamed))["database"]
    assert (chosen.verdict, chosen.found) == (OK, "template1")


# --- The lease, the line, the token ---------------------------------------------------------------------------------


async def test_a_server_that_leaves_silent_sessions_alone_is_a_problem(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_pg_doctor_lease, "_TRIAL_SILENCE_S", 60)  # as if the server did not honour what we wait for
    monkeypatch.setattr(_pg_doctor_lease, "_TRIAL_BOUND_S", 1.0)
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"lease enforcement": PROBLEM}
    assert "still alive after 1 s" in findings["lease enforcement"].found


@pytest.fixture
def silent_pids(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[int]":
    """A silence that lasts until the test ends it: the pid of each session that has fallen silent.

    Meanwhile the first session is idle. Other checks have a second session too, for a moment: looking for one in
    pg_stat_activity finds theirs now and then.
    """
    pids: asyncio.Queue[int] = asyncio.Queue()

    async def end_of_silent(session: Connection) -> ConnectionError:
        pids.put_nowait(session.facts.session_pid)
        return await end_of(session)

    monkeypatch.setattr(_pg_doctor_lease, "_TRIAL_SILENCE_S", 60.0)
    monkeypatch.setattr(_pg_doctor_lease, "_TRIAL_BOUND_S", 60.0)
    monkeypatch.setattr(_pg_doctor_lease, "end_of", end_of_silent)
    return pids


END_SESSION = "SELECT pg_terminate_backend(%s)"


async def test_silent_session_that_another_process_ends_proves_nothing(
    clinic: Server, silent_pids: "asyncio.Queue[int]"
):
    async with await psycopg.AsyncConnection.connect(clinic.dsn, autocommit=True) as reaper:
        examination = asyncio.create_task(found_in(make_conninfo(clinic.dsn, application_name="reaped")))
        await reaper.execute(END_SESSION, (await silent_pids.get(),))
        findings = await examination
    assert serious(findings) == {"lease enforcement": WARNING}
    assert "not by its idle_session_timeout" in findings["lease enforcement"].found
    assert "administrator command" in findings["lease enforcement"].found


async def _first_session(connection: psycopg.AsyncConnection, name: str) -> int:
    """Return the pid of the oldest session with this name."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY backend_start LIMIT 1"
    row = await (await connection.execute(query, (name,))).fetchone()
    assert row is not None
    pid: int = row[0]
    return pid


@pytest.mark.parametrize(
    ("function", "check"),
    [
        ("pg_logical_emit_message", "token"),
        ("pg_current_xact_id", "token"),
        ("pg_try_advisory_lock", "queue"),
        ("pg_advisory_lock", "queue"),
        ("pg_advisory_unlock", "queue"),
    ],
)
async def test_a_function_that_this_user_may_not_call_is_found_by_trying(clinic: Server, function: str, check: str):
    revoke = (
        "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = '%s' LOOP "
        "EXECUTE format('REVOKE EXECUTE ON FUNCTION %%s FROM PUBLIC', f); END LOOP; END $$"
    )
    with new_database(clinic) as dbname:
        do(clinic, revoke % function, dbname=dbname)
        findings = await found_in(new_user(clinic, dbname=dbname))
    assert serious(findings) == {check: PROBLEM}
    assert findings[check].found == f"failed: permission denied for function {function}"
    assert "GRANT" in findings[check].advice


async def test_a_language_that_this_user_may_not_use_is_found_by_trying(clinic: Server):
    with new_database(clinic) as dbname:
        do(clinic, "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC", dbname=dbname)
        findings = await found_in(new_user(clinic, dbname=dbname))
    assert serious(findings) == {"queue": PROBLEM}
    assert "permission denied for language plpgsql" in findings["queue"].found


@pytest.mark.parametrize(
    ("statement", "words"),
    [("SELECT 5, ''", "do not grow: 5, then 5"), ("SELECT 5, '' WHERE false", "gave no answer")],
)
async def test_tokens_that_do_not_grow_are_a_problem(
    clinic: Server, statement: str, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_pg_doctor_lease, "_NEXT_NUMBER", statement)
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"token": PROBLEM}
    assert words in findings["token"].found


async def test_a_slow_round_trip_is_compared_with_the_lease(clinic: Server):
    findings = await found_in(clinic.dsn, lease_s=0.0001)
    assert findings["round trip"].verdict is WARNING
    assert "lease: 0.0001 s" in findings["round trip"].found
    judged = _pg_doctor_network._judge_round_trips("x", [0.4, 2.0, 0.1], Lease(3.9))
    assert (judged.verdict, "lease of 4 s or more" in judged.advice) == (WARNING, True)
    assert _pg_doctor_network._judge_round_trips("x", [0.4, 2.0, 0.1], Lease(4)).verdict is OK


async def test_few_round_trips_are_enough_on_a_slow_line(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_pg_doctor_network, "_ROUND_TRIPS_BOUND_S", 1e-9)
    assert (await found_in(clinic.dsn))["round trip"].found.startswith("median of 1:")


# --- Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ("log_min_duration_statement = 100", WARNING, ["log_min_duration_statement = 100ms", "slice of 0.9 s"]),
        ("log_min_duration_statement = 0", WARNING, ["log_min_duration_statement = 0", "slice of 0.9 s"]),
        ("log_min_duration_statement = 900", WARNING, ["log_min_duration_statement = 900ms"]),
        ("log_min_duration_statement = 901", OK, ["slice of 0.9 s"]),
        ("log_min_duration_sample = 100", WARNING, ["log_min_duration_sample = 100ms"]),
        ("log_statement = 'all'", WARNING, ["log_statement = all"]),
        ("log_statement = 'ddl'", OK, []),
        ("log_duration = on", WARNING, ["log_duration = on"]),
        ("log_lock_waits = on", INFO, ["log_lock_waits = on", "deadlock_timeout = 1s"]),
    ],
)
async def test_a_log_that_would_show_every_slice_is_warned_about(
    clinic: Server, change: str, verdict: Verdict, words: list[str]
):
    findings = await found_in(new_user(clinic, "log_lock_waits = off", change))
    assert serious(findings) == ({"server log": WARNING} if verdict is WARNING else {})
    assert findings["server log"].verdict is verdict
    assert [word for word in words if word not in findings["server log"].found] == []
    assert ("ALTER ROLE" in findings["server log"].advice) is (verdict is WARNING)


async def test_the_slice_follows_the_lease_and_the_deadlock_timeout_as_an_election_has_it(clinic: Server):
    short_lease = (await found_in(new_user(clinic), lease_s=1.5))["server log"]
    assert "slice of 0.5 s" in short_lease.found
    short = (await found_in(new_user(clinic, "deadlock_timeout = '80ms'", "log_lock_waits = on")))["server log"]
    assert (short.verdict, "slice of 0.072 s ends before" in short.found) == (INFO, True)
    dsn = new_user(clinic, "deadlock_timeout = '50ms'", "log_lock_waits = on")
    shortest = (await found_in(dsn))["server log"]
    assert (shortest.verdict, "slice of 5 s" in shortest.found) == (WARNING, True)
    assert "raise deadlock_timeout" in shortest.advice


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("statement_timeout", "set their own"),
        ("lock_timeout", "set their own"),
        ("idle_session_timeout", "set their own"),
        ("transaction_timeout", "set their own"),
        ("idle_in_transaction_session_timeout", "never idle in a transaction"),
    ],
)
async def test_limits_of_this_user_do_no_harm(clinic: Server, limit: str, words: str):
    if limit == "transaction_timeout" and version_of(clinic) < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    findings = await found_in(new_user(clinic, f"{limit} = '5s'"))
    assert serious(findings) == {}
    finding = findings["time-outs"]
    assert (finding.verdict, finding.advice) == (INFO, "")
    assert finding.found.startswith(f"{limit} = 5s (user): ")
    assert words in finding.found


async def test_limits_that_are_called_harmless_are_lifted_by_our_sessions(clinic: Server):
    """The first statement of a session is what that finding rests on."""
    version = version_of(clinic)
    names = [n for n in _pg_doctor_settings._LIFTED_LIMITS if n != "transaction_timeout" or version >= 170000]
    dsn = new_user(clinic, *(f"{name} = '5s'" for name in names))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(_sql.set_up(Lease(LEASE_S), version), (connection.info.backend_pid, "16000"))
        row = await (
            await connection.execute("SELECT " + ", ".join(map("current_setting('{}')".format, names)))
        ).fetchone()
    assert row is not None
    assert dict(zip(names, row, strict=True)) == {name: "16s" if name == "statement_timeout" else "0" for name in names}


def version_of(server: Server) -> int:
    with psycopg.connect(server.dsn) as connection:
        return connection.info.server_version


async def test_several_limits_are_one_finding(clinic: Server):
    dsn = new_user(clinic, "statement_timeout = '5s'", "idle_session_timeout = '5s'")
    finding = (await found_in(dsn))["time-outs"]
    assert finding.verdict is INFO
    assert sorted(part.split(" = ")[0] for part in finding.found.split("; ")) == [
        "idle_session_timeout",
        "statement_timeout",
    ]


async def test_the_worst_of_several_notes_comes_first_and_decides(clinic: Server):
    finding = (await found_in(new_user(clinic, "log_lock_waits = on", "log_duration = on")))["server log"]
    assert finding.verdict is WARNING
    assert finding.found.startswith("log_duration")
    assert "; log_lock_waits" in finding.found


async def test_commits_that_do_not_reach_the_disk(own_server: Server):
    loose = (await found_in(new_user(own_server, "synchronous_commit = off")))["commits"]
    assert (loose.verdict, "raise it to local" in loose.found) == (INFO, True)
    do(own_server, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    async with asyncio.timeout(10):
        while (finding := (await found_in(own_server.dsn))["commits"]).verdict is OK:
            pass
    assert (finding.verdict, "fsync = off" in finding.found) == (WARNING, True)


@pytest.mark.slow
async def test_a_commit_that_is_not_answered_ends_the_examination_in_time(
    clinic: Server, monkeypatch: pytest.MonkeyPatch
):
    """The server takes the question and never answers: what was found before is shown, and what is missing."""
    monkeypatch.setattr(_pg_doctor, "_CHECK_BOUND_S", 3.0)
    monkeypatch.setattr(_pg_doctor_lease, "_NEXT_NUMBER", "SELECT 1, pg_sleep(600)::text")
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"token": PROBLEM, "the rest": WARNING}
    assert findings["token"].found == "no answer within 3 s"
    assert "round trip" in findings["the rest"].found


# --- Room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "verdict"), [(1, PROBLEM), (2, WARNING), (3, WARNING), (4, OK)])
async def test_a_leader_needs_two_connections_and_a_takeover_four(clinic: Server, most: int, verdict: Verdict):
    dsn = new_user(clinic, more=f"CONNECTION LIMIT {most}")
    findings = await found_in(dsn)
    finding = findings["connections"]
    assert finding.verdict is verdict
    assert finding.found.startswith(f"room for {most} (")
    assert 'CONNECTION LIMIT of role "patient' in finding.found
    assert ("witness=False" in finding.advice) is (verdict is PROBLEM)
    enforcement = findings["lease enforcement"]
    if most == 1:
        assert (enforcement.verdict, "too many connections" in enforcement.found) == (WARNING, True)
        assert "second connection" in enforcement.advice
    else:
        assert enforcement.verdict is OK


async def test_the_limit_of_a_database_counts_and_superusers_are_not_bound_by_it(clinic: Server):
    with new_database(clinic, "CONNECTION LIMIT 1") as dbname:
        finding = (await found_in(new_user(clinic, dbname=dbname)))["connections"]
        assert (finding.verdict, f'of database "{dbname}" 1' in finding.found) == (PROBLEM, True)
        assert serious(await found_in(make_conninfo(clinic.dsn, dbname=dbname))) == {}


async def test_connections_in_use_and_reserved_are_not_counted_as_room(own_server: Server):
    do(own_server, "ALTER SYSTEM SET max_connections = 10", "ALTER SYSTEM SET superuser_reserved_connections = 3")
    own_server.restart()
    ordinary = new_user(own_server)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(own_server.dsn))
        finding = (await found_in(ordinary))["connections"]
        assert finding.found.startswith("room for 3 (max_connections for this user 7, 4 in use")
        assert (await found_in(own_server.dsn))["connections"].found.startswith("room for 6 (")


def test_candidates_that_are_connected_already_are_no_reason_to_refuse_them():
    limits = [_pg_doctor_room._Limit("max_connections", 100, 0), _pg_doctor_room._Limit("the role's", 3, 3)]
    assert _pg_doctor_room._judge_connections("x", limits, 0).verdict is PROBLEM
    here = _pg_doctor_room._judge_connections("x", limits, 3)
    assert (here.verdict, "3 connections are pgleaderlock's already" in here.found) == (WARNING, True)
    too_few = [_pg_doctor_room._Limit("the role's", 1, 1)]
    assert _pg_doctor_room._judge_connections("x", too_few, 1).verdict is PROBLEM


def test_a_lock_table_that_fills_up_is_warned_about():
    assert _pg_doctor_room._judge_lock_table("x", 1000, 799).verdict is OK
    full = _pg_doctor_room._judge_lock_table("x", 1000, 800)
    assert (full.verdict, "max_locks_per_transaction" in full.advice) == (WARNING, True)
    assert full.found == "800 of about 1000 locks in use; a leader, its heir and the next heir take two each"


async def test_the_lock_table_is_counted(clinic: Server):
    async with await psycopg.AsyncConnection.connect(clinic.dsn, autocommit=True) as connection:
        before = int((await found_in(clinic.dsn))["lock table"].found.split()[0])
        await connection.execute("SELECT pg_advisory_lock(n) FROM generate_series(1, 500) AS n")
        assert int((await found_in(clinic.dsn))["lock table"].found.split()[0]) >= before + 500


# --- Versions and clocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "verdict"), [(120022, PROBLEM), (130000, WARNING), (139999, WARNING), (140000, OK)]
)
def test_old_server_is_recognized_by_what_it_lacks(version: int, verdict: Verdict):
    finding = _pg_doctor_server._judge_version("x", version, "PostgreSQL")
    assert (finding.verdict, "14 or later" in finding.advice) == (verdict, verdict is not OK)


async def test_on_an_old_server_the_lease_is_not_tried(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Site, "version", 130000)
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"server version": WARNING, "lease enforcement": WARNING}
    assert "frozen leader keeps the lock" in findings["server version"].found
    assert "14" in findings["lease enforcement"].found


async def test_the_clock_of_a_healthy_server_is_shown_with_what_cannot_be_known(clinic: Server):
    local, remote = (await found_in(clinic.dsn))["server clock"], (await found_in(clinic.tcp_dsn))["server clock"]
    assert (local.verdict, remote.verdict) == (INFO, INFO)
    assert "not stepped since the server started" in local.found
    assert "cannot be seen from here" in remote.found
    assert "chronyc tracking" in remote.found


async def test_clocks_that_are_far_apart_are_warned_about(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 7200)
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"server clock": WARNING}
    assert findings["server clock"].found.startswith("7.2e+03 s ahead of ours")
    assert "not synchronised" in findings["server clock"].found


@pytest.mark.parametrize(("step", "words"), [("+100", "it was stepped forward by"), ("-100", "it was set back")])
@pytest.mark.slow
async def test_a_stepped_clock_of_a_server_is_found_in_its_traces(
    server_with_a_clock: tuple[Server, Path], step: str, words: str
):
    server, offset = server_with_a_clock
    assert (await found_in(server.dsn))["server clock"].verdict is INFO
    offset.write_text(step)
    finding = (await found_in(server.dsn))["server clock"]
    assert finding.verdict is WARNING
    assert words in finding.found
    assert "takeover='strict'" in finding.advice


@pytest.mark.parametrize(
    ("look", "verdict", "words"),
    [
        (ClockLook(0.9, 0.001, 0.0, -1.0, 0.0), INFO, "no decision compares the two"),
        (ClockLook(-1.2, 0.1, 0.0, -1.0, 0.0), WARNING, "1.2 s behind ours"),
        (ClockLook(1.2, 0.3, 0.0, -1.0, 0.0), INFO, "ahead of ours"),  # within what the answer's time leaves open
        (ClockLook(0.0, 0.0, -50.0, -1.0, None), WARNING, "-50 s more than ours"),
        (ClockLook(0.0, 0.0, 0.02, -1.0, None), INFO, "cannot be seen from here"),
        (ClockLook(0.0, 0.0, 0.0, 2.0, None), WARNING, "2 s in its future"),
        (ClockLook(0.0, 0.0, 0.0, -1.0, -3.0), WARNING, "stepped back by 3 s"),
    ],
)
def test_what_a_look_at_the_clock_of_a_server_means(look: ClockLook, verdict: Verdict, words: str):
    finding = judge_clock("x", look)
    assert (finding.verdict, words in finding.found) == (verdict, True)


async def test_a_clock_that_is_stepped_while_it_is_watched_is_seen(
    server_with_a_clock: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
):
    server, offset = server_with_a_clock

    async def step_instead_of_sleeping(_seconds: float) -> None:
        offset.write_text("+100")

    site = await _pg_doctor_site.open_site(server.dsn, Lease(LEASE_S), None)
    monkeypatch.setattr(asyncio, "sleep", step_instead_of_sleeping)
    try:
        look = await _pg_doctor_clock._look(site)
    finally:
        await site.connection.close()
    assert 0 < look.gained_s <= 100


@pytest.mark.parametrize(
    ("started_s", "reset_s", "verdict", "is_told"),
    [
        (1000, None, OK, False),
        (1000, 5000, OK, False),
        (1000, 990, OK, False),
        (1000, 100, INFO, False),
        (1000, 14, INFO, True),
    ],
)
def test_a_reset_of_the_statistics_counts_as_a_restart(started_s, reset_s, verdict, is_told):
    finding = _pg_doctor_server._judge_statistics("x", started_s, reset_s, 15.0)
    assert (finding.verdict, bool(finding.advice)) == (verdict, is_told)
    assert ("pg_stat_reset_shared('bgwriter')" in finding.found) is (verdict is INFO)


async def test_a_reset_of_the_statistics_is_seen_on_a_real_server(own_server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_pg_doctor_server, "_START_TAKES_S", 0.0)
    do(own_server, "SELECT pg_stat_reset_shared('bgwriter')")
    finding = (await found_in(own_server.dsn))["statistics"]
    assert (finding.verdict, "no one leads for one lease" in finding.found) == (INFO, True)


@pytest.mark.parametrize(
    ("has_boottime", "platform", "verdict"), [(True, "linux", OK), (False, "darwin", OK), (False, "freebsd", WARNING)]
)
def test_a_clock_that_stops_with_the_host_is_warned_about(has_boottime: bool, platform: str, verdict: Verdict):
    assert _pg_doctor_network._judge_own_clock("x", has_boottime=has_boottime, platform=platform).verdict is verdict


# --- The lock and its record ----------------------------------------------------------------------------------------


NO_ONE_WAITS = "it has no heir; it has no next heir; 0 more queued"


async def test_who_holds_the_lock_and_its_witness_and_who_waits(clinic: Server, key: LockKey):
    free = (await found_in(clinic.dsn, key))["lock"]
    assert (free.verdict, free.found) == (INFO, f"{key} is free; {NO_ONE_WAITS}; its witness is free")
    assert (await found_in(clinic.dsn))["lock"].found.startswith("not looked at")
    retry = FixedInterval(5.0)
    leader = LeaderLock(clinic.dsn, key=key, retry_strategy=retry, settle_s=0)
    follower = LeaderLock(clinic.dsn, key=key, retry_strategy=retry, settle_s=0)
    async with leader:
        assert await leader.wait_for_leadership(10)
        async with follower:
            async with asyncio.timeout(10):
                while "its heir is pid " not in (held := (await found_in(clinic.dsn, key))["lock"]).found:
                    pass
    assert held.found.startswith(f"{key} is held by pid ")
    assert "; it has no next heir; 0 more queued; " in held.found
    assert "its witness is held by pid " in held.found
    assert f":{os.getpid()} 15s wf, user postgres)" in held.found
    assert held.verdict is INFO


async def test_candidates_that_do_not_agree_are_warned_about(clinic: Server, key: LockKey):
    name = "pgleaderlock somewhere:1 5s wf"
    async with await psycopg.AsyncConnection.connect(clinic.dsn, autocommit=True, application_name=name) as rival:
        await rival.execute("SELECT pg_advisory_lock(%s, %s)", key.numbers)
        async with LeaderLock(clinic.dsn, key=key, retry_strategy=FixedInterval(5.0), lease_s=15):
            async with asyncio.timeout(10):
                while "its heir is pid " not in (finding := (await found_in(clinic.dsn, key))["lock"]).found:
                    pass
    assert finding.verdict is WARNING
    assert "'15s wf' and '5s wf'" in finding.found
    assert "lease_s" in finding.advice


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.slow
async def test_doctor_looks_at_the_schema_and_trusts_the_owner_that_it_was_given(clinic: Server, named: bool):
    with new_database(clinic) as dbname:
        owner, user = (new_user(clinic, dbname=dbname) for _ in range(2))
        name = conninfo_to_dict(owner)["user"]
        do(clinic, f"CREATE SCHEMA mine AUTHORIZATION {name}", dbname=dbname)
        do(clinic, f"CREATE TABLE mine.terms (); ALTER TABLE mine.terms OWNER TO {name}", dbname=dbname)
        do(clinic, "GRANT USAGE ON SCHEMA mine TO PUBLIC", dbname=dbname)
        do(clinic, "GRANT SELECT, INSERT, UPDATE ON mine.terms TO PUBLIC", dbname=dbname)
        words = ["doctor", "--dsn", user, "--json", "--schema", "mine", *(["--schema-owner", str(name)] * named)]
        result = await asyncio.to_thread(CliRunner().invoke, cli, words)
    findings = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
    shown = findings["term table"]
    if named:
        assert (shown["verdict"], shown["found"]) == (
            "info",
            "mine.terms is there (version 1), and this user may use it",
        )
    else:
        assert shown["verdict"] == "warning"
        assert shown["found"].startswith("mine.terms will be refused")
        assert "--schema-owner" in shown["advice"]


async def test_doctor_names_the_schema_in_its_advice(clinic: Server):
    user = new_user(clinic)
    examination = await examine(user, None, LEASE_S, schema="elsewhere")
    (finding,) = [each for each in examination.findings if each.check == "term table"]
    assert "schema apply --schema elsewhere --grant-to" in finding.advice


@pytest.mark.slow
async def test_the_term_table_is_there_or_not_and_usable_or_not(clinic: Server):
    with new_database(clinic) as dbname:

        async def told(dsn: str) -> str:
            finding = (await found_in(dsn))["term table"]
            assert finding.verdict is INFO
            assert ("--grant-to" in finding.advice) is ("may not" in finding.found)
            return finding.found.removeprefix("pgleaderlock.terms is ")

        owner, user = make_conninfo(clinic.dsn, dbname=dbname), new_user(clinic, dbname=dbname)
        assert await told(owner) == "missing; this user may create it"
        assert await told(user) == "missing, and this user may not create it"
        do(clinic, "CREATE SCHEMA pgleaderlock", "CREATE TABLE pgleaderlock.terms ()", dbname=dbname)
        assert await told(owner) == "there (version 1), and this user may use it"
        assert await told(user) == "there, but this user may not use it"
        do(clinic, "GRANT USAGE ON SCHEMA pgleaderlock TO PUBLIC", dbname=dbname)
        do(clinic, "GRANT SELECT, INSERT ON pgleaderlock.terms TO PUBLIC", dbname=dbname)
        assert await told(user) == "there, but this user may not use it"
        do(clinic, "GRANT UPDATE ON pgleaderlock.terms TO PUBLIC", dbname=dbname)
        assert await told(user) == "there (version 1), and this user may use it"


# --- Servers that do not answer -------------------------------------------------------------------------------------


async def test_a_server_that_never_answers_is_unreachable_in_bounded_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_pg_doctor_site, "_CONNECT_BOUND_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dsn = f"postgresql://u:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/d?gssencmode=disable"
        began_s = time.monotonic()
        words = r"cannot connect for an election \(host=127.0.0.1 .*no answer within 0.3 s"
        with pytest.raises(UnreachableError, match=words) as caught:
            await doctor.show_doctor(dsn, None, LEASE_S, as_json=False)
        assert time.monotonic() - began_s < 3
    assert SECRET not in caught.value.format_message()


async def test_a_server_that_refuses_is_unreachable_and_says_why(clinic: Server):
    with pytest.raises(UnreachableError, match="Connection refused"):
        await doctor.show_doctor(f"postgresql://u:{SECRET}@127.0.0.1:1/d", None, LEASE_S, as_json=True)
    with pytest.raises(UnreachableError, match="does not exist") as caught:
        await doctor.show_doctor(make_conninfo(clinic.dsn, dbname="nothing-here"), None, LEASE_S, as_json=True)
    assert caught.value.format_message().count("\n") == 0


@pytest.mark.slow
async def test_a_session_that_freezes_in_the_middle_ends_the_examination_in_time(
    clinic: Server, monkeypatch: pytest.MonkeyPatch, silent_pids: "asyncio.Queue[int]"
):
    monkeypatch.setattr(_pg_doctor, "_CHECK_BOUND_S", 3.0)
    async with await psycopg.AsyncConnection.connect(clinic.dsn, autocommit=True) as observer:
        examination = asyncio.create_task(found_in(make_conninfo(clinic.dsn, application_name="frozen")))
        silent, first = await silent_pids.get(), await _first_session(observer, "frozen")
        os.kill(first, signal.SIGSTOP)
        try:
            await observer.execute(END_SESSION, (silent,))
            began_s = time.monotonic()
            findings = await asyncio.wait_for(examination, 20)
            assert time.monotonic() - began_s < 5
        finally:
            os.kill(first, signal.SIGCONT)
    assert serious(findings) == {"lease enforcement": WARNING, "queue": PROBLEM, "the rest": WARNING}
    assert findings["queue"].found == "no answer within 3 s"
    assert findings["the rest"].found.startswith("not checked: ")
    assert findings["the rest"].found.endswith("term table, lock")


async def test_session_that_is_ended_during_the_examination_is_reported_with_the_server_s_message(
    clinic: Server, silent_pids: "asyncio.Queue[int]"
):
    async with await psycopg.AsyncConnection.connect(clinic.dsn, autocommit=True) as reaper:
        examination = asyncio.create_task(found_in(make_conninfo(clinic.dsn, application_name="ended")))
        silent = await silent_pids.get()
        for pid in (await _first_session(reaper, "ended"), silent):
            await reaper.execute(END_SESSION, (pid,))
        findings = await examination
    assert serious(findings) == {"lease enforcement": WARNING, "queue": PROBLEM, "the rest": WARNING}
    assert findings["queue"].found.startswith("the session ended: ")
    assert "administrator command" in findings["queue"].found


async def test_all_checks_together_are_bounded_too(clinic: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_pg_doctor, "_ALL_BOUND_S", 0.0)
    findings = await found_in(clinic.dsn)
    assert serious(findings) == {"database": PROBLEM, "the rest": WARNING}


# --- What is printed ------------------------------------------------------------------------------------------------


async def test_json_is_one_object_that_names_the_lock_and_every_finding(
    clinic: Server, key: LockKey, capsys: pytest.CaptureFixture[str]
):
    dsn = new_user(clinic, more="CONNECTION LIMIT 1")
    assert await doctor.show_doctor(dsn, key, 3.0, as_json=True) is False
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    record = json.loads(out)
    assert record.items() >= {"fit": False, "lease_s": 3.0, "key": str(key), "key1": key.numbers[0]}.items()
    assert "user=patient" in record["where"]
    assert {finding["check"] for finding in record["findings"]} == {check.name for check in _pg_doctor.CHECKS}
    assert {tuple(finding) for finding in record["findings"]} == {("check", "verdict", "found", "advice")}
    verdicts = {finding["check"]: finding["verdict"] for finding in record["findings"]}
    assert (verdicts["connections"], verdicts["token"]) == ("problem", "ok")
    assert {finding["check"]: finding["advice"] for finding in record["findings"]}["token"] is None


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_password_is_in_no_output(
    clinic: Server, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def execute(*_: object) -> None:
        raise psycopg.OperationalError(f"could not parse password={SECRET}")

    async def fail(site: Site, _name: str) -> Finding:
        monkeypatch.setattr(site.connection, "_execute", execute)
        raise AssertionError(await site.ask("SELECT 1"))

    checks = (*_pg_doctor.CHECKS, _pg_doctor.Check("a careless driver", fail))
    monkeypatch.setattr(_pg_doctor, "CHECKS", checks)
    assert await doctor.show_doctor(make_conninfo(clinic.dsn, password=SECRET), None, LEASE_S, as_json=as_json)
    out, err = capsys.readouterr()
    assert "could not parse password=***" in out
    assert SECRET not in out + err


HOSTILE = (
    Finding("a", OK, "[red]not[/red] markup, no :smile: either"),
    Finding("long name", PROBLEM, "x" * 300 + " end", "repaint \x1b[2J\x07 and\nbreak " + "y " * 100),
    Finding("b", WARNING, "w", "do"),
    Finding("c", INFO, "i"),
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, output: io.StringIO, findings: tuple[Finding, ...] = HOSTILE) -> str:
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("TERM", "xterm")
    doctor._print_for_people(Examination("host=h", findings))
    return output.getvalue()


def test_in_a_pipe_each_finding_is_one_whole_line_without_escape_codes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = shown(monkeypatch, io.StringIO()).splitlines()
    assert lines == [
        "host=h",
        "ok       a          [red]not[/red] markup, no :smile: either",
        f"problem  long name  {'x' * 300} end",
        f"                    -> repaint \\x1b[2J\\x07 and\\nbreak {'y ' * 100}",
        "warning  b          w",
        "                    -> do",
        "info     c          i",
        "1 problem, 1 warning: do not elect leaders here yet",
    ]


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_on_a_terminal_the_table_is_folded_and_never_cut(columns: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(monkeypatch, _Terminal())
    assert max(map(len, text.splitlines()[1:-1])) <= int(columns)
    expected = "host=h Check Verdict Found What to do 1 problem, 1 warning: do not elect leaders here yet"
    for finding in HOSTILE:
        expected += f"{finding.check}{finding.verdict}{visible(finding.found)}"
        expected += f"{finding.check}:{visible(finding.advice)}" if finding.advice else ""
    assert letters(text) == letters(expected)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_on_a_terminal_a_statement_that_is_to_be_copied_has_a_line_of_its_own(
    columns: str, monkeypatch: pytest.MonkeyPatch
):
    """Folded into a column, it would have line breaks in it."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    error = psycopg.errors.InsufficientPrivilege("permission denied for view pg_stat_activity")
    findings = (
        Finding("a", PROBLEM, "not allowed", advice_for(error, "app")),
        Finding("b", PROBLEM, "no standby", REMEDY),
    )
    lines = [line.strip() for line in shown(monkeypatch, _Terminal(), findings).splitlines()]
    views = "pg_catalog.pg_stat_activity, pg_catalog.pg_stat_bgwriter, pg_catalog.pg_locks"
    assert f'GRANT SELECT ON {views} TO "app"' in lines
    assert "ALTER SYSTEM SET synchronous_standby_names = ''" in lines
    assert "SELECT pg_reload_conf()" in lines
    folded = [line for line in lines[1:-1] if not line.startswith(("GRANT", "ALTER SYSTEM"))]
    assert max(map(len, folded)) <= int(columns)


async def test_statements_of_the_doctor_can_be_run_as_they_are(clinic: Server):
    dsn = new_user(clinic, "log_min_duration_statement = 1", "log_statement = 'all'")
    statements = re.findall(r"`([^`]+)`", (await found_in(dsn))["server log"].advice)
    assert len(statements) == 2
    do(clinic, *statements)
    assert (await found_in(dsn))["server log"].verdict is OK


def letters(text: str) -> Counter[str]:
    return Counter(character for character in text if not character.isspace() and character != "─")


@pytest.mark.parametrize(
    ("variable", "value", "has_colours"), [("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_colours_are_for_terminals_that_want_them(
    variable: str, value: str, has_colours: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = _Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    doctor._print_for_people(Examination("host=h", HOSTILE))
    assert ("\x1b[" in output.getvalue()) is has_colours
    assert "[red]" in output.getvalue()
    assert "\x1b[2J" not in output.getvalue()


def test_warnings_alone_do_not_forbid_an_election(monkeypatch: pytest.MonkeyPatch):
    findings = (Finding("a", WARNING, "w"), Finding("b", WARNING, "w"))
    assert Examination("", findings).is_fit
    assert not Examination("", (*findings, Finding("c", PROBLEM, "p"))).is_fit
    last = shown(monkeypatch, io.StringIO(), findings).splitlines()[-1]
    assert last == "0 problems, 2 warnings: elections can run on this database with this user"


async def test_a_hostile_name_of_a_database_reaches_the_screen_as_text(
    clinic: Server, capsys: pytest.CaptureFixture[str]
):
    name = 'client \x1b[31m[bold] "quoted"'
    quoted = sql.Identifier(name).as_string()
    do(clinic, f"CREATE DATABASE {quoted} CONNECTION LIMIT 1")
    try:
        dsn = new_user(clinic, dbname=name)
        assert not await doctor.show_doctor(dsn, None, LEASE_S, as_json=False)
    finally:
        do(clinic, f"DROP DATABASE {quoted} WITH (FORCE)")
    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert 'of database "client \\x1b[31m[bold] ""quoted""" 1' in out
