"""Metrics of elections: counted on virtual time, scraped over real HTTP."""

import asyncio
import importlib
import math
import sys
import threading
import time
import urllib.request
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import pgleaderlock
from pgleaderlock import ConnectionError, Election, Event, EventKind, LeadershipLost, LockState
from pgleaderlock.errors import MissingExtra
from pgleaderlock.models import Grant, LossCause
from pgleaderlock.ops._measures.tally import BUCKETS_S, Tally
from pgleaderlock.ops.metrics import Metrics, _families, serve_metrics
from tests.support.doubles import HANG, ScriptedBackend, make_election, until_state
from tests.support.missing_packages import without_packages

HERE: dict[str, Any] = {"role": "scheduler", "node": "host-1"}
DOWN = ConnectionError("the server is down", cause=LossCause.CONNECTION_LOST)
TAKEN = LeadershipLost("another has it", cause=LossCause.HELD_BY_ANOTHER)
NAMES = {
    "is_leader",
    "is_heir",
    "time_left_seconds",
    "tenure_seconds",
    "elections_total",
    "failovers_total",
    "losses_total",
    "leaderless_seconds_total",
    "renew_seconds_bucket",
    "renew_seconds_count",
    "renew_seconds_sum",
    "callback_errors_total",
    "work_failures_total",
    "work_overruns_total",
    "info",
}


class Seen:
    """The samples of one registry, by the short names of metrics, for one role and node."""

    def __init__(self, registry: CollectorRegistry, prefix: str = "pgleaderlock", **labels: str) -> None:
        self._registry, self._prefix, self._labels = registry, prefix, labels or HERE

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"{self._prefix}_leader_{name}", {**self._labels, **labels})


def watch_one(backend: ScriptedBackend | None = None, **settings: Any) -> tuple[Election, ScriptedBackend, Seen]:
    """Return an election on a double that is watched, its store, and what a scrape shows of it."""
    election, backend, _ = make_election(backend, **settings)
    registry = CollectorRegistry()
    clock = settings.get("clock", asyncio.get_running_loop().time)
    Metrics(registry=registry).watch(election, **HERE, clock=clock)
    return election, backend, Seen(registry)


def get(port: int, accept: str = "text/plain", host: str = "127.0.0.1") -> str:
    request = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


# --- Names ------------------------------------------------------------------------------------------------------------


def restless_election() -> Election:
    return Election(ScriptedBackend())


def test_every_name_begins_with_the_prefix_exactly():
    registry = CollectorRegistry()
    Metrics("forge", registry).watch(restless_election(), **HERE)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {f"forge_leader_{name}" for name in NAMES}


def test_every_cause_has_a_series_from_the_start_so_that_the_first_loss_is_an_increase():
    tally = Tally(LockState.STOPPED, 0.0)
    assert tally.read(0.0, leads=False).losses == dict.fromkeys(LossCause, 0)
    tally.hear(Event(EventKind.LOST, LockState.LEADER, LockState.FOLLOWER, LossCause.SERVER_RESTART, 1.0))
    assert {cause for cause, count in tally.read(1.0, leads=False).losses.items() if count} == {
        LossCause.SERVER_RESTART
    }


def test_the_default_prefix_and_the_default_registry_are_the_obvious_ones():
    metrics = Metrics()
    try:
        metrics.watch(restless_election(), **HERE)
        assert REGISTRY.get_sample_value("pgleaderlock_leader_is_leader", HERE) == 0
    finally:
        REGISTRY.unregister(metrics)
    assert REGISTRY.get_sample_value("pgleaderlock_leader_is_leader", HERE) is None


def test_the_version_is_a_label():
    registry = CollectorRegistry()
    Metrics(registry=registry).watch(restless_election(), **HERE)
    assert Seen(registry)("info", version=pgleaderlock.__version__) == 1


def test_sources_that_are_not_installed_have_no_version_and_are_no_error(monkeypatch):
    def not_installed(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_families, "version", not_installed)
    assert _families._own_version.__wrapped__() == "unknown"


@pytest.mark.parametrize("prefix", ["9forge", "for-ge", "forge:", "forge ", "förge", "forge\n"])
def test_a_prefix_that_prometheus_could_not_name_is_refused(prefix):
    with pytest.raises(ValueError, match="prefix must be letters"):
        Metrics(prefix, CollectorRegistry())


