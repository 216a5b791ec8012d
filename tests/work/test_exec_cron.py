"""``pgleaderlock exec --cron`` as cron starts it on several hosts: real processes, a real PostgreSQL."""

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from pgleaderlock import LockKey
from pgleaderlock.cli import exit_codes
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.guardian import is_alive
from tests.support.pooler import pgbouncer
from tests.support.processes import Process
from tests.support.sync import until

pytestmark = pytest.mark.slow  # each starts commands under exec

CLI = (sys.executable, "-m", "pgleaderlock.cli", "exec")
YEARLY = "0 0 1 1 *"  # its slot does not change while a test runs
TIMEOUT_S = 120.0


@pytest.fixture(autouse=True)
def _no_database_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PG_DSN", raising=False)


@pytest.fixture
def role(key: LockKey) -> str:
    return f"cron-{key.numbers[0]}-{key.numbers[1]}"


def words(postgres: Postgres, role: str, *command: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (*CLI, "--dsn", postgres.dsn, "--role", role, "--cron", YEARLY, *options, "--", *command)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)


def slot() -> str:
    return f"{datetime.now(UTC).year}-01-01T00:00:00Z"


def until_one_runs(started: list[Process]) -> Process:
    def running() -> list[Process]:
        for each in started:
            each.drain()
        return [each for each in started if any("ran for" in line for line in each.lines)]

    until(running, TIMEOUT_S)
    (winner,) = running()
    assert any(f"ran for {slot()} as cron-" in line for line in winner.lines)
    return winner


def test_of_three_hosts_one_runs_the_command_and_the_others_name_it(postgres: Postgres, role: str):
    script = "echo ran for $PGLEADERLOCK_SLOT as $PGLEADERLOCK_ROLE; read line"
    started = [Process(*words(postgres, role, "sh", "-c", script)) for _ in range(3)]
    try:
        winner = until_one_runs(started)
        for each in started:
            if each is winner:
                continue
            heard = [line for line in each.lines if "is being run by" in line]  # while the winner was looked for
            said = heard[0] if heard else each.wait_for("is being run by", TIMEOUT_S)
            assert each.wait(TIMEOUT_S) == exit_codes.EXEC_NOT_ACQUIRED
            assert f"{role} for {slot()} is being run by pgleaderlock" in said
            assert f":{winner.pid}" in said
        winner.say("go on")
        assert winner.wait(TIMEOUT_S) == 0
    finally:
        for each in started:
            each.__exit__(None, None, None)
    late = run(*words(postgres, role, "echo", "again"))
    assert late.returncode == exit_codes.EXEC_NOT_ACQUIRED
    assert late.stdout == ""
    assert "was run by pgleaderlock" in late.stderr
    quiet = run(*words(postgres, role, "echo", "again", options=("--quiet",)))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (exit_codes.EXEC_NOT_ACQUIRED, "", "")


def test_no_leader_is_reported_because_there_is_none_and_quiet_prints_nothing(postgres: Postgres, role: str):
    done = run(*words(postgres, role, "true", options=("--schema", "pgleaderlock")))
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "leader" in line.split(" | ")[1]] == [], done.stderr
    assert "lock_acquired" not in done.stderr
    assert "starting the command" in done.stderr
    quiet = run(*words(postgres, f"{role}-quiet", "true", options=("-q",)))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_command_that_fails_is_recorded_and_not_repeated(postgres: Postgres, role: str):
    assert run(*words(postgres, role, "sh", "-c", "exit 3")).returncode == 3
    late = run(*words(postgres, role, "echo", "again", options=("--json", "--if-killed", "repeat")))
    assert late.returncode == exit_codes.EXEC_NOT_ACQUIRED
    said = [json.loads(line) for line in late.stderr.splitlines()]
    assert [(line["event"], line["state"], line["slot"]) for line in said] == [("claimed_by_another", "failed", slot())]
    assert said[0]["text"].endswith("and failed: exit code 3")


