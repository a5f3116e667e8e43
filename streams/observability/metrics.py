"""What a process says of itself over HTTP: numbers, whether it comes on, and whether it is ready.

    add, set, observe ──► Meter ──┬─► GET /metrics   text format 0.0.4 of Prometheus
    collect: asked when scraped ──┘
    at, beat ─────────────────────► GET /healthz     200 while it comes on; 503: what it has been at for too long
    ready ────────────────────────► GET /readyz      200 while every condition holds; 503: those that do not

A process has one Meter, made where the process begins and handed to whoever has something to count: nothing here is
global. Without metrics.port that is OFF, which counts nothing and listens nowhere.

Not covered: TLS and access rights. It listens on the loopback address unless told otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import socketserver
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from streams.errors import SettingsError
from streams.observability import catalog
from streams.observability.catalog import Metric, Process
from streams.settings.model import Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 200
"""Of one metric. Names of policies, sources and reasons come from events, which anybody may write."""
OTHER = "other"
SCHEMA_REGISTRY = "schema_registry"
"""The condition of every process where schemas.registry_url is set."""
SLOW_CLIENT_S = 10.0
"""A client that says nothing for so long is let go."""

log = logging.getLogger("streamward.metrics")

Series = dict[tuple[str, ...], Any]
Answer = Callable[[str], tuple[int, str]]
"""Returns status and body for a GET of a path."""


class Meter:
    """The numbers of one process, its sign of life, and what it still waits for. Any thread may call it."""

    on = True
    """Whether anybody looks. What costs something to find out is asked for only then."""

    def __init__(self, process: Process, *, stuck_s: float = math.inf, waits_for: tuple[str, ...] = ()) -> None:
        """Begin as not ready: each of `waits_for` must be said to hold first."""
        self._process, self._stuck_s = process, stuck_s
        self._lock = threading.RLock()
        self._series: dict[str, Series] = {}
        self._collectors: list[Callable[[], None]] = []
        self._missing = dict.fromkeys(waits_for, "not yet")
        self._doing, self._within_s, self._since = "starting", stuck_s, time.monotonic()
        self._beat_at = self._since

    # --- numbers ------------------------------------------------------------------------------------------------------

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Count `by` more of a counter."""
        with self._lock:
            series, labels = self._place(metric, labels)
            series[labels] = series.get(labels, 0) + by

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Let a gauge have this value."""
        with self._lock:
            series, labels = self._place(metric, labels)
            series[labels] = value

    def only(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Let a gauge have this one series; none at all for None."""
        with self._lock:
            self._series.pop(metric.name, None)
            if value is not None:
                self.set(metric, value, *labels)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in its bucket of a histogram."""
        with self._lock:
            series, labels = self._place(metric, labels)
            if labels not in series:
                series[labels] = [[0] * (len(metric.buckets) + 1), 0.0]
            counts = series[labels]
            counts[0][bisect_left(metric.buckets, value)] += 1
            counts[1] += value

    def _place(self, metric: Metric, labels: tuple[str, ...]) -> tuple[Series, tuple[str, ...]]:
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name}: got the labels {labels}, expected {metric.labels}")
        series = self._series.setdefault(metric.name, {})
        if labels not in series and len(series) >= MOST_SERIES:
            return series, (OTHER,) * len(labels)
        return series, labels

    def collect(self, tell: Callable[[], None]) -> None:
        """Call `tell` before each answer, in the thread of the server: it sets what is only of interest then."""
        self._collectors.append(tell)

    # --- progress and readiness ---------------------------------------------------------------------------------------

    def at(self, what: str, *, within_s: float | None = None) -> None:
        """Say what begins now: a sign of life. It may take `within_s`, seconds; metrics.stuck_s if not given."""
        self._doing, self._within_s = what, self._stuck_s if within_s is None else max(within_s, self._stuck_s)
        self._since = self._beat_at = time.monotonic()

    def beat(self) -> None:
        """Say that it comes on with what it is at."""
        self._beat_at = time.monotonic()

    def ready(self, condition: str, why_not: str = "") -> None:
        """Say that a condition of readiness holds, or why it does not."""
        self._missing[condition] = why_not

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and body for a GET of `path`."""
        if path == "/metrics":
            return 200, self.text()
        if path == "/healthz":
            return self._health()
        if path == "/readyz":
            missing = [f"{condition}: {why}" for condition, why in self._missing.items() if why]
            return (503, "\n".join(missing) + "\n") if missing else (200, "ok\n")
        return 404, "there are /metrics, /healthz and /readyz\n"

    def _health(self) -> tuple[int, str]:
        now = time.monotonic()
        silent_s = now - self._beat_at
        if silent_s <= self._within_s:
            return 200, f"ok: {self._doing}, for {now - self._since:.0f} s\n"
        return 503, (
            f"stuck: {self._doing}, for {now - self._since:.0f} s, of which the last {silent_s:.0f} s without a sign "
            f"of life; {self._within_s:g} s are allowed. Its log says more; start it again, nothing is lost\n"
        )

    def text(self) -> str:
        """Return all metrics in the text format, in the order of the table."""
        for tell in self._collectors:
            try:
                tell()
            except Exception as exc:  # whatever a client says that is being closed: no reason to hide the rest
                log.debug("not told: %r", exc)
                self.add(catalog.SCRAPE_ERRORS)
        if self._missing:
            self.set(catalog.PROGRESS, time.monotonic() - self._beat_at)
        for condition, why in list(self._missing.items()):
            self.set(catalog.READY, float(not why), condition)
        with self._lock:
            lines = [line for metric in catalog.every() if metric.name in self._series for line in self._lines(metric)]
        return "".join(f"{line}\n" for line in lines)

    def _lines(self, metric: Metric) -> Iterator[str]:
        yield f"# HELP {metric.name} {metric.about}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for values, found in self._series[metric.name].items():
            labels = [f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, values, strict=True)]
            if metric.kind != "histogram":
                yield f"{metric.name}{_braces(labels)} {_number(found)}"
                continue
            counts, total, so_far = found[0], found[1], 0
            for bound, count in zip((*metric.buckets, math.inf), counts, strict=True):
                so_far += count
                within = f'le="{_number(bound)}"'
                yield f"{metric.name}_bucket{_braces([*labels, within])} {so_far}"
            yield f"{metric.name}_sum{_braces(labels)} {_number(total)}"
            yield f"{metric.name}_count{_braces(labels)} {so_far}"