def test_two_collectors_of_one_prefix_do_not_fit_into_one_registry_and_two_prefixes_do():
    registry = CollectorRegistry()
    Metrics("forge", registry)
    Metrics("anvil", registry)
    with pytest.raises(ValueError, match="forge_leader_is_leader"):
        Metrics("forge", registry)


def test_a_metric_of_the_same_name_from_elsewhere_is_noticed():
    registry = CollectorRegistry()
    Metrics("forge", registry)
    with pytest.raises(ValueError, match="forge_leader_elections"):
        Counter("forge_leader_elections", "mine", registry=registry)


def test_a_scrape_may_ask_for_one_name_only():
    registry = CollectorRegistry()
    Metrics("forge", registry).watch(restless_election(), **HERE)
    text = generate_latest(registry.restricted_registry(["forge_leader_elections_total"])).decode()
    assert {name for name, _ in samples_of(text)} == {"forge_leader_elections_total"}


# --- Watching ---------------------------------------------------------------------------------------------------------


def test_the_same_role_of_the_same_node_is_watched_once():
    metrics = Metrics(registry=CollectorRegistry())
    metrics.watch(restless_election(), role="a", node="1")
    metrics.watch(restless_election(), role="a", node="2")
    metrics.watch(restless_election(), role="b", node="1")
    with pytest.raises(ValueError, match="role 'a' of node '1' is watched already"):
        metrics.watch(restless_election(), role="a", node="1")


def test_what_is_unwatched_is_gone_and_its_labels_are_free():
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    metrics.watch(restless_election(), **HERE)
    metrics.unwatch(**HERE)
    assert Seen(registry)("is_leader") is None
    with pytest.raises(ValueError, match="is not watched"):
        metrics.unwatch(**HERE)
    metrics.watch(restless_election(), **HERE)
    assert Seen(registry)("is_leader") == 0


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ({"role": "", "node": "1"}, ValueError),
        ({"role": "a", "node": ""}, ValueError),
        ({"role": "a", "node": 1}, TypeError),
        ({"role": None, "node": "1"}, TypeError),
    ],
)
def test_labels_are_words(labels, error):
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    with pytest.raises(error, match=r"role|node"):
        metrics.watch(restless_election(), **labels)
    assert b'role="' not in generate_latest(registry)


def test_only_elections_can_be_watched():
    not_one: Any = "scheduler"
    with pytest.raises(TypeError, match="election must be an Election, not str"):
        Metrics(registry=CollectorRegistry()).watch(not_one, **HERE)


@pytest.mark.virtual_time
async def test_two_elections_are_counted_apart():
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    leads, _, _ = make_election()
    waits, waiting_store, _ = make_election()
    waiting_store.defaults["try_acquire"] = None
    clock = asyncio.get_running_loop().time
    metrics.watch(leads, role="scheduler", node="a", clock=clock)
    metrics.watch(waits, role="cleaner", node="a", clock=clock)
    scheduler, cleaner = Seen(registry, role="scheduler", node="a"), Seen(registry, role="cleaner", node="a")
    async with leads, waits:
        await asyncio.sleep(5)
        assert (scheduler("is_leader"), cleaner("is_leader")) == (1, 0)
        assert (scheduler("elections_total"), cleaner("elections_total")) == (1, 3)
        assert (scheduler("tenure_seconds"), cleaner("tenure_seconds")) == (5, 0)


@pytest.mark.virtual_time
async def test_election_that_is_watched_late_is_counted_from_then_on():
    election, backend, _ = make_election(health_interval_s=3.0)
    backend.scripts["renew"] = [Grant(), DOWN]
    registry = CollectorRegistry()
    seen = Seen(registry)
    async with election:
        await election.wait_for_leadership()
        await asyncio.sleep(1)
        Metrics(registry=registry).watch(election, **HERE, clock=asyncio.get_running_loop().time)
        await asyncio.sleep(2)
        assert (seen("is_leader"), seen("tenure_seconds"), seen("elections_total")) == (1, 2, 0)
        await asyncio.sleep(6)  # lost at 6.0, led again at once
        assert (seen("tenure_seconds"), seen("elections_total"), seen("failovers_total")) == (3, 1, 1)


