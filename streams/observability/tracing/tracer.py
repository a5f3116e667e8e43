"""Which trace a new record continues, and, if tracing is on, the span of each record.

    record ──► of_headers ──► follows, joins ──► Trace ──► header of what is written
                                                   └────► told, once it is in the log ──► Span ──► export.py

A record is a span: it begins when the work on it began and ends when it is in the log, and its header names it. What
has one cause continues its trace. What joins many (a batch) begins a trace of its own and links to theirs.

Without tracing.otlp_endpoint no span is sent and no trace begins: a record that follows from one with a trace gets the
same header, unchanged, and all others none.

Records that are copied on purpose: those of a replay have no trace, those of `dlq retry` keep their headers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, Response, Reward, Task
from streams.errors import SettingsError
from streams.observability.metrics import OFF as NO_METER, Meter
from streams.observability.tracing import context as trace_context
from streams.observability.tracing.context import Context
from streams.observability.tracing.spans import Span, Trace as Trace, span_of
from streams.settings.model import Settings

Traced = Task | Response | Reward | AdvantagedGroup | Batch | AdapterEvent


class TracedRecord(Protocol):
    """What is needed of a record of the log."""

    @property
    def at(self) -> Coordinates:
        """Where it is."""

    @property
    def timestamp_ms(self) -> int:
        """When it was written."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """As they were read."""


def headers_of(trace: Trace | None) -> dict[str, bytes]:
    """Return the headers of a record with this trace, or without one."""
    return {} if trace is None else trace.headers


class Tracer:
    """Knows which trace an event belongs to, and reports its span. Any thread may call it."""

    on = True
    """Whether spans are sent."""

    def __init__(self, settings: Settings, take: Callable[[Span], None]) -> None:
        """`take` gets each span; it must not block."""
        self._log, self._ratio, self._take = settings.topics.prefix, settings.tracing.sample_ratio, take

    # --- which trace --------------------------------------------------------------------------------------------------

    def of_task(self, task: Task, came: Context | None) -> Trace | None:
        """Return the trace of a task whose record came with `came`; without that, the one that it begins."""
        return Trace(came) if came is not None else self.begins(task)

    def taken(self, task: Task, record: TracedRecord) -> Context | None:
        """Return the trace of a task that was read from `record`; if the trace begins here, report its span."""
        came = trace_context.of_headers(record.headers)
        trace = self.of_task(task, came)
        if came is None:
            self.told(task, trace, record.at, ended_ms=record.timestamp_ms)
        return None if trace is None else trace.context

    def begins(self, task: Task, under: Context | None = None) -> Trace | None:
        """Return the trace of a task that is submitted under `under`; one that the task names itself comes first.

        Without either it begins one if its id is sampled, so that every process finds the same.
        """
        parent = trace_context.parse(task.traceparent) or under
        if parent is not None:
            return self.follows(parent, task.task_id)
        return self._root(task)

    def follows(self, came: Context | None, event_id: str) -> Trace | None:
        """Return the trace of an event that has one cause, whose record came with `came`."""
        return None if came is None else Trace(trace_context.child(came, event_id), came)

    def joins(
        self, came: Context | None, event_id: str, created_at: int, causes: Iterable[Context | None]
    ) -> Trace | None:
        """Return the trace of an event with many causes, of which the record at hand came with `came`.

        It is sampled if one of theirs is.
        """
        links = tuple(dict.fromkeys(cause for cause in causes if cause is not None))
        if not links:
            return None
        sampled = any(link.sampled for link in links)
        return Trace(trace_context.beginning(self._log, event_id, created_at, sampled=sampled), None, links)

    def _root(self, task: Task) -> Trace | None:
        context = trace_context.beginning(self._log, task.task_id, task.created_at)
        return Trace(context) if trace_context.is_within(context, self._ratio) else None

    # --- reporting ----------------------------------------------------------------------------------------------------

    def told(
        self,
        event: Traced,
        trace: Trace | None,
        at: Coordinates,
        *,
        began_ms: float | None = None,
        ended_ms: float | None = None,
    ) -> None:
        """Report the span of `event`, whose record is at `at`. It ends now by default."""
        if trace is not None and trace.context.sampled:
            ended_ms = time.time() * 1000 if ended_ms is None else ended_ms
            self._take(span_of(event, trace, at, began_ms=began_ms, ended_ms=ended_ms))

    def on_ack(
        self, event: Traced, trace: Trace | None, *, began_ms: float | None = None
    ) -> Callable[[Coordinates], None] | None:
        """Return what reports `event` once it is in the log; None if no span is sent."""
        if trace is None or not trace.context.sampled:
            return None
        return lambda at: self.told(event, trace, at, began_ms=began_ms)


class _TracingOff(Tracer):
    """Passes on what came, and sends nothing."""

    on = False

    def __init__(self) -> None:
        """No trace begins here."""

    def follows(self, came: Context | None, event_id: str) -> Trace | None:
        return None if came is None else Trace(came)

    def joins(
        self, came: Context | None, event_id: str, created_at: int, causes: Iterable[Context | None]
    ) -> Trace | None:
        return self.follows(came, event_id)

    def _root(self, task: Task) -> Trace | None:
        return None

    def told(
        self,
        event: Traced,
        trace: Trace | None,
        at: Coordinates,
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
"""Without tracing.otlp_endpoint."""


@contextlib.contextmanager
def opened(settings: Settings, process: str, meter: Meter = NO_METER) -> Iterator[Tracer]:
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
            f"tracing.otlp_endpoint is {settings.tracing.otlp_endpoint}, but what sends spans is not installed: {exc}. "
            "Install the extra, streamward[tracing], or leave tracing.otlp_endpoint empty"
        ) from exc
    with export.Exporter(settings.tracing, process, meter) as exporter:
        yield Tracer(settings, exporter.take)
