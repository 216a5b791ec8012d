"""Every ``--json`` output has the shape of its sample in the documentation, and every command that has one a sample."""

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from pgleaderlock import LockKey
from pgleaderlock.cli.commands import cli
from pgleaderlock.stores import nfs
from pgleaderlock.sync import LeaderLock
from tests.support.cli import CLI
from tests.support.json_shapes import assert_shape, documented, samples
from tests.support.operators import Hand, hand, records, run
from tests.support.processes import Process
from tests.support.registry import schema

pytestmark = pytest.mark.asyncio_loop  # the commands demo and torture run on no other: tests/testing/test_demo.py
__all__ = ["hand", "schema"]  # fixtures

Records = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PG_DSN", "PGLEADERLOCK_URL", "PGLEADERLOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


WITH_JSON = [name for name, command in commands() if any("--json" in option.opts for option in command.params)]


class Scene:
    """A database, a registry in it, a folder, and a name that is used nowhere else."""

    def __init__(self, hand: Hand, folder: Path, role: str) -> None:
        self.hand, self.folder, self.role = hand, folder, role
        self.dsn = hand.options[1]
        self.schema = hand.options[3]
        self.lock = ("--dsn", self.dsn, "--role", role)
        self.config = folder / "node.toml"
        self.config.write_text(
            f"[cluster.leader_election]\nbackend = {json.dumps(self.dsn)}\nroles = [{json.dumps(role)}]\n"
            f'settle = "0s"\n[registry]\nschema = {json.dumps(hand.options[3])}\n'
        )

    @contextlib.contextmanager
    def held_by_another(self) -> Iterator[None]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", LockKey.named(self.role).numbers)
            yield


@pytest.fixture
def scene(hand: Hand, tmp_path: Path, key: LockKey) -> Scene:
    return Scene(hand, tmp_path, f"shapes/{key}")


def events_of(*words: str) -> Records:
    """Run until it leads, and ask it to stop."""
    with Process(*CLI, *words, "--json") as process:
        process.wait_for('"event": "on_acquired"')
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        return [json.loads(line) for line in process.lines if line.startswith("{")]


def alerts_file(scene: Scene) -> str:
    path = scene.folder / "alerts.toml"
    path.write_text(
        '[[alerts]]\nname = "no_leader"\ncondition = "sum(pgleaderlock_leader_is_leader) == 0"\nfor = "30s"\n'
        'severity = "critical"\n'
    )
    return str(path)


# --- One for each sample: what the real command prints ---


def _run(scene: Scene) -> Records:
    return events_of("run", *scene.lock, "--settle", "0")


def _run_configured(scene: Scene) -> Records:
    return events_of("run", "--config", str(scene.config))


def _acquire(scene: Scene) -> Records:
    return records(run("acquire", *scene.lock, "--settle", "0", "--json"))[:1]


def _acquire_released(scene: Scene) -> Records:
    return records(run("acquire", *scene.lock, "--settle", "0", "--json"))[1:]


def _acquire_held(scene: Scene) -> Records:
    with scene.held_by_another():
        return records(run("acquire", *scene.lock, "--settle", "0", "--json"))


def _status_of_a_lock(scene: Scene) -> Records:
    with scene.held_by_another(), Process(*CLI, "run", *scene.lock, "--settle", "0", "--json") as waiting:
        waiting.wait_for('"event": "on_acquire_failed"')
        found: Records = [{"waiting": []}]
        while not found[0]["waiting"]:  # it queues soon after
            found = records(run("status", *scene.lock, "--json"))
        return found


def _leader(scene: Scene) -> Records:
    with LeaderLock(
        scene.dsn, role=scene.role, settle_s=0, address="http://10.0.0.7:8080", term_table=True, schema=scene.schema
    ) as lock:
        assert lock.wait_for_leadership(30)
        return records(run("leader", *scene.lock, "--schema", scene.schema, "--json"))


def _status(scene: Scene) -> Records:
    scene.hand.node("web-1")
    scene.hand.leader("web-1")
    scene.hand.candidate("web-1")
    return records(run("status", *scene.hand.options, "--json"))


def _history(scene: Scene) -> Records:
    scene.hand.line("lost", 1, cause="stalled", detail="it stood still")
    return records(run("history", *scene.hand.options, "--json"))


def _audit(scene: Scene) -> Records:
    for node, begins, ends in (("web-1", 50, 20), ("web-2", 40, 10)):
        scene.hand.line("acquired", begins, node)
        scene.hand.line("lost", ends, node, cause="stalled")
    found = records(run("audit", *scene.hand.options, "--json"))
    assert found[0]["overlaps"]
    return found


def _step_down(scene: Scene) -> Records:
    scene.hand.node("web-1")
    scene.hand.leader("web-1")
    return records(run("step-down", *scene.hand.options, "--role", "scheduler", "--wait", "0.1", "--json"))


def _watch(scene: Scene) -> Records:
    scene.hand.node("web-1")
    scene.hand.candidate("web-1")
    with Process(*CLI, "watch", *scene.hand.options, "--json") as process:
        found = json.loads(process.wait_for('"change"'))
    assert_shape(found["status"], documented("status"))
    found["status"]["candidates"] = []  # which the sample leaves out, and the line before has seen
    return [found]


def _doctor(scene: Scene) -> Records:
    return records(run("doctor", "--dsn", scene.dsn, "--lease", "3", "--json"))