@pytest.mark.virtual_time
async def test_a_listener_that_comes_late_does_not_take_the_first_leader_for_a_second():
    election, _, _ = make_election()
    registry = CollectorRegistry()

    @election.on_state_change
    async def hold_up(from_state: LockState, to_state: LockState) -> None:
        if to_state is LockState.LEADER:
            await asyncio.sleep(5)

    async with election:
        await until_state(election, LockState.LEADER)
        Metrics(registry=registry).watch(election, **HERE, clock=asyncio.get_running_loop().time)
        await election.wait_for_leadership()  # only now its on_acquired is called
        assert Seen(registry)("failovers_total") == 0
        assert Seen(registry)("tenure_seconds") == asyncio.get_running_loop().time()


# --- Gauges that depend on the clock ----------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_is_leader_is_one_on_the_leader_and_zero_on_all_others():
    election, _, seen = watch_one()
    assert seen("is_leader") == 0
    async with election:
        await election.wait_for_leadership()
        assert seen("is_leader") == 1
    assert seen("is_leader") == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize(("place", "is_heir"), [("heir", 1), ("next heir", 0), ("", 0)])
async def test_the_heir_is_one_and_a_leader_is_no_heir(place: str, is_heir: int):
    class Placed(ScriptedBackend):
        @property
        def place(self) -> str:
            return place

    election, _, seen = watch_one(Placed())
    assert (seen("is_heir"), seen("is_leader")) == (is_heir, 0)
    async with election:
        await election.wait_for_leadership()
        assert (seen("is_heir"), seen("is_leader")) == (0, 1)


@pytest.mark.virtual_time
async def test_tenure_is_the_age_of_the_term_and_a_new_term_is_young():
    election, _, seen = watch_one()
    async with election:
        await asyncio.sleep(7)
        assert seen("tenure_seconds") == 7
        await election.step_down()
        assert seen("tenure_seconds") == 0
        await asyncio.sleep(5)  # two of them are the retry delay
        assert seen("tenure_seconds") == 3
    assert seen("tenure_seconds") == 0


@pytest.mark.virtual_time
async def test_tenure_counts_from_the_begin_of_the_term_and_not_from_the_delivery_of_the_event():
    election, _, _ = make_election()
    registry = CollectorRegistry()

    @election.on_acquired
    async def hold_up() -> None:
        await asyncio.sleep(10)

    Metrics(registry=registry).watch(election, **HERE, clock=asyncio.get_running_loop().time)
    async with election:
        await asyncio.sleep(5)
        assert Seen(registry)("leaderless_seconds_total") == 0  # it leads, whatever was not delivered yet
        await asyncio.sleep(10)
        assert Seen(registry)("tenure_seconds") == 15
        assert Seen(registry)("leaderless_seconds_total") == 0


@pytest.mark.virtual_time
async def test_the_time_left_runs_down_and_is_renewed():
    backend = ScriptedBackend(try_acquire=[Grant(trusted_until=9.0)], renew=[Grant(trusted_until=12.0)])
    election, _, seen = watch_one(backend, health_interval_s=3.0)
    async with election:
        await asyncio.sleep(2)
        assert seen("time_left_seconds") == 7
        await asyncio.sleep(2)
        assert seen("time_left_seconds") == 8


@pytest.mark.virtual_time
@pytest.mark.slow
async def test_where_nothing_enforces_a_lease_the_time_left_is_infinite_and_can_be_scraped():
    election, _, seen = watch_one()
    async with election:
        await election.wait_for_leadership()
        assert seen("time_left_seconds") == math.inf
        text = generate_latest(seen._registry).decode()
        assert 'pgleaderlock_leader_time_left_seconds{node="host-1",role="scheduler"} +Inf' in text
        assert samples_of(text)["pgleaderlock_leader_time_left_seconds", frozenset(HERE.items())] == math.inf