def test_the_slot_of_a_killed_wrapper_is_left_until_a_start_asks_to_repeat_it(postgres: Postgres, role: str):
    with Process(*words(postgres, role, "sh", "-c", "echo command is $$; sleep 600")) as wrapper:
        command = int(wrapper.wait_for("command is", TIMEOUT_S).split()[2])
        wrapper.signal(signal.SIGKILL)
        until(lambda: not is_alive(command), TIMEOUT_S)

    def start(*options: str) -> subprocess.CompletedProcess[str]:
        return run(*words(postgres, role, "echo", "again", options=options))

    until(lambda: "is being run" not in start().stderr, TIMEOUT_S)  # when the server has seen the end of the session
    found = start()
    assert found.returncode == exit_codes.EXEC_NOT_ACQUIRED
    assert "and cut off: it is not run again" in found.stderr
    repeated = start("--if-killed", "repeat")
    assert (repeated.returncode, repeated.stdout) == (0, "again\n")
    assert start("--if-killed", "repeat").returncode == exit_codes.EXEC_NOT_ACQUIRED


def test_a_signal_ends_the_command_and_the_slot_has_failed(postgres: Postgres, role: str):
    with Process(*words(postgres, role, "sh", "-c", "echo up; exec sleep 600")) as wrapper:
        wrapper.wait_for("up", TIMEOUT_S)
        wrapper.signal(signal.SIGTERM)
        assert wrapper.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    assert "failed: exit code 143" in run(*words(postgres, role, "true")).stderr


def test_behind_a_pooler_that_keeps_sessions_apart_it_runs_if_it_is_allowed_to(own_server: Server, role: str):
    with pgbouncer(own_server, "session") as pooled:
        refused = run(*words(Postgres(pooled, ""), role, "echo", "ran", options=("--wait", "0")))
        allowed = run(*words(Postgres(pooled, ""), role, "echo", "ran", options=("--allow-pooler",)))
    assert (refused.returncode, refused.stdout) != (0, "ran\n")
    assert "--allow-pooler" in refused.stderr
    assert (allowed.returncode, allowed.stdout) == (0, "ran\n"), allowed.stderr


def test_without_a_database_nothing_is_run(role: str):
    nowhere = Postgres("postgresql://127.0.0.1:1/none", "")
    done = run(*words(nowhere, role, "echo", "ran", options=("--wait", "0")))
    assert (done.returncode, done.stdout) == (exit_codes.EXEC_UNREACHABLE, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cron", "61 * * * *"), "--cron: "),
        (("--cron", "@daily", "--tz", "Mars/Base"), "time zone"),
        (("--cron", "@daily", "--restart"), "--restart: not with --cron"),
        (("--cron", "@daily", "--once"), "--once: not with --cron"),
        (("--tz", "Europe/Berlin"), "only with --cron"),
        (("--if-killed", "repeat"), "only with --cron"),
        (("--cron", "@daily", "--url", "memory://nightly"), "--cron needs a PostgreSQL"),
        (("--cron", "@daily", "--role", "x", "--url", "file:///tmp/nightly"), "--cron needs a PostgreSQL"),
        (("--cron", "@daily", "--role", "x", "--url", "postgresql+lease://db/app"), "--cron needs a PostgreSQL"),
        (("--cron", "@daily", "--lease", "30"), "--lease: no effect with --cron"),
        (("--cron", "@daily", "--takeover", "strict", "--term-table"), "--takeover, --term-table: no effect"),
        (("--cron", "@daily", "--no-witness", "--allow-pooler"), "--no-witness: no effect"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(options: tuple[str, ...], said: str):
    store = () if "--url" in options else ("--dsn", "postgresql://127.0.0.1:1/none")
    done = run(*CLI, *(store or ()), *(("--role", "nightly") if store else ()), *options, "--", "true")
    assert done.returncode == exit_codes.USAGE
    assert said in done.stderr
