"""The trace of a record: W3C Trace Context, in the header `traceparent` of records and HTTP requests.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version  trace id (16 bytes)        span id (8)      flags: 01 is sampled

The span id of a record is derived from the id of its event, and the id of a trace that begins here from the event that
began it. A process that writes the same event again after a crash therefore writes the same header, without any state.

A malformed header is ignored, and never an error (W3C Trace Context, sections 3.2 and 4.3). Of a header of a later
version than 00, the part that 00 defines is read, and passed on as 00.

`tracestate` and `baggage` are not passed on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

from streams.egress import within_trace

HEADER = "traceparent"
SAMPLED = 0x01
KNOWN_FLAGS = 0x03
"""Sampled, and (level 2) random: the others must be 0 in version 00."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_MAX_CHARS = 512
"""Longest header of any known version."""


class Context(NamedTuple):
    """A place in a trace: a span, and whether it is recorded."""

    trace_id: str
    """32 hexadecimal digits, not all 0."""
    span_id: str
    """16 hexadecimal digits, not all 0."""
    flags: int = SAMPLED

    @property
    def sampled(self) -> bool:
        """Whether its spans are sent."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The value of a header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & KNOWN_FLAGS:02x}"


def parse(traceparent: str | bytes | None) -> Context | None:
    """Return the context in a header, or None if it is malformed."""
    if traceparent is None or len(traceparent) > _MAX_CHARS:
        return None
    text = traceparent.decode("latin-1") if isinstance(traceparent, bytes) else traceparent
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, extension = match.groups()
    if version == "ff" or (version == "00" and extension is not None) or not (int(trace_id, 16) and int(span_id, 16)):
        return None
    return Context(trace_id, span_id, int(flags, 16) & KNOWN_FLAGS)


def of_headers(headers: Iterable[tuple[str, bytes | None]]) -> Context | None:
    """Return the context in the headers of a record; None without one, or if two differ."""
    values = {value for name, value in headers if name == HEADER}
    return parse(values.pop()) if len(values) == 1 else None


def headers_of(context: Context | None) -> dict[str, bytes]:
    """Return the headers of a record with this context."""
    return {} if context is None else {HEADER: context.traceparent.encode()}


def http_headers_of(context: Context | None) -> dict[str, str]:
    """Return the headers of an HTTP request sent in this context."""
    return {} if context is None else {HEADER: context.traceparent}


def sending(context: Context | None) -> AbstractContextManager[None]:
    """Send this context with each request to another server that the block makes (streams/egress)."""
    return within_trace(None if context is None else context.traceparent)


def child(parent: Context, event_id: str) -> Context:
    """Return the context of an event caused by the one of `parent`: in its trace, sampled if that is."""
    return parent._replace(span_id=span_id_of(event_id))


def loop_of(batch: Context) -> Context:
    """Return the context of the iteration of a batch: the root of the batch's trace. It is no record."""
    return child(batch, f"loop {batch.span_id}")


def beginning(log: str, event_id: str, created_at: int, *, sampled: bool = True) -> Context:
    """Return the context of an event that begins a trace.

    The same task has the same id in every log, so `log` (the prefix of its topics) and the time of the event tell its
    traces apart.
    """
    digest = hashlib.sha256("\x1f".join((log, event_id, str(created_at))).encode()).hexdigest()
    return Context(digest[:32], span_id_of(event_id), SAMPLED if sampled else 0)


def span_id_of(event_id: str) -> str:
    """Return the id of the span of an event: the first 8 bytes of the SHA-256 of the event's id."""
    return hashlib.sha256(event_id.encode()).hexdigest()[:16]


def is_within(context: Context, ratio: float) -> bool:
    """Whether a trace is among the share `ratio` that is sampled: the rule of OpenTelemetry's TraceIdRatioBased."""
    return int(context.trace_id[16:], 16) < round(ratio * 2**64)