async def test_a_frozen_event_loop_does_not_show_a_leader_past_its_trust():
    now = [100.0]
    clock = lambda: now[0]
    backend = ScriptedBackend(try_acquire=[Grant(trusted_until=113.5, lost_at=110.0)])
    election, _, _ = make_election(backend, clock=clock)
    registry = CollectorRegistry()
    Metrics(registry=registry).watch(election, **HERE, clock=clock)
    shown: list[tuple[float, ...]] = []

    def scrape(port: int) -> None:
        for now[0] in (113.4, 113.5, 200.0):
            found = samples_of(get(port))
            names = ("is_leader", "time_left_seconds", "tenure_seconds")
            shown.append(tuple(found[f"pgleaderlock_leader_{name}", frozenset(HERE.items())] for name in names))

    with serve_metrics(0, registry=registry) as server:
        async with election:
            await election.wait_for_leadership()
            scraper = threading.Thread(target=scrape, args=(server.port,))
            scraper.start()
            scraper.join()  # on purpose: the loop stands still, and no event can be delivered
            assert election.state is LockState.LEADER
    assert shown == [(1, pytest.approx(0.1), pytest.approx(13.4)), (0, 0, 0), (0, 0, 0)]


# --- Attempts, failovers, losses --------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_every_entry_into_acquiring_is_an_attempt():
    election, _, seen = watch_one(ScriptedBackend(try_acquire=[None, None, DOWN, Grant()]))
    async with election:
        await election.wait_for_leadership()
        assert seen("elections_total") == 4


@pytest.mark.virtual_time
async def test_an_attempt_that_did_not_get_as_far_as_to_ask_is_none():
    election, _, seen = watch_one(ScriptedBackend(open=[DOWN, DOWN]))
    async with election:
        await election.wait_for_leadership()
        assert seen("elections_total") == 1


@pytest.mark.virtual_time
async def test_the_first_leader_is_no_failover():
    election, _, seen = watch_one()
    async with election:
        await election.wait_for_leadership()
        assert seen("failovers_total") == 0


@pytest.mark.virtual_time
async def test_first_term_after_another_leader_is_one_failover_however_often_the_follower_was_refused():
    election, _, seen = watch_one(ScriptedBackend(try_acquire=[None, None, None]))
    async with election:
        await asyncio.sleep(3)
        assert seen("failovers_total") == 0
        await election.wait_for_leadership()
        assert seen("failovers_total") == 1


@pytest.mark.virtual_time
async def test_an_attempt_that_ended_in_an_error_says_nothing_of_an_earlier_leader():
    election, _, seen = watch_one(ScriptedBackend(try_acquire=[DOWN, DOWN]))
    async with election:
        await election.wait_for_leadership()
        assert seen("failovers_total") == 0


@pytest.mark.virtual_time
async def test_following_oneself_is_a_failover():
    election, backend, seen = watch_one(health_interval_s=3.0)
    backend.scripts["renew"] = [DOWN]
    async with election:
        await asyncio.sleep(4)
        assert (seen("is_leader"), seen("failovers_total")) == (1, 1)


@pytest.mark.virtual_time
async def test_each_change_of_leader_is_counted_once_over_all_nodes():
    """Three nodes, one lock, and a leader that steps down again and again."""
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    owner: list[int] = []
    terms: list[int] = []

    class OneLock(ScriptedBackend):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        async def try_acquire(self) -> Grant | None:
            if owner:
                return None
            owner.append(self.number)
            terms.append(self.number)
            return Grant()

        async def release(self, grant: Grant) -> None:
            owner.clear()

        async def close(self) -> None:
            if owner == [self.number]:
                owner.clear()

    elections = [make_election(OneLock(number))[0] for number in range(3)]
    for number, election in enumerate(elections):
        metrics.watch(election, role="scheduler", node=str(number), clock=asyncio.get_running_loop().time)
        await election.start()
    for _ in range(10):
        await asyncio.sleep(7)
        await elections[owner[0]].step_down()
    await asyncio.sleep(7)
    for election in elections:
        await election.shutdown()
    each = [Seen(registry, role="scheduler", node=str(number))("failovers_total") for number in range(3)]
    assert len(set(terms)) > 1
    assert sum(count or 0 for count in each) == len(terms) - 1 >= 10


