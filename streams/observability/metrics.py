"""The endpoints of a process: its metrics, its progress and its readiness.

    add, set, observe ──► Meter ──┬─► GET /metrics   text format 0.0.4 of Prometheus
    collect: called when scraped ─┘
    begin, heartbeat ─────────────► GET /healthz     200 while it makes progress; 503: the activity that takes too long
    ready, not_ready ─────────────► GET /readyz      200 while every condition holds; 503: the conditions that do not

A process has one Meter with its own registry of prometheus_client, created at its start and passed to all parts that
count: nothing here is global. Without metrics.port it is OFF, which counts and serves nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client as prometheus

from streams.errors import SettingsError
from streams.files import program_version
from streams.observability import catalog
from streams.observability.catalog import Metric
from streams.observability.http_server import Site, serve
from streams.settings.model import Settings

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4
MAX_SERIES = 200
"""Maximum series of one metric. Names of policies, sources and reasons come from events, which any producer may
write."""
OTHER = "other"
SCHEMA_REGISTRY = "schema_registry"
"""The condition of every process if schemas.registry_url is set."""

log = logging.getLogger("streamward.metrics")

Family = prometheus.Counter | prometheus.Gauge | prometheus.Histogram

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]


class Meter:
    """The numbers of one process, its progress, and its unmet conditions. Any thread may call it."""

    on = True
    """Whether metrics are served; costly values are computed only then."""

    def __init__(self, process: str, *, stuck_s: float = math.inf, waits_for: tuple[str, ...] = ()) -> None:
        """Begin as not ready: each of `waits_for` must be reported as ready first."""
        self._process, self._stuck_s = process, stuck_s
        self._lock = threading.RLock()
        self._registry = prometheus.CollectorRegistry()
        self._families: dict[str, Family] = {}
        self._series: dict[str, dict[tuple[str, ...], Any]] = {}
        self._collectors: list[Callable[[], None]] = []
        self._missing = dict.fromkeys(waits_for, "not yet")
        self._activity, self._within_s, self._began = "starting", stuck_s, time.monotonic()
        self._heartbeat_at = self._began

    # --- numbers ------------------------------------------------------------------------------------------------------

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter."""
        with self._lock:
            self._child(metric, labels).inc(by)

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Set a gauge; None removes the series.

        Of an info metric (`_info`), series that differ only in the last label, the version, replace each other.
        """
        with self._lock:
            if metric.name.endswith("_info"):
                series = self._series.get(metric.name, ())
                self._forget(metric, [old for old in series if old[:-1] == labels[:-1] and old != labels])
            if value is None:
                self._forget(metric, [labels] if labels in self._series.get(metric.name, ()) else [])
            else:
                self._child(metric, labels).set(value)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in its bucket of a histogram."""
        with self._lock:
            self._child(metric, labels).observe(value)

    def value(self, metric: Metric, *labels: str) -> float | None:
        """Return the value of a counter or gauge; None without such a series."""
        return self._registry.get_sample_value(metric.name, dict(zip(metric.labels, labels, strict=True)))

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        """Return one series of a metric. A family is registered by its first series: none is shown before it."""
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name}: got the labels {labels}, expected {metric.labels}")
        series = self._series.setdefault(metric.name, {})
        if labels in series:
            return series[labels]
        if metric.name not in self._families:
            self._families[metric.name] = _family(metric, self._registry)
        family = self._families[metric.name]
        if len(series) >= MAX_SERIES:
            labels = (OTHER,) * len(labels)
        return series.setdefault(labels, family.labels(*labels) if labels else family)

    def _forget(self, metric: Metric, unwanted: list[tuple[str, ...]]) -> None:
        for labels in unwanted:
            del self._series[metric.name][labels]
            self._families[metric.name].remove(*labels)

    def collect(self, report: Callable[[], None]) -> None:
        """Call `report` before each answer, in the server's thread: it sets values that only a scrape needs."""
        self._collectors.append(report)

    # --- progress and readiness ---------------------------------------------------------------------------------------

    def begin(self, activity: str, *, within_s: float | None = None) -> None:
        """Report a new activity. It may take `within_s` seconds (default and minimum: metrics.stuck_s)."""
        self._activity, self._within_s = activity, self._stuck_s if within_s is None else max(within_s, self._stuck_s)
        self._began = self._heartbeat_at = time.monotonic()

    def heartbeat(self) -> None:
        """Report that the current activity makes progress."""
        self._heartbeat_at = time.monotonic()

    def ready(self, condition: str) -> None:
        """Report that a condition of readiness holds."""
        self._missing[condition] = ""

    def not_ready(self, condition: str, reason: str) -> None:
        """Report why a condition of readiness does not hold."""
        self._missing[condition] = reason

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and body for a GET of `path`."""
        if path == "/metrics":
            return 200, self.text()
        if path == "/healthz":
            return self._health()
        if path == "/readyz":
            missing = [f"{condition}: {reason}" for condition, reason in list(self._missing.items()) if reason]
            return (503, "\n".join(missing) + "\n") if missing else (200, "ok\n")
        return 404, "there are /metrics, /healthz and /readyz\n"

    def _health(self) -> tuple[int, str]:
        now = time.monotonic()
        silent_s = now - self._heartbeat_at
        if silent_s <= self._within_s:
            return 200, f"ok: {self._activity}, for {now - self._began:.0f} s\n"
        return 503, (
            f"stuck: {self._activity}, for {now - self._began:.0f} s, of which the last {silent_s:.0f} s without "
            f"progress; {self._within_s:g} s are allowed. Its log says more; restart it, nothing is lost\n"
        )

    def text(self) -> str:
        """Return all metrics in the text format."""
        for report in self._collectors:
            try:
                report()
            except Exception as exc:  # e.g. a client that is being closed: no reason to hide the rest
                log.debug("a value is missing from this scrape: %r", exc)
                self.add(catalog.SCRAPE_ERRORS)
        if self._missing:
            self.set(catalog.PROGRESS, time.monotonic() - self._heartbeat_at)
        for condition, reason in list(self._missing.items()):
            self.set(catalog.READY, float(not reason), condition)
        with self._lock:
            return prometheus.generate_latest(self._registry).decode()


def _family(metric: Metric, registry: prometheus.CollectorRegistry) -> Family:
    match metric.kind:
        case "counter":
            return prometheus.Counter(metric.name, metric.about, metric.labels, registry=registry)
        case "gauge":
            return prometheus.Gauge(metric.name, metric.about, metric.labels, registry=registry)
        case "histogram":
            return prometheus.Histogram(
                metric.name, metric.about, metric.labels, registry=registry, buckets=metric.buckets
            )


class _MetricsOff(Meter):
    """A meter of a process without metrics."""

    on = False

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Count nothing."""

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Keep nothing."""

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count nothing."""

    def collect(self, report: Callable[[], None]) -> None:
        """Call nothing."""

    def begin(self, activity: str, *, within_s: float | None = None) -> None:
        """Keep nothing."""

    def heartbeat(self) -> None:
        """Keep nothing."""

    def ready(self, condition: str) -> None:
        """Keep nothing."""

    def not_ready(self, condition: str, reason: str) -> None:
        """Keep nothing."""


OFF = _MetricsOff("audit")
"""The meter of processes without metrics.port; it has no state, so all of them share it."""


@contextlib.contextmanager
def serve_meter(settings: Settings, process: str, *, waits_for: tuple[str, ...] = ("kafka",)) -> Iterator[Meter]:
    """Yield the meter of this process, and serve it while the block runs; OFF, and nothing served, if the port is 0.

    Raises SettingsError if the address is not free.
    """
    rule = settings.metrics
    if not rule.port:
        yield OFF
        return
    if settings.schemas.registry_url:
        waits_for = (*waits_for, SCHEMA_REGISTRY)
    meter = Meter(process, stuck_s=rule.stuck_s, waits_for=waits_for)
    meter.set(catalog.PROCESS, 1, process, program_version())
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(serve(Site(meter.answer, CONTENT_TYPE), rule.host, rule.port))
        except (OSError, OverflowError) as exc:
            raise SettingsError(
                f"metrics.host {rule.host}, metrics.port {rule.port}: {exc}. Name another address; each process of one "
                "machine needs its own port, and 0 serves nothing"
            ) from exc
        log.info("metrics at %s/metrics", url)
        yield meter
