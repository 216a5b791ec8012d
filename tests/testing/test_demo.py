"""The demo: real processes that are really harmed, what it measures, and that nothing of it is left."""

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import socket
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import click
import httpx
import pytest

from pgleaderlock import Event, EventKind, LockError, LockState, PgLeaderLockError
from pgleaderlock.cli import demo_show, exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.demo import parse_script
from pgleaderlock.cli.demo_show import DemoOptions, _Demo
from pgleaderlock.testing.demo import ActionResult, Failover, Said, Stage, Tally, _node, _place
from pgleaderlock.testing.demo._ledger import Ledger
from pgleaderlock.testing.demo._relay import Relay
from tests.conftest import Postgres
from tests.support.cli import CLI
from tests.support.processes import Process

_numbers = count(1)
HEADER = "X-Pgleaderlock-Token"
QUICK = ("--nodes", "2", "--lease", "1")
GONE_S = 60.0
pytestmark = pytest.mark.asyncio_loop  # uvloop starts no child in a process group of its own, and no demo runs on it


# --- As a process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(server_folder_root: Path) -> Iterator[Path]:
    """Where a demo puts its folder; whatever it leaves there is found, and ended by its id."""
    folder = server_folder_root / f"demo-{next(_numbers)}"
    folder.mkdir(mode=0o755)
    yield folder
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def demo(root: Path, *words: str) -> Process:
    return Process(*CLI, "demo", *words, env={"TMPDIR": str(root), "NO_COLOR": "1"})


