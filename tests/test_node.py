"""A node as its configuration describes it, in this process and as the command line runs it."""

import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import LeaderGroup, LeaderLock
from pgleaderlock.config import ConfigError, load_config
from pgleaderlock.node import Node
from tests.conftest import Postgres, free_port
from tests.doubles import until
from tests.processes import Process
from tests.test_registry import drop

NAME = f"node/{os.getpid()}"


@pytest.fixture
def schema(postgres: Postgres):
    name = f"node_{os.getpid()}_{free_port()}"
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
    assert node.group is None
    assert all(isinstance(election, LeaderLock) for election in node.elections.values())


@pytest.mark.parametrize("keys", [{"roles": ",".join(f"r{n}" for n in range(9))}, {"roles": "a,b", "max_roles": 1}])
def test_many_roles_and_limited_ones_share_their_sessions(keys: dict[str, Any]):
    node = Node(configured(**in_election(**keys), registry__enabled="false"), dsn="postgresql://x/x")
    assert isinstance(node.group, LeaderGroup)
    assert node.elections is node.group


def test_with_a_term_table_nothing_is_shared():
    keys = in_election(roles=",".join(f"r{n}" for n in range(9)), term_table="true")
    assert Node(configured(**keys, registry__enabled="false"), dsn="postgresql://x/x").group is None


def test_keys_are_those_of_the_configuration():
    keys = in_election(roles="a=pair:7/1,b", max_roles=1)
    node = Node(configured(**keys, registry__enabled="false"), dsn="postgresql://x/x")
    assert str(node.elections["a"].key) == "pair:7/1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "roles: name at least one role"),
        ({"roles": "a", "max_roles": 1, "term_table": "true"}, "max_roles: a limited node"),
        ({"roles": "a"}, "backend: names no store"),
    ],
)
def test_what_a_node_cannot_do_without_is_said(keys: dict[str, Any], words: str):
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


def test_run_with_a_file_leads_all_roles_serves_metrics_and_hands_over(postgres: Postgres, schema: str, tmp_path: Path):
    port, path = free_port(), tmp_path / "pgleaderlock.toml"
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
    command = ["run", "--config", str(path), "--metrics-port", str(port), "--json", "-q"]
    environment = {"PG_DSN": postgres.dsn}
    with Process(sys.executable, "-m", "pgleaderlock.cli", *command, env=environment) as process:
        for _ in range(2):
            process.wait_for('"event": "on_acquired"')
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
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
        (["--set", "cluster.node=x", "--key1", "1", "--key2", "2"], "give one or the other"),
    ],
)
def test_what_is_wrong_with_it_is_said_before_anything_starts(postgres: Postgres, arguments: list[str], words: str):
    command = [sys.executable, "-m", "pgleaderlock.cli", "run", *arguments]
    with Process(*command, env={"PG_DSN": postgres.dsn}) as process:
        process.wait_for(words)
        assert process.wait() == 2


def test_run_without_a_file_serves_metrics_too(postgres: Postgres):
    command = ["run", "--role", f"{NAME}/single", "--settle", "0", "--metrics-port", "0"]
    with Process(sys.executable, "-m", "pgleaderlock.cli", *command, env={"PG_DSN": postgres.dsn}) as process:
        address = process.wait_for("metrics: http").split()[-1]
        process.wait_for("this process leads")
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert f'role="{NAME}/single"' in answer.read().decode()
        process.signal(signal.SIGINT)
        assert process.wait() == 0