class _MetricsOff(Meter):
    """A meter that nobody looks at."""

    on = False

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Count nothing."""

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep nothing."""

    def only(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Keep nothing."""

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count nothing."""

    def collect(self, tell: Callable[[], None]) -> None:
        """Ask nobody."""

    def at(self, what: str, *, within_s: float | None = None) -> None:
        """Listen to nothing."""

    def beat(self) -> None:
        """Listen to nothing."""

    def ready(self, condition: str, why_not: str = "") -> None:
        """Listen to nothing."""


OFF = _MetricsOff("audit")
"""For a process without metrics.port. It has no state, so all may share it."""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else str(int(value)) if float(value).is_integer() else repr(float(value))


def _braces(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _escaped(text: str) -> str:
    """Return the value of a label as the format wants it: anybody may write an event."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- the server -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(settings: Settings, process: Process, *, waits_for: tuple[str, ...] = ("kafka",)) -> Iterator[Meter]:
    """Yield the meter of this process, and serve it while the block runs; OFF, and nothing served, if the port is 0.

    Raises SettingsError if the address cannot be had.
    """
    rule = settings.metrics
    if not rule.port:
        yield OFF
        return
    if settings.schemas.registry_url:
        waits_for = (*waits_for, SCHEMA_REGISTRY)
    meter = Meter(process, stuck_s=rule.stuck_s, waits_for=waits_for)
    meter.set(catalog.PROCESS, 1, process, _version())
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(serve(meter.answer, rule.host, rule.port))
        except (OSError, OverflowError) as exc:
            raise SettingsError(
                f"metrics.host {rule.host}, metrics.port {rule.port}: {exc}. Name another address; each process of one "
                "machine needs a port of its own, and 0 serves nothing"
            ) from exc
        log.info("metrics at %s/metrics", url)
        yield meter


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("streamward")
    except metadata.PackageNotFoundError:
        return "unknown"


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name, as http.server would: that can take a minute."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away."""


@contextlib.contextmanager
def serve(answer: Answer, host: str, port: int) -> Iterator[str]:
    """Serve `answer` while the block runs, and yield the URL; port 0 takes any free one. Raises OSError if taken."""

    class Request(BaseHTTPRequestHandler):
        timeout = SLOW_CLIENT_S

        def do_GET(self) -> None:
            try:
                status, body = answer(self.path.partition("?")[0])
            except Exception:  # ours: whoever asks must not take it for a process that is gone
                log.exception("%s cannot be answered", self.path)
                status, body = 500, "see the log of this process\n"
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scrape is no news."""

    is_ipv6 = ":" in host
    kind = type("_Server6", (_MetricsServer,), {"address_family": socket.AF_INET6}) if is_ipv6 else _MetricsServer
    server = kind((host, port), Request)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if is_ipv6 else host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
