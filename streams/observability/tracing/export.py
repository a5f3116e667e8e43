"""Send spans to an OpenTelemetry receiver without ever blocking the process that reports them.

    take ──► BatchSpanProcessor of opentelemetry-sdk ──► OTLP over HTTP ──► <tracing.otlp_endpoint>/v1/traces
      └ queue full: dropped, counted                       └ refused, unreachable: dropped, counted

Spans get the ids of their records, so they are built as finished spans, without a TracerProvider. When the process
ends, queued spans get CLOSE_S.

Its packages come with the extra `tracing`: this module is imported only when an endpoint is set. The exporter's own
environment variables apply: OTEL_EXPORTER_OTLP_HEADERS (an access token), OTEL_EXPORTER_OTLP_CERTIFICATE,
OTEL_EXPORTER_OTLP_COMPRESSION, OTEL_RESOURCE_ATTRIBUTES.

OTLP over gRPC is not supported; a collector takes both.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from streams.egress.address_guard import require_host
from streams.files import program_version
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.observability.trace_context import Context
from streams.observability.tracing.spans import Span
from streams.settings.model import Settings, Tracing

BATCH_SPANS = 512
"""Maximum spans per request."""
DELAY_S = 1.0
"""Maximum wait of a span for others of its request."""
CLOSE_S = 3.0
"""Time limit of sending the queue when the process ends."""
PATH = "/v1/traces"

log = logging.getLogger("streamward.tracing")


class Exporter:
    """Sends spans in the background. Use as a context manager."""

    def __init__(self, settings: Settings, process: str, meter: Meter) -> None:
        rule = settings.tracing
        names = {
            "service.name": f"streamward-{process}",
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }
        run = {
            "rl.system": "streamward",
            "rl.system.version": program_version(),
            "rl.run.id": settings.topics.prefix.rstrip("."),
            "rl.model.name": settings.model.base,
        }
        self._resource = Resource.create({"service.namespace": "streamward", **names, **run})
        self._queue = _CountedQueue(rule, meter)
        self._processor = BatchSpanProcessor(
            self._queue,
            max_queue_size=rule.queue_spans,
            schedule_delay_millis=DELAY_S * 1000,
            max_export_batch_size=min(BATCH_SPANS, rule.queue_spans),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send queued spans, for at most CLOSE_S. The processor's own limit is 30 s, and cannot be set."""
        flush = threading.Thread(target=self._processor.shutdown, name="tracing-flush", daemon=True)
        flush.start()
        flush.join(CLOSE_S)
        self._queue.close()

    def take(self, span: Span) -> None:
        """Queue a span, or drop it if the queue is full. Never waits for more than a lock."""
        if self._queue.has_room():
            self._processor.on_end(_readable_span(span, self._resource))


class _CountedQueue:
    """The exporter that the processor calls. It counts queued spans, so that every dropped span is counted once."""

    def __init__(self, rule: Tracing, meter: Meter) -> None:
        url = rule.otlp_endpoint.rstrip("/")
        require_host(url, "tracing.otlp_endpoint")
        endpoint = url if url.endswith(PATH) else url + PATH
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=rule.timeout_s)
        self._meter, self._limit = meter, rule.queue_spans
        self._lock = threading.Lock()
        self._queued, self._closed = 0, False

    def has_room(self) -> bool:
        """Whether one more span fits. It is then counted as queued, otherwise as dropped."""
        with self._lock:
            if self._queued < self._limit and not self._closed:
                self._queued += 1
                return True
        self._meter.add(catalog.SPANS_DROPPED, "unsent" if self._closed else "queue_full")
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. Called by the processor, in its thread."""
        with self._lock:
            if self._closed:  # and counted
                return SpanExportResult.FAILURE
            self._queued -= len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception:  # after any error of a library, the next spans may succeed
            log.exception("%d spans cannot be sent", len(spans))
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._meter.add(catalog.SPANS_DROPPED, "refused", by=len(spans))
        return result

    def shutdown(self) -> None:
        """Called by the processor once all is sent: `close` does the rest."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Spans are sent when `export` returns."""
        return True

    def close(self) -> None:
        """Stop sending, and count the queued spans."""
        with self._lock:
            self._closed, left = True, self._queued
        self._exporter.shutdown()  # ends a retry under way
        if left:
            self._meter.add(catalog.SPANS_DROPPED, "unsent", by=left)
            log.info("%d spans were not sent before the end", left)


def _readable_span(span: Span, resource: Resource) -> ReadableSpan:
    attributes = dict(span.attributes)
    status = trace.Status(trace.StatusCode.UNSET)
    if span.error is not None:
        attributes["error.type"], status = span.error, trace.Status(trace.StatusCode.ERROR, span.error)
    return ReadableSpan(
        span.name,
        context=_span_context(span.trace.context, is_remote=False),
        parent=None if span.trace.parent is None else _span_context(span.trace.parent),
        resource=resource,
        attributes=attributes,
        links=[trace.Link(_span_context(link)) for link in span.trace.links],
        kind=trace.SpanKind[span.kind],
        status=status,
        start_time=_ns(span.began_ms),
        end_time=_ns(span.ended_ms),
        instrumentation_scope=InstrumentationScope("streamward"),
    )


def _span_context(context: Context, *, is_remote: bool = True) -> Any:
    flags = trace.TraceFlags(context.flags)
    return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags)


def _ns(ms: float) -> int:
    """Return milliseconds as nanoseconds, exact to the microsecond: a float holds no more of a time of today."""
    return round(ms * 1000) * 1000
