"""``pgleaderlock leader``: what people and programs read, once and with ``--follow``."""

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.stores import open_backend
from pgleaderlock.sync import Election, LeaderLock
from tests.conftest import Postgres
from tests.support.cli import CLI
from tests.support.operators import run
from tests.support.processes import Process

ADDRESS = "http://10.0.0.7:8080"
WAIT_S = 30.0  # for what takes milliseconds on an idle machine


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/lock"


def candidate(url: str, name: str = "web-1") -> Election:
    return Election(open_backend(url, lease_s=6.0, address=ADDRESS, identity=name), health_interval_s=2.0)


def lead(election: Any) -> None:
    assert election.wait_for_leadership(WAIT_S)


def test_the_leader_is_shown_with_its_address_and_token(url: str):
    with candidate(url) as election:
        lead(election)
        result = run("leader", "--url", url)
        token = election.token
    assert result.exit_code == exit_codes.CLEAN
    shown = " ".join(result.stdout.split())
    assert f"is led by web-1 at {ADDRESS}, token {token}, since " in shown


def test_leader_command_reports_a_missing_leader_also_by_its_exit_code(url: str):
    result = run("leader", "--url", url)
    assert result.exit_code == exit_codes.NOT_ACQUIRED
    assert result.stdout == f"{url} has no leader\n"


def test_a_database_that_does_not_answer_is_no_election_without_a_leader():
    result = run("leader", "--dsn", "postgresql://127.0.0.1:1/none", "--role", "billing")
    assert result.exit_code == exit_codes.UNREACHABLE
    assert "127.0.0.1" in result.stderr
    assert "no leader" not in result.stdout + result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_follow_prints_each_change_until_a_signal(url: str, number: signal.Signals):
    with Process(*CLI, "leader", "--url", url, "--follow") as follower:
        follower.wait_for("has no leader")
        with candidate(url) as election:
            lead(election)
            assert f"is led by web-1 at {ADDRESS}" in follower.wait_for("is led by")
        follower.wait_for("has no leader")
        follower.signal(number)
        assert follower.wait() == exit_codes.CLEAN


@pytest.mark.slow
def test_follow_goes_on_while_the_database_does_not_answer():
    dsn = "postgresql://127.0.0.1:1/none"
    with Process(*CLI, "leader", "--dsn", dsn, "--role", "billing", "--follow", "--json") as follower:
        record = json.loads(follower.wait_for('"unknown"'))
        assert (record["role"], record["state"], record["leader"]) == ("billing", "unknown", None)
        assert record["error"]
        assert follower.is_alive
        follower.signal(signal.SIGTERM)
        assert follower.wait() == exit_codes.CLEAN
    with Process(*CLI, "leader", "--dsn", dsn, "--role", "billing", "--follow") as follower:
        follower.wait_for("has an unknown leader: ")


def test_the_leader_of_a_session_lock_is_shown_by_its_role(postgres: Postgres):
    role = f"shown/{uuid.uuid4().hex}"
    with LeaderLock(postgres.dsn, role=role, settle_s=0) as lock:
        lead(lock)
        result = run("leader", "--dsn", postgres.dsn, "--role", role)
    assert result.exit_code == exit_codes.CLEAN
    assert f"{role} " in result.stdout
    assert "is led by" in " ".join(result.stdout.split())
