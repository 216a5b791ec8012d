"""The examples run as they are, as a reader would run them."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from proofs import uvicorn_torture
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.processes import Process

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, **env: str) -> Process:
    return Process(sys.executable, "-u", str(EXAMPLES / name), env=env)


@pytest.mark.slow
def test_the_first_election_hands_over_from_one_terminal_to_the_next(postgres: Postgres):
    with example("first_election.py", PG_DSN=postgres.dsn, TURN_S="2") as first:
        first.wait_for("I am the leader")
        with example("first_election.py", PG_DSN=postgres.dsn, TURN_S="0") as second:
            second.wait_for("waiting for my turn")
            first.wait_for("I handed over")
            assert first.wait() == 0
            second.wait_for("I am the leader")
            assert second.wait() == 0


def test_the_worker_ticks_in_one_process_and_goes_on_in_another_when_that_one_is_killed(postgres: Postgres):
    with example("leader_only_worker.py", PG_DSN=postgres.dsn) as first:
        first.wait_for(f"tick 2 from process {first.pid}")
        with example("leader_only_worker.py", PG_DSN=postgres.dsn) as second:
            second.wait_for("taking part")
            first.signal(signal.SIGKILL)
            second.wait_for(f"tick 1 from process {second.pid}")
            second.signal(signal.SIGTERM)
            second.wait_for("stopped")
            assert second.wait() == 0


@pytest.mark.parametrize(
    ("name", "line"),
    [("asyncio_signals.py", "piece in process"), ("apscheduler_jobs.py", "job in process")],
)
@pytest.mark.slow
def test_work_runs_in_one_process_until_a_signal_hands_it_over(postgres: Postgres, name: str, line: str):
    with example(name, PG_DSN=postgres.dsn) as first:
        first.wait_for(f"{line} {first.pid}", 30)
        with example(name, PG_DSN=postgres.dsn) as second:
            second.wait_for("taking part")
            first.signal(signal.SIGTERM)
            first.wait_for("stopped")
            assert first.wait() == 0
            assert ("finished what it was at" in first.lines) == (name == "asyncio_signals.py")
            second.wait_for(f"{line} {second.pid}")
            second.signal(signal.SIGTERM)
            assert second.wait() == 0


def test_the_beat_in_code_sends_from_one_process(postgres: Postgres, tmp_path: Path):
    settings = {"PG_DSN": postgres.dsn, "BROKER": "memory://", "SCHEDULE_FILE": str(tmp_path / "schedule")}
    with example("celery_app.py", **settings) as process:
        process.wait_for(f"process {process.pid} sends celery_app.tick", 30)
        process.signal(signal.SIGTERM)
        process.wait_for("stopped")
        assert process.wait() == 0


@pytest.fixture
def state_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pgll-state-") as folder:
        Path(folder).chmod(0o755)  # the embedded server's account must get in
        yield folder


@pytest.mark.parametrize("name", ["first_election.py", "leader_only_worker.py"])
@pytest.mark.slow
def test_without_a_database_of_ones_own_there_is_an_embedded_one(state_folder: str, name: str, monkeypatch):
    monkeypatch.delenv("PG_DSN", raising=False)
    with example(name, PGLEADERLOCK_STATE_DIR=state_folder, TURN_S="0") as process:
        process.wait_for("tick 1" if "worker" in name else "I am the leader")
        if "worker" in name:
            process.signal(signal.SIGTERM)
        assert process.wait() == 0
    (folder,) = Path(state_folder).iterdir()
    assert not (folder / "data" / "postmaster.pid").exists()


def test_every_example_is_run_here_or_by_the_test_of_its_framework():
    this = "".join(Path(file).read_text(encoding="utf-8") for file in (__file__, uvicorn_torture.__file__))
    this = this.replace("fastapi_app:app", '"fastapi_app.py"')
    assert all(f'"{path.name}"' in this for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
async def test_the_kubernetes_worker_hands_over_when_its_pod_is_asked_to_end(tmp_path: Path):
    async with FakeKubernetes() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "config"))
        settings = {"KUBECONFIG": kubeconfig, "LEASE_S": "6", "SECONDS_PER_PIECE": "0.05"}
        with example("kubernetes/worker.py", POD_NAME="pod-1", **settings) as first:
            await asyncio.to_thread(first.wait_for, "pod-1 works in term 0")
            with example("kubernetes/worker.py", POD_NAME="pod-2", **settings) as second:
                await until(lambda: "watch" in server.asked)
                first.signal(signal.SIGTERM)
                assert await asyncio.to_thread(first.wait) == 0
                await asyncio.to_thread(second.wait_for, "pod-2 works in term 1", 5.0)  # its lease would be 6 s


@pytest.mark.slow
async def test_the_manager_hands_over_and_its_lease_is_as_its_config_says(tmp_path: Path):
    async with FakeKubernetes() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "config"))
        settings = {"KUBECONFIG": kubeconfig, "LEASE_S": "6", "PAUSE_S": "0.05"}
        with example("kubernetes/manager.py", POD_NAME="pod-1", **settings) as first:
            await asyncio.to_thread(first.wait_for, "pod-1 processes jobs in term 0", 30.0)
            (lease,) = server.api.leases.values()
            assert lease["spec"]["leaseDurationSeconds"] == 6
            assert lease["spec"]["holderIdentity"].startswith("pod-1_")
            with example("kubernetes/manager.py", POD_NAME="pod-2", **settings) as second:
                await until(lambda: "watch" in server.asked, timeout_s=30)
                first.signal(signal.SIGTERM)
                assert await asyncio.to_thread(first.wait) == 0
                await asyncio.to_thread(second.wait_for, "pod-2 processes jobs in term 1", 30.0)


@pytest.mark.proof
def test_the_backend_of_somebody_else_keeps_the_contract():
    """Its whole suite takes half a minute: here are one holder, growing tokens, and waiting."""
    chosen = "acquires or blocked or from_term_to_term or woken or cut_short_ends"
    words = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-k", chosen, str(EXAMPLES / "third_party_backend"))
    with Process(sys.executable, "-m", "pytest", *words) as suite:
        suite.wait_for("5 passed", 60)
        assert suite.wait() == 0
