"""The trace that a new record continues, and, if tracing is on, the span of each record.

    record ──► of_headers ──► follows, joins ──► Trace ──► header of the new record
                                                   └────► report, once it is in the log ──► Span ──► export.py

A record is a span: it begins when the work on it began and ends when it is in the log, and its header names it. An
event with one cause continues its trace. An event with many causes (a batch) begins its own trace with links to theirs.
An iteration and the load of a version are spans without a record: report_loop, report_sync.

Without tracing.otlp_endpoint no span is sent and no trace begins: a record caused by one with a trace gets the same
header, unchanged, and all others none.

Of deliberate copies, those of a replay have no trace, and those of `admin dlq retry` keep their headers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, Response, Reward, Task
from streams.errors import SettingsError
from streams.observability import trace_context
from streams.observability.metrics import OFF as NO_METER, Meter
from streams.observability.trace_context import Context
from streams.observability.tracing.spans import Span, Trace as Trace, Value, loop_span, span_of, sync_span
from streams.settings.model import Settings

Traced = Task | Response | Reward | AdvantagedGroup | Batch | AdapterEvent


class TracedRecord(Protocol):
    """A record of the log."""

    @property
    def at(self) -> Coordinates:
        """Its coordinates."""

    @property
    def timestamp_ms(self) -> int:
        """The time of its write."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Its headers."""


def headers_of(trace: Trace | None) -> dict[str, bytes]:
    """Return the headers of a record with this trace, or without one."""
    return {} if trace is None else trace.headers


class Tracer:
    """Assigns events to traces, and reports their spans. Any thread may call it."""

    on = True
    """Whether spans are sent."""

    def __init__(self, settings: Settings, take: Callable[[Span], None]) -> None:
        """`take` gets each span; it must not block."""
        self._log, self._ratio, self._take = settings.topics.prefix, settings.tracing.sample_ratio, take

    # --- which trace --------------------------------------------------------------------------------------------------

    def of_task(self, task: Task, header: Context | None) -> Trace | None:
        """Return the trace of a task with this context in its record; without one, the trace that it begins."""
        return Trace(header) if header is not None else self.begins(task)

    def trace_of(self, task: Task, record: TracedRecord) -> Context | None:
        """Return the trace of a task that was read from `record`; if the trace begins here, report its span."""
        header = trace_context.of_headers(record.headers)
        trace = self.of_task(task, header)
        if header is None:
            self.report(task, trace, record.at, ended_ms=record.timestamp_ms)
        return None if trace is None else trace.context

    def begins(self, task: Task, outer: Context | None = None) -> Trace | None:
        """Return the trace of a task that is submitted within `outer`; the task's own traceparent comes first.

        Without either it begins one if its id is sampled, so that every process decides the same.
        """
        parent = trace_context.parse(task.traceparent) or outer
        if parent is not None:
            return self.follows(parent, task.task_id)
        return self._root(task)

    def follows(self, cause: Context | None, event_id: str) -> Trace | None:
        """Return the trace of an event with one cause, which has the context `cause` in its record."""
        return None if cause is None else Trace(trace_context.child(cause, event_id), cause)

    def joins(
        self, cause: Context | None, event_id: str, created_at: int, causes: Iterable[Context | None]
    ) -> Trace | None:
        """Return the trace of an event with many causes, the last of which has the context `cause`.

        It is sampled if one of theirs is.
        """
        links = tuple(dict.fromkeys(cause for cause in causes if cause is not None))
        if not links:
            return None
        sampled = any(link.sampled for link in links)
        return Trace(trace_context.beginning(self._log, event_id, created_at, sampled=sampled), None, links)

    def of_batch(self, batch: Batch, cause: Context | None, causes: Iterable[Context | None]) -> Trace | None:
        """Return the trace of a batch, as `joins`; its parent is the span of its iteration."""
        trace = self.joins(cause, batch.batch_id, batch.created_at, causes)
        return trace if trace is None or not self.on else trace._replace(parent=trace_context.loop_of(trace.context))

    def _root(self, task: Task) -> Trace | None:
        context = trace_context.beginning(self._log, task.task_id, task.created_at)
        return Trace(context) if trace_context.is_within(context, self._ratio) else None

    # --- reporting ----------------------------------------------------------------------------------------------------

    def report(
        self,
        event: Traced,
        trace: Trace | None,
        record: Coordinates,
        *,
        began_ms: float | None = None,
        ended_ms: float | None = None,
    ) -> None:
        """Report the span of `event` with the coordinates of its record. It ends now by default."""
        if trace is not None and trace.context.sampled:
            ended_ms = time.time() * 1000 if ended_ms is None else ended_ms
            self._take(span_of(event, trace, record, began_ms=began_ms, ended_ms=ended_ms))

    def on_ack(
        self, event: Traced, trace: Trace | None, *, began_ms: float | None = None
    ) -> Callable[[Coordinates], None] | None:
        """Return the callback that reports `event` once it is in the log; None if no span is sent."""
        if trace is None or not trace.context.sampled:
            return None
        return lambda record: self.report(event, trace, record, began_ms=began_ms)

    def report_loop(self, version: AdapterEvent, batch: Context | None, began_ms: float) -> None:
        """Report the iteration that made `version`: from its oldest group until now. `batch`: its batch's context."""
        if self.on and batch is not None and batch.sampled:
            self._take(loop_span(version, batch, began_ms=began_ms))

    def report_sync(
        self, announced: Context | None, attributes: Mapping[str, Value | None], began_ms: float, error: str | None
    ) -> None:
        """Report that this process has loaded a version, or why not. `announced`: the context of its event."""
        if self.on and announced is not None and announced.sampled:
            process = f"{socket.gethostname()}-{os.getpid()}"
            self._take(sync_span(announced, process, attributes, began_ms=began_ms, error=error))


class _TracingOff(Tracer):
    """Passes headers on unchanged, and sends nothing."""

    on = False

    def __init__(self) -> None:
        """Begin no trace."""

    def follows(self, cause: Context | None, event_id: str) -> Trace | None:
        return None if cause is None else Trace(cause)

    def joins(
        self, cause: Context | None, event_id: str, created_at: int, causes: Iterable[Context | None]
    ) -> Trace | None:
        return self.follows(cause, event_id)

    def _root(self, task: Task) -> Trace | None:
        return None

    def report(
        self,
        event: Traced,
        trace: Trace | None,
        record: Coordinates,
        *,
        began_ms: float | None = None,
        ended_ms: float | None = None,
    ) -> None:
        """Send nothing."""

    def on_ack(
        self, event: Traced, trace: Trace | None, *, began_ms: float | None = None
    ) -> Callable[[Coordinates], None] | None:
        return None


OFF = _TracingOff()
"""The tracer without tracing.otlp_endpoint."""


@contextlib.contextmanager
def open_tracer(settings: Settings, process: str, meter: Meter = NO_METER) -> Iterator[Tracer]:
    """Yield the tracer of this process, and send its spans while the block runs; OFF without an endpoint.

    Raises SettingsError if the packages for it are missing.
    """
    if not settings.tracing.otlp_endpoint:
        yield OFF
        return
    try:
        from streams.observability.tracing import export
    except ImportError as exc:
        raise SettingsError(
            f"tracing.otlp_endpoint is {settings.tracing.otlp_endpoint}, but the packages that send spans are missing: "
            f"{exc}. Install the extra, streamward[tracing], or leave tracing.otlp_endpoint empty"
        ) from exc
    with export.Exporter(settings, process, meter) as exporter:
        yield Tracer(settings, exporter.take)