def processes_of(root: Path) -> list[int]:
    """Find the server and the nodes of a demo: its command line and their connection strings name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            _, _, dsn = (entry / "environ").read_bytes().decode(errors="replace").partition(f"{_node.DSN_VARIABLE}=")
            words += dsn.partition("\0")[0]
            if f"{root}/" in words or quote(f"{root}/", safe="") in words:
                found.append(int(entry.name))
    return found


def assert_nothing_is_left(root: Path) -> None:
    assert processes_of(root) == []
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_a_script_measures_each_action_and_leaves_nothing(root: Path):
    with demo(root, "--script", "kill,step-down,freeze,cut", "--rounds", "1", "--json", "--lease", "1") as process:
        assert process.wait(200) == 0, process.lines
        with contextlib.suppress(AssertionError):
            process.wait_for("no such line")
    results = [json.loads(line) for line in process.lines if line.startswith("{")]
    assert [result["action"] for result in results] == ["kill", "step_down", "freeze", "cut"]
    for result in results:
        assert result["overlaps"] == 0
        assert result["problems"] == []
        [played] = result["measured"]
        assert played["from"] != played["to"]
        assert result["min_ms"] == result["median_ms"] == result["max_ms"] == played["failover_ms"] > 0
    by_action = {result["action"]: result["measured"][0] for result in results}
    # A follower may take over from a silent leader only when that has stopped: two thirds of the lease have to pass.
    assert by_action["freeze"]["failover_ms"] > 300
    assert by_action["cut"]["failover_ms"] > by_action["cut"]["stopped_ms"] > 0
    assert by_action["step_down"]["failover_ms"] > by_action["step_down"]["stopped_ms"]
    assert by_action["kill"]["stopped_ms"] is None
    assert any("its lease, 1 s, had to end first" in line for line in process.lines)
    assert_nothing_is_left(root)


@pytest.mark.slow
def test_a_page_with_buttons_shows_what_is_measured_and_ctrl_c_ends_everything(root: Path):
    with demo(root, "--no-browser", "--port", "0", *QUICK) as process:
        process.wait_for(" leads, with 1 follower. See it")
        address, _, token = process.wait_for("#token=").strip().partition("#token=")
        with httpx.Client(base_url=address, headers={HEADER: token}, timeout=20) as client:
            assert httpx.post(f"{address}api/demo/kill", json={}).status_code == 401
            assert client.post("/api/demo/kill", json={}, headers={HEADER: "guessed"}).status_code == 401
            with client.stream("GET", "/events") as stream:
                lines = stream.iter_lines()
                state = next_of(lines, "snapshot")
                assert state["can"]["demo"] == ["cut", "freeze", "kill", "step_down"]
                answer = client.post("/api/demo/kill", json={})
                assert answer.status_code == 202
                began, measured = next_of(lines, "demo"), next_of(lines, "demo")
                assert began["failover_ms"] is None
                assert answer.json()["text"] == began["text"]
                assert measured["failover_ms"] > 0
                assert measured["node"] != measured["from"]
                assert "killed" in measured["text"]
            process.wait_for("is back as a follower, in a new process")
            assert client.post("/api/demo/freeze", json={}).status_code == 202
            refused = client.post("/api/demo/kill", json={})
            assert (refused.status_code, refused.json()["error"][:13]) == (409, "one at a time")
        process.wait_for("is frozen")
        process.signal(signal.SIGINT)  # while one of them stands still
        process.wait_for("Measured, from the action to the next leader")
        assert re.search(r"kill +1 of 1 +[\d.,]+ +[\d.,]+ +[\d.,]+ +yes", process.wait_for("kill  ")), process.lines
        assert "0 of 1" in process.wait_for("freeze  ")
        assert process.wait(GONE_S) == 0
        port = int(address.rpartition(":")[2].strip("/"))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    assert_nothing_is_left(root)
    assert not [line for line in process.lines if "Traceback" in line]


def next_of(lines: Iterator[str], kind: str) -> dict[str, Any]:
    """Return the next message of this kind."""
    for line in lines:
        if line == f"event: {kind}":
            found: dict[str, Any] = json.loads(next(lines).removeprefix("data: "))
            return found
    raise AssertionError(f"the stream ended without {kind}")


@pytest.mark.slow
def test_ctrl_c_before_anything_was_done_says_that_nothing_was_measured(root: Path):
    with demo(root, "--no-browser", "--port", "0", *QUICK) as process:
        process.wait_for("#token=")
        process.signal(signal.SIGINT)
        process.wait_for("Nothing was measured")
        assert process.wait(GONE_S) == 0


def test_tally_counts_messages_and_assigns_an_overlap_to_the_action_before_it():
    tally = Tally()
    tally.hear(Said("node-a is back", "kill", is_aside=True))
    tally.hear(Said("two at once", is_alarm=True, is_overlap=True))
    assert tally.results == []
    for failover_ms in (20.0, 10.0):
        tally.hear(Said("node-a is killed", "kill", from_node="node-a"))
        tally.hear(Said("node-b leads", "kill", "node-b", "node-a", failover_ms))
    tally.hear(Said("node-b is frozen", "freeze", from_node="node-b"))
    tally.hear(Said("two at once", is_alarm=True, is_overlap=True))
    tally.hear(Said("no node has taken over", "freeze", from_node="node-b", is_alarm=True))
    kill, freeze = tally.results
    assert (kill.rounds, kill.figure("min"), kill.figure("median"), kill.overlaps) == (2, 10.0, 15.0, 0)
    assert (freeze.rounds, freeze.measured_ms, freeze.overlaps) == (1, [], 1)


@pytest.mark.proof
def test_a_hangup_ends_a_script_and_everything_with_it(root: Path):
    with demo(root, "--script", "kill", "--rounds", "1000", *QUICK) as process:
        process.wait_for("is killed")
        process.signal(signal.SIGHUP)
        assert process.wait(GONE_S) == 128 + signal.SIGHUP
    assert_nothing_is_left(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_anything_runs_leaves_nothing(root: Path, number: signal.Signals):
    with demo(root, "--script", "kill") as process:
        process.wait_for("starting a PostgreSQL")
        process.signal(number)
        assert process.wait(GONE_S) == 128 + number
    assert_nothing_is_left(root)


@pytest.mark.slow
def test_the_nodes_of_a_demo_that_is_killed_end_and_the_next_demo_removes_its_server(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    with demo(root, "--no-browser", "--port", "0", *QUICK) as process:
        address, _, token = process.wait_for("#token=").strip().partition("#token=")
        assert httpx.post(f"{address}api/demo/freeze", json={}, headers={HEADER: token}).status_code == 202
        process.wait_for("is frozen")
        [folder] = root.iterdir()
        assert _place.remove_orphans(root) == []  # a live process uses it
        # The kernel wakes stopped processes when their group becomes an orphan, and not those only sent the signal.
        eventually(lambda: any(map(stands_still, processes_of(folder / "nodes"))), "a node stands still")
        process.signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: not processes_of(folder / "nodes"), "the nodes, also the one that is frozen, are gone")
    assert processes_of(folder / "server"), "a server outlives its starter: if not, say so in the documentation"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert _place.remove_orphans(root) == []  # those of others are not ours to remove
    monkeypatch.undo()
    assert _place.remove_orphans(root) == [folder]
    assert_nothing_is_left(root)


def stands_still(pid: int) -> bool:
    """Return whether all threads of this process are stopped."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def eventually(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + GONE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# --- What cannot be meant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--script", "kill,dance"], "there is no action 'dance'"),
        (["--rounds", "2"], "need --script"),
        (["--json"], "need --script"),
        (["--nodes", "1"], "1 is not in the range"),
        (["--lease", "0.1"], "--lease must be at least 0.5"),
        (["--port", "65536"], "not in the range"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(["demo", *words]) == exit_codes.USAGE
    assert complaint in capsys.readouterr().err


def test_a_script_is_words_with_commas():
    assert parse_script("kill, step-down,step_down") == ("kill", "step_down", "step_down")


def test_without_a_postgresql_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys, root: Path):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(root))
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(root))
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        assert invoke(["demo", "--no-browser"]) == exit_codes.UNREACHABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "PGLEADERLOCK_PG_BIN" in capsys.readouterr().err
    assert list(root.iterdir()) == []


