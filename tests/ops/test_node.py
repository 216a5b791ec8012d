"""A node as its configuration describes it, in this process and as the command line runs it."""

import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from pgleaderlock import LeaderGroup, LeaderLock, LockKey, LockState
from pgleaderlock.cli.metrics import served_metrics
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.config import ConfigError, load_config
from pgleaderlock.ops.node import Node
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.group import END_HOLDER
from tests.support.missing_packages import without_packages
from tests.support.processes import Process
from tests.support.registry import drop

NAME = f"node/{os.getpid()}"
_numbers = count(1)


@pytest.fixture
def schema(postgres: Postgres):
    name = f"node_{os.getpid()}_{next(_numbers)}"
    yield name
    drop(postgres.dsn, name)


def configured(**keys: Any):
    sets = [f"{name.replace('__', '.')}={value}" for name, value in keys.items()]
    return load_config(None, environ={}, sets=sets)


def in_election(**keys: Any):
    return {f"cluster__leader_election__{name}": value for name, value in keys.items()}


def test_a_few_roles_have_a_lock_each():
    node = Node(
        configured(**in_election(roles=f"{NAME}/a,{NAME}/b"), registry__enabled="false"), dsn="postgresql://x/x"
    )
    assert not isinstance(node.elections, LeaderGroup)
    assert all(isinstance(election, LeaderLock) for election in node.elections.values())


@pytest.mark.parametrize("roles", ["a,b", ",".join(f"r{number}" for number in range(9))])
async def test_the_pod_carries_the_label_of_each_role_that_it_leads(
    postgres: Postgres, roles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with FakeKubernetes() as server:
        server.pods.create("default", "pod-1")
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        monkeypatch.setenv("POD_NAME", "pod-1")
        keys = in_election(roles=roles, pod_label="pgleaderlock/{role}=leader", settle="0")
        expected = {f"pgleaderlock/{role}": "leader" for role in roles.split(",")}
        node = Node(configured(**keys, registry__enabled="false"), dsn=postgres.dsn)
        async with node:
            await until(lambda: server.pods.get("default", "pod-1")["metadata"].get("labels") == expected)
        assert "labels" not in server.pods.get("default", "pod-1")["metadata"]


def test_a_pod_label_outside_a_pod_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="the pod label needs the pod of this process, and this is none"):
        Node(configured(**in_election(roles="a", pod_label="a=b")), dsn="postgresql://x/x")


@pytest.mark.parametrize("keys", [{"roles": ",".join(f"r{n}" for n in range(9))}, {"roles": "a,b", "max_roles": 1}])
def test_many_roles_and_limited_ones_share_their_sessions(keys: dict[str, Any]):
    node = Node(configured(**in_election(**keys), registry__enabled="false"), dsn="postgresql://x/x")
    assert isinstance(node.elections, LeaderGroup)


def test_with_a_term_table_nothing_is_shared():
    keys = in_election(roles=",".join(f"r{n}" for n in range(9)), term_table="true")
    node = Node(configured(**keys, registry__enabled="false"), dsn="postgresql://x/x")
    assert not isinstance(node.elections, LeaderGroup)


