"""The metrics of a worker of training calls."""

from __future__ import annotations

from streams.observability.catalog import TIMES, Metric

WAITING = Metric(
    "streamward_calls_waiting_records",
    "gauge",
    (),
    "Training calls without a result, in the partitions of this process.",
    ("calls",),
)
DONE = Metric(
    "streamward_calls_done_total",
    "counter",
    ("kind", "outcome"),
    "Training calls that got a result: done, or whose fault it is that they failed (user, server).",
    ("calls",),
    "a training call",
)
SECONDS = Metric(
    "streamward_call_duration_seconds",
    "histogram",
    ("kind",),
    "Time that a training call took.",
    ("calls",),
    "a training call",
    TIMES,
)
METRICS = (WAITING, DONE, SECONDS)
