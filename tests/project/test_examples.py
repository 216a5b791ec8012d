"""The examples run as they are, as a reader would run them."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from proofs import uvicorn_torture
from tests.conftest import Postgres, free_port
from tests.support.doubles import until
from tests.support.passwords import guarded_server
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


def test_a_block_leads_in_one_process_after_the_other(postgres: Postgres):
    with example("leading_block.py", PG_DSN=postgres.dsn, TURN_S="600") as first:
        first.wait_for(f"process {first.pid} leads with token")
        with example("leading_block.py", PG_DSN=postgres.dsn, TURN_S="0") as second:
            second.wait_for("waiting for my turn")
            first.signal(signal.SIGKILL)
            second.wait_for(f"process {second.pid} leads with token", 60)
            second.wait_for("released")
            assert second.wait() == 0


def test_a_slot_is_run_by_one_process_and_the_other_names_it(postgres: Postgres):
    slot = datetime.now(UTC).isoformat()
    words = (sys.executable, "-u", str(EXAMPLES / "once_per_slot.py"), slot)
    with Process(*words, env={"PG_DSN": postgres.dsn}) as first:
        first.wait_for(f"process {first.pid} makes the report")
        assert first.wait() == 0
    with Process(*words, env={"PG_DSN": postgres.dsn}) as second:
        assert f":{first.pid}" in second.wait_for("is done, by")
        assert second.wait() == 0


def test_a_client_follows_the_leader_from_process_to_process(postgres: Postgres):
    ports = [str(free_port()) for _ in range(2)]

    def candidate(port: str) -> Process:
        return Process(sys.executable, "-u", str(EXAMPLES / "follow_the_leader.py"), port, env={"PG_DSN": postgres.dsn})

    with candidate(ports[0]) as first, example("follow_the_leader.py", PG_DSN=postgres.dsn) as client:
        client.wait_for(f"process {first.pid} leads", 60)
        with candidate(ports[1]) as second:
            second.wait_for("serving")
            first.signal(signal.SIGKILL)
            client.wait_for(f"process {second.pid} leads", 60)


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


def test_the_worker_with_telemetry_exports_its_term_and_its_metrics(postgres: Postgres):
    with example("opentelemetry_worker.py", PG_DSN=postgres.dsn) as worker:
        worker.wait_for("span pgleaderlock.acquire", 60)
        worker.wait_for("span pgleaderlock.term released", 60)
        worker.wait_for("metric pgleaderlock.leader.elections", 60)
        assert worker.wait() == 0


@pytest.mark.slow
def test_the_worker_on_gevent_works_until_a_signal(postgres: Postgres):
    with example("gevent_worker.py", PG_DSN=postgres.dsn) as worker:
        worker.wait_for(f"piece 2 of {worker.pid}", 60)
        worker.signal(signal.SIGTERM)
        worker.wait_for("stopped", 60)
        assert worker.wait() == 0


def test_every_example_is_run_here_or_by_the_test_of_its_framework():
    this = "".join(Path(file).read_text(encoding="utf-8") for file in (__file__, uvicorn_torture.__file__))
    this = re.sub(r"(fastapi_\w+):app", r'"\1.py"', this)
    assert all(f'"{path.name}"' in this for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
async def test_the_kubernetes_worker_hands_over_when_its_pod_is_asked_to_end(tmp_path: Path):
    async with FakeKubernetes() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "config"))
        settings = {"KUBECONFIG": kubeconfig, "LEASE_S": "6", "SECONDS_PER_PIECE": "0.05"}
        service = yaml.safe_load((EXAMPLES / "kubernetes" / "service.yaml").read_text(encoding="utf-8"))
        selector = service["spec"]["selector"]
        settings["POD_LABEL"] = label = f"pgleaderlock/leader={selector['pgleaderlock/leader']}"
        for name in ("pod-1", "pod-2"):
            server.pods.create("default", name, {"app": selector["app"]})

        def labelled() -> list[str]:
            return [item["metadata"]["name"] for item in server.pods.listing("default", label)["items"]]

        with example("kubernetes/worker.py", POD_NAME="pod-1", **settings) as first:
            await asyncio.to_thread(first.wait_for, "pod-1 works in term 0")
            await until(lambda: labelled() == ["pod-1"])
            with example("kubernetes/worker.py", POD_NAME="pod-2", **settings) as second:
                await until(lambda: "watch" in server.asked)
                first.signal(signal.SIGTERM)
                assert await asyncio.to_thread(first.wait) == 0
                await asyncio.to_thread(second.wait_for, "pod-2 works in term 1", 5.0)  # its lease would be 6 s
                await until(lambda: labelled() == ["pod-2"])


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
def test_example_of_a_third_party_backend_keeps_the_contract():
    """Its whole suite takes half a minute: here are one holder, growing tokens, and waiting."""
    chosen = "acquires or blocked or from_term_to_term or woken or cut_short_ends"
    words = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-k", chosen, str(EXAMPLES / "third_party_backend"))
    with Process(sys.executable, "-m", "pytest", *words) as suite:
        suite.wait_for("5 passed", 60)
        assert suite.wait() == 0


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("postgresql+asyncpg", "ssl=prefer&prepared_statement_cache_size=0"),
        ("postgresql+psycopg2", "sslmode=prefer"),
        ("postgres", "pool_size=5"),
    ],
)
def test_an_application_elects_on_its_database_url(postgres: Postgres, scheme: str, options: str):
    url = postgres.tcp_dsn.replace("postgresql", scheme, 1)
    with example("database_url.py", DATABASE_URL=f"{url}{'&' if '?' in url else '?'}{options}") as process:
        process.wait_for(f"process {process.pid} leads", 60)
        assert process.wait() == 0


def test_a_leader_reads_the_rotated_password_for_its_next_sessions(server_folder_root: Path, tmp_path: Path):
    secret = tmp_path / "secret"
    with guarded_server(server_folder_root) as guarded:
        secret.write_text(guarded.password + "\n")
        with example("rotated_password.py", DATABASE_URL=guarded.bare_url, PASSWORD_FILE=str(secret)) as process:
            first = process.wait_for(f"process {process.pid} leads", 60)
            secret.write_text(guarded.change() + "\n")
            assert guarded.end_sessions() == 2
            assert process.wait_for(f"process {process.pid} leads", 60) != first  # another token
            process.signal(signal.SIGTERM)
            process.wait_for("stopped", 60)
            assert process.wait() == 0


@contextmanager
def uvicorn_workers(url: str, number: int) -> Iterator[tuple[Process, set[int]]]:
    """Start uvicorn with so many workers on uvloop, wait until each serves, and end all of them."""
    words = (
        f"-m uvicorn --loop uvloop --workers {number} --port {free_port()} --app-dir {EXAMPLES} fastapi_sqlalchemy:app"
    )
    workers: set[int] = set()
    with Process(sys.executable, *words.split(), env={"DATABASE_URL": url}) as supervisor:
        try:
            for _ in range(number):
                workers.add(int(supervisor.wait_for(" serves on uvloop", 120).split()[1]))
            yield supervisor, workers
        finally:
            supervisor.signal(signal.SIGTERM)
            try:
                supervisor.wait(120)
            except BaseException:  # it did not end its workers
                supervisor.drain()
                workers |= {int(line.split()[1]) for line in supervisor.lines if " serves on " in line}
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise


@pytest.mark.slow
@pytest.mark.asyncio_loop
def test_a_job_of_four_fastapi_workers_on_uvloop_moves_when_its_worker_is_killed(postgres: Postgres):
    url = postgres.tcp_dsn.replace("postgresql", "postgresql+asyncpg", 1)
    with uvicorn_workers(url, 4) as (supervisor, workers):
        begun = [line for line in supervisor.lines if "the job begins" in line]
        line = begun[-1] if begun else supervisor.wait_for("the job begins", 120)
        leader = int(line.split("worker ")[1].split()[0])
        assert leader in workers
        os.kill(leader, signal.SIGKILL)
        moved = supervisor.wait_for("the job begins in worker", 120)
        successor = int(moved.split("worker ")[1].split()[0])
        supervisor.wait_for(f"the job ran in worker {successor}", 120)
        assert successor != leader
        token = [int(each.rpartition(" ")[2]) for each in (line, moved)]
        assert token[1] > token[0]
        lines = supervisor.lines
        after = lines[lines.index(moved) :]
        assert not [each for each in after if f"worker {leader}" in each]
