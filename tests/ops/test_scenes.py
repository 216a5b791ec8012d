"""Three nodes, three roles, one PostgreSQL: a crash, a partition, a graceful transfer, with real processes.

An observer in each process samples its own ``is_leader`` (:mod:`tests.support.scenes_node`). The registry, the history,
the metrics and the audit must agree with what it saw.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgleaderlock.ops.registry.audit import PastTerm, audit, terms_of
from pgleaderlock.ops.registry.reading import RegistryReader, RoleStatus, open_reader
from tests.conftest import Postgres
from tests.support.processes import Process
from tests.support.registry import drop
from tests.support.scenes_node import SIZE, read_observations
from tests.support.silent_proxy import SilentProxy

ROLES = ("scheduler", "metrics", "logs")
_numbers = itertools.count(1)
LEASE_S = 1.5
BEAT_S = 0.2
NEAR_S = 1.0  # how far a busy machine may put apart what happened and what was seen


class Scene:
    """The nodes that take part, and the registry that all of them write."""

    def __init__(self, dsn: str, schema: str, folder: Path, stack: contextlib.ExitStack) -> None:
        self.dsn = dsn
        self.schema = schema
        self._folder = folder
        self._stack = stack
        self.nodes: dict[str, Process] = {}
        self.ports: dict[str, int] = {}
        self.began = time.time()

    def start(self, name: str, dsn: str | None = None) -> Process:
        """Start one more node."""
        config, observations = self._folder / f"{name}.toml", self._folder / f"{name}.seen"
        config.write_text(
            f"""
            [cluster]
            node = "{name}"
            [cluster.leader_election]
            backend = "{dsn or self.dsn}"
            roles = {[f"{self.schema}/{role}" for role in ROLES]}
            lease_duration = "{LEASE_S}s"
            check_interval = "500ms"
            settle = "0s"
            [registry]
            dsn = "{self.dsn}"
            schema = "{self.schema}"
            heartbeat = "{BEAT_S}s"
            [metrics]
            enabled = true
            port = 0
            """
        )
        observations.write_bytes(bytes(SIZE))
        node = Process(sys.executable, "-m", "tests.support.scenes_node", str(config), str(observations))
        self.nodes[name] = self._stack.enter_context(node)
        self.ports[name] = int(node.wait_for("metrics").split()[1])
        return node

    def seen(self, role: str) -> list[tuple[str, float, float]]:
        """Return which node led when, by its own account, the earliest first."""
        intervals = [
            (name, began, ended)
            for name in self.nodes
            for which, began, ended in read_observations(self._folder / f"{name}.seen")
            if which == f"{self.schema}/{role}"[:16]
        ]
        return sorted(intervals, key=lambda interval: interval[1])

    def scrape(self, name: str, metric: str) -> dict[str, float]:
        """Return one metric of a node, by role."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            sample.labels["role"].rpartition("/")[2]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"pgleaderlock_{metric}"
        }


@pytest.fixture
def scene(postgres: Postgres, tmp_path: Path) -> Iterator[Scene]:
    schema = f"s{os.getpid() % 1000}x{next(_numbers)}"  # the roles' names are cut by the observer
    with contextlib.ExitStack() as stack:
        yield Scene(postgres.tcp_dsn, schema, tmp_path, stack)
    drop(postgres.dsn, schema)