def test_a_folder_whose_sockets_would_have_too_long_names_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp/" + "x" * 50)
    assert _place._root() == Path("/tmp")


# --- Who claimed to lead when ----------------------------------------------------------------------------------------


def test_one_after_the_other_is_no_overlap():
    ledger = Ledger()
    ledger.began("a", 1, 10, 1.0)
    ledger.worked(1, 10, 1.5)
    ledger.ceased(1, 10, 2.0)
    ledger.began("b", 2, 11, 2.0)
    ledger.ceased(2, 11, 3.0)
    assert not ledger.overlaps
    assert ledger.current() is None


@pytest.mark.parametrize("how", ["ceased", "worked"])
def test_a_leader_that_acts_after_the_next_term_has_begun_is_an_overlap(how: str):
    ledger = Ledger()
    ledger.began("a", 1, 10, 1.0)
    ledger.began("b", 2, 11, 2.0)
    assert not ledger.overlaps
    getattr(ledger, how)(1, 10, 2.004)  # reported late, as by a node that was frozen
    overlap = ledger.overlaps[10, 11]
    assert (overlap.first.node, overlap.second.node, overlap.lasted_s) == ("a", "b", pytest.approx(0.004))


def test_a_dead_node_does_not_lead_and_the_next_term_is_the_successor():
    ledger = Ledger()
    ledger.began("a", 1, 10, 1.0)
    assert (claim := ledger.current()) is not None
    assert claim.node == "a"
    ledger.died(1)
    assert ledger.current() is None
    ledger.began("c", 3, 12, 3.0)
    ledger.began("b", 2, 11, 2.0)
    assert (heir := ledger.successor(10)) is not None
    assert heir.node == "b"
    assert ledger.successor(12) is None


def test_only_the_last_claims_are_remembered():
    ledger = Ledger()
    for number in range(200):
        ledger.began("a", number, number, float(number))
        ledger.ceased(number, number, number + 0.5)
    assert len(ledger._claims) == 50


# --- The way to PostgreSQL -------------------------------------------------------------------------------------------


async def test_a_relay_that_is_cut_holds_back_every_byte_and_every_end(root: Path):
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_unix_server(echo, root / "target")
    relay = Relay(root / "way", root / "target")
    await relay.start()
    early, late = [await asyncio.open_unix_connection(root / "way" / ".s.PGSQL.5432") for _ in range(2)]
    for reader, writer in (early, late):
        writer.write(b"one")
        assert await reader.read(100) == b"one"
    relay.cut()
    assert relay.is_cut
    early[1].write(b"two")
    writers[1].close()  # the server hangs up
    newest = await asyncio.open_unix_connection(root / "way" / ".s.PGSQL.5432")
    newest[1].write(b"three")
    heard = [asyncio.ensure_future(reader.read(100)) for reader, _ in (early, late, newest)]
    assert not (await asyncio.wait(heard, timeout=0.2, return_when=asyncio.FIRST_COMPLETED))[0]
    relay.heal()
    assert await asyncio.gather(*heard) == [b"two", b"", b"three"]
    for _, writer in (early, late, newest):
        writer.close()
    server.close()
    await relay.close()


async def test_a_relay_without_a_server_hangs_up(root: Path):
    relay = Relay(root / "way", root / "nowhere")
    await relay.start()
    reader, writer = await asyncio.open_unix_connection(root / "way" / ".s.PGSQL.5432")
    assert await reader.read() == b""
    writer.close()
    await relay.close()