@pytest.mark.virtual_time
async def test_a_recovery_within_grace_is_no_failover_no_loss_no_attempt_and_no_new_term():
    election, backend, seen = watch_one(health_interval_s=3.0, reconnect_grace_s=10.0)
    backend.scripts.update(renew=[DOWN], try_acquire=[Grant(), DOWN])
    async with election:
        await asyncio.sleep(4)
        assert (seen("is_leader"), seen("tenure_seconds")) == (0, 0)  # it is reconnecting
        await asyncio.sleep(4)
        assert (seen("is_leader"), seen("tenure_seconds")) == (1, 8)
        assert (seen("failovers_total"), seen("elections_total")) == (0, 1)
        assert seen("losses_total", cause="connection_lost") == 0


@pytest.mark.virtual_time
async def test_losses_are_counted_by_cause():
    election, backend, seen = watch_one(health_interval_s=3.0)
    backend.scripts["renew"] = [DOWN, Grant(), DOWN, TAKEN]
    async with election:
        await asyncio.sleep(20)
    assert seen("losses_total", cause="connection_lost") == 2
    assert seen("losses_total", cause="held_by_another") == 1


@pytest.mark.virtual_time
async def test_an_attempt_that_failed_is_no_loss_and_neither_is_a_release():
    election, _, seen = watch_one(ScriptedBackend(try_acquire=[DOWN, Grant()]))
    async with election:
        await election.wait_for_leadership()
        await election.step_down()
        await election.wait_for_leadership()
    assert all(seen("losses_total", cause=cause.value) == 0 for cause in LossCause)