def _nfs_status(scene: Scene) -> Records:
    path = scene.folder / "job.lock"
    free = records(run("nfs", "status", str(path), "--json"))
    with nfs.Lock(path):
        held = records(run("nfs", "status", str(path), "--json"))
    assert held[0]["holder"]
    return free + held


def _nfs_break(scene: Scene) -> Records:
    path = scene.folder / "job.lock"
    found: Records = []
    with contextlib.suppress(nfs.LockError), nfs.Lock(path):  # whose holder finds out
        found = records(run("nfs", "break", str(path), "--yes", "--json"))
    return found


def _nfs_tidy(scene: Scene) -> Records:
    return records(run("nfs", "tidy", str(scene.folder / "job.lock"), "--json"))


def _config_show(scene: Scene) -> Records:
    return records(run("config", "show", "--config", str(scene.config), "--json"))


def _config_check(scene: Scene) -> Records:
    good = records(run("config", "check", "--config", str(scene.config), "--json"))
    bad = records(run("config", "check", "--set", "cluster.nod=x", "--json"))
    assert bad[0]["problems"]
    return good + bad


def _demo(scene: Scene) -> Records:
    words = ("--script", "step-down", "--rounds", "1", "--nodes", "2", "--lease", "1", "--json")
    done = subprocess.run([*CLI, "demo", *words], capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _torture(scene: Scene) -> Records:
    words = (
        "--dsn",
        scene.dsn,
        "--minutes",
        "0.03",
        "--nodes",
        "2",
        "--lease",
        "0.5",
        "--faults",
        "kill",
        "--seed",
        "1",
    )
    done = subprocess.run([*CLI, "torture", *words, "--json"], capture_output=True, text=True, check=True, timeout=50)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _alerts_export(scene: Scene) -> Records:
    return records(run("alerts", "export", "--config", alerts_file(scene), "--out", str(scene.folder / "o"), "--json"))


def _exec(scene: Scene, event: str = "command_ended") -> Records:
    program = subprocess.run(
        [*CLI, "exec", *scene.lock, "--settle", "0", "--json", "--", "true"],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    said = [json.loads(line) for line in program.stderr.splitlines() if line.startswith("{")]
    return [record for record in said if record["event"] == event]


def _exec_leads(scene: Scene) -> Records:
    return _exec(scene, "leads")


def _ticks(scene: Scene) -> Records:
    schema = scene.hand.options[3]
    lock = LeaderLock(scene.dsn, role=scene.role, settle_s=0, term_table=True, schema=schema)
    ticked = threading.Event()
    lock.every("100ms", ticked.set, name="job")
    with lock:
        assert ticked.wait(20)
    return records(run("ticks", "--dsn", scene.dsn, "--schema", schema, "--json"))


def _schema_show(_scene: Scene) -> Records:
    return records(run("schema", "show", "--json"))


def _schema_apply(scene: Scene) -> Records:
    return records(run("schema", "apply", *scene.hand.options, "--json"))


def _k8s_rbac(_scene: Scene) -> Records:
    return records(run("k8s", "rbac", "--namespace", "jobs", "--lease", "scheduler", "--json"))


REAL: dict[str, Callable[[Scene], Records]] = {
    "schema show": _schema_show,
    "schema apply": _schema_apply,
    "k8s rbac": _k8s_rbac,
    "run": _run,
    "run --config": _run_configured,
    "exec": _exec,
    "exec leads": _exec_leads,
    "ticks": _ticks,
    "acquire": _acquire,
    "acquire held_by_another": _acquire_held,
    "acquire released": _acquire_released,
    "leader": _leader,
    "status of a lock": _status_of_a_lock,
    "status": _status,
    "history": _history,
    "audit": _audit,
    "step-down": _step_down,
    "watch": _watch,
    "doctor": _doctor,
    "nfs status": _nfs_status,
    "nfs break": _nfs_break,
    "nfs tidy": _nfs_tidy,
    "config show": _config_show,
    "config check": _config_check,
    "alerts export": _alerts_export,
    "demo": _demo,
    "torture": _torture,
}


_LONG = {"demo", "torture"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in _LONG else each for each in REAL]
)
def test_real_output_has_the_shape_of_its_sample(scene: Scene, name: str):
    found = REAL[name](scene)
    assert found
    for record in found:
        assert_shape(record, documented(name), name)


@pytest.mark.parametrize("name", WITH_JSON)
def test_a_command_with_json_has_a_sample_and_the_sample_a_test(name: str):
    assert name in samples(), f"docs/reference/command-line.md shows no sample of {name} --json"
    assert name in REAL, f"no test compares what {name} --json prints with its sample"


def test_a_sample_is_of_a_command_that_is_there_and_is_compared():
    assert set(samples()) == set(REAL)
    assert all(any(name == known or name.startswith(f"{known} ") for known in WITH_JSON) for name in samples())


@pytest.mark.parametrize(
    ("actual", "shown"),
    [
        ({"a": 1}, {"a": "x"}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({}, {"a": 1}),
        ({"a": [{"b": 1}]}, {"a": [{"c": 1}]}),
        ({"a": True}, {"a": 1}),
    ],
)
def test_another_shape_is_another(actual: Any, shown: Any):
    with pytest.raises(AssertionError):
        assert_shape(actual, shown)
