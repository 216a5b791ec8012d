"""No HTTP client deposes a leader: a real node with few descriptors, attacked on both of its ports while it leads."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Postgres
from tests.support.dashboard import until_true
from tests.support.http_attacks import KINDS
from tests.support.processes import Process
from tests.support.registry import drop
from tests.support.sweeps import sweep

LEASE_S = 1.5
LONG_LEASE_S = 15.0  # for what is looked at beside all other tests, on a machine that may be busy
DESCRIPTORS = 1024
LARGEST_LOG = 1_000_000
TOKEN = "an-operators-own-token"
OPERATOR = {"X-Pgleaderlock-Token": TOKEN}


class LeadingNode:
    """``pgleaderlock run --config`` as a process of its own, and all that it prints."""

    def __init__(self, dsn: str, schema: str, folder: Path, lease_s: float) -> None:
        self.lease_s = lease_s
        self.role = f"attacked/{schema}"
        self.log = folder / "node.log"
        config = folder / "pgleaderlock.toml"
        config.write_text(
            f"""
[cluster]
node = "attacked"
[cluster.leader_election]
roles = ["{self.role}"]
lease_duration = "{lease_s}s"
refresh_interval = "{lease_s / 3}s"
check_interval = "200ms"
settle = "0s"
[registry]
schema = "{schema}"
[metrics]
enabled = true
port = 0
[dashboard]
enabled = true
port = 0
"""
        )
        limited = ["/bin/sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "node"]
        command = [*limited, sys.executable, "-m", "pgleaderlock.cli", "run", "--json", "--config", str(config)]
        environment = {**os.environ, "PG_DSN": dsn, "PGLEADERLOCK_DASHBOARD_TOKEN": TOKEN}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        self.events: list[dict[str, Any]] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._told:
                self.events.append(json.loads(line))
                self._told.notify_all()

    def wait_for(self, kind: str, after: int = 0, timeout_s: float = 20.0) -> dict[str, Any]:
        """Return the next event of this kind after so many."""

        def found() -> dict[str, Any] | None:
            return next((each for each in self.events[after:] if each["event"] == kind), None)

        with self._told:
            assert self._told.wait_for(found, timeout_s), (kind, self.events[after:], self.log.read_text()[-2000:])
            event = found()
        assert event is not None
        return event

    @property
    def dashboard_port(self) -> int:
        return self._port("dashboard")

    @property
    def metrics_port(self) -> int:
        return self._port("metrics")

    def _port(self, name: str) -> int:
        """Return which port the node got, by its own log: it takes any that is free."""
        until_true(lambda: self._port_in_log(name) is not None)
        return int(self._port_in_log(name) or 0)

    def _port_in_log(self, name: str) -> str | None:
        found = re.search(rf"{name}: http://127\.0\.0\.1:(\d+)/", self.log.read_text())
        return None if found is None else found[1]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}{path}"

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def node(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadingNode]:
    with leading_node(postgres, tmp_path_factory, LEASE_S) as started:
        yield started


@pytest.fixture  # for each test, because a leader need not obey two operators within one lease
def calm_node(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadingNode]:
    with leading_node(postgres, tmp_path_factory, LONG_LEASE_S) as started:
        yield started


@contextmanager
def leading_node(postgres: Postgres, folders: pytest.TempPathFactory, lease_s: float) -> Iterator[LeadingNode]:
    schema = f"attacked_{os.getpid()}_{int(lease_s)}"
    started = LeadingNode(postgres.dsn, schema, folders.mktemp("attacked"), lease_s)
    try:
        started.wait_for("on_acquired")
        until_true(lambda: [role["leader"] for role in httpx.get(started.url("/api/state")).json()["roles"]])
        yield started
    finally:
        started.end()
        drop(postgres.dsn, schema)


@contextmanager
def attack(kind: str, ports: tuple[int, ...], seconds: float) -> Iterator[None]:
    with ExitStack() as stack:
        for port in ports:
            command = (sys.executable, "-m", "tests.support.http_attacks", kind, str(port), str(seconds))
            attacker = stack.enter_context(Process(*command))
            attacker.wait_for("attacking")
        yield


def operate(node: LeadingNode) -> None:
    """Do what an operator does: open the page, see who leads, follow it live."""
    with httpx.Client(timeout=20) as client:
        assert "pgleaderlock" in client.get(node.url("/")).text
        state = client.get(node.url("/api/state")).json()
        assert [role["leader"]["node"] for role in state["roles"]] == ["attacked"]
        with client.stream("GET", node.url("/events"), headers=OPERATOR) as stream:
            assert stream.status_code == 200
            assert any("event: snapshot" in line for line in stream.iter_lines())


def operate_for(node: LeadingNode, seconds: float) -> list[str]:
    """Operate for so long, at least once; return what went wrong: whether the node leads on is looked at first."""
    refused = []
    began = time.monotonic()
    while True:
        try:
            operate(node)
        except httpx.HTTPError as error:
            refused.append(repr(error))
        left_s = began + seconds - time.monotonic()
        if left_s <= 0:
            return refused
        time.sleep(min(LEASE_S, left_s))  # the attack must last, whatever the operator does meanwhile


def check_attack(node: LeadingNode, kind: str, lasts_s: float) -> None:
    told_before = len(node.events)
    token = next(each["token"] for each in reversed(node.events) if each["event"] == "on_acquired")
    with attack(kind, (node.dashboard_port, node.metrics_port), lasts_s + 40):  # ended with the block
        refused = operate_for(node, lasts_s)
        assert node.events[told_before:] == [], "the leadership was interrupted"
        assert node.log.stat().st_size < LARGEST_LOG
        assert refused == []
        with httpx.Client(timeout=20) as client:
            assert client.get(node.url("/leader")).json()["token"] == token
            role = client.get(node.url("/api/state")).json()["roles"][0]
            ask = {"lock": role["lock"], "instance": role["leader"]["instance"], "token": role["leader"]["token"]}
            answer = client.post(node.url("/api/step-down"), json=ask, headers=OPERATOR)
        assert answer.status_code == 202
        node.wait_for("on_released", after=told_before)
    assert node.wait_for("on_acquired", after=told_before)["token"] > token


@pytest.mark.proof
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_under_attack_leads_on_for_ten_leases_and_obeys_its_operator(node: LeadingNode, kind: str):
    check_attack(node, kind, 10 * LEASE_S)


@pytest.mark.parametrize("kind", sweep(KINDS, "idle"))
@pytest.mark.slow
def test_an_operator_is_served_by_a_leader_under_attack(calm_node: LeadingNode, kind: str):
    check_attack(calm_node, kind, 0)
