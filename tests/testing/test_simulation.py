"""The simulation itself: it repeats, it finds what is outside the promise and nothing inside. More: make simulate."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from pgleaderlock import LockState, Term
from pgleaderlock.testing import SimulatedNode, SimulationFailed, simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES, STORES, STORM, FaultProfile, Simulation
from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.files import SharedFolder
from pgleaderlock.testing.simulation.many import main
from pgleaderlock.testing.simulation.world import World
from tests.support.sweeps import sweep

INSIDE = ["calm", "storm", "squalls", "fog", "doldrums"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("profile", sweep(INSIDE, "storm"))
def test_inside_the_promise_there_is_never_a_second_leader(store: str, profile: str):
    is_quick = profile == "calm" or (store == "file" and profile != "doldrums")  # real files take real time
    hours = 0.05 if is_quick else 0.1
    report = simulate(1000 + len(store), profile=profile, store=store, hours=hours)
    assert report.terms > 0
    assert profile == "calm" or report.faults


@pytest.mark.parametrize(
    ("store", "profile"),
    [
        ("postgres", "double-kills"),
        pytest.param("postgres", "promotions", marks=pytest.mark.proof),
        pytest.param("postgres", "drift", marks=pytest.mark.proof),
        ("records", "drift"),
    ],
)
@pytest.mark.slow
def test_outside_the_promise_the_overlap_is_found_that_the_documentation_predicts(store: str, profile: str):
    first = 49 if profile == "promotions" else 0  # rare: candidates that were connected before notice a promotion
    with pytest.raises(SimulationFailed, match="two leaders at once") as raised:
        for seed in range(first, first + 20):
            simulate(seed, profile=profile, store=store, hours=0.5)
    assert raised.value.kind == "two_leaders"
    assert raised.value.replay.startswith("simulate(")


@pytest.mark.parametrize(("store", "profile"), [("postgres-strict", "double-kills"), ("postgres-terms", "promotions")])
def test_what_is_bought_for_that_closes_it(store: str, profile: str):
    for seed in range(3):
        assert simulate(seed, profile=profile, store=store, hours=0.1).terms > 1


@pytest.mark.parametrize("store", ["postgres-strict", "records", "kubernetes", "group", "nfs", "file"])
def test_the_same_seed_takes_the_same_steps(store: str):
    hours = 0.2 if store == "postgres-strict" else 0.05
    first, second = (simulate(7, store=store, hours=hours, keep_transcript=True) for _ in range(2))
    assert first == second
    assert len(first.transcript) > 20


@cache
def first_failure(profile: str, seeds: int = 60) -> int:
    """Return a seed with which this profile, which is outside the promise, finds something."""
    for seed in range(seeds):
        try:
            simulate(seed, profile=profile)
        except SimulationFailed:
            return seed
    raise AssertionError(f"{seeds} seeds find nothing in {profile}: is it inside the promise by now?")


@pytest.mark.slow
def test_failure_contains_its_story_and_how_to_replay_it():
    with pytest.raises(SimulationFailed) as raised:
        simulate(first_failure("double-kills"), profile="double-kills")
    with pytest.raises(SimulationFailed) as again:
        eval(raised.value.replay, {"simulate": simulate})
    assert str(again.value) == str(raised.value)
    assert "has all its sessions killed" in str(raised.value)
    assert "LEADS with token" in str(raised.value)


@pytest.mark.slow
def test_valid_leader_does_not_close_a_witness_session_that_is_only_slow():
    """Found by this simulation: closed for being slow while the lock's session was killed, it let a second one lead."""
    simulate(4, profile="doldrums")


@pytest.mark.slow
def test_a_leader_that_an_api_server_answered_with_errors_knows_why_it_lost():
    """Found by this simulation: whatever the API server answered, the loss was one without a cause."""
    often_down = STORM.but("often down", faults={"down": 1.0}, every=3.0, lasts=2.0)
    reports = [simulate(seed, profile=often_down, store="kubernetes", hours=0.1) for seed in range(6)]
    assert sum(report.losses["refused"] for report in reports) > 1


def test_node_that_thaws_after_a_failover_does_not_leave_the_role_without_a_leader():
    simulation = Simulation(1, profile="calm", store="records", settings={})
    simulation.start()
    try:
        simulation.run(30)
        frozen = simulation.checker.leader
        assert frozen is not None
        simulation.faults.strike("freeze", frozen, 40.0)
        simulation.run(60)
        assert simulation.checker.leader not in (None, frozen)
        assert simulation.checker.leaderless_since is None
    finally:
        simulation.end()


def test_each_role_of_a_group_is_elected_and_checked():
    simulation = Simulation(1, profile="calm", store="group")
    simulation.start()
    try:
        simulation.run(30)
        seats = [seat for node in simulation.nodes for seat in node.seats]
        assert len(seats) == 9
        assert len([seat for seat in seats if seat.acts_as_leader]) == 3
        assert simulation.checker.is_led
        assert simulation.checker.course.terms == 3
    finally:
        simulation.end()


def test_the_folder_of_simulated_files_is_removed():
    simulation = Simulation(1, profile="calm", store="file")
    assert isinstance(simulation.server, SharedFolder)
    assert simulation.server.path.is_dir()
    simulation.end()
    assert not simulation.server.path.exists()


def test_profile_have_the_names_under_which_they_are_known():
    assert all(name == profile.name for name, profile in FAULT_PROFILES.items())
    assert all(name == store.name for name, store in STORES.items())


