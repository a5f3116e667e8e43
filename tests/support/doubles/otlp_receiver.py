"""A receiver of traces: what a process sends to tracing.otlp_endpoint, as spans.

process ──► OTLP over HTTP ──► Receiver.spans
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    began_ns: int
    ended_ns: int
    failed: bool
    run: tuple[str, str, str]
    """System, run and model of its resource."""


@dataclass
class Receiver:
    """Where it listens, and what came so far."""

    url: str
    spans: list[Seen] = field(default_factory=list)
    requests: int = 0
    status: int = 200
    """What it answers."""
    open: threading.Event = field(default_factory=threading.Event)
    """It answers only while this is set."""

    def named(self, name: str) -> list[Seen]:
        return [span for span in list(self.spans) if span.name == name]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen while the block runs."""

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests += 1
            receiver.open.wait(300)
            if self.path == "/v1/traces" and receiver.status == 200:
                receiver.spans += spans_in(gzip.decompress(body) if "Content-Encoding" in self.headers else body)
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        receiver.open.set()
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.open.set()
            server.shutdown()
            thread.join()


def spans_in(body: bytes) -> list[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(
            service=_plain(resource.resource.attributes)["service.name"],
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            kind=span.kind,
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            attributes=_plain(span.attributes),
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
            failed=span.status.code == 2,
            run=_run(_plain(resource.resource.attributes)),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _run(resource: dict[str, Any]) -> tuple[str, str, str]:
    return resource["rl.system"], resource["rl.run.id"], resource["rl.model.name"]


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
