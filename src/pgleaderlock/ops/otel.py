"""Elections as metrics and spans of OpenTelemetry, beside or instead of Prometheus.

Needs ``pip install "pgleaderlock[otel]"``, which is the API alone: your program, or ``opentelemetry-instrument``,
brings the SDK and its exporters. Nothing is measured before :meth:`Telemetry.watch`.

    telemetry = Telemetry()
    telemetry.watch(lock, role="scheduler", node="host-1")

**Metrics** are those of :mod:`pgleaderlock.ops.metrics`, with the same meaning: ``pgleaderlock.leader.is_leader`` and
so on. What may change without an event is asked when the SDK collects; what happened is counted from the event stream.

**Spans**, each with the attributes ``role``, ``node`` and, where there is one, the fencing ``token``:

- ``pgleaderlock.term``: one term, from acquired to released, lost or stopped (``pgleaderlock.end``), with ``cause``. A
  loss has the status ERROR, with its error. Other errors, failed callbacks, failed work and overruns are events in it.
- ``pgleaderlock.acquire``: the attempt that succeeded; linked from its term.
- ``pgleaderlock.release`` and ``pgleaderlock.recover``, within the term: a release from its request to its end, and a
  grace period from the failure to the recovery or the loss.

What is not promised: a span is exported when it ends, so that of a long term comes late, and that of a process that is
killed never; ``acquire`` and the metrics show the term while it lasts. A hand-over is two traces, of two processes:
they have the ``role`` in common, and the ``token`` grows. Telemetry decides nothing.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.version import __version__
from pgleaderlock.engine.election import Election
from pgleaderlock.engine.fsm import Input
from pgleaderlock.errors import MissingExtra
from pgleaderlock.models import Event, EventKind
from pgleaderlock.ops._measures.definitions import LOSSES, MEASURES, RENEWALS, Measure, Measured, measure
from pgleaderlock.ops._measures.tally import BUCKETS_S, Tally

if TYPE_CHECKING:
    from pgleaderlock.sync._blocking import BlockingElection

try:
    from opentelemetry import metrics, trace
except ModuleNotFoundError as error:
    raise MissingExtra(f'telemetry needs the package {error.name}: pip install "pgleaderlock[otel]"') from error

__all__ = ["Telemetry", "WatchedGroup"]

_PREFIX = "pgleaderlock.leader."
_ENDS = {EventKind.RELEASED: "released", EventKind.LOST: "lost", EventKind.STOPPED: "stopped"}
_NOTED = (EventKind.ERROR, EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED, EventKind.OVERRUN, EventKind.RECOVERED)
_Attributes = Mapping[str, Any]


class WatchedGroup(Protocol):
    """The part of a :class:`~pgleaderlock.LeaderGroup` that is used here."""

    def items(self) -> Iterable[tuple[str, Election]]:
        """Return its roles, each with its name."""
        ...

    def on_renewed(self, fn: Callable[[float], object]) -> object:
        """Call ``fn(took_s)`` after each renewal."""
        ...


class Telemetry:
    """Metrics and spans of the elections that it watches, to the given providers or to the global ones.

    Make one for a process: the SDK takes an instrument of one name once.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._guard = threading.Lock()  # an exporter collects on a thread of its own
        self._tracer = trace.get_tracer("pgleaderlock", __version__, tracer_provider)
        meter = metrics.get_meter("pgleaderlock", __version__, meter_provider)
        for each in MEASURES:
            _create(meter, each, self._observe(each))
        name, meaning = LOSSES
        meter.create_observable_counter(f"{_PREFIX}{name}", [self._observe_losses], description=meaning)
        name, meaning = RENEWALS
        self._renewals = meter.create_histogram(
            f"{_PREFIX}{name}", "s", meaning, explicit_bucket_boundaries_advisory=BUCKETS_S
        )

    def watch(
        self, lock: "Election | BlockingElection[Any]", *, role: str, node: str, clock: Clock = suspend_aware_clock
    ) -> None:
        """Measure this election from now on. Best before its start: what happened earlier is not counted.

        ``clock`` is the election's own: give the same one here if it is not the default.
        """
        # Of the blocking API it is the election within; asked so, because an import of that API imports psycopg.
        election = lock if isinstance(lock, Election) else getattr(lock, "_engine", None)
        if not isinstance(election, Election):
            raise TypeError(f"lock must be a lock or an election, not {type(lock).__name__}: see watch_group")
        _check_text("role", role)
        _check_text("node", node)
        spans = _Spans(self._tracer, {"role": role, "node": node}, clock)
        watched = _Watched(election, clock, Tally(election.state, clock()), spans)
        with self._guard:
            if (role, node) in self._watched:
                raise ValueError(f"role {role!r} of node {node!r} is watched already: unwatch() it first")
            self._watched[role, node] = watched
        election.subscribe(lambda event: self._hear(watched, event))

    def watch_group(self, group: WatchedGroup, *, node: str, clock: Clock = suspend_aware_clock) -> None:
        """Measure every role of a group. One renewal is that of each role which is led here."""
        for name, election in group.items():
            self.watch(election, role=name, node=node, clock=clock)
        mine = [self._watched[name, node] for name, _ in group.items()]

        def renewed(took_s: float) -> None:
            for each in mine:
                if each.election.is_leader:
                    self._renewals.record(took_s, each.spans.labels)

        group.on_renewed(renewed)

    def unwatch(self, *, role: str, node: str) -> None:
        """Stop measuring this election. The span of a running term ends here."""
        with self._guard:
            watched = self._watched.pop((role, node), None)
        if watched is None:
            raise ValueError(f"role {role!r} of node {node!r} is not watched")
        watched.spans.close()

    def term_span(self, *, role: str, node: str) -> trace.Span | None:
        """Return the span of the running term, as the parent of your own spans; None when not leading."""
        with self._guard:
            watched = self._watched.get((role, node))
        return None if watched is None else watched.spans.term

    def _hear(self, watched: "_Watched", event: Event) -> None:
        if self._watched.get((watched.spans.labels["role"], watched.spans.labels["node"])) is not watched:
            return  # it was unwatched
        watched.tally.hear(event)
        if event.kind is EventKind.RENEWED and event.took_s is not None:
            self._renewals.record(event.took_s, watched.spans.labels)
        watched.spans.hear(event)

    def _read(self) -> list[tuple[_Attributes, Measured]]:
        with self._guard:
            watched = list(self._watched.values())
        return [(each.spans.labels, measure(each.election, each.clock, each.tally)) for each in watched]

    def _observe(self, of: Measure) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def observe(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            return [metrics.Observation(of.value(now), labels) for labels, now in self._read()]

        return observe

    def _observe_losses(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(count, {**labels, "cause": cause.value})
            for labels, now in self._read()
            for cause, count in now.reading.losses.items()
        ]


def _create(meter: metrics.Meter, of: Measure, observe: Any) -> None:
    create = meter.create_observable_gauge if of.kind == "gauge" else meter.create_observable_counter
    create(f"{_PREFIX}{of.name}", [observe], unit=of.unit, description=of.meaning)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty, not {value!r}")


class _Spans:
    """The spans of one election."""

    def __init__(self, tracer: trace.Tracer, labels: dict[str, str], clock: Clock) -> None:
        self.labels = labels
        self.term: trace.Span | None = None
        self._tracer = tracer
        self._clock = clock
        self._part: trace.Span | None = None  # of the term: its release, or its grace period
        self._attempted_at: int | None = None

    def hear(self, event: Event) -> None:
        at = self._wall_ns(event)
        if event.kind is EventKind.STATE_CHANGE:
            self._change(event, at)
        elif event.kind is EventKind.ACQUIRED:
            self._begin(event, at)
        elif event.kind in _NOTED and self.term is not None:
            self._note(event, at)
        if event.kind in _ENDS:
            self._end(event, at)

    def close(self) -> None:
        """End what is open."""
        self._end_part()
        if self.term is not None:
            self.term.end()
            self.term = None

    def _wall_ns(self, event: Event) -> int:
        """When it happened, as spans count: a listener may be notified late."""
        return time.time_ns() - int(max(0.0, self._clock() - event.at) * 1e9)

    def _change(self, event: Event, at: int) -> None:
        if event.cause == Input.ACQUIRE_ATTEMPT.value:
            self._attempted_at = at
        elif event.from_state.leads and event.to_state.is_in_term and self.term is not None:
            name = "recover" if event.to_state.is_recovering else "release"
            self._part = self._start(f"pgleaderlock.{name}", event, at, parent=self.term)

    def _begin(self, event: Event, at: int) -> None:
        attempt = self._start("pgleaderlock.acquire", event, self._attempted_at or at)
        attempt.end(at)
        self.term = self._start("pgleaderlock.term", event, at, link=attempt)

    def _note(self, event: Event, at: int) -> None:
        assert self.term is not None  # noqa: S101 - asked by the caller
        why = (
            {}
            if event.error is None
            else {"exception.type": type(event.error).__name__, "exception.message": str(event.error)}
        )
        self.term.add_event(event.kind.name.lower(), {"cause": event.cause, **why}, at)
        if event.kind is EventKind.RECOVERED:
            self._end_part(at)

    def _end(self, event: Event, at: int) -> None:
        """End the term with the first event that does; STOPPED follows the others."""
        self._end_part(at)
        if self.term is None:
            return
        self.term.set_attributes({"pgleaderlock.end": _ENDS[event.kind], "cause": str(event.cause)})
        if event.kind is EventKind.LOST:
            self.term.set_status(trace.Status(trace.StatusCode.ERROR, str(event.error or event.cause)))
        self.term.end(at)
        self.term = None

    def _end_part(self, at: int | None = None) -> None:
        if self._part is not None:
            self._part.end(at)
            self._part = None

    def _start(
        self, name: str, event: Event, at: int, *, parent: trace.Span | None = None, link: trace.Span | None = None
    ) -> trace.Span:
        """Start a span that is not within what the event loop happens to do: of its own trace, or of the parent's."""
        context = trace.set_span_in_context(trace.INVALID_SPAN if parent is None else parent)
        links = [] if link is None else [trace.Link(link.get_span_context())]
        token = {} if event.token is None else {"token": event.token}
        return self._tracer.start_span(name, context, links=links, attributes={**self.labels, **token}, start_time=at)


@dataclass(frozen=True, slots=True)
class _Watched:
    election: Election
    clock: Clock
    tally: Tally
    spans: _Spans