def test_unknown_name_is_refused_with_a_list_of_the_known_ones():
    with pytest.raises(ValueError, match="there is no profile 'sunshine', but there are calm, storm"):
        simulate(1, profile="sunshine")
    with pytest.raises(ValueError, match="there is no store 'oracle', but there are postgres"):
        simulate(1, store="oracle")


def test_a_cluster_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"not nodes=0, hours=0\.5"):
        simulate(1, nodes=0)
    with pytest.raises(ValueError, match="not nodes=3, hours=-1"):
        simulate(1, hours=-1)


def test_what_is_registered_by_a_coroutine_is_refused_instead_of_never_awaited():
    async def build(node: SimulatedNode) -> None:
        pytest.fail(f"awaited for {node.name}")

    with pytest.raises(TypeError, match=r"build .* cannot be async"):
        simulate(1, build=build)


def test_process_that_acts_without_ever_having_led_is_reported():
    with pytest.raises(SimulationFailed, match="'sends mail', and has never led") as raised:
        simulate(1, build=lambda node: node.act("sends mail"))
    assert raised.value.kind == "acted"


@pytest.mark.parametrize(
    "touch_the_world",
    [
        lambda: asyncio.open_connection("127.0.0.1", 9),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 9),
    ],
)
def test_work_with_a_real_socket_fails_instead_of_being_begun_again_for_ever(
    touch_the_world: Callable[[], Awaitable[object]],
):
    def build(node: SimulatedNode) -> None:
        @node.lock.while_leader
        async def work(_: Term) -> None:
            await touch_the_world()

    with pytest.raises(SimulationFailed, match=r"know nothing of virtual time.*something that sleeps") as raised:
        simulate(1, profile="calm", build=build, hours=0.01)
    assert raised.value.kind == "raised"


@pytest.mark.slow
def test_command_runs_many_seeds_and_prints_the_result(capsys: pytest.CaptureFixture[str]):
    assert main(["--seeds", "1", "--leases", "10", "--store", "postgres", "--profile", "storm", "--jobs", "1"]) == 0
    assert "no split brain" in capsys.readouterr().out
    words = ["--store", "postgres", "--profile", "double-kills", "--lease", "15", "--jobs", "1"]
    seed = str(first_failure("double-kills"))
    assert main(["--seeds", "1", "--first", seed, *words]) == 1
    out = capsys.readouterr().out
    assert "two leaders at once" in out
    assert "1 FAILED" in out
    assert main(["--first", seed, "--trace", *words]) == 1
    assert main(["--first", "3", "--leases", "0.5", "--profile", "calm", "--trace", *words[:2]]) == 0
    assert "LEADS with token" in capsys.readouterr().out


def test_the_module_can_be_run():
    words = [sys.executable, "-m", "pgleaderlock.testing.simulation", "--trace", "--profile", "calm", "--leases", "1"]
    assert "LEADS with token" in subprocess.run(words, capture_output=True, check=True, text=True).stdout


def test_checker_finds_a_leader_that_becomes_valid_again_beside_another():
    """As a leader would whose renewal counts although its time was over: no term begins."""
    checker = Checker(World(1), 15.0, "simulate(...)")
    first, second = (_stub_node(name, token) for name, token in (("a", 1), ("b", 2)))
    checker.nodes.append(first)
    checker.stepped(first)
    first.acts_as_leader = False
    checker.nodes.append(second)
    checker.stepped(second)
    first.acts_as_leader = True
    with pytest.raises(SimulationFailed, match="two leaders at once"):
        checker.stepped(first)


def _stub_node(name: str, token: int) -> Any:
    lock = SimpleNamespace(state=LockState.LEADER, token=token)
    return SimpleNamespace(
        name=name, lock=lock, acts_as_leader=True, leads=False, is_alive=True, is_frozen=True, describe=lambda: name
    )


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        ({"crsh": 1.0}, "there is no fault 'crsh'"),
        ({"begin": 1.0}, "there is no fault 'begin'"),
        ({"double_ambush": 1.0}, "none of the faults of 'mine' is inside"),
    ],
)
def test_a_profile_that_could_never_strike_is_refused(faults: dict[str, float], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        simulate(1, profile=FaultProfile("mine", faults))


def test_leader_that_was_not_valid_for_a_moment_is_not_counted_as_absent_ever_since():
    simulate(70000, profile="doldrums", store="postgres-strict", hours=300 / 3600, lease_s=5)


def _raises_in_a_callback(node: SimulatedNode) -> None:
    @node.lock.on_acquired
    def check() -> None:
        raise ValueError("wrong")


def _asserts_in_work(node: SimulatedNode) -> None:
    @node.lock.while_leader
    async def work(_: object) -> None:
        raise AssertionError("wrong")


def _fails_as_in_a_test(node: SimulatedNode) -> None:
    @node.lock.on_acquired
    async def check() -> None:
        pytest.fail("wrong")


def _raises_in_a_task_of_its_own(node: SimulatedNode) -> None:
    @node.lock.on_acquired
    def begin() -> None:
        async def work() -> None:
            raise ValueError("wrong")

        asyncio.get_running_loop().create_task(work())


@pytest.mark.parametrize(
    "build", [_raises_in_a_callback, _asserts_in_work, _fails_as_in_a_test, _raises_in_a_task_of_its_own]
)
def test_what_a_users_code_raises_is_not_swallowed(build, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SimulationFailed, match="wrong") as raised:
        simulate(1, profile="calm", hours=0.02, build=build)
    assert raised.value.kind == "raised"
    assert "Exception ignored" not in capfd.readouterr().err
