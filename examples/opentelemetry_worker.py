"""A worker whose terms are spans, and whose leadership is metrics, of OpenTelemetry.

PG_DSN=postgresql://localhost/app python examples/opentelemetry_worker.py

The exporters here print; yours are those of the SDK, or come with ``opentelemetry-instrument python ...``, where the
lines about providers are not needed.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from pgleaderlock import LeaderLock
from pgleaderlock.ops.otel import Telemetry


class PrintSpans(SpanExporter):
    """Prints the name of each span, and how a term ended."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Print them."""
        for span in spans:
            print("span", span.name, (span.attributes or {}).get("pgleaderlock.end", ""))
        return SpanExportResult.SUCCESS


async def main() -> None:
    """Lead for a moment."""
    tracers, reader = TracerProvider(), InMemoryMetricReader()
    tracers.add_span_processor(SimpleSpanProcessor(PrintSpans()))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))

    lock = LeaderLock(os.environ.get("PG_DSN", "postgresql://localhost/app"), role="examples/opentelemetry")
    telemetry = Telemetry()
    telemetry.watch(lock, role="scheduler", node="host-1")
    async with lock:
        await lock.wait_for_leadership()
        term = telemetry.term_span(role="scheduler", node="host-1") or trace.INVALID_SPAN
        with (
            trace.use_span(term, end_on_exit=False),
            trace.get_tracer("worker").start_as_current_span("one piece of work"),
        ):
            pass  # a child of the term's span
    data = reader.get_metrics_data()
    for metric in [
        each for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for each in s.metrics
    ]:
        print("metric", metric.name, metric.unit)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