@pytest.mark.virtual_time
async def test_an_election_that_is_started_again_goes_on_counting():
    election, _, seen = watch_one()
    async with election:
        await asyncio.sleep(3)
    await asyncio.sleep(100)
    assert (seen("is_leader"), seen("tenure_seconds"), seen("elections_total")) == (0, 0, 1)
    async with election:
        await asyncio.sleep(4)
        assert (seen("is_leader"), seen("tenure_seconds"), seen("elections_total")) == (1, 4, 2)
        assert seen("failovers_total") == 1
    assert seen("leaderless_seconds_total") == 0


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (EventKind.LOST, LossCause.STALLED),
        (EventKind.RELEASED, "release_succeeded"),
        (EventKind.STOPPED, "stop_requested"),
    ],
)
def test_new_term_whose_event_is_not_delivered_yet_has_not_the_age_of_the_last(end, cause):
    tally = Tally(LockState.STOPPED, 0.0)
    tally.hear(Event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", 1.0))
    tally.hear(Event(end, LockState.RELEASING, LockState.FOLLOWER, cause, 5.0))
    assert tally.read(9.0, leads=True).tenure_s == 0


def test_term_whose_end_was_not_reported_is_over_with_the_next_start():
    """As when an event loop was closed under a leader."""
    tally = Tally(LockState.STOPPED, 0.0)
    tally.hear(Event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", 1.0))
    assert tally.read(5.0, leads=True).tenure_s == 4
    tally.hear(Event(EventKind.STATE_CHANGE, LockState.STOPPED, LockState.FOLLOWER, "start", 50.0))
    assert tally.read(51.0, leads=True).tenure_s == 0
    tally.hear(Event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", 51.0))
    assert (tally.read(53.0, leads=True).tenure_s, tally.read(53.0, leads=True).failovers) == (2, 1)


# --- Leaderless time --------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_leaderless_time_ends_with_the_first_answer():
    async def slowly() -> None:
        await asyncio.sleep(4)

    election, backend, seen = watch_one(ScriptedBackend(try_acquire=[slowly]))
    backend.defaults["try_acquire"] = None
    async with election:
        await asyncio.sleep(3)
        assert seen("leaderless_seconds_total") == 3
        await asyncio.sleep(20)
        assert seen("leaderless_seconds_total") == 4


@pytest.mark.virtual_time
async def test_leaderless_time_is_counted_between_two_terms():
    election, _, seen = watch_one()
    async with election:
        await asyncio.sleep(5)
        await election.step_down()
        await asyncio.sleep(10)
        assert seen("leaderless_seconds_total") == 2  # the retry delay


@pytest.mark.virtual_time
async def test_a_follower_that_cannot_ask_any_more_knows_of_no_leader():
    election, backend, seen = watch_one(ScriptedBackend(try_acquire=[None, DOWN], open=[None, DOWN, DOWN]))
    backend.defaults["try_acquire"] = None
    async with election:
        await asyncio.sleep(1)
        assert seen("leaderless_seconds_total") == 0
        await asyncio.sleep(20)  # asked in vain at 2, 4 and 6, and refused at 8
        assert seen("leaderless_seconds_total") == 6


@pytest.mark.virtual_time
async def test_a_follower_that_fails_to_open_after_a_refusal_knows_of_no_leader():
    election, backend, seen = watch_one()
    backend.defaults["try_acquire"] = None
    async with election:
        await asyncio.sleep(1)
        backend.is_open = False
        backend.scripts["open"] = [DOWN]
        await asyncio.sleep(20)  # in vain at 2, refused at 4
        assert seen("leaderless_seconds_total") == 2


@pytest.mark.virtual_time
async def test_reconnecting_is_leaderless_until_the_lock_is_back():
    election, backend, seen = watch_one(health_interval_s=3.0, reconnect_grace_s=10.0)
    backend.scripts.update(renew=[DOWN], try_acquire=[Grant(), DOWN])
    async with election:
        await asyncio.sleep(30)
        assert seen("leaderless_seconds_total") == 2


@pytest.mark.virtual_time
async def test_candidate_that_lost_the_lock_to_another_counts_no_leaderless_time():
    election, backend, seen = watch_one(health_interval_s=3.0)
    backend.scripts.update(renew=[TAKEN], try_acquire=[Grant(), HANG])
    async with election:
        await asyncio.sleep(30)
        assert seen("leaderless_seconds_total") == 0
    assert seen("losses_total", cause="held_by_another") == 1


@pytest.mark.virtual_time
async def test_an_election_that_does_not_run_is_not_leaderless():
    election, _, seen = watch_one()
    await asyncio.sleep(10)
    assert seen("leaderless_seconds_total") == 0
    async with election:
        await election.wait_for_leadership()
    await asyncio.sleep(10)
    assert seen("leaderless_seconds_total") == 0


def test_a_counter_that_was_shown_is_not_taken_back_by_news_that_comes_late():
    tally = Tally(LockState.FOLLOWER, 0.0)
    assert tally.read(10.0, leads=False).leaderless_s == 10
    tally.hear(Event(EventKind.ACQUIRE_FAILED, LockState.ACQUIRING, LockState.FOLLOWER, "acquire_failed", 4.0))
    assert tally.read(20.0, leads=False).leaderless_s == 10


def test_late_event_about_a_missing_leader_counts_no_second_twice():
    tally = Tally(LockState.FOLLOWER, 0.0)
    assert tally.read(10.0, leads=False).leaderless_s == 10
    tally.hear(Event(EventKind.ERROR, LockState.ACQUIRING, LockState.FOLLOWER, "db_error", 4.0))
    assert tally.read(20.0, leads=False).leaderless_s == 20


def test_an_attempt_that_failed_is_no_loss():
    tally = Tally(LockState.FOLLOWER, 0.0)
    tally.hear(Event(EventKind.ATTEMPT_FAILED, LockState.ACQUIRING, LockState.FOLLOWER, "db_error", 4.0))
    assert set(tally.read(20.0, leads=False).losses.values()) == {0}


def test_failing_callback_of_a_follower_does_not_count_as_leaderless_time():
    tally = Tally(LockState.FOLLOWER, 0.0)
    tally.hear(Event(EventKind.ACQUIRE_FAILED, LockState.ACQUIRING, LockState.FOLLOWER, "acquire_failed", 0.0))
    tally.hear(Event(EventKind.CALLBACK_FAILED, LockState.FOLLOWER, LockState.ACQUIRING, "callback_failed", 1.0))
    assert tally.read(9.0, leads=False).leaderless_s == 0
    tally.hear(Event(EventKind.ERROR, LockState.FOLLOWER, LockState.FOLLOWER, "db_error", 9.0))
    assert tally.read(10.0, leads=False).leaderless_s == 1


# --- Renewals and callbacks -------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_renewals_are_sorted_by_how_long_they_took():
    def taking(seconds: float):
        async def renew() -> Grant:
            await asyncio.sleep(seconds)
            return Grant()

        return renew

    election, backend, seen = watch_one(health_interval_s=3.0)
    backend.scripts["renew"] = [taking(0.0), taking(0.0625), taking(20.0)]
    async with election:
        await asyncio.sleep(30)
    assert seen("renew_seconds_bucket", le="0.0005") == 1
    assert seen("renew_seconds_bucket", le="0.05") == 1
    assert seen("renew_seconds_bucket", le="0.1") == 2
    assert seen("renew_seconds_bucket", le="15.0") == 2
    assert seen("renew_seconds_bucket", le="+Inf") == seen("renew_seconds_count") == 3
    assert seen("renew_seconds_sum") == pytest.approx(20.0625)


def test_the_end_of_a_bucket_belongs_to_it():
    tally = Tally(LockState.LEADER, 0.0)
    for took_s in BUCKETS_S:
        tally.hear(Event(EventKind.RENEWED, LockState.LEADER, LockState.LEADER, "health_ok", 0.0, took_s=took_s))
    assert tally.read(0.0, leads=True).renewals == (*range(1, 16), 15)


def test_the_buckets_grow_from_half_a_millisecond_to_the_default_lease():
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.0005, 15.0)
    assert all(low < high for low, high in pairwise(BUCKETS_S))


@pytest.mark.virtual_time
async def test_a_renewal_that_failed_took_no_time():
    election, backend, seen = watch_one(health_interval_s=3.0)
    backend.scripts["renew"] = [DOWN]
    async with election:
        await asyncio.sleep(4)
    assert seen("renew_seconds_count") == 0


@pytest.mark.virtual_time
async def test_callbacks_that_raise_are_counted_and_errors_of_the_store_are_not():
    election, _, seen = watch_one(ScriptedBackend(open=[DOWN]))

    @election.on_acquired
    def fail() -> None:
        raise RuntimeError("mine")

    async with election:
        await election.wait_for_leadership()
    assert seen("callback_errors_total") == 1


@pytest.mark.virtual_time
async def test_work_that_fails_or_overruns_is_counted():
    election, _, seen = watch_one(ScriptedBackend())

    @election.while_leader(on_failure="stop")
    async def fail() -> None:
        raise RuntimeError("mine")

    await election.start()
    await until_state(election, LockState.STOPPED)
    assert seen("work_failures_total") == 1
    assert seen("callback_errors_total") == 0

    tally = Tally(LockState.LEADER, 0.0)
    tally.hear(Event(EventKind.OVERRUN, LockState.FOLLOWER, LockState.FOLLOWER, "work_overrun", 1.0))
    assert tally.read(2.0, leads=False).work_overruns == 1


def test_no_event_makes_the_listener_raise_and_each_is_handled_in_microseconds():
    tally = Tally(LockState.STOPPED, 0.0)
    events = [
        Event(kind, source, to, cause, at)
        for kind in EventKind
        for source in LockState
        for to in LockState
        for cause in ((LossCause.UNKNOWN,) if kind is EventKind.LOST else ("db_error", "acquire_attempt"))
        for at in (-1.0, math.inf)
    ]
    began = time.perf_counter()
    for event in events:
        tally.hear(event)
    assert len(events) > 1000
    assert (time.perf_counter() - began) / len(events) < 0.001  # some µs: the rest is for a busy machine


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_a_scrape_over_http_shows_every_metric_with_its_type_and_a_help_text():
    registry = CollectorRegistry()
    Metrics("forge", registry).watch(restless_election(), **HERE)
    with serve_metrics(0, registry=registry) as server:
        families = {family.name: family for family in parse(get(server.port))}
    assert {name: family.type for name, family in families.items()} == {
        "forge_leader_is_leader": "gauge",
        "forge_leader_is_heir": "gauge",
        "forge_leader_time_left_seconds": "gauge",
        "forge_leader_tenure_seconds": "gauge",
        "forge_leader_elections": "counter",
        "forge_leader_failovers": "counter",
        "forge_leader_losses": "counter",
        "forge_leader_leaderless_seconds": "counter",
        "forge_leader_renew_seconds": "histogram",
        "forge_leader_callback_errors": "counter",
        "forge_leader_work_failures": "counter",
        "forge_leader_work_overruns": "counter",
        "forge_leader_info": "gauge",  # the old format has no type of its own for it
        "forge_registry_up": "gauge",
        "forge_registry_dropped_events": "counter",
        "forge_audit_overlaps": "gauge",
    }
    assert all(family.documentation.endswith(".") for family in families.values())


class WatchedRegistry:
    node, is_up, dropped_events, overlaps = "host-1", True, 7, {"scheduler": 0, "mails": 2}


def test_a_registry_shows_whether_it_can_write_and_what_its_history_proves():
    registry = CollectorRegistry()
    Metrics("forge", registry).watch_registry(WatchedRegistry())
    assert registry.get_sample_value("forge_registry_up", {"node": "host-1"}) == 1
    assert registry.get_sample_value("forge_registry_dropped_events_total", {"node": "host-1"}) == 7
    assert registry.get_sample_value("forge_audit_overlaps", {"role": "mails", "node": "host-1"}) == 2
    WatchedRegistry.is_up = False
    assert registry.get_sample_value("forge_registry_up", {"node": "host-1"}) == 0


def test_a_scrape_in_the_openmetrics_format_is_valid_too():
    registry = CollectorRegistry()
    Metrics("forge", registry).watch(restless_election(), **HERE)
    with serve_metrics(0, registry=registry) as server:
        text = get(server.port, accept=openmetrics.CONTENT_TYPE_LATEST)
    assert text.endswith("# EOF\n")
    assert "forge_leader_info" in {sample.name for family in parse_openmetrics(text) for sample in family.samples}


def test_labels_survive_quotes_backslashes_and_line_breaks():
    labels: dict[str, Any] = {"role": 'a "b"\\c\nd', "node": "höst{1}"}
    registry = CollectorRegistry()
    Metrics(registry=registry).watch(restless_election(), **labels)
    with serve_metrics(0, registry=registry) as server:
        found = samples_of(get(server.port))
    assert found["pgleaderlock_leader_is_leader", frozenset(labels.items())] == 0


def test_without_a_registry_the_global_one_is_served():
    with serve_metrics(0) as server:
        assert "python_info" in get(server.port)


def test_metrics_server_listens_on_the_loopback_interface_by_default():
    with serve_metrics(0) as server:
        assert get(server.port)
        with pytest.raises(OSError, match="refused"):
            get(server.port, host="127.0.0.2")


def test_a_closed_server_answers_no_more_frees_its_port_and_may_be_closed_again():
    server = serve_metrics(0, registry=CollectorRegistry())
    port = server.port
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        get(port)
    with serve_metrics(port, registry=CollectorRegistry()) as second:
        assert second.port == port


@pytest.mark.parametrize(("port", "error"), [(-1, ValueError), (65536, ValueError), ("8000", TypeError)])
def test_a_port_that_is_none_is_refused(port, error):
    with pytest.raises(error, match="port"):
        serve_metrics(port)


def test_an_empty_host_is_not_taken_for_every_address():
    with pytest.raises(ValueError, match="every address"):
        serve_metrics(0, "", CollectorRegistry())


def test_scrapes_and_events_at_once_lose_no_count():
    tally = Tally(LockState.STOPPED, 0.0)
    attempt = Event(EventKind.STATE_CHANGE, LockState.FOLLOWER, LockState.ACQUIRING, "acquire_attempt", 0.0)
    loss = Event(EventKind.LOST, LockState.LEADER, LockState.FOLLOWER, LossCause.UNKNOWN, 0.0)
    before, switch = sys.getswitchinterval(), threading.Event()
    sys.setswitchinterval(1e-6)

    def speak() -> None:
        switch.wait()
        for _ in range(2000):
            tally.hear(attempt)
            tally.hear(loss)

    threads = [threading.Thread(target=speak) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        switch.set()
        while any(thread.is_alive() for thread in threads):
            tally.read(0.0, leads=False)
    finally:
        sys.setswitchinterval(before)
    reading = tally.read(0.0, leads=False)
    assert (reading.elections, reading.losses[LossCause.UNKNOWN]) == (8000, 8000)


# --- The extra --------------------------------------------------------------------------------------------------------


def test_without_the_extra_the_error_says_what_to_install():
    wanted = r'prometheus_client: pip install "pgleaderlock\[metrics\]"'
    anew = ("pgleaderlock.ops.metrics",)
    with without_packages("prometheus_client", imported_anew=anew), pytest.raises(MissingExtra, match=wanted):
        importlib.import_module("pgleaderlock.ops.metrics")