def test_keys_are_those_of_the_configuration():
    keys = in_election(roles="a=pair:7/1,b", max_roles=1)
    node = Node(configured(**keys, registry__enabled="false"), dsn="postgresql://x/x")
    assert str(node.elections["a"].key) == "pair:7/1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "roles: name at least one role"),
        ({"roles": "a", "max_roles": 1, "term_table": "true"}, "max_roles: a limited node"),
        ({"roles": "a"}, "backend: is missing, and no store"),
    ],
)
def test_setting_that_a_node_cannot_do_without_is_an_error(keys: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Node(configured(**in_election(**keys), registry__enabled="false"), dsn="x" if "backend" not in words else None)


async def test_elections_on_another_store_are_written_into_a_registry_on_postgresql(
    postgres: Postgres, schema: str, tmp_path: Path
):
    store = f"file://{tmp_path}/{{role}}.lock"
    config = configured(**in_election(roles="a,b", backend=store), registry__dsn=postgres.dsn, registry__schema=schema)
    async with Node(config) as node:
        await until(lambda: all(election.is_leader for election in node.elections.values()))
        registry = node.registry
        assert registry is not None
        await until(lambda: registry.is_up and not registry.waiting_events)
    assert {"a.lock", "b.lock"} <= set(os.listdir(tmp_path))  # noqa: PTH208 - names are enough


@pytest.mark.slow
def test_run_with_a_file_leads_all_roles_serves_metrics_and_hands_over(postgres: Postgres, schema: str, tmp_path: Path):
    path = tmp_path / "pgleaderlock.toml"
    path.write_text(
        f"""
        [cluster]
        node = "web-1"
        [cluster.leader_election]
        roles = ["{NAME}/x", "{NAME}/y"]
        settle = "0s"
        [registry]
        schema = "{schema}"
        """
    )
    command = ["run", "--config", str(path), "--metrics-port", "0", "--json", "-q"]
    environment = {"PG_DSN": postgres.dsn}
    with Process(sys.executable, "-m", "pgleaderlock.cli", *command, env=environment) as process:
        address = process.wait_for("metrics: http").split()[-1]
        for _ in range(2):
            process.wait_for('"event": "on_acquired"')
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        assert f'pgleaderlock_leader_is_leader{{node="web-1",role="{NAME}/x"}} 1.0' in text
        assert 'pgleaderlock_registry_up{node="web-1"}' in text
        process.signal(signal.SIGTERM)
        for _ in range(2):
            process.wait_for('"event": "on_released"')
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "cluster.leader_election.lease_duration=1s"], "roles: name at least one role"),
        (["--set", "cluster.leader_election.rolls=a"], "did you mean cluster.leader_election.roles?"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--set", "cluster.node=x", "--key1", "1", "--key2", "2"], "--key1 has no effect beside --config and --set"),
    ],
)
@pytest.mark.slow
def test_error_in_the_arguments_is_reported_before_anything_starts(
    postgres: Postgres, arguments: list[str], words: str
):
    command = [sys.executable, "-m", "pgleaderlock.cli", "run", *arguments]
    with Process(*command, env={"PG_DSN": postgres.dsn}) as process:
        process.wait_for(words)
        assert process.wait() == 2


@pytest.mark.slow
def test_run_without_a_file_serves_metrics_too(postgres: Postgres):
    command = ["run", "--role", f"{NAME}/single", "--settle", "0", "--metrics-port", "0"]
    with Process(sys.executable, "-m", "pgleaderlock.cli", *command, env={"PG_DSN": postgres.dsn}) as process:
        address = process.wait_for("metrics: http").split()[-1]
        process.wait_for("this process leads")
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert f'role="{NAME}/single"' in answer.read().decode()
        process.signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.slow
def test_a_role_of_the_command_line_takes_the_place_of_those_in_the_file(postgres: Postgres, schema: str):
    command = ["run", "--set", f"registry.schema={schema}", "--set", "cluster.leader_election.settle=0s", "-q"]
    arguments = [*command, "--role", f"{NAME}/only"]
    with Process(sys.executable, "-m", "pgleaderlock.cli", *arguments, env={"PG_DSN": postgres.dsn}) as process:
        process.wait_for(f"takes part for {NAME}/only;")
        process.wait_for("this process leads")
        end_sessions(postgres.dsn, f"{NAME}/only")
        process.wait_for("no longer leads")
        process.signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.parametrize("max_roles", [None, 5])
async def test_log_lines_of_a_role_with_a_key_of_its_own_carry_the_role(
    postgres: Postgres, key: LockKey, max_roles: int | None, caplog: pytest.LogCaptureFixture
):
    """As a lock of its own, and in a group."""
    sets = [f"cluster.leader_election.roles={NAME}/keyed={key}", "cluster.leader_election.settle=0s"]
    more = [] if max_roles is None else [f"cluster.leader_election.max_roles={max_roles}"]
    config = load_config(environ={}, sets=[*sets, *more, "registry.enabled=false"])
    with caplog.at_level(logging.INFO, "pgleaderlock"):
        async with Node(config, dsn=postgres.dsn) as node:
            assert await node.elections[f"{NAME}/keyed"].wait_for_leadership(30)
    acquired = [record.getMessage() for record in caplog.records if record.getMessage().startswith("lock_acquired")]
    assert [line.split()[1:4] for line in acquired] == [
        [f"role={NAME}/keyed", f"key1={key.numbers[0]}", f"key2={key.numbers[1]}"]
    ]


