"""Telemetry of real elections, read with the SDK's exporters in memory."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from pgleaderlock import Election, EventKind, LeaderLock, sync
from pgleaderlock.ops._measures.tally import BUCKETS_S
from pgleaderlock.ops.metrics import Metrics
from pgleaderlock.ops.otel import Telemetry
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.testing import lose_leadership
from tests.conftest import Postgres
from tests.support.doubles import ScriptedBackend, until

HERE: dict[str, Any] = {"role": "scheduler", "node": "host-1"}


@dataclass
class Collected:
    telemetry: Telemetry
    reader: InMemoryMetricReader
    exporter: InMemorySpanExporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"pgleaderlock.{name}"]

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        return {metric.name.removeprefix("pgleaderlock.leader."): list(metric.data.data_points) for metric in metrics}

    def value(self, name: str, **labels: str) -> float:
        (point,) = [each for each in self.points()[name] if dict(each.attributes) == {**HERE, **labels}]
        number: float = point.value
        return number


@pytest.fixture
def collected() -> Iterator[Collected]:
    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    yield Collected(Telemetry(meter_provider=meters, tracer_provider=tracers), reader, exporter)
    meters.shutdown()
    tracers.shutdown()


async def test_a_term_that_is_released_is_a_span_with_its_acquisition_and_its_release(
    postgres: Postgres, key: LockKey, collected: Collected
):
    lock = LeaderLock(postgres.dsn, key=key)
    collected.telemetry.watch(lock, **HERE)
    async with lock:
        await lock.wait_for_leadership()
        token = lock.token
        assert collected.telemetry.term_span(**HERE) is not None
        assert collected.value("is_leader") == 1
        (acquire,) = collected.spans("acquire")  # while the term lasts
        assert not collected.spans("term")
    (term,), (release,) = collected.spans("term"), collected.spans("release")
    assert term.attributes == {**HERE, "token": token, "pgleaderlock.end": "released", "cause": "release_succeeded"}
    assert term.status.status_code is StatusCode.UNSET
    assert [link.context for link in term.links] == [acquire.context]
    assert release.parent == term.context
    times = [acquire.start_time, acquire.end_time, release.start_time, release.end_time]
    assert times == sorted(times, key=lambda time: time or 0)
    assert (term.start_time, term.end_time) == (acquire.end_time, release.end_time)
    assert collected.telemetry.term_span(**HERE) is None
    assert collected.value("is_leader") == 0


async def test_a_loss_is_an_error_with_its_cause_and_the_next_term_another_trace(
    postgres: Postgres, key: LockKey, collected: Collected
):
    lock = LeaderLock(postgres.dsn, key=key)
    collected.telemetry.watch(lock, **HERE)
    async with lock:
        await lock.wait_for_leadership()
        await lose_leadership(lock)
        (term,) = collected.spans("term")
        assert term.status.status_code is StatusCode.ERROR
        assert term.attributes is not None
        assert (term.attributes["pgleaderlock.end"], term.attributes["cause"]) == ("lost", "session_terminated")
        assert "terminating connection due to administrator command" in str(term.status.description)
        assert collected.value("losses", cause="session_terminated") == 1
        await lock.wait_for_leadership()
    first, second = collected.spans("term")
    assert first.context is not None
    assert second.context is not None
    assert first.context.trace_id != second.context.trace_id
    assert first.attributes is not None
    assert second.attributes is not None
    assert int(str(first.attributes["token"])) < int(str(second.attributes["token"]))


async def test_a_recovery_within_the_grace_period_is_a_part_of_the_term(
    postgres: Postgres, key: LockKey, collected: Collected
):
    lock = LeaderLock(postgres.dsn, key=key, reconnect_grace_s=60)
    collected.telemetry.watch(lock, **HERE)
    async with lock:
        await lock.wait_for_leadership()
        assert (await lose_leadership(lock)).kind is EventKind.RECOVERED
    (term,), (recover,) = collected.spans("term"), collected.spans("recover")
    assert recover.parent == term.context
    assert [event.name for event in term.events] == ["error", "recovered"]
    assert term.status.status_code is StatusCode.UNSET


async def test_a_hand_over_is_two_traces_with_tokens_that_grow(postgres: Postgres, key: LockKey, collected: Collected):
    one, two = LeaderLock(postgres.dsn, key=key), LeaderLock(postgres.dsn, key=key)
    collected.telemetry.watch(one, role="scheduler", node="host-1")
    collected.telemetry.watch(two, role="scheduler", node="host-2")
    async with one:
        await one.wait_for_leadership()
        async with two:
            await one.step_down()
            await two.wait_for_leadership()
    ended: list[dict[str, Any]] = [dict(span.attributes or {}) for span in collected.spans("term")]
    assert [each["node"] for each in ended] == ["host-1", "host-2"]
    assert ended[0]["token"] < ended[1]["token"]


async def test_every_metric_has_the_value_that_prometheus_is_given(
    postgres: Postgres, key: LockKey, collected: Collected
):
    lock, registry = LeaderLock(postgres.dsn, key=key, health_interval_s=0.05), CollectorRegistry()
    Metrics(registry=registry).watch(lock, **HERE)
    collected.telemetry.watch(lock, **HERE)
    renewed = asyncio.Event()
    lock.subscribe(lambda event: renewed.set() if event.kind is EventKind.RENEWED else None)
    async with lock:
        await lock.wait_for_leadership()
        await renewed.wait()
        await lose_leadership(lock)
    points = collected.points()
    for family in registry.collect():
        name = family.name.removeprefix("pgleaderlock_leader_").removesuffix("_seconds")
        if family.name == "pgleaderlock_leader" or not family.name.startswith("pgleaderlock_leader"):
            continue  # the version, and what is of a registry
        if name == "renew":
            (point,) = points.pop(name)
            count = registry.get_sample_value("pgleaderlock_leader_renew_seconds_count", HERE)
            assert (point.count, tuple(point.explicit_bounds)) == (count, BUCKETS_S)
            assert point.count > 0
            continue
        theirs = {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        ours = {tuple(sorted(point.attributes.items())): point.value for point in points.pop(name)}
        assert ours == theirs, name
    assert points == {}


def test_a_lock_of_the_blocking_api_is_watched_too(postgres: Postgres, key: LockKey, collected: Collected):
    lock = sync.LeaderLock(postgres.dsn, key=key)
    collected.telemetry.watch(lock, **HERE)
    with lock:
        assert lock.wait_for_leadership(timeout_s=60)
    assert len(collected.spans("term")) == 1


async def test_an_unwatched_election_is_measured_no_more_and_its_span_has_ended(collected: Collected):
    lock = Election(ScriptedBackend())
    collected.telemetry.watch(lock, **HERE)
    async with lock:
        await lock.wait_for_leadership()
        collected.telemetry.unwatch(**HERE)
        assert len(collected.spans("term")) == 1
        collected.telemetry.watch(lock, **HERE)
    assert len(collected.spans("term")) == 1
    assert collected.value("elections") == 0
    with pytest.raises(ValueError, match="not watched"):
        collected.telemetry.unwatch(role="another", node="host-1")


def test_what_cannot_be_watched_is_refused(collected: Collected):
    lock = Election(ScriptedBackend())
    with pytest.raises(TypeError, match="not str"):
        collected.telemetry.watch("lock", **HERE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="role must be a text"):
        collected.telemetry.watch(lock, role="", node="host-1")
    collected.telemetry.watch(lock, **HERE)
    with pytest.raises(ValueError, match="watched already"):
        collected.telemetry.watch(lock, **HERE)


async def test_without_an_sdk_it_costs_nothing_and_changes_nothing(postgres: Postgres, key: LockKey):
    lock = LeaderLock(postgres.dsn, key=key)
    Telemetry().watch(lock, **HERE)
    async with lock:
        await lock.wait_for_leadership()
        await until(lambda: lock.is_leader)


def test_without_the_package_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from pgleaderlock.errors import MissingExtra\n"
        "try: import pgleaderlock.ops.otel\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install "pgleaderlock[otel]"' in done.stdout


def test_it_needs_neither_the_sdk_nor_prometheus_nor_psycopg():
    program = (
        "import sys, pgleaderlock.ops.otel\n"
        "print([name for name in ('opentelemetry.sdk', 'prometheus_client', 'psycopg') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