# --- The stage -------------------------------------------------------------------------------------------------------


class Scene:
    """A stage without processes: the tests make the nodes' reports."""

    def __init__(self, root: Path, nodes: int = 2) -> None:
        self.said: list[Said] = []
        server: Any = SimpleNamespace(folder=root / "server", socket_path=root / "nowhere", dsn=f"host={root} dbname=x")
        (root / "nodes").mkdir()
        self.stage = Stage(server, nodes=nodes, lease_s=1.0, hear=self.said.append)
        for number, actor in enumerate(self.stage._actors.values(), 1):
            process: Any = SimpleNamespace(pid=number, returncode=None, stdin=None, send_signal=lambda _number: None)
            process.communicate = lambda: asyncio.sleep(0)
            actor._process = process

    def says(self, name: str, what: str, **facts: Any) -> None:
        actor = self.stage._actors[name]
        self.stage._heed(actor, actor.last_pid, {"says": what, **facts})

    def queues(self, name: str) -> None:
        self.says(name, "event", event="on_acquire_failed", state="follower")


async def test_what_cannot_be_done_now_is_refused_with_a_reason(root: Path):
    scene = Scene(root)
    with pytest.raises(LockError, match="no node leads at this moment"):
        scene.stage.begin("kill")
    scene.says("node-a", "claims", token=1, at=1.0)
    with pytest.raises(LockError, match="no follower is ready to take over yet: node-b"):
        scene.stage.begin("kill")
    scene.queues("node-b")
    assert scene.stage.begin("cut") == "node-a is cut off from PostgreSQL"
    with pytest.raises(LockError, match="one at a time: the leader is cut off"):
        await scene.stage.act("kill")
    await scene.stage.close()


async def test_two_nodes_that_lead_at_once_raise_one_alarm(root: Path):
    scene = Scene(root)
    scene.says("node-a", "claims", token=1, at=1.0)
    scene.says("node-b", "claims", token=2, at=2.0)
    scene.says("node-a", "worked", token=1, at=2.5)
    scene.says("node-a", "ceased", token=1, at=3.0)
    scene.says("node-a", "nonsense")
    assert [said.is_overlap for said in scene.said] == [True]
    assert "TWO LEADERS AT ONCE: node-a and node-b" in scene.said[0].text
    assert len(scene.stage.overlaps) == 1


