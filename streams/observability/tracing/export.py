"""Send spans to an OpenTelemetry receiver, behind the back of whoever tells of them.

    take ──► queue, bounded ──► a thread ──► opentelemetry-sdk ──► OTLP over HTTP ──► <tracing.otlp_endpoint>/v1/traces
      └ full: dropped, counted     └ refused, unreachable: dropped, counted

The loop never waits for a receiver and never fails with one. Spans that wait when the process ends get CLOSE_S.

The packages are those of the extra `tracing`, imported only here and only when an endpoint is set. The exporter's own
environment variables hold: OTEL_EXPORTER_OTLP_HEADERS (an access token), OTEL_EXPORTER_OTLP_CERTIFICATE,
OTEL_EXPORTER_OTLP_COMPRESSION, OTEL_RESOURCE_ATTRIBUTES.

Not covered: OTLP over gRPC. A collector takes both.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from streams.errors import SettingsError
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.observability.tracing.context import Context
from streams.observability.tracing.spans import Span
from streams.settings.model import Tracing

AT_ONCE = 512
"""Most spans in one request."""
EVERY_S = 1.0
"""A span waits so long at most for others to be sent with."""
CLOSE_S = 3.0
"""For what is left when the process ends."""
PATH = "/v1/traces"

log = logging.getLogger("streamward.tracing")


class Exporter:
    """Sends spans from a thread of its own. Use as a context manager."""

    def __init__(self, rule: Tracing, process: str, meter: Meter) -> None:
        """Raises SettingsError if the packages of the extra `tracing` are missing."""
        self._meter, self._most = meter, rule.queue_spans
        self._sdk = _Sdk(rule, process)
        self._waiting: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._send, name="tracing", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        """Send what is left, as far as that takes no longer than CLOSE_S."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._sdk.close()  # ends a try that is under way
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            self._meter.add(catalog.SPANS_DROPPED, "unsent", by=left)
            log.info("%d spans were not sent before the end", left)

    def take(self, span: Span) -> None:
        """Put a span into the queue, or drop it if that is full. Never waits for more than a lock."""
        with self._changed:
            if len(self._waiting) < self._most:
                self._waiting.append(span)
                if len(self._waiting) == AT_ONCE:
                    self._changed.notify()
                return
        self._meter.add(catalog.SPANS_DROPPED, "queue_full")

    def _send(self) -> None:
        while spans := self._next():
            try:
                sent = self._sdk.export(spans)
            except Exception:  # whatever a library does, the next spans may fare better
                log.exception("%d spans cannot be sent", len(spans))
                sent = False
            if not sent:
                self._meter.add(catalog.SPANS_DROPPED, "refused", by=len(spans))

    def _next(self) -> list[Span]:
        """Return what is to be sent next, some time after there is something; nothing once all is sent at the end."""
        with self._changed:
            until = time.monotonic() + EVERY_S
            while not self._closing and len(self._waiting) < AT_ONCE:
                left_s = until - time.monotonic()
                if left_s <= 0 and self._waiting:
                    break
                self._changed.wait(max(left_s, 0) if self._waiting else EVERY_S)
            return [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]


class _Sdk:
    """The part of OpenTelemetry that is used: spans with ids given to them, an encoder, and HTTP with its retries."""

    def __init__(self, rule: Tracing, process: str) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider, id_generator, sampling
            from opentelemetry.sdk.trace.export import SpanExportResult
        except ImportError as exc:
            raise SettingsError(
                f"tracing.otlp_endpoint is {rule.otlp_endpoint}, and what sends spans is not installed ({exc}). "
                "Install the extra, streamward[tracing], or leave tracing.otlp_endpoint empty"
            ) from exc

        class Given(id_generator.IdGenerator):  # type: ignore[misc,unused-ignore]
            """Gives a span the ids that its record has."""

            context = Context("", "")

            def generate_span_id(self) -> int:
                return int(self.context.span_id, 16)

            def generate_trace_id(self) -> int:
                return int(self.context.trace_id, 16)

        class Collected(SpanProcessor):  # type: ignore[misc,unused-ignore]
            """Keeps the spans that ended."""

            def __init__(self) -> None:
                self.spans: list[Any] = []

            def on_end(self, span: Any) -> None:
                self.spans.append(span)

        self._trace, self._success, self._nothing = trace, SpanExportResult.SUCCESS, context.Context()
        self._ids, self._collected = Given(), Collected()
        own = {"service.name": f"streamward-{process}", "service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}
        self._provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,  # what is not sampled does not come here
            resource=Resource.create({"service.namespace": "streamward", **own}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(self._collected)
        self._tracer = self._provider.get_tracer("streamward")
        url = rule.otlp_endpoint.rstrip("/")
        self._exporter = OTLPSpanExporter(
            endpoint=url if url.endswith(PATH) else url + PATH, timeout=rule.timeout_s, headers=None
        )

    def export(self, spans: list[Span]) -> bool:
        """Return whether the receiver took them. Called in one thread only."""
        self._collected.spans = []
        for span in spans:
            self._end(span)
        return bool(self._exporter.export(self._collected.spans) is self._success)

    def close(self) -> None:
        self._exporter.shutdown()

    def _end(self, span: Span) -> None:
        trace = self._trace
        self._ids.context = span.context
        inside = self._nothing
        if span.parent is not None:
            inside = trace.set_span_in_context(trace.NonRecordingSpan(self._context(span.parent)), self._nothing)
        made = self._tracer.start_span(
            span.name,
            context=inside,
            kind=trace.SpanKind[span.kind],
            attributes=dict(span.attributes) | ({} if span.error is None else {"error.type": span.error}),
            links=[trace.Link(self._context(link)) for link in span.links],
            start_time=_ns(span.began_ms),
        )
        if span.error is not None:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.end(_ns(span.ended_ms))

    def _context(self, context: Context) -> Any:
        flags = self._trace.TraceFlags(context.flags)
        return self._trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, flags)


def _ns(ms: float) -> int:
    """Return milliseconds as nanoseconds, exact to the microsecond: a float holds no more of a time of today."""
    return round(ms * 1000) * 1000
