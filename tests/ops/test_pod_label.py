"""The label of the leader's pod, on virtual time and an API server in memory. tests/stores has the real one."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from pgleaderlock import ConnectionError, Election, sync
from pgleaderlock.models import Event, EventKind, Grant
from pgleaderlock.ops.pod_label import PodLabel
from pgleaderlock.ops.pod_label._own_pod import find_own_pod
from pgleaderlock.ops.pod_label._process import _started, lives, this_process
from pgleaderlock.stores.memory import MemoryStore
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing._pod_api import PodApi
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.doubles import ScriptedBackend, make_election, until
from tests.support.pod_candidate import KEY, LABEL, PROCESS, TOKEN, Candidate, settled
from tests.support.pod_clients import ModelClient

ON_VIRTUAL_TIME = pytest.mark.virtual_time


def mark(api: PodApi, name: str, token: int | None, process: str | None = None) -> None:
    """Label a pod as a leader of another process did."""
    if ("default", name) not in api.pods:
        api.create("default", name)
    token_text = None if token is None else str(token)
    api.patch(
        "default",
        name,
        {"metadata": {"labels": {KEY: "billing"}, "annotations": {TOKEN: token_text, PROCESS: process}}},
    )


def labelled(api: PodApi) -> list[str]:
    return sorted(item["metadata"]["name"] for item in api.listing("default", LABEL)["items"])


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Mapping[str, Any]]:
    return [record.fields for record in caplog.records if getattr(record, "event", None) == event]  # type: ignore[attr-defined]


@pytest.fixture
def api() -> PodApi:
    return PodApi()


# --- With the term ---------------------------------------------------------------------------------------------------


@ON_VIRTUAL_TIME
async def test_the_pod_is_labelled_in_a_term_with_its_token_and_bare_before_and_after(api: PodApi):
    one = Candidate(api)
    one.backend.scripts["try_acquire"] = [None]
    await one.election.start()
    await until(lambda: "try_acquire" in one.backend.verbs)
    assert not one.is_labelled
    await until(lambda: one.is_labelled)
    assert one.term == ("5", this_process())
    assert one.metadata["labels"] == {"app": "worker", KEY: "billing"}
    await one.election.shutdown()
    assert one.metadata["labels"] == {"app": "worker"}
    assert one.term == (None, None)
    assert one.client.closed == 1
    assert one.label.pod == "default/a"


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("how", ["step_down", "loss", "reconnecting"])
async def test_the_label_is_removed_when_the_state_is_no_longer_that_of_a_leader(api: PodApi, how: str):
    one = Candidate(api, reconnect_grace_s=60.0 if how == "reconnecting" else None)
    await one.lead()
    one.backend.scripts["try_acquire"] = [None] * 3
    one.backend.scripts["open"] = [ConnectionError("not yet")] if how == "reconnecting" else []
    if how == "step_down":
        await one.election.step_down()
    else:
        one.lose()
    await until(lambda: not one.is_labelled, 1.0)
    assert one.term == (None, None)
    await until(lambda: one.is_labelled, 120)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_the_removal_is_sent_while_the_lock_is_being_released_and_not_after_that(api: PodApi):
    one, seen = Candidate(api), []

    async def release() -> None:
        await settled()
        seen.append(one.is_labelled)

    await one.lead()
    one.backend.scripts["release"] = [release]
    await one.election.step_down()
    assert seen == [False]
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_an_election_that_is_started_again_is_followed_again(api: PodApi):
    one = Candidate(api)
    for _ in range(2):
        await one.lead()
        await one.election.shutdown()
        assert not one.is_labelled


@ON_VIRTUAL_TIME
async def test_a_change_of_key_or_value_by_hand_on_a_pod_that_does_not_lead_is_left_alone(api: PodApi):
    api.create("default", "a", {KEY: "reports"})
    one = Candidate(api)
    one.backend.defaults["try_acquire"] = None
    await one.election.start()
    await until(lambda: len(one.backend.times("try_acquire")) > 2)
    await one.election.shutdown()
    assert one.metadata["labels"] == {KEY: "reports"}


# --- Load ------------------------------------------------------------------------------------------------------------


@ON_VIRTUAL_TIME
async def test_a_leader_whose_label_is_right_sends_one_cached_list_in_each_interval_and_no_write(api: PodApi):
    one = Candidate(api)
    await one.lead()
    assert one.client.verbs == ["get", "patch", "list"]
    one.client.asked.clear()
    await asyncio.sleep(100)
    assert one.client.verbs == ["list cached"] * 20
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_leader_that_renews_many_times_a_second_looks_once_a_second(api: PodApi):
    one = Candidate(api, health_interval_s=0.1)
    await one.lead()
    one.client.asked.clear()
    await asyncio.sleep(10.5)
    assert one.client.verbs == ["list cached"] * 10
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_follower_reads_its_pod_once(api: PodApi):
    one = Candidate(api)
    one.backend.defaults["try_acquire"] = None
    await one.election.start()
    await asyncio.sleep(1000)
    assert one.client.verbs == ["get"]
    await one.election.shutdown()
    assert one.client.verbs == ["get"]


@ON_VIRTUAL_TIME
async def test_a_label_that_was_removed_by_hand_is_put_back_within_one_interval(api: PodApi):
    one = Candidate(api)
    await one.lead()
    api.patch("default", "a", {"metadata": {"labels": {KEY: None}}})
    await until(lambda: one.is_labelled, 5.1)
    assert one.term == ("5", this_process())
    api.patch("default", "a", {"metadata": {"annotations": {TOKEN: "4"}}})
    await until(lambda: one.term[0] == "5", 5.1)
    await one.election.shutdown()
    assert labelled(api) == []


# --- Left over by an earlier process ---------------------------------------------------------------------------------


def dead_process() -> str:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        text = f"{child.pid}-{_started(child.pid)}"
        assert lives(text)
        child.communicate(b"\n")
    assert not lives(text)
    return text


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("of", ["dead", "nothing", "this", "nonsense"])
async def test_a_candidate_that_starts_removes_the_label_of_a_process_of_its_pod_that_was_killed(api: PodApi, of: str):
    mark(api, "a", 9, {"dead": dead_process(), "nothing": None, "this": this_process(), "nonsense": "x"}[of])
    one = Candidate(api)
    one.backend.defaults["try_acquire"] = None
    await one.election.start()
    await until(lambda: not one.is_labelled, 1.0)
    assert one.term == (None, None)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_candidate_that_starts_keeps_the_label_of_another_process_of_its_pod_that_runs(api: PodApi):
    parent = os.getppid()
    mark(api, "a", 9, f"{parent}-{_started(parent)}")
    one = Candidate(api)
    one.backend.defaults["try_acquire"] = None
    await one.election.start()
    await asyncio.sleep(60)
    await one.election.shutdown()
    assert labelled(api) == ["a"]


def test_a_process_is_known_by_its_id_and_its_start():
    pid, _, started = this_process().partition("-")
    assert (int(pid), lives(this_process())) == (os.getpid(), True)
    for other in (f"{pid}-1", f"{pid}-", "0-0", "", "x-1", "999999999-1", f"{pid}"):
        assert not lives(other), other
    assert started.isdecimal()


@ON_VIRTUAL_TIME
async def test_the_label_of_an_earlier_term_on_the_same_pod_is_written_anew(api: PodApi):
    mark(api, "a", 3, "1-1")
    one = Candidate(api)
    await one.election.start()
    await until(lambda: one.term[0] == "5")
    assert one.is_labelled
    await one.election.shutdown()


# --- Other pods ------------------------------------------------------------------------------------------------------


@ON_VIRTUAL_TIME
async def test_a_new_leader_removes_the_label_of_earlier_terms_from_other_pods(
    api: PodApi, caplog: pytest.LogCaptureFixture
):
    mark(api, "b", 4)
    mark(api, "c", 0)
    api.create("default", "d", {"app": "worker"})
    one = Candidate(api)
    await one.lead()
    assert labelled(api) == ["a"]
    assert "annotations" not in api.get("default", "b")["metadata"]
    assert {line["labelled_pod"] for line in lines(caplog, "earlier_label_removed")} == {"b", "c"}
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("token", [5, 6, None], ids=["equal", "greater", "none"])
async def test_an_outdated_leader_never_removes_a_newer_label(
    api: PodApi, caplog: pytest.LogCaptureFixture, token: int | None
):
    mark(api, "b", token)
    one = Candidate(api)
    await one.lead()
    await asyncio.sleep(20)
    assert labelled(api) == ["a", "b"]
    await one.election.shutdown()
    assert labelled(api) == ["b"]
    (line,) = lines(caplog, "other_label_found")  # once a minute
    assert (line["labelled_pod"], line["its_token"], line["token"]) == ("b", token, 5)


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("renewed", [True, False])
async def test_a_label_that_became_newer_after_it_was_listed_is_not_removed(api: PodApi, *, renewed: bool):
    """The pod of a former leader leads again, between our list and our patch: a stale version is refused."""
    mark(api, "b", 4)
    one = Candidate(api)
    other: dict[str, Any] = {"metadata": {"labels": {"app": "other"}}}
    one.client.after_list = lambda: mark(api, "b", 6) if renewed else api.patch("default", "b", other)
    await one.lead()
    assert labelled(api) == (["a", "b"] if renewed else ["a"])
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_pod_that_is_deleted_after_it_was_listed_is_no_failure(api: PodApi, caplog: pytest.LogCaptureFixture):
    mark(api, "b", 4)
    one = Candidate(api)
    one.client.after_list = lambda: api.delete("default", "b")
    await one.lead()
    await one.election.shutdown()
    assert not lines(caplog, "pod_label_failed")


@ON_VIRTUAL_TIME
async def test_the_label_of_an_earlier_term_that_appears_later_is_removed_within_one_interval(api: PodApi):
    """A frozen leader may send its patch after it runs again, and be killed before it removes it."""
    one = Candidate(api)
    await one.lead()
    mark(api, "b", 4)
    await until(lambda: labelled(api) == ["a"], 5.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_the_newer_label_of_another_process_in_the_same_pod_is_neither_replaced_nor_removed(
    api: PodApi, caplog: pytest.LogCaptureFixture
):
    one = Candidate(api)
    await one.lead()
    mark(api, "a", 6, "1-1")
    await asyncio.sleep(20)
    assert one.term == ("6", "1-1")
    assert lines(caplog, "other_label_found")
    await one.election.shutdown()
    assert one.term == ("6", "1-1")


@ON_VIRTUAL_TIME
async def test_a_store_without_tokens_labels_its_own_pod_alone(api: PodApi):
    mark(api, "b", 4)
    one = Candidate(api, token=None)
    await one.lead()
    assert one.term == (None, this_process())
    await asyncio.sleep(11)
    assert labelled(api) == ["a", "b"]
    await one.election.shutdown()
    assert labelled(api) == ["b"]


@ON_VIRTUAL_TIME
async def test_two_candidates_hand_the_label_over(api: PodApi):
    loop = asyncio.get_running_loop()
    elections = []
    for name in ("a", "b"):
        api.create("default", name)
        label = PodLabel(LABEL, pod=name, namespace="default", client=ModelClient(api), environ={})
        backend = RecordBackend(MemoryStore("labelled"), lease_s=3.0, identity=name, clock=loop.time)
        election = Election(backend, clock=loop.time, health_interval_s=1.0)
        label.watch(election)
        elections.append(election)
    first, second = elections
    await first.start()
    await until(lambda: labelled(api) == ["a"])
    await second.start()
    for leader, follower, name in ((first, second, "b"), (second, first, "a"), (first, second, "b")):
        assert not follower.is_leader
        await leader.step_down()
        await until(lambda name=name: labelled(api) == [name], 2.0)  # type: ignore[misc]
    await first.shutdown()
    await second.shutdown()
    assert labelled(api) == []


# --- Failures --------------------------------------------------------------------------------------------------------


@ON_VIRTUAL_TIME
async def test_without_list_it_says_so_once_and_keeps_its_own_pod_right(api: PodApi, caplog: pytest.LogCaptureFixture):
    mark(api, "b", 4)
    one = Candidate(api)
    one.client.forbidden = {"list"}
    await one.lead()
    one.client.asked.clear()
    await asyncio.sleep(50)
    assert one.client.verbs == ["get"] * 10
    await asyncio.sleep(500)
    (line,) = lines(caplog, "pod_list_forbidden")
    assert "verb 'list' on pods" in str(line["error"])
    assert not lines(caplog, "pod_label_failed")
    api.patch("default", "a", {"metadata": {"labels": {KEY: None}}})
    await until(lambda: one.is_labelled, 5.1)
    one.client.forbidden = set()  # an operator allows it
    await until(lambda: labelled(api) == ["a"], 66)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("verb", ["get", "patch"])
async def test_a_missing_permission_is_named_once_a_minute_and_tried_again(
    api: PodApi, caplog: pytest.LogCaptureFixture, verb: str
):
    one = Candidate(api)
    one.client.forbidden = {verb}
    await one.election.start()
    await asyncio.sleep(59)
    assert one.election.is_leader
    (line,) = lines(caplog, "pod_label_failed")
    assert "Role in namespace default with verb" in str(line["error"])
    assert f"verb {verb!r} on pods (needed: get, patch;" in str(line["error"])
    assert 8 < one.client.verbs.count(verb) < 15  # after 0.25 s, 0.5 s, 1 s and so on, up to 10 s
    one.client.forbidden = set()
    await until(lambda: one.is_labelled, 10.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("broken", [("list", LABEL), ("patch", "b")], ids=["list", "patch"])
async def test_what_fails_with_other_pods_is_tried_again_and_leaves_our_own_label(
    api: PodApi, caplog: pytest.LogCaptureFixture, broken: tuple[str, str]
):
    mark(api, "b", 4)
    one = Candidate(api)
    one.client.broken = {broken}
    await one.election.start()
    await until(lambda: one.is_labelled, 1.0)
    await asyncio.sleep(30)
    assert labelled(api) == ["a", "b"]
    assert "the API server is not well" in str(lines(caplog, "pod_label_failed")[0]["error"])
    one.client.broken = set()
    await until(lambda: labelled(api) == ["a"], 10.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("fault", ["is_away", "hangs"])
async def test_an_api_server_that_is_away_in_a_term_costs_the_election_nothing(
    api: PodApi, fault: str, caplog: pytest.LogCaptureFixture
):
    one = Candidate(api)
    await one.lead()
    setattr(one.client, fault, True)
    api.patch("default", "a", {"metadata": {"labels": {KEY: None}}})
    before = len(one.heard.renewals)
    await asyncio.sleep(600)
    assert len(one.heard.renewals) - before == 120
    assert one.heard.kinds.count(EventKind.CALLBACK_FAILED) == 0
    assert len(lines(caplog, "pod_label_failed")) == 1  # of a minute of real time
    setattr(one.client, fault, False)
    await until(lambda: one.is_labelled, 12.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_term_that_ended_while_the_api_server_was_away_is_withdrawn_when_it_is_back(api: PodApi):
    one = Candidate(api)
    await one.lead()
    one.backend.defaults["try_acquire"] = None
    one.client.is_away = True
    await one.election.step_down()
    await asyncio.sleep(100)
    assert one.is_labelled  # outdated, as promised
    one.client.is_away = False
    await until(lambda: not one.is_labelled, 10.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_slow_api_server_delays_neither_a_release_nor_a_loss(api: PodApi):
    loop = asyncio.get_running_loop()
    one = Candidate(api)
    await one.lead()
    one.client.hangs = True
    await until(lambda: one.client.verbs[-1] == "list cached")  # in flight
    one.backend.scripts["try_acquire"] = [None]
    asked_at = loop.time()
    await one.election.step_down()
    assert loop.time() - asked_at < 0.001
    assert one.backend.times("release") == [pytest.approx(asked_at, abs=0.001)]
    await until(lambda: one.election.is_leader)
    one.backend.scripts["try_acquire"] = [None]
    lost_at = loop.time()
    one.lose()
    await until(lambda: not one.election.is_leader)
    assert loop.time() - lost_at < 0.02
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("timeout_s", [None, 0.3])
async def test_a_shutdown_returns_within_a_second_and_the_lock_is_free_before(
    api: PodApi, caplog: pytest.LogCaptureFixture, timeout_s: float | None
):
    loop = asyncio.get_running_loop()
    one = Candidate(api)
    await one.lead()
    one.client.hangs = True
    asked_at = loop.time()
    await one.election.shutdown(timeout_s)
    assert loop.time() - asked_at == pytest.approx(1.0 if timeout_s is None else 0.3, abs=0.25)
    assert one.backend.times("release") == [pytest.approx(asked_at, abs=0.001)]
    assert len(lines(caplog, "pod_label_left")) == 1
    assert EventKind.CALLBACK_FAILED not in one.heard.kinds
    await asyncio.sleep(10)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@ON_VIRTUAL_TIME
async def test_the_end_of_a_term_does_not_wait_for_a_list_that_gets_no_answer(api: PodApi):
    one = Candidate(api)
    await one.lead()
    one.client.hangs = True
    await until(lambda: one.client.verbs[-1] == "list cached")
    one.client.hangs = False
    one.backend.scripts["try_acquire"] = [None]
    await one.election.step_down()
    await until(lambda: not one.is_labelled, 0.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize("error", [RuntimeError("a bug of a user's client"), TimeoutError(), KeyError("x")], ids=repr)
async def test_an_error_of_any_kind_stays_here(api: PodApi, caplog: pytest.LogCaptureFixture, error: Exception):
    one = Candidate(api)
    one.client.raises = error
    await one.election.start()
    await asyncio.sleep(30)
    assert one.election.is_leader
    assert lines(caplog, "pod_label_failed")
    one.client.raises = None
    await until(lambda: one.is_labelled, 10.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("get", {}),
        ("get", {"metadata": "x"}),
        ("get", {"metadata": {"name": "a", "labels": "x"}}),
        ("list", {"items": "x"}),
        ("list", {"items": ["x"]}),
    ],
)
async def test_an_answer_that_is_no_pod_is_a_failure_and_nothing_is_written(
    api: PodApi, caplog: pytest.LogCaptureFixture, verb: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    one = Candidate(api)

    async def nonsense(*_: Any, **__: Any) -> dict[str, Any]:
        return answer

    monkeypatch.setattr(one.client, verb, nonsense)
    await one.election.start()
    await asyncio.sleep(1)
    (line,) = lines(caplog, "pod_label_failed")
    assert "the API server answered with" in str(line["error"])
    assert one.is_labelled is (verb == "list")
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_pod_that_is_not_there_is_named_with_what_to_set(api: PodApi, caplog: pytest.LogCaptureFixture):
    one = Candidate(api)
    api.delete("default", "a")
    await one.election.start()
    await asyncio.sleep(1)
    (line,) = lines(caplog, "pod_label_failed")
    assert "there is no pod default/a: set POD_NAME from metadata.name" in str(line["error"])
    api.create("default", "a")
    await until(lambda: one.is_labelled, 10.1)
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_pod_of_the_same_name_that_was_made_anew_is_not_ours(api: PodApi, caplog: pytest.LogCaptureFixture):
    one = Candidate(api)
    await one.lead()
    api.delete("default", "a")
    api.create("default", "a")
    await asyncio.sleep(30)
    assert not one.is_labelled
    assert "was deleted and created again" in str(lines(caplog, "pod_label_failed")[0]["error"])
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_pod_that_changes_all_the_time_is_tried_again_later(api: PodApi, caplog: pytest.LogCaptureFixture):
    one = Candidate(api)
    real, conflicts = one.client.patch, list[int]()

    async def patch(namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        if len(conflicts) < 7:
            conflicts.append(1)
            api.patch("default", "a", {"metadata": {"annotations": {"kubelet": str(len(conflicts))}}})
        return await real(namespace, name, change)

    one.client.patch = patch  # type: ignore[method-assign]
    await one.election.start()
    await until(lambda: one.is_labelled, 1.0)
    (line,) = lines(caplog, "pod_label_failed")
    assert "was modified concurrently, 5 times in a row" in str(line["error"])
    await one.election.shutdown()


@ON_VIRTUAL_TIME
async def test_a_leader_that_stood_still_does_not_label_its_pod_before_it_learns_of_its_loss(api: PodApi):
    """Its event comes later than its validity ended: is_leader is asked before each patch."""
    one = Candidate(api)
    loop = asyncio.get_running_loop()
    one.backend.scripts["try_acquire"] = [Grant(5, trusted_until=loop.time() + 3.0, lost_at=loop.time() + 2.0)]
    answered: asyncio.Future[None] = loop.create_future()
    real = one.client.get

    async def get(namespace: str, name: str) -> dict[str, Any]:
        found = await real(namespace, name)
        await answered
        return found

    one.client.get = get  # type: ignore[method-assign]
    heard: list[Event] = []
    one.election.subscribe(heard.append)
    await one.election.start()
    await until(lambda: any(event.kind is EventKind.ACQUIRED for event in heard))
    one.election._grant = Grant(5, trusted_until=loop.time() - 1.0)  # as after a freeze
    answered.set_result(None)
    await settled()
    assert not one.is_labelled
    assert "patch" not in one.client.verbs
    await one.election.shutdown()


async def test_a_loop_that_ends_removes_the_label_first(api: PodApi):
    """asyncio.run() cancels all tasks at its end, ours too; the election then notifies its listeners."""
    one = Candidate(api, clock=asyncio.get_running_loop().time)
    await one.lead()
    assert one.label._task is not None
    one.label._task.cancel()
    await asyncio.sleep(0)
    await one.election.shutdown()
    assert not one.is_labelled


# --- How it is used --------------------------------------------------------------------------------------------------


async def test_a_lock_is_watched_once_and_before_it_is_started(api: PodApi):
    label = PodLabel(LABEL, pod="a", namespace="default", client=ModelClient(api), environ={})
    with pytest.raises(TypeError, match="lock must be a lock or an election, not str"):
        label.watch("lock")  # type: ignore[arg-type]
    running, _, _ = make_election()
    await running.start()
    with pytest.raises(
        ValueError, match="watch it with the pod label pgleaderlock/leader=billing before it is started"
    ):
        label.watch(running)
    await running.shutdown()
    label.watch(running)
    with pytest.raises(ValueError, match="watches a lock already"):
        label.watch(make_election()[0])


def test_the_blocking_api_is_watched_too(tmp_path: Any):
    async def serve(call: Callable[[FakeKubernetes], Awaitable[None]]) -> None:
        async with FakeKubernetes() as server:
            server.pods.create("default", "a")
            await call(server)

    def lead(server: FakeKubernetes) -> None:
        config = server.write_kubeconfig(tmp_path / "config")
        label = PodLabel(LABEL, environ={"KUBECONFIG": str(config), "POD_NAME": "a"})
        election = sync.Election(RecordBackend(MemoryStore("blocking"), lease_s=3.0))
        label.watch(election)
        with election:
            assert election.wait_for_leadership(20)
            deadline = 2000
            while labelled(server.pods) != ["a"] and (deadline := deadline - 1):
                election.wait_for_leadership(0.01)
            assert labelled(server.pods) == ["a"]
        assert labelled(server.pods) == []

    asyncio.run(serve(lambda server: asyncio.to_thread(lead, server)))


async def test_over_http_the_requests_are_those_of_the_api(tmp_path: Any, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with FakeKubernetes() as server:
        server.pods.create("default", "a")
        mark(server.pods, "b", 4)
        config = server.write_kubeconfig(tmp_path / "config")
        label = PodLabel(LABEL, environ={"KUBECONFIG": str(config), "POD_NAME": "a"})
        backend = ScriptedBackend()
        backend.defaults["try_acquire"] = Grant(5)
        election = Election(backend)
        label.watch(election)
        async with election:
            await until(lambda: labelled(server.pods) == ["a"])
        assert labelled(server.pods) == []
        assert server.asked == ["get pods", "patch pods", "list pods", "patch pods", "patch pods"]
    assert [record.event for record in caplog.records if "label" in getattr(record, "event", "")] == [  # type: ignore[attr-defined]
        "pod_labelled",
        "earlier_label_removed",
        "pod_unlabelled",
    ]
    (line,) = lines(caplog, "pod_labelled")
    assert (line["pod"], line["label"], line["token"]) == ("default/a", LABEL, 5)


async def test_over_http_a_missing_permission_is_explained(tmp_path: Any, caplog: pytest.LogCaptureFixture):
    async with FakeKubernetes() as server:
        server.pods.create("default", "a")
        server.forbidden = {"get pods"}
        config = server.write_kubeconfig(tmp_path / "config")
        label = PodLabel(LABEL, environ={"KUBECONFIG": str(config), "POD_NAME": "a"})
        election = Election(ScriptedBackend())
        label.watch(election)
        async with election:
            await until(lambda: bool(lines(caplog, "pod_label_failed")))
    text = str(lines(caplog, "pod_label_failed")[0]["error"])
    assert text.startswith("cannot get pod default/a: RBAC does not allow it. Give our account a Role in namespace")
    assert 'User "me" cannot get resource "pods" in API group ""' in text


# --- Where this process runs -----------------------------------------------------------------------------------------


def own(environ: dict[str, str], **arguments: Any) -> tuple[str, str]:
    found = find_own_pod(arguments.get("pod"), arguments.get("namespace"), arguments.get("client"), environ, 2.0)
    return found.namespace, found.name


def kubeconfig(tmp_path: Any, namespace: str | None = "jobs") -> str:
    server = FakeKubernetes()
    server._port = 6443  # it is not asked
    return str(server.write_kubeconfig(tmp_path / "config", namespace=namespace or ""))


def test_the_pod_is_that_of_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    config = {"KUBECONFIG": kubeconfig(tmp_path)}
    assert own({**config, "POD_NAME": "a"}) == ("jobs", "a")
    assert own({**config, "POD_NAME": "a", "POD_NAMESPACE": "other"}) == ("other", "a")
    assert own({**config, "POD_NAME": "a"}, pod="b", namespace="mine") == ("mine", "b")
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    assert own({**config, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == ("jobs", "worker-7")
    assert own({"POD_NAME": "a", "POD_NAMESPACE": "x"}, client=ModelClient(PodApi())) == ("x", "a")


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({}, "KUBERNETES_SERVICE_HOST and POD_NAME are not set. In a pod, set POD_NAME from metadata.name"),
        ({"POD_NAME": "a"}, "found no Kubernetes to talk to: KUBERNETES_SERVICE_HOST is not set"),
        ({"POD_NAME": "a", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "belongs to this pod's service account"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "belongs to this pod's service account"),
    ],
    ids=["no pod", "no server", "no service account", "no service account, by host name"],
)
def test_outside_a_pod_it_is_refused_with_what_is_missing(tmp_path: Any, environ: dict[str, str], missing: str):
    with pytest.raises(ValueError, match="the pod label needs the pod of this process") as caught:
        PodLabel(LABEL, environ={**environ, "HOME": str(tmp_path)})
    assert missing in str(caught.value)


def test_a_namespace_that_is_not_known_is_refused(tmp_path: Any):
    environ = {"KUBECONFIG": kubeconfig(tmp_path, None), "POD_NAME": "a"}
    with pytest.raises(ValueError, match=r"its namespace is not known: set POD_NAMESPACE from metadata\.namespace"):
        PodLabel(LABEL, environ=environ)


@pytest.mark.parametrize("label", ["leader", "a=b c", "A/b=x"])
def test_a_wrong_label_is_refused_when_it_is_made(label: str):
    with pytest.raises(ValueError, match="pod label"):
        PodLabel(label, pod="a", namespace="default", client=ModelClient(PodApi()), environ={})
    with pytest.raises(ValueError, match="request_timeout_s"):
        PodLabel(LABEL, pod="a", namespace="x", client=ModelClient(PodApi()), environ={}, request_timeout_s=0)
