"""Serve the result of the last recount over HTTP.

    Report ──► GET /metrics   as streams/observability/metrics.py has it
           └─► GET /healthz   200 while recounts succeed, else 503

There is no /readyz: nothing waits for an audit.
"""

from __future__ import annotations

import time

from streams.observability import catalog
from streams.observability.http_server import Site
from streams.observability.metrics import CONTENT_TYPE, Meter
from streams.tools.audit.report import CATEGORIES, Report

IMBALANCE = catalog.IMBALANCE.name
"""The gauge that must be 0."""


def text(report: Report, *, at_s: float) -> str:
    """Return the metrics of a report made at `at_s`, seconds since the epoch."""
    meter = Meter("audit")
    meter.set(catalog.IMBALANCE, report.imbalance)
    meter.set(catalog.IN_FLIGHT, sum(report.in_flight.values()))
    for category in CATEGORIES:
        found = report.of(category)
        for accounted in (True, False):
            count = sum(one.accounted is accounted for one in found)
            meter.set(catalog.FINDINGS, count, category, str(accounted).lower())
    for reason, count in sorted(report.refused_adapters.items()):
        meter.add(catalog.REFUSED_ADAPTERS, reason, by=count)
    meter.set(catalog.RECOUNTED, round(at_s, 3))
    return meter.text()


class Board:
    """The newest report."""

    def __init__(self, *, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._text = ""
        self._at = 0.0

    @property
    def site(self) -> Site:
        """What an HTTP server serves of it."""
        return Site(self.answer, CONTENT_TYPE)

    def put(self, report: Report) -> None:
        """Show this report from now on."""
        self._text, self._at = text(report, at_s=time.time()), time.monotonic()

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and body for a GET of `path`."""
        if path == "/metrics":
            return (200, self._text) if self._text else (503, "no recount yet\n")
        if path == "/healthz":
            is_fresh = bool(self._text) and time.monotonic() - self._at < self._fresh_s
            return (200, "ok\n") if is_fresh else (503, "no recount succeeded lately; see the log of this process\n")
        return 404, "there are /metrics and /healthz\n"