async def eventually(condition: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while not (answer := await condition()):  # noqa: ASYNC110 - of a database
            await asyncio.sleep(0.05)
        return answer


def by_role(statuses: list[RoleStatus]) -> dict[str, str]:
    """Return the leader, where there is one that is alive."""
    return {
        status.role.rpartition("/")[2]: status.leader.node
        for status in statuses
        if status.leader is not None and status.leader.is_alive
    }


async def led_by(reader: RegistryReader, *names: str) -> dict[str, str]:
    """Wait until the registry says that all roles are led by these."""

    async def is_so() -> dict[str, str] | None:
        leaders = by_role(await reader.status())
        return leaders if len(leaders) == len(ROLES) and set(leaders.values()) <= set(names) else None

    found: dict[str, str] = await eventually(is_so)
    return found


async def terms(reader: RegistryReader) -> dict[str, list[PastTerm]]:
    found: dict[str, list[PastTerm]] = {role: [] for role in ROLES}
    for term in terms_of(await reader.history()):
        found[term.role.rpartition("/")[2]].append(term)
    return found


async def check_agreement(scene: Scene, reader: RegistryReader) -> None:
    """What the nodes saw of themselves, what the history says, and what the audit makes of it."""
    for role, written in (await terms(reader)).items():
        seen = scene.seen(role)
        assert [term.node for term in written] == [name for name, _, _ in seen]
        for term, (_, began, ended) in zip(written, seen, strict=True):
            assert abs(term.began_at - began) < NEAR_S
            if term.ended_at is not None:
                slack_s = NEAR_S + (BEAT_S if term.end == "vanished" else 0.0)
                assert abs(term.ended_at - ended) < slack_s
        for (_, _, ended), (_, began, _) in itertools.pairwise(seen):
            assert ended <= began  # never two, by their own account
    until = await reader.now()
    for found in audit(await reader.history(), since=scene.began, until=until):
        assert found.overlaps == []
        assert found.missing == 0
        assert len(found.terms) - 1 == sum(found.failovers.values())


@pytest.mark.slow
async def test_leader_that_crashes_is_replaced_and_all_reports_agree(scene: Scene):
    scene.start("one")
    async with open_when_there(scene) as reader:
        await led_by(reader, "one")
        scene.start("two")
        scene.start("three")
        await eventually(lambda: stand(reader, 3))
        scene.nodes["one"].signal(signal.SIGKILL)
        leaders = await led_by(reader, "two", "three")
        for role, leader in leaders.items():
            assert scene.scrape(leader, "leader_is_leader")[role] == 1
            others = {"two", "three"} - {leader}
            assert all(scene.scrape(other, "leader_is_leader")[role] == 0 for other in others)
        await eventually(lambda: is_noted(reader, "vanished"))
        await check_agreement(scene, reader)
        failovers = [sum(scene.scrape(name, "leader_failovers_total").values()) for name in ("two", "three")]
        assert sum(failovers) == len(ROLES)
        found = audit(await reader.history(), since=scene.began, until=await reader.now())
        assert [each.failovers for each in found] == [{"vanished": 1}] * len(ROLES)


@pytest.mark.slow
async def test_a_leader_that_is_cut_off_stops_before_another_begins(scene: Scene):
    with SilentProxy(scene.dsn) as proxy:
        scene.start("one", proxy.dsn)
        async with open_when_there(scene) as reader:
            await led_by(reader, "one")
            scene.start("two")
            await eventually(lambda: stand(reader, 2))
            cut_at = time.time()
            proxy.mute()
            await led_by(reader, "two")
            await eventually(lambda: is_noted(reader, "lost"))
            await check_agreement(scene, reader)
            for role in ROLES:
                intervals = scene.seen(role)  # more than two where the host was so slow that one lost it before, too
                began = min(began for node, began, _ in intervals if node == "two")
                assert max(ended for node, _, ended in intervals if node == "one") < began
                assert began - cut_at < 10 * LEASE_S
            lost = [line for line in await reader.history() if line.event == "lost" and line.at >= cut_at]
            assert {line.cause for line in lost} == {"renew_timeout"}
            assert scene.scrape("one", "leader_is_leader") == dict.fromkeys(ROLES, 0.0)


@pytest.mark.slow
async def test_a_leader_that_leaves_in_order_hands_over_and_leaves_nothing_but_history(scene: Scene):
    scene.start("one")
    async with open_when_there(scene) as reader:
        await led_by(reader, "one")
        scene.start("two")
        await eventually(lambda: stand(reader, 2))
        scene.nodes["one"].signal(signal.SIGTERM)
        scene.nodes["one"].wait_for("stopped")
        await led_by(reader, "two")
        await check_agreement(scene, reader)
        statuses = await reader.status()
        assert {candidate.node for status in statuses for candidate in status.candidates} == {"two"}
        for found in audit(await reader.history(), since=scene.began, until=await reader.now()):
            assert found.failovers == {"released": 1}
            first, second = found.terms
            assert first.ended_at is not None
            assert second.began_at - first.ended_at < NEAR_S


@contextlib.asynccontextmanager
async def open_when_there(scene: Scene) -> Any:
    async def is_there() -> bool:
        with contextlib.suppress(Exception):
            async with open_reader(scene.dsn, scene.schema):
                return True
        return False

    await eventually(is_there)
    async with open_reader(scene.dsn, scene.schema) as reader:
        yield reader


async def stand(reader: RegistryReader, count: int) -> bool:
    """Whether so many nodes stand for every role."""
    statuses = await reader.status()
    return len(statuses) == len(ROLES) and all(len(status.candidates) == count for status in statuses)


async def is_noted(reader: RegistryReader, event: str) -> bool:
    """Whether every role has had this event."""
    return len({line.role for line in await reader.history() if line.event == event}) == len(ROLES)