async def test_a_failover_without_a_successor_raises_an_alarm_too(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.testing.demo._stage._SLACK_S", -0.9)
    scene = Scene(root)
    scene.says("node-a", "claims", token=1, at=1.0)
    scene.queues("node-b")
    failover = await scene.stage.act("freeze")
    assert (failover.to_node, failover.failover_ms) == (None, None)
    assert scene.said[-1].is_alarm
    assert "no node has taken over from node-a" in scene.said[-1].text
    with pytest.raises(LockError, match="still missing node-a"):
        await scene.stage.wait_until_whole(0.05)
    await scene.stage.close()


async def test_failure_beside_the_scene_ends_the_demo_and_says_why(root: Path, monkeypatch: pytest.MonkeyPatch):
    scene = Scene(root)
    scene.says("node-a", "claims", token=1, at=1.0)
    scene.queues("node-b")
    scene.stage.begin("step_down")  # on a server that is not there
    with pytest.raises(PgLeaderLockError, match="cannot connect for schema pgleaderlock"):
        async with asyncio.timeout(20):
            await scene.stage.wait_until_failed()
    await scene.stage.close()


async def test_node_that_does_not_start_ends_the_demo_with_its_last_output(root: Path, monkeypatch):
    monkeypatch.setattr("pgleaderlock.testing.demo._stage._REPLACED_AFTER_S", 0.01)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    scene = Scene(root)
    (root / "nodes" / "node-a.log").write_text("it lacks something\n")
    for actor in scene.stage._actors.values():
        actor._process = None
    with pytest.raises(LockError, match=r"node-[ab] does not start"):
        async with scene.stage:
            pass
    assert scene.stage._actors["node-a"].last_words() == "it lacks something"
    assert [actor.pid for actor in scene.stage._actors.values()] == [None, None]


async def test_a_node_that_does_not_end_when_asked_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.testing.demo._stage._LEAVE_S", 0.1)
    program = root / "stubborn"
    program.write_text("#!/bin/sh\nwhile true; do sleep 0.05; done\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    scene = Scene(root, nodes=1)
    [actor] = scene.stage._actors.values()
    actor._process = None
    start = asyncio.ensure_future(scene.stage.start())
    while actor.pid is None:  # noqa: ASYNC110 - of a process
        await asyncio.sleep(0.01)
    start.cancel()
    await scene.stage.close()
    assert actor.pid is None
    assert actor._process is not None
    assert actor._process.returncode == -signal.SIGKILL


# --- What is shown ---------------------------------------------------------------------------------------------------


def options(**more: Any) -> DemoOptions:
    wanted = {"nodes": 3, "lease_s": 1.0, "port": None, "opens_browser": False, "script": (), "rounds": 1}
    return DemoOptions(**{**wanted, "as_json": False, **more})


GOOD = ActionResult("kill", 2, [Failover("kill", "a", "b", 5.0, None), Failover("kill", "b", "a", 1234.5, None)])
BAD = ActionResult("step_down", 1, [Failover("step_down", "a", None, None, None)], overlaps=1, problems=["too late"])


@pytest.mark.parametrize(("results", "code"), [([GOOD], 0), ([GOOD, BAD], 1)])
async def test_a_table_says_it_all(
    results: list[ActionResult], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def played(*_: object) -> list[ActionResult]:
        return results

    monkeypatch.setattr(demo_show, "play", played)
    server: Any = None
    stage: Any = None
    assert await _Demo(options(script=("kill",)), server)._play(stage) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["Action", "Rounds"]
    assert lines[2].split() == ["kill", "2", "of", "2", "5.0", "619.8", "1,234.5", "yes", *(["-"] if code else [])]
    if code:
        assert lines[3].split() == ["step-down", "0", "of", "1", "-", "-", "-", "NO", "too", "late"]


async def test_the_usual_port_gives_way_and_one_that_was_asked_for_does_not(postgres: Postgres, monkeypatch):
    stage: Any = None
    server: Any = SimpleNamespace(dsn=postgres.dsn)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(demo_show, "_PORT", port)
        async with _Demo(options(), server)._dashboard(stage) as address:
            assert f":{port}/" not in address
        with pytest.raises(click.UsageError, match="--port 0 is any free one"):
            async with _Demo(options(port=port), server)._dashboard(stage):
                pass


@pytest.mark.parametrize(("script", "overlaps", "code"), [((), False, 0), ((), True, 1), (("kill",), False, 130)])
async def test_an_interrupted_demo_has_an_exit_code(script, overlaps: bool, code: int):
    server: Any = None

    class Endless(_Demo):
        async def run(self) -> int:
            self._hear(Said("two", is_alarm=True, is_overlap=overlaps))
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
            return 7

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert await demo_show._until_signal(Endless(options(script=script), server)) == code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("environment", "browser", "is_opened"),
    [
        ({"DISPLAY": ":0"}, webbrowser.BackgroundBrowser("x"), True),
        ({"WAYLAND_DISPLAY": "w"}, webbrowser.BackgroundBrowser("x"), True),
        ({"DISPLAY": ":0"}, webbrowser.GenericBrowser("lynx"), False),
        ({"DISPLAY": ":0"}, webbrowser.Error("none"), False),
        ({}, webbrowser.BackgroundBrowser("x"), False),
    ],
)
async def test_a_browser_is_opened_where_there_is_a_window_for_it(environment, browser, is_opened: bool, monkeypatch):
    opened: list[str] = []

    def get() -> Any:
        if isinstance(browser, Exception):
            raise browser
        monkeypatch.setattr(browser, "open", opened.append)
        return browser

    monkeypatch.setattr(webbrowser, "get", get)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    await demo_show._open_browser("http://here/")
    assert opened == (["http://here/"] if is_opened else [])


# --- A node ----------------------------------------------------------------------------------------------------------


def test_a_claim_that_ended_before_the_first_sample_lasted_no_longer_than_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
):
    said: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    monkeypatch.setattr(_node, "say", lambda what, token, at: said.put((what, at)))
    lock: Any = SimpleNamespace(token=None)  # as after a freeze that came with the first word
    watch = _node.ClaimWatch(lock)
    watch.on_event(Event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", 0.0, token=7))
    (first, began_at), (second, ceased_at) = said.get(timeout=10), said.get(timeout=10)
    assert (first, second) == ("claims", "ceased")
    assert ceased_at == began_at


def test_a_node_whose_reports_are_not_read_goes_on(monkeypatch: pytest.MonkeyPatch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        _node.say("worked", token=1, at=1.0)
