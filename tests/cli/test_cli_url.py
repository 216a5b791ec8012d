"""``--url``: every command on every store."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import take_out
from pgleaderlock.cli.commands import invoke
from tests.conftest import Postgres
from tests.support.processes import Process


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.tcp_dsn.replace("postgresql://", "postgresql+lease://")


@pytest.mark.slow
def test_two_processes_elect_one_and_a_stop_hands_over(url: str):
    role = f"cli/{os.getpid()}/{os.urandom(4).hex()}"
    command = (sys.executable, "-m", "pgleaderlock.cli", "run", "--url", url, "--role", role, "--lease", "6", "--json")
    quick = ("--health-interval", "1", "--retry-base", "0.2", "--retry-max", "0.2")
    with Process(*command, *quick) as first:
        first.wait_for('"event": "on_acquired"')
        with Process(*command, *quick) as second:
            second.wait_for('"event": "on_acquire_failed"')
            first.signal(signal.SIGTERM)
            assert first.wait() == exit_codes.CLEAN
            line = second.wait_for('"event": "on_acquired"')
            fields: dict[str, Any] = json.loads(line)
            assert (fields["role"], fields["token"]) == (role, 1)
            assert fields["url"].startswith("postgresql+lease:// host=127.0.0.1 port=")


def test_a_lock_in_another_store_can_be_acquired_and_looked_at(url: str, capsys: pytest.CaptureFixture[str]):
    role = f"cli/{os.getpid()}/{os.urandom(4).hex()}"
    assert invoke(["acquire", "--url", url, "--role", role]) == exit_codes.CLEAN
    assert capsys.readouterr().out.splitlines() == [f"acquired {role}", f"released {role}"]
    assert invoke(["status", "--url", url, "--role", role]) == exit_codes.CLEAN
    assert capsys.readouterr().out.endswith(" is free\n")
    command = (sys.executable, "-m", "pgleaderlock.cli", "acquire", "--url", url, "--role", role, "--hold", "60")
    with Process(*command) as holder:
        holder.wait_for("acquired")
        assert invoke(["status", "--url", url, "--role", role]) == exit_codes.CLEAN
        assert f"is held by {socket.gethostname()}_{holder.pid}_" in capsys.readouterr().out
        assert invoke(["acquire", "--url", url, "--role", role, "--json"]) == exit_codes.NOT_ACQUIRED
        assert json.loads(capsys.readouterr().out)["outcome"] == "held_by_another"


def test_the_url_of_another_driver_names_the_session_locks_of_its_database(
    postgres: Postgres, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """As ``--dsn``, as ``--url`` and in a configuration file."""
    role = f"cli/{os.getpid()}/{os.urandom(4).hex()}"
    driver_url = postgres.tcp_dsn.replace("postgresql://", "postgresql+asyncpg://") + "?ssl=prefer&pool_size=3"
    file = tmp_path / "node.toml"
    file.write_text(f'[cluster.leader_election]\nbackend = "{driver_url}"\nroles = ["{role}"]\n')
    for place in (["--dsn", driver_url], ["--url", driver_url], ["--config", str(file)]):
        assert invoke(["acquire", *place, "--role", role]) == exit_codes.CLEAN
        assert f"acquired {role}" in capsys.readouterr().out
    assert invoke(["acquire", "--dsn", f"{driver_url}&nonsense=1", "--role", role]) == exit_codes.USAGE
    assert "(nonsense)" in " ".join(capsys.readouterr().err.split())


def test_a_password_in_the_url_of_another_driver_is_not_taken_as_a_setting(capsys: pytest.CaptureFixture[str]):
    for scheme in ("postgresql+asyncpg", "pgsql"):
        setting = f"cluster.leader_election.backend={scheme}://app:s3cret@db/app"
        assert invoke(["config", "check", "--set", setting]) == exit_codes.USAGE
        shown = capsys.readouterr()
        assert "has a password in it" in " ".join(shown.err.split())
        assert "s3cret" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "--url", "nope://x"], "no backend for nope://"),
        (["run", "--url", "memory://x", "--dsn", "postgresql://h/d"], "name the store twice"),
        (["run", "--url", "postgresql://h/d"], "name the lock in exactly one way"),
        (["status", "--url", "memory://x", "--role", "billing"], "names one lock by itself"),
        (["status", "--url", "memory://x", "--role", "postgresql://u:p@h/d"], "takes a name"),
        (
            ["run", "--url", "memory://x", "--no-witness"],
            "only for sessions of PostgreSQL, with --dsn or a postgresql:// URL: --no-witness",
        ),
        (["run", "--url", "memory://x", "--allow-pooler"], "URL: --allow-pooler"),
        (["run", "--url", "memory://x", "--key1", "1", "--key2", "2"], "URL: --key1, --key2"),
        (["run", "--url", "postgresql+lease://h/d"], "name one with role="),
        (["run", "--url", "memory://x", "--lease", "3", "--health-interval", "5"], "health_interval_s=5"),
        (["status", "--url", "memory://"], "needs a name"),
        (["doctor", "--url", "memory://x"], "doctor examines a PostgreSQL"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(words) == exit_codes.USAGE
    assert complaint in capsys.readouterr().err


def test_store_that_cannot_be_reached_is_reported_as_unreachable(capsys: pytest.CaptureFixture[str]):
    assert invoke(["status", "--url", "postgresql+lease://u:a-secret@127.0.0.1:1/d", "--role", "x"]) == (
        exit_codes.UNREACHABLE
    )
    said = capsys.readouterr().err
    assert "Connection refused" in said
    assert "a-secret" not in said


def test_a_password_in_a_url_is_not_left_in_the_process_list(url: str):
    secret = "a-secret-of-the-url"
    with_password = url.replace("postgres@", f"postgres:{secret}@")
    assert with_password != url
    assert take_out("--url", ["run", "--url", with_password, "-q"]) == (["run", "-q"], with_password)
    command = (
        sys.executable,
        "-m",
        "pgleaderlock.cli",
        "run",
        "--url",
        with_password,
        "--role",
        f"cli/{os.urandom(4).hex()}",
    )
    with Process(*command) as process:
        process.wait_for("this process leads")
        assert secret not in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert secret not in "".join(process.lines)


def test_a_url_in_the_environment_gives_way_to_a_dsn_on_the_command_line(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PGLEADERLOCK_URL", "memory://x")
    assert invoke(["status", "--dsn", postgres.dsn, "--role", "cli/x"]) == exit_codes.CLEAN
    assert "bigint:" in capsys.readouterr().out
    assert invoke(["status"]) == exit_codes.CLEAN
    assert capsys.readouterr().out == "memory://x is free\n"


def test_an_empty_url_in_the_environment_is_not_another_way_to_say_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PGLEADERLOCK_URL", "")
    assert invoke(["status", "--role", "x"]) == exit_codes.USAGE
    assert "set but empty" in capsys.readouterr().err


def test_an_empty_dsn_in_the_environment_counts_as_not_set_where_url_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PG_DSN", "")
    assert invoke(["status", "--url", "memory://x"]) == exit_codes.CLEAN
    assert capsys.readouterr().out == "memory://x is free\n"


def test_a_postgresql_url_is_a_dsn(postgres: Postgres, capsys: pytest.CaptureFixture[str]):
    assert invoke(["status", "--url", postgres.tcp_dsn, "--role", "cli/x"]) == exit_codes.CLEAN
    assert "bigint:" in capsys.readouterr().out


def test_a_schema_is_not_made_in_another_database_than_was_asked_for():
    command = (sys.executable, "-m", "pgleaderlock.cli", "schema", "apply", "--url", "postgresql://u:p@h/d")
    with Process(*command) as process:
        assert process.wait() == exit_codes.USAGE
        process.wait_for("No such option")


def test_missing_folder_is_reported_at_the_pace_of_the_back_off_and_sigterm_ends_the_process(tmp_path: Path):
    url = f"file://{tmp_path}/missing/lock"
    with Process(sys.executable, "-m", "pgleaderlock.cli", "run", "--url", url) as process:
        process.wait_for("does not exist")
        process.signal(signal.SIGTERM)
        assert process.wait(timeout_s=10) == exit_codes.CLEAN
    assert len(process.lines) < 30


# --- What people ran into ---------------------------------------------------------------------------------------------


def test_a_schema_is_passed_on_to_lease_rows_and_refused_elsewhere(url: str, capsys: pytest.CaptureFixture[str]):
    role = f"cli/{os.getpid()}/{os.urandom(4).hex()}"
    command = (sys.executable, "-m", "pgleaderlock.cli", "acquire", "--url", url, "--role", role, "--hold", "60")
    with Process(*command, "--schema", "elsewhere") as holder:
        holder.wait_for("acquired")
        words = ["--url", url, "--role", role]
        assert invoke(["acquire", *words, "--schema", "elsewhere"]) == exit_codes.NOT_ACQUIRED
        assert invoke(["status", *words, "--schema", "elsewhere"]) == exit_codes.CLEAN
        assert "is held by" in capsys.readouterr().out
        assert invoke(["acquire", *words]) == exit_codes.CLEAN  # another table, another lock
    assert invoke(["acquire", "--url", "file:///tmp/x", "--schema", "elsewhere"]) == exit_codes.USAGE
    assert "this store has none" in capsys.readouterr().err


@pytest.mark.slow
def test_acquire_can_wait_for_the_lease_of_a_dead_holder(url: str, capsys: pytest.CaptureFixture[str]):
    role = f"cli/{os.getpid()}/{os.urandom(4).hex()}"
    options = ("--url", url, "--role", role, "--lease", "2", "--health-interval", "0.5")
    with Process(sys.executable, "-m", "pgleaderlock.cli", "acquire", *options, "--hold", "60") as holder:
        holder.wait_for("acquired")
        holder.signal(signal.SIGKILL)
        holder.wait()
    assert invoke(["acquire", *options]) == exit_codes.NOT_ACQUIRED
    assert invoke(["acquire", *options, "--wait", "0.3"]) == exit_codes.NOT_ACQUIRED
    assert "is held by" in capsys.readouterr().out
    assert invoke(["acquire", *options, "--wait", "20"]) == exit_codes.CLEAN


def test_acquire_warns_that_memory_is_shared_within_one_process_only(capsys: pytest.CaptureFixture[str]):
    assert invoke(["acquire", "--url", "memory://x"]) == exit_codes.CLEAN
    assert "every process leads" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("memory://", "memory:// needs a name"), ("file:///tmp/x#f", "'file:///tmp/x#f' has a ? or a #")],
)
def test_a_url_without_a_secret_is_quoted(url: str, complaint: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(["status", "--url", url]) == exit_codes.USAGE
    assert complaint in capsys.readouterr().err


def test_a_file_that_is_no_lock_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    notes = tmp_path / "notes.txt"
    notes.write_text("my precious notes")
    for command in ("acquire", "status"):
        assert invoke([command, "--url", notes.as_uri()]) == exit_codes.UNREACHABLE
        assert "is not a lock file, but another program's file" in capsys.readouterr().err
    assert notes.read_text() == "my precious notes"


def test_user_who_may_only_read_a_folder_may_run_status(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert invoke(["status", "--url", (tmp_path / "lock").as_uri()]) == exit_codes.CLEAN
    assert invoke(["acquire", "--url", (tmp_path / "lock").as_uri()]) == exit_codes.UNREACHABLE