def end_sessions(dsn: str, role: str) -> None:
    """End the session that holds this role."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(END_HOLDER, lock_columns(LockKey.named(role)))


@pytest.mark.slow
def test_occupied_port_is_reported_before_any_candidate_starts(postgres: Postgres):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        dashboard = ["--set", "dashboard.enabled=true", "--set", f"dashboard.port={port}", "--set", "metrics.port=0"]
        for arguments in (
            ["--set", "cluster.leader_election.roles=a", "--metrics-port", str(port)],
            ["--role", f"{NAME}/port", "--metrics-port", str(port)],
            ["--set", "cluster.leader_election.roles=a", *dashboard],
        ):
            command = [sys.executable, "-m", "pgleaderlock.cli", "run", *arguments]
            with Process(*command, env={"PG_DSN": postgres.dsn}) as process:
                process.wait_for("in use")
                assert process.wait() == 2


def test_without_the_extra_a_metrics_port_names_it():
    with (
        without_packages("prometheus_client", imported_anew=("pgleaderlock.ops.metrics",)),
        pytest.raises(MissingExtra, match=r"pgleaderlock\[metrics\]"),
        served_metrics(Mock(), "role", 0),
    ):
        pass


def test_node_hands_over_when_the_reader_of_its_events_is_gone(postgres: Postgres, schema: str):
    arguments = ["--set", f"registry.schema={schema}", "--set", f"cluster.leader_election.roles={NAME}/pipe"]
    command = [sys.executable, "-m", "pgleaderlock.cli", "run", "--json", *arguments]
    environment = {**os.environ, "PG_DSN": postgres.dsn}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, errors = process.communicate(timeout=30)
    assert b"cannot be written to stdout any more" in errors
    assert b"Traceback" not in errors
    assert process.returncode == 0


@pytest.mark.slow
def test_many_roles_are_introduced_by_their_first(postgres: Postgres, schema: str):
    roles = ",".join(f"{NAME}/many{number}" for number in range(9))
    sets = [f"registry.schema={schema}", f"cluster.leader_election.roles={roles}", "cluster.leader_election.settle=0s"]
    arguments = [argument for each in sets for argument in ("--set", each)]
    command = [sys.executable, "-m", "pgleaderlock.cli", "run", "-q", *arguments]
    with Process(*command, env={"PG_DSN": postgres.dsn}) as process:
        process.wait_for("and 4 more")
        process.wait_for("this process leads")
        process.signal(signal.SIGINT)
        process.signal(signal.SIGINT)
        assert process.wait() == 0


async def test_a_node_whose_start_fails_half_way_stops_what_had_begun(
    postgres: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch
):
    keys = in_election(roles=f"{NAME}/h1,{NAME}/h2", settle="0s")
    metrics = {"metrics__enabled": "true", "metrics__port": 0, "metrics__prefix": "half_way"}  # of no other test
    node = Node(configured(**keys, **metrics, registry__schema=schema), dsn=postgres.dsn)
    first, second = node.elections.values()

    async def fail() -> None:
        await until(lambda: first.is_leader)
        raise RuntimeError("no")

    monkeypatch.setattr(second, "start", fail)
    with pytest.raises(RuntimeError, match="no"):
        await node.start()
    assert first.state is LockState.STOPPED
    assert node.metrics_port is None
    assert node.registry is not None
    assert node.registry._task is None
    monkeypatch.undo()
    async with node:  # and can be started again
        await until(lambda: all(election.is_leader for election in node.elections.values()))
        monkeypatch.setattr(second, "start", fail)
        with pytest.raises(RuntimeError, match="no"):
            await node.start()
        assert first.is_leader  # what ran before goes on
